"""Modes on, shadow and off: what is computed, recorded and sent to the provider."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx
import orjson
import pytest

from gateway.steering.experiments import MODES, ExperimentSettings, assign
from gateway.stores.traces import RunTrace
from steering_gateway_testing import AppServer, ScriptedUpstream
from steering_gateway_testing.agents import GUIDING, TOOLS, Agent, opening, trace, worker
from tests.examples import by_day

Start = Callable[..., AppServer]
ROUTING = {"model_routing": {"NORMAL": "routed"}}


@pytest.fixture
def database(tmp_path: Path) -> Path:
    return tmp_path / "runs.db"


def settings(database: Path, **sections: Any) -> dict[str, Any]:
    """Guidance and routing from the first scored step on."""
    return {**GUIDING, **ROUTING, "storage": {"path": str(database)}, **sections}


def mode_in_config(mode: str) -> dict[str, Any]:
    return {"steering": {**GUIDING["steering"], "mode": mode}}


def only_arm(arm: str) -> dict[str, Any]:
    return {"experiment": {"id": "trial", "arms": {arm: 1.0}}}


async def guided(agent: Agent, upstream: ScriptedUpstream) -> list[bool]:
    """Five turns of a streak; for each, whether the bytes to the provider were changed."""
    changed = []
    for _ in range(5):
        await agent.turn()
        changed.append(upstream.last.body != agent.sent)
    return changed


async def recorded(database: Path, agent: Agent) -> RunTrace:
    return await trace(database, (await agent.send()).conversation)


@pytest.mark.parametrize("stream", by_day([None, True], 1))
@pytest.mark.parametrize("way", ["header", "config", "arm"])
@pytest.mark.parametrize("mode", MODES)
async def test_a_mode_is_chosen_in_three_ways(
    gateway_server: Start,
    upstream: ScriptedUpstream,
    http: httpx.AsyncClient,
    database: Path,
    mode: str,
    way: str,
    stream: bool | None,
) -> None:
    """Shadow and off change no byte, on does; each is recorded with its mode."""
    upstream.default = worker(9)
    sections = {"header": {}, "config": mode_in_config(mode), "arm": only_arm(mode)}[way]
    server = gateway_server(settings(database, **sections))
    headers = {"x-gateway-mode": mode} if way == "header" else {}
    agent = Agent(http, server.base_url, headers=headers, stream=stream)
    changed = await guided(agent, upstream)
    assert changed == ([True] * 5 if mode == "on" else [False] * 5)
    answer = await agent.send()
    assert answer.gateway("mode") == mode
    assert answer.gateway("arm") == (mode if way == "arm" else None)
    assert answer.gateway("step") == "5"
    assert answer.gateway("model") == ("routed" if mode == "on" else "scripted")
    found = await trace(database, answer.conversation)
    assert found.run.mode == mode
    assert (found.run.experiment, found.run.arm) == (
        ("trial", mode) if way == "arm" else (None, None)
    )
    assert [step.difficulty is not None for step in found.steps] == [False, *[True] * 5]
    assert {row.applied for row in found.injections} == {
        "on": {True},
        "shadow": {False},
        "off": set(),
    }[mode]


async def test_shadow_decides_what_on_decides(
    gateway_server: Start, upstream: ScriptedUpstream, http: httpx.AsyncClient, database: Path
) -> None:
    """The record of a run in shadow mode has the guidance that mode on gives."""
    upstream.default = worker(9)
    server = gateway_server(settings(database))
    recorded_guidance = []
    for mode in ("on", "shadow"):
        headers = {"x-gateway-mode": mode, "x-conversation-id": mode}
        agent = Agent(http, server.base_url, headers=headers)
        await agent.run(6)
        found = await recorded(database, agent)
        recorded_guidance.append(
            [(row.step_index, row.source, row.pattern_id, row.text) for row in found.injections]
        )
    assert recorded_guidance[0] == recorded_guidance[1] != []


@pytest.mark.parametrize("mode", ["shadow", "off"])
async def test_not_a_byte_is_changed(
    gateway_server: Start, upstream: ScriptedUpstream, http: httpx.AsyncClient, mode: str
) -> None:
    """White space, number forms, key order, escapes and unknown fields reach the provider."""
    raw = (
        b' { "temperature" : 1.0, "seed": 18446744073709551617,"x_unknown":{"\\u00e9":[ ]},\r\n'
        b'"stream":false , "messages":[ {"role":"user","content":"h\\u00e9llo \\ud83d\\ude00"} ] ,'
        b'"model":"scripted","model":"scripted"}\n'
    )
    headers = {"x-gateway-mode": mode, "content-type": "application/json"}
    server = gateway_server({**GUIDING, "model_routing": {"NORMAL": "other"}})
    for _ in range(2):
        url = f"{server.base_url}/chat/completions"
        answer = await http.post(url, content=raw, headers=headers)
        assert answer.status_code == 200
        assert upstream.last.body == raw


@pytest.mark.parametrize("name", ["x-gateway-mode", "x-gateway-outcome"])
async def test_an_unknown_value_is_refused(
    gateway_server: Start, upstream: ScriptedUpstream, http: httpx.AsyncClient, name: str
) -> None:
    """A mistyped header is a 400 that names it, not a request in another mode."""
    answer = await Agent(http, gateway_server(GUIDING).base_url).send(headers={name: "of"})
    assert answer.status == 400
    error = orjson.loads(answer.content)["error"]
    assert error["param"] == name
    assert name in error["message"]
    assert error["type"] == "invalid_request_error"
    assert len(upstream.requests) == 0


async def test_a_unit_keeps_its_arm(
    gateway_server: Start, upstream: ScriptedUpstream, http: httpx.AsyncClient, database: Path
) -> None:
    """The unit named by the client decides the arm, in every conversation and for every call."""
    upstream.default = worker(3)
    arms = {"on": 1.0, "shadow": 1.0, "off": 1.0}
    server = gateway_server(settings(database, experiment={"id": "trial", "arms": arms}))
    experiment = ExperimentSettings(id="trial", arms=arms)
    for unit in ("task-1", "task-2", "task-3", "task-4", "task-5"):
        for attempt in range(2):
            agent = Agent(
                http,
                server.base_url,
                opening(f"{unit}, attempt {attempt}"),
                headers={"x-gateway-experiment-unit": unit},
            )
            answers = await agent.run(3)
            assert {a.gateway("mode") for a in answers} == {assign(experiment, unit)}
            run = (await trace(database, answers[0].conversation)).run
            assert (run.experiment, run.arm, run.unit) == ("trial", assign(experiment, unit), unit)


async def test_a_conversation_is_a_unit(
    gateway_server: Start, upstream: ScriptedUpstream, http: httpx.AsyncClient, database: Path
) -> None:
    """Without a named unit, the conversation's id is the unit; all its calls have the same arm."""
    upstream.default = worker(5)
    server = gateway_server(settings(database, experiment={"id": "trial"}))
    seen = set()
    for number in range(8):
        answers = await Agent(http, server.base_url, opening(str(number))).run(3)
        conversation = answers[0].conversation
        arm = assign(ExperimentSettings(id="trial"), conversation)
        assert {answer.gateway("mode") for answer in answers} == {arm}
        assert (await trace(database, conversation)).run.unit == conversation
        seen.add(arm)
    assert seen <= {"on", "off"}


