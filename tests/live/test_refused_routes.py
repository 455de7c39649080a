"""A model that the gateway chose refuses a call: the client's own model answers."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx
import pytest

from steering_gateway_testing import AppServer, Fault, FaultKind, ReceivedRequest, ScriptedUpstream
from steering_gateway_testing.agents import PLAIN, Agent, trace, worker
from tests.examples import by_day

Start = Callable[..., AppServer]
ROUTED = {**PLAIN, "model_routing": {"NORMAL": "routed"}}
SILENT_S = 3.0
"""How long a model that says nothing is waited for; on a busy machine the others need seconds."""
_PLAIN = (
    *(FaultKind.BAD_REQUEST, FaultKind.CONTEXT_LENGTH, FaultKind.UNAUTHORIZED),
    *(FaultKind.FORBIDDEN, FaultKind.NOT_FOUND, FaultKind.RATE_LIMIT, FaultKind.SERVER_ERROR),
    *(FaultKind.UNAVAILABLE, FaultKind.OVERLOADED, FaultKind.HTML_ERROR),
    FaultKind.DROP_BEFORE_RESPONSE,
)
REFUSALS = {kind.name.lower().replace("_", " "): Fault(kind) for kind in _PLAIN} | {
    "timed out there": Fault(FaultKind.BAD_REQUEST, status=408),
    "too large": Fault(FaultKind.BAD_REQUEST, status=413),
    "unprocessable": Fault(FaultKind.BAD_REQUEST, status=422),
    "redirect": Fault(FaultKind.SERVER_ERROR, status=302),
    "no status of HTTP": Fault(FaultKind.SERVER_ERROR, status=600),
    "silent": Fault(FaultKind.SLOW_FIRST_BYTE, delay_s=60),
}


def refusing(fault: Fault, steps: int = 6) -> Callable[[ReceivedRequest], Any]:
    """A provider that refuses the routed model, and serves any other."""
    answer = worker(steps)
    return lambda request: fault if request.model == "routed" else answer(request)


def models(upstream: ScriptedUpstream) -> list[str]:
    return [request.model for request in upstream.requests]


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("refusal", by_day(REFUSALS, 6))
async def test_the_requested_model_answers(
    refusal: str,
    stream: bool,
    gateway_server: Start,
    upstream: ScriptedUpstream,
    http: httpx.AsyncClient,
) -> None:
    """One upstream call more, the requested model's answer, and the headers say so."""
    upstream.default = refusing(REFUSALS[refusal])
    timeouts = {"first_byte_s": SILENT_S} if refusal == "silent" else {}
    server = gateway_server({**ROUTED, "timeouts": timeouts})
    agent = Agent(http, server.base_url, model="usual", stream=stream or None)
    first, second = await agent.run(2)
    assert (first.status, second.status) == (200, 200)
    assert models(upstream) == ["usual", "routed", "usual"]
    assert second.gateway("model") == "usual"
    assert second.gateway("attempts") == "2"
    assert second.message is not None


async def test_a_refused_model_rests(
    gateway_server: Start, upstream: ScriptedUpstream, http: httpx.AsyncClient, tmp_path: Path
) -> None:
    """It is not asked for `routing.rest_calls` calls of the conversation; the run log says why."""
    upstream.default = refusing(Fault(FaultKind.BAD_REQUEST), steps=9)
    path = tmp_path / "runs.db"
    server = gateway_server(
        {**ROUTED, "routing": {"rest_calls": 3}, "storage": {"path": str(path)}}
    )
    answers = await Agent(http, server.base_url, model="usual").run(7)
    rest = ["usual"] * 3
    assert models(upstream) == ["usual", "routed", *rest, "routed", *rest][: len(upstream.requests)]
    assert models(upstream).count("routed") == 2
    steps = (await trace(path, answers[0].conversation)).steps
    reasons = [" ".join(step.call.reasons) if step.call else "" for step in steps]
    assert "routing: routed refused: status 400" in reasons[1]
    assert "routed not used: it refused a call" in reasons[2]
    assert [step.call.attempts for step in steps if step.call][:3] == [1, 2, 1]
    assert {step.call.model_asked for step in steps if step.call} == {"usual"}


async def test_rest_survives_a_restart(
    gateway_server: Start, upstream: ScriptedUpstream, http: httpx.AsyncClient, tmp_path: Path
) -> None:
    """What refused is kept with the conversation."""
    upstream.default = refusing(Fault(FaultKind.NOT_FOUND), steps=9)
    config = {**ROUTED, "storage": {"path": str(tmp_path / "kept.db")}}
    first = gateway_server(config)
    agent = Agent(http, first.base_url, model="usual", headers={"x-session-id": "s"})
    await agent.run(2)
    first.stop()
    agent.url = gateway_server(config).base_url
    await agent.run(2)
    assert models(upstream).count("routed") == 1


async def test_an_error_of_the_requested_model_is_the_clients(
    gateway_server: Start, upstream: ScriptedUpstream, http: httpx.AsyncClient
) -> None:
    """When both refuse, the client gets what its own model said."""
    upstream.default = lambda request: Fault(
        FaultKind.BAD_REQUEST, message=f"no to {request.model}", status=422
    )
    server = gateway_server({**ROUTED, "model_routing": {"NORMAL": "routed"}})
    agent = Agent(http, server.base_url, model="usual")
    agent.messages += [
        {"role": "assistant", "content": "Looking.", "tool_calls": [_call("a")]},
        {"role": "tool", "tool_call_id": "a", "content": "ok"},
    ]
    answer = await agent.send()
    assert answer.status == 422
    assert b"no to usual" in answer.content
    assert models(upstream) == ["routed", "usual"]


def _call(id: str) -> dict[str, Any]:
    return {"id": id, "type": "function", "function": {"name": "bash", "arguments": "{}"}}
