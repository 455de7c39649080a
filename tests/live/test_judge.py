"""The scorer `judge`: a model is asked about each new step, and its score is kept."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx
import orjson
import pytest

from steering_gateway_testing import AppServer, ReceivedRequest, ScriptedUpstream
from steering_gateway_testing.agents import PLAIN, Agent, trace, worker
from steering_gateway_testing.values import Fault, FaultKind, Reply
from tests.examples import by_day

Start = Callable[..., AppServer]
STEPS = 7


def settings(upstream: ScriptedUpstream, path: Path, **judge: Any) -> dict[str, Any]:
    """A judge of the same upstream, and a model for runs that it finds hard."""
    reached = {"model": "openai/judge", "api_base": upstream.base_url, "api_key": "sk-judge"}
    return {
        **PLAIN,
        "model_list": [{"model_name": "judge-of-mine", "litellm_params": reached}],
        "router": {"num_retries": 0},
        # A busy test machine may exceed the default time limits.
        "steering": {**PLAIN["steering"], "deadline_ms": 200_000, "max_wait_ms": 200_000},
        "difficulty": {
            "scorer": "judge",
            "judge": {"model": "judge-of-mine", "timeout_ms": 100_000, **judge},
        },
        "monitors": {},
        "model_routing": {"SLOW": "strong"},
        "storage": {"path": str(path)},
    }


def judging(*answers: str | Reply | Fault) -> Callable[[ReceivedRequest], Any]:
    """An agent's model, and a judge that gives these answers and then repeats the last one."""
    left = list(answers)
    agent = worker(30)

    def reply(request: ReceivedRequest) -> Any:
        if request.json["model"] != "judge":
            return agent(request)
        answer = left.pop(0) if len(left) > 1 else left[0]
        return Reply(answer) if isinstance(answer, str) else answer

    return reply


def asked(upstream: ScriptedUpstream) -> list[ReceivedRequest]:
    """The requests to the judge."""
    return [request for request in upstream.requests if request.json["model"] == "judge"]


async def results(http: httpx.AsyncClient, server: AppServer) -> dict[str, int]:
    """The results of the questions, from the metrics."""
    text = (await http.get(f"{server.url}/metrics")).text
    prefix = 'gateway_judged_steps_total{result="'
    lines = [line.removeprefix(prefix) for line in text.splitlines() if line.startswith(prefix)]
    return {name: round(float(n)) for name, n in (line.split('"} ') for line in lines)}


async def test_judged_scores_decide_and_are_kept(
    gateway_server: Start, upstream: ScriptedUpstream, http: httpx.AsyncClient, tmp_path: Path
) -> None:
    """Five hard scores route to SLOW's model, also after a restart without a judge to ask."""
    upstream.default = judging("0.9")
    path = tmp_path / "runs.db"
    first = gateway_server(settings(upstream, path))
    agent = Agent(http, first.base_url)
    answers = await agent.run(STEPS)
    assert [a.gateway("state") for a in answers[1:]] == [*["NORMAL"] * 4, *["SLOW"] * 2]
    assert [a.gateway("difficulty") for a in answers[1:]] == ["0.9000"] * 6
    assert [a.gateway("model") for a in answers] == [*["scripted"] * 5, *["strong"] * 2]
    assert await results(http, first) == {"judged": STEPS - 1}
    questions = [request.messages[-1]["content"] for request in asked(upstream)]
    assert len(questions) == len(set(questions)) == STEPS - 1
    assert "step 3" in questions[3]
    again = await agent.send()
    retried = await agent.again()
    assert (retried.identity, retried.place) == ("retry", again.place)
    assert len(asked(upstream)) == STEPS
    await asyncio.to_thread(first.stop)
    upstream.default = judging(Fault(FaultKind.SERVER_ERROR))
    second = gateway_server(settings(upstream, path))
    agent.url = second.base_url
    later = await agent.again()
    assert later.message is not None
    agent.take(later.message)
    assert later.place == again.place
    assert (await agent.turn()).gateway("difficulty") != "0.9000"
    assert await results(http, second) == {"error": 1}
    steps = (await trace(path, later.conversation)).steps
    assert [step.difficulty for step in steps[1 : STEPS + 1]] == [0.9] * STEPS
    assert steps[-1].call is not None
    assert "score: the ledger, none from the judge" in steps[-1].call.reasons


@pytest.mark.parametrize(
    ("answer", "result", "score"),
    by_day(
        [
            ("17", "clamped", "1.0000"),
            ("-3", "clamped", "0.0000"),
            ("NaN", "invalid", None),
            ("It is going well.", "invalid", None),
            ("", "invalid", None),
            (Fault(FaultKind.RATE_LIMIT), "error", None),
            (Reply("0.9", first_byte_delay_s=30), "timeout", None),
        ],
        3,
    ),
)
async def test_an_unusable_answer_leaves_the_ledgers_score(
    gateway_server: Start,
    upstream: ScriptedUpstream,
    http: httpx.AsyncClient,
    tmp_path: Path,
    answer: Any,
    result: str,
    score: str | None,
) -> None:
    """The call goes out, scored as without a judge, and the failure is counted."""
    upstream.default = judging(answer)
    limit = {"timeout_ms": 300} if result == "timeout" else {}
    server = gateway_server(settings(upstream, tmp_path / "runs.db", **limit))
    plain = {**PLAIN, "difficulty": {}, "monitors": {}}
    usual = (await Agent(http, gateway_server(plain).base_url).run(2))[-1]
    answers = await Agent(http, server.base_url).run(2)
    assert answers[-1].status == 200
    assert answers[-1].gateway("difficulty") == (score or usual.gateway("difficulty"))
    assert await results(http, server) == {result: 1}


async def test_the_same_question_is_asked_once(
    gateway_server: Start, upstream: ScriptedUpstream, http: httpx.AsyncClient, tmp_path: Path
) -> None:
    """Equal runs share an answer while it is in memory; in mode `off` the judge is not asked."""
    upstream.default = judging("0.3")
    server = gateway_server(settings(upstream, tmp_path / "runs.db"))
    for mode in ("on", "shadow", "off"):
        headers = {"x-conversation-id": mode, "x-gateway-mode": mode}
        answer = (await Agent(http, server.base_url, headers=headers).run(3))[-1]
        assert (answer.gateway("difficulty") == "0.3000") is (mode != "off")
    assert await results(http, server) == {"judged": 2, "cached": 2}


@pytest.mark.parametrize("lane", ["native", pytest.param("litellm", marks=pytest.mark.slow)])
async def test_the_judge_gets_nothing_of_the_client(
    gateway_server: Start,
    upstream: ScriptedUpstream,
    http: httpx.AsyncClient,
    tmp_path: Path,
    lane: str,
) -> None:
    """It gets its own key and a bounded text, but no key or header of the client."""
    upstream.default = judging("0.3")
    config = settings(upstream, tmp_path / "runs.db")
    config["model_list"][0]["lane"] = lane
    config["model_list"][0]["litellm_params"]["temperature"] = 0
    server = gateway_server(config)
    headers = {"authorization": "Bearer sk-client", "x-session-id": "s"}
    agent = Agent(http, server.base_url, headers=headers)
    answers = await agent.run(2, result="x" * 50_000)
    assert answers[-1].gateway("difficulty") == "0.3000"
    request = asked(upstream)[-1]
    assert request.json["temperature"] == 0
    assert request.header("authorization") == "Bearer sk-judge"
    assert request.header("x-session-id") is None
    assert len(orjson.dumps(request.json)) < 5_000