async def test_a_request_may_leave_the_experiment(
    gateway_server: Start, upstream: ScriptedUpstream, http: httpx.AsyncClient, database: Path
) -> None:
    """A mode set by header is not an assigned arm, and is not recorded as one."""
    server = gateway_server(settings(database, **only_arm("off")))
    answer = await Agent(http, server.base_url).send(headers={"x-gateway-mode": "shadow"})
    run = (await trace(database, answer.conversation)).run
    assert (run.mode, run.experiment, run.arm, run.unit) == ("shadow", None, None, None)


async def test_an_outcome_by_header(
    gateway_server: Start, upstream: ScriptedUpstream, http: httpx.AsyncClient, database: Path
) -> None:
    """An outcome that the client reports is stored with the current run."""
    upstream.default = worker(2)
    agent = Agent(http, gateway_server(settings(database)).base_url)
    answers = await agent.run(2)
    assert (await trace(database, answers[0].conversation)).run.outcome is None
    await agent.send(headers={"x-gateway-outcome": "failure"})
    run = (await trace(database, answers[0].conversation)).run
    assert (run.outcome, run.outcome_source) == ("failure", "header")


async def test_headers_for_the_gateway_are_not_forwarded(
    gateway_server: Start, upstream: ScriptedUpstream, http: httpx.AsyncClient
) -> None:
    """Headers for the gateway are removed; the others reach the provider."""
    ours = {
        "x-conversation-id": "c-1",
        "x-gateway-mode": "shadow",
        "x-gateway-outcome": "success",
        "x-gateway-experiment-unit": "u",
        "x-gateway-key": "k",
    }
    theirs = {"x-session-id": "s-1", "openai-organization": "o", "x-request-id": "r-1"}
    agent = Agent(http, gateway_server(GUIDING).base_url, tools=TOOLS)
    await agent.send(headers={**ours, **theirs})
    assert [name for name in ours if upstream.last.header(name) is not None] == []
    assert {name: upstream.last.header(name) for name in theirs} == theirs
