"""An upstream refuses a request for the guidance in it: it gets what the client wrote."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx
import pytest

from gateway.core.guidance_text import FRAME_OPEN
from steering_gateway_testing import AppServer, ReceivedRequest, ScriptedUpstream
from steering_gateway_testing.agents import GUIDING, Agent, trace, worker
from steering_gateway_testing.values import Fault, FaultKind, Reply
from tests.live.test_refused_dialects import DIALECTS, ask, deployed

Start = Callable[..., AppServer]
GUIDED = FRAME_OPEN.lower().encode()
"""What each guidance begins with; no client of these tests writes it."""


def strict(answer: Callable[[ReceivedRequest], Any], status: int = 400) -> Callable[..., Any]:
    """A provider that refuses requests with guidance."""

    def reply(request: ReceivedRequest) -> Any:
        if GUIDED in request.body.lower():
            return Fault(FaultKind.BAD_REQUEST, status=status)
        return answer(request)

    return reply


@pytest.mark.parametrize("stream", [None, True])
@pytest.mark.parametrize("status", [400, 413, 422])
async def test_a_run_with_a_strict_provider_goes_to_its_end(
    status: int,
    stream: bool | None,
    gateway_server: Start,
    upstream: ScriptedUpstream,
    http: httpx.AsyncClient,
    tmp_path: Path,
) -> None:
    """The head and the end of the newest message are tried once each, with a call sent twice;
    each later call is sent once: the places are closed for the client."""
    upstream.default = strict(worker(4), status)
    path = tmp_path / "runs.db"
    server = gateway_server({**GUIDING, "storage": {"path": str(path)}})
    agent = Agent(http, server.base_url, stream=stream)
    answers = await agent.run(5)
    assert [answer.status for answer in answers] == [200] * 5
    assert [answer.gateway("attempts") for answer in answers] == ["2", "2", "1", "1", "1"]
    assert [answer.gateway("guidance") for answer in answers] == [None] * 5
    trace_of = await trace(path, answers[0].conversation)
    first = trace_of.steps[0].call
    assert first is not None
    assert "guidance: refused by the upstream" in " ".join(first.reasons)
    assert trace_of.injections == ()


async def test_other_programs_keep_their_guidance(
    gateway_server: Start, upstream: ScriptedUpstream, http: httpx.AsyncClient
) -> None:
    """What one client's requests do not take is still given to others."""
    refuses = strict(worker(2))
    upstream.default = lambda request: (
        refuses(request) if request.header("user-agent") == "picky" else worker(2)(request)
    )
    server = gateway_server(GUIDING)
    await Agent(http, server.base_url, headers={"user-agent": "picky"}).run(1)
    other = Agent(http, server.base_url, headers={"user-agent": "easy"})
    other.messages[1]["content"] = "Another task."
    (answer,) = await other.run(1)
    assert answer.gateway("guidance")


async def test_an_error_of_the_clients_own_request_is_the_clients(
    gateway_server: Start, upstream: ScriptedUpstream, http: httpx.AsyncClient
) -> None:
    """The upstream refuses it without guidance, too: nothing is closed, the answer is relayed."""
    upstream.default = lambda _: Fault(FaultKind.BAD_REQUEST, message="no such tool")
    server = gateway_server(GUIDING)
    answer = await Agent(http, server.base_url).send()
    assert answer.status == 400
    assert b"no such tool" in answer.content
    assert answer.gateway("attempts") == "2"
    upstream.default = worker(2)
    again = await Agent(http, server.base_url).send()
    assert again.gateway("guidance")


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # inside LiteLLM
@pytest.mark.parametrize("lane", ["native", "litellm"])
@pytest.mark.parametrize("path", DIALECTS)
async def test_in_every_dialect_and_lane(
    path: str, lane: str, gateway_server: Start, upstream: ScriptedUpstream, http: httpx.AsyncClient
) -> None:
    """The second sending has the client's messages and nothing of ours."""
    upstream.default = strict(lambda _: Reply("Here."))
    models = [deployed(upstream, "usual", "openai")] if lane == "litellm" else []
    server = gateway_server({**GUIDING, "model_list": models})
    answer = await ask(http, server.base_url, path, False, **DIALECTS[path]("Fix it.", 0))
    assert answer.status_code == 200
    sent = [GUIDED in request.body.lower() for request in upstream.requests]
    assert sent[0]
    assert not sent[-1]
