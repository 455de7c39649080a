"""The headers of a steered answer, and the log line of its request."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx
import pytest

from gateway.config import settings_from_dict
from gateway.steering.runs_of_transcript import ConversationFold
from steering_gateway_testing import AppServer, Fault, FaultKind, ScriptedUpstream
from steering_gateway_testing.agents import GUIDING, PLAIN, Agent, opening, worker
from steering_gateway_testing.processes import GatewayProcess
from steering_gateway_testing.recorded_agents import expected

Start = Callable[..., AppServer]
PREFIX = "x-gateway-"


def gateway_headers(headers: httpx.Headers) -> dict[str, str]:
    """The gateway's own headers of an answer."""
    return {k.removeprefix(PREFIX): v for k, v in headers.items() if k.startswith(PREFIX)}


async def test_every_header_of_a_steered_answer(
    gateway_server: Start, upstream: ScriptedUpstream, http: httpx.AsyncClient
) -> None:
    """A call with every kind of action: no header is missing, and every value is right."""
    upstream.default = worker(9)
    server = gateway_server({**GUIDING, "model_routing": {"NORMAL": "routed"}})
    agent = Agent(http, server.base_url)
    first, *_, last = await agent.run(4)
    assert gateway_headers(first.headers).keys() == {
        "conversation-id",
        "identity",
        "mode",
        "step",
        "state",
        "guidance",
        "model",
        "attempts",
        "overhead-ms",
    }
    given = gateway_headers(last.headers)
    assert given.keys() == gateway_headers(first.headers).keys() | {
        "difficulty",
        "monitors",
    }
    assert given["conversation-id"] == first.conversation
    assert (first.identity, given["identity"]) == ("new", "prefix")
    assert (given["mode"], given["step"], given["state"]) == ("on", "3", "NORMAL")
    fold = ConversationFold(settings_from_dict(GUIDING).policy())
    fold.extend(upstream.last.messages)
    assert last.place == expected(fold)
    assert given["monitors"] == "streak"
    guidance = given["guidance"].split(",")
    assert guidance[0] == "monitor:loop"
    assert all(name.startswith(("e1:", "e2:")) for name in guidance[1:])
    assert all(
        name.startswith("e3:") for name in gateway_headers(first.headers)["guidance"].split(",")
    )
    assert (given["model"], given["attempts"]) == ("routed", "1")
    assert 0 < float(given["overhead-ms"]) < 10_000


@pytest.mark.parametrize("stream", [None, True])
async def test_headers_do_not_depend_on_streaming(
    gateway_server: Start, upstream: ScriptedUpstream, http: httpx.AsyncClient, stream: bool | None
) -> None:
    """The same run has the same headers, streamed or not."""
    upstream.default = worker(9)
    agent = Agent(http, gateway_server(PLAIN).base_url, stream=stream)
    answers = await agent.run(4)
    assert [answer.place[:2] for answer in answers] == [
        ("0", "INIT"),
        ("1", "NORMAL"),
        ("2", "NORMAL"),
        ("3", "NORMAL"),
    ]
    assert {answer.status for answer in answers} == {200}


async def test_the_request_id(
    gateway_server: Start, upstream: ScriptedUpstream, http: httpx.AsyncClient
) -> None:
    """The client's id is kept; a call without one gets one."""
    agent = Agent(http, gateway_server(PLAIN).base_url)
    kept = await agent.send(headers={"x-request-id": "mine-1"})
    made = await agent.send()
    assert kept.headers["x-request-id"] == "mine-1"
    assert made.headers["x-request-id"]


async def test_an_error_of_the_provider_keeps_the_headers(
    gateway_server: Start, upstream: ScriptedUpstream, http: httpx.AsyncClient
) -> None:
    """A failed call has the headers of its conversation and step too, and is steered."""
    upstream.default = worker(9)
    agent = Agent(http, gateway_server(PLAIN).base_url)
    await agent.run(2)
    upstream.script(Fault(FaultKind.BAD_REQUEST))
    failed = await agent.send()
    assert failed.status == 400
    assert (failed.gateway("step"), failed.gateway("state")) == ("2", "NORMAL")


async def test_the_canonical_log_line(upstream: ScriptedUpstream, tmp_path: Path) -> None:
    """One line per request, with the results of steering and without any content."""
    upstream.default = worker(9)
    config: dict[str, Any] = {
        **GUIDING,
        "default_upstream": {"api_base": upstream.base_url},
        "model_routing": {"NORMAL": "routed"},
        "logging": {"level": "info", "format": "json"},
    }
    environment = {"GATEWAY_STEERING__MODE": "on", "GATEWAY_ETRACES__ENABLED": "true"}
    with GatewayProcess(tmp_path, json.dumps(config), env=environment) as gateway:
        async with httpx.AsyncClient(timeout=120) as http:
            agent = Agent(http, gateway.base_url, opening("A secret task."))
            answers = await agent.run(5, "a secret result")
    lines = gateway.events("request")
    assert len(lines) == 5
    line, answer = lines[3], gateway_headers(answers[3].headers)
    assert line["conversation"] == answer["conversation-id"]
    assert line["identity"] == "prefix"
    assert (line["mode"], line["step"], line["state"]) == ("on", 3, "NORMAL")
    assert line["difficulty"] == float(answer["difficulty"])
    assert line["fired"] == ["streak"]
    assert line["guidance"] == answer["guidance"]
    assert (line["model"], line["model_asked"]) == ("scripted", "routed")
    assert line["overhead_ms"] > 0
    assert line["upstream_request_id"] == answers[3].headers["x-request-id"]
    assert "monitor: cooling down" in lines[4]["reasons"]
    assert "secret" not in "".join(gateway.lines)
