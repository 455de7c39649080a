"""The effect of each state on live requests; quotations are from the reference documentation."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise
from pathlib import Path

import httpx
import pytest

from gateway.core.guidance_text import SKIP_DIRECTIVE
from steering_gateway_testing import AppServer, Reply, ScriptedUpstream
from steering_gateway_testing.agents import GUIDING, PLAIN, Agent, guidance_frames, trace
from tests.live.test_routing import EASY, HARD, thinking

Start = Callable[..., AppServer]


@pytest.fixture
def database(tmp_path: Path) -> Path:
    return tmp_path / "runs.db"


async def test_init_is_seen_at_step_0_only(
    gateway_server: Start, upstream: ScriptedUpstream, http: httpx.AsyncClient
) -> None:
    """`Transitions to NORMAL on the first scored step` (S0); step 0 shows INIT, no score (C6)."""
    upstream.default = thinking(HARD)
    first, second = await Agent(http, gateway_server(PLAIN).base_url).run(2)
    assert first.place == ("0", "INIT", None, None)
    assert second.place[:2] == ("1", "NORMAL")


async def test_fast_looks_nothing_up_and_still_watches(
    gateway_server: Start, upstream: ScriptedUpstream, http: httpx.AsyncClient, database: Path
) -> None:
    """`E-traces are skipped entirely` and `Monitors still run`, `every 5 steps` (S0, S3; C7)."""
    upstream.default = thinking(EASY)
    server = gateway_server({**GUIDING, "storage": {"path": str(database)}})
    answers = await Agent(http, server.base_url).run(18)
    fast = [n for n, answer in enumerate(answers) if answer.gateway("state") == "FAST"]
    assert fast == list(range(6, 18))
    assert all("streak" in (answers[n].gateway("monitors") or "") for n in fast)
    found = await trace(database, answers[0].conversation)
    for step in found.steps:
        assert step.call is not None
        skipped = "look-up: none in FAST" in step.call.reasons
        assert skipped == (step.step_index in fast)
    given = [row for row in found.injections if row.step_index in fast]
    assert {row.source for row in given} == {"monitor"}
    steps = [row.step_index for row in given]
    assert all(later - earlier >= 5 for earlier, later in pairwise(steps))


async def test_skip_gives_its_directive_until_the_final_answer(
    gateway_server: Start, upstream: ScriptedUpstream, http: httpx.AsyncClient, database: Path
) -> None:
    """`every subsequent step receives the skip injection until the agent produces a final answer`
    (S1; C2); the next run starts from INIT (C3)."""
    upstream.default = thinking(HARD)
    fsm = {"skip_window": 6, "skip_threshold": 0.6}
    server = gateway_server({**GUIDING, "fsm": fsm, "storage": {"path": str(database)}})
    agent = Agent(http, server.base_url)
    answers = await agent.run(9)
    states = [answer.gateway("state") for answer in answers]
    assert states == ["INIT", *["NORMAL"] * 4, "SLOW", *["SKIP"] * 3]
    directed = [
        any(SKIP_DIRECTIVE in frame for frame in guidance_frames(request.json))
        for request in upstream.requests
    ]
    assert directed == [state == "SKIP" for state in states]
    upstream.default = Reply("This is as far as I got.")
    final = await agent.turn()
    agent.messages.append({"role": "user", "content": "Then try the other one."})
    after = await agent.turn()
    frames = guidance_frames(upstream.requests[-2].json)
    assert any(SKIP_DIRECTIVE in frame for frame in frames)
    assert final.gateway("state") == "END"
    assert (after.gateway("step"), after.gateway("state")) == ("0", "END")
    assert not any(SKIP_DIRECTIVE in frame for frame in guidance_frames(upstream.last.json))
    first = await trace(database, final.conversation)
    assert (first.run.state, len(first.steps)) == ("END", 10)


async def test_a_run_is_frozen_once_it_has_ended(
    gateway_server: Start, upstream: ScriptedUpstream, http: httpx.AsyncClient, database: Path
) -> None:
    """`No further step scoring, E-trace retrieval, or injection occurs after this` (S1; C3)."""
    upstream.default = thinking(HARD, HARD, HARD)
    server = gateway_server({**GUIDING, "storage": {"path": str(database)}})
    agent = Agent(http, server.base_url)
    await agent.run(4)
    upstream.default = Reply("Done.")
    conversation = (await agent.turn()).conversation
    ended = await trace(database, conversation)
    agent.messages.append({"role": "user", "content": "Thanks. And the next thing?"})
    upstream.default = thinking(HARD)
    for _ in range(3):
        await agent.turn()
    again = await trace(database, conversation)
    assert again.run == ended.run
    assert again.steps == ended.steps
    assert again.injections == ended.injections
    following = await trace(database, conversation, 1)
    assert [step.step_index for step in following.steps] == [0, 1, 2]
    assert [step.state for step in following.steps] == ["INIT", "NORMAL", "NORMAL"]


async def test_a_conversation_may_be_one_run(
    gateway_server: Start, upstream: ScriptedUpstream, http: httpx.AsyncClient
) -> None:
    """With `run_boundary: never` a final answer does not end the run, and steps are counted on."""
    upstream.default = Reply("Here you are.")
    settings = {**PLAIN, "conversations": {"run_boundary": "never"}}
    agent = Agent(http, gateway_server(settings).base_url)
    answers = []
    for _ in range(3):
        answers.append(await agent.turn())
        agent.messages.append({"role": "user", "content": "More."})
    assert [answer.gateway("step") for answer in answers] == ["0", "1", "2"]


async def test_a_token_budget_changes_no_state(
    gateway_server: Start, upstream: ScriptedUpstream, http: httpx.AsyncClient
) -> None:
    """`It does not transition to SKIP or any other state based on token_budget` (S3; C23)."""
    upstream.default = thinking(HARD)
    steering = {**PLAIN["steering"], "token_budget": 1}
    budgets = [gateway_server(PLAIN), gateway_server({**PLAIN, "steering": steering})]
    places = [[a.place for a in await Agent(http, s.base_url).run(8)] for s in budgets]
    assert places[0] == places[1]


@pytest.mark.parametrize(
    ("threshold", "given_text"),
    [(0.2, True), (0.5, False)],
    ids=["above the threshold", "below it"],
)
async def test_a_monitor_text_comes_with_a_fire_or_a_high_composite(
    gateway_server: Start,
    upstream: ScriptedUpstream,
    http: httpx.AsyncClient,
    threshold: float,
    given_text: bool,
) -> None:
    """`fired or composite >= 0.35` (C13); here nothing can fire, and the threshold is changed."""
    upstream.default = thinking(EASY)
    settings = {
        **GUIDING,
        "monitors": {"suite": "reference", "fire_threshold": 1.0},
        "injection": {"monitor_composite": threshold},
        "etraces": {"enabled": False},
    }
    answers = await Agent(http, gateway_server(settings).base_url).run(5)
    assert {answer.gateway("monitors") for answer in answers[1:]} == {""}
    given = [answer.gateway("guidance") for answer in answers]
    assert ("monitor:loop" in given) is given_text
