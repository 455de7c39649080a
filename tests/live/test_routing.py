"""Which model a live request is sent to, and what the response headers say about it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import httpx
import pytest

from steering_gateway_testing import AppServer, ReceivedRequest, ScriptedUpstream
from steering_gateway_testing.agents import PLAIN, Agent, opening, trace
from steering_gateway_testing.values import Fault, FaultKind, Reply, ToolCall

Start = Callable[..., AppServer]
# Scores by the reference's formula: 0.047 and 0.58 for the first two texts, 0.61 and more for the
# third.
EASY = "Reading."
HARD = "maybe the error in app.main fails because of a bug, wait, perhaps a broken problem, hmm"
FAST_AFTER, SLOW_AFTER = 6, 5


def thinking(*thoughts: str) -> Callable[[ReceivedRequest], Reply]:
    """A model with one thought per turn; the last one repeats."""

    def reply(request: ReceivedRequest) -> Reply:
        turn = sum(m.get("role") == "assistant" for m in request.messages)
        call = ToolCall("bash", {"command": f"step {turn}"}, id=f"call_{turn}")
        return Reply(thoughts[min(turn, len(thoughts) - 1)], tool_calls=(call,))

    return reply


BY_STATE = {**PLAIN, "routing": {"escalate_at_severity": 0}}
"""The state alone decides; the agent of these tests repeats itself all the time."""


def models(upstream: ScriptedUpstream) -> list[str]:
    return [request.model for request in upstream.requests]


def _of_routing(reasons: Sequence[str]) -> list[str]:
    """What the log says of the model."""
    return [reason for reason in reasons if reason.startswith("routing:")]


async def test_the_state_decides_the_model(
    gateway_server: Start, upstream: ScriptedUpstream, http: httpx.AsyncClient
) -> None:
    """Six easy steps take the small model, five hard ones the strong one, as mapped."""
    upstream.default = thinking(*[EASY] * 7, *[HARD] * 8)
    server = gateway_server({**BY_STATE, "model_routing": {"FAST": "small", "SLOW": "strong"}})
    answers = await Agent(http, server.base_url, model="usual").run(15)
    states = [answer.gateway("state") for answer in answers]
    assert states == ["INIT", *["NORMAL"] * 5, *["FAST"] * 2, *["NORMAL"] * 4, *["SLOW"] * 3]
    expected = {"FAST": "small", "SLOW": "strong"}
    assert models(upstream) == [expected.get(state or "", "usual") for state in states]
    assert [answer.gateway("model") for answer in answers] == models(upstream)


async def test_an_alarm_that_lasts_takes_the_strong_model_at_once(
    gateway_server: Start, upstream: ScriptedUpstream, http: httpx.AsyncClient
) -> None:
    """From its second step on, whatever the state says."""
    upstream.default = thinking(EASY)
    server = gateway_server({**PLAIN, "model_routing": {"SLOW": "strong"}})
    answers = await Agent(http, server.base_url, model="usual").run(6)
    assert "strong" in models(upstream)
    fired = [bool(answer.gateway("monitors")) for answer in answers]
    asked = [name == "strong" for name in models(upstream)]
    assert asked == [now and before for before, now in zip([False, *fired], fired, strict=False)]


async def test_the_provider_names_the_model_it_served(
    gateway_server: Start, upstream: ScriptedUpstream, http: httpx.AsyncClient
) -> None:
    """The answer's `model` is the provider's; the header names the requested model."""
    upstream.default = Reply("Hello.", model="usual-2026-01-01")
    server = gateway_server({**BY_STATE, "model_routing_by_model": {"usual": {"SLOW": "strong"}}})
    answer = await Agent(http, server.base_url, model="usual").send()
    assert answer.gateway("model") == "usual"
    assert b'"model":"usual-2026-01-01"' in answer.content


async def test_the_map_of_the_requested_model_wins(
    gateway_server: Start, upstream: ScriptedUpstream, http: httpx.AsyncClient
) -> None:
    """`model_routing_by_model` has priority over `model_routing` for its names."""
    upstream.default = thinking(EASY)
    routing = {
        "model_routing": {"FAST": "small"},
        "model_routing_by_model": {"big": {"FAST": "medium"}},
    }
    server = gateway_server({**BY_STATE, **routing})
    for requested, fast in (("big", "medium"), ("other", "small")):
        answers = await Agent(http, server.base_url, opening(requested), model=requested).run(8)
        assert answers[-1].gateway("model") == fast
        assert answers[0].gateway("model") == requested


async def test_a_model_that_cannot_serve_is_not_used(
    gateway_server: Start, upstream: ScriptedUpstream, http: httpx.AsyncClient, tmp_path: Path
) -> None:
    """SKIP's model supports no tools: SLOW's is used, and the run log has the reason."""
    upstream.default = thinking(HARD)
    path = tmp_path / "runs.db"
    deployments = [
        {
            "model_name": name,
            "litellm_params": {"model": f"openai/{name}", "api_base": upstream.base_url},
            "model_info": info,
        }
        for name, info in (
            ("no-tools", {"supports_function_calling": False}),
            ("short", {"supports_function_calling": True, "max_input_tokens": 20}),
            ("strong", {"supports_function_calling": True}),
        )
    ]
    settings = {
        **BY_STATE,
        "fsm": {"skip_window": 6, "skip_threshold": 0.6},
        "model_list": deployments,
        "storage": {"path": str(path)},
        "model_routing": {"SLOW": "strong", "SKIP": "no-tools"},
        "model_routing_by_model": {"modest": {"SLOW": "short"}},
    }
    server = gateway_server(settings)
    answers = await Agent(http, server.base_url, model="usual").run(8)
    assert [a.gateway("state") for a in answers[-2:]] == ["SKIP"] * 2
    assert [a.gateway("model") for a in answers[-3:]] == ["strong"] * 3
    steps = (await trace(path, answers[0].conversation)).steps
    assert steps[-1].call is not None
    assert _of_routing(steps[-1].call.reasons) == ["routing: no-tools not used: no tools"]
    answers = await Agent(http, server.base_url, opening("Be modest."), model="modest").run(6)
    assert answers[-1].gateway("model") == "modest"
    steps = (await trace(path, answers[0].conversation)).steps
    assert steps[-1].call is not None
    assert _of_routing(steps[-1].call.reasons) == ["routing: short not used: context of 20 tokens"]


async def test_a_model_is_kept_for_the_dwell(
    gateway_server: Start, upstream: ScriptedUpstream, http: httpx.AsyncClient, tmp_path: Path
) -> None:
    """With `min_dwell_steps` the strong model stays a while, also over a restart."""
    upstream.default = thinking(*[HARD] * 5, EASY)
    settings = {
        **BY_STATE,
        "model_routing": {"SLOW": "strong"},
        "routing": {**BY_STATE["routing"], "min_dwell_steps": 3},
        "storage": {"path": str(tmp_path / "runs.db")},
    }
    first = gateway_server(settings)
    agent = Agent(http, first.base_url, model="usual")
    before = await agent.run(7)
    await asyncio.to_thread(first.stop)
    agent.url = gateway_server(settings).base_url
    answers = [*before, *await agent.run(2)]
    assert [answer.gateway("state") for answer in answers[4:]] == [
        "NORMAL",
        "SLOW",
        *["NORMAL"] * 3,
    ]
    assert models(upstream)[4:] == ["usual", "strong", "strong", "strong", "usual"]


async def test_a_retry_gets_the_same_model(
    gateway_server: Start, upstream: ScriptedUpstream, http: httpx.AsyncClient, tmp_path: Path
) -> None:
    """A retry goes to the same model after a cut answer, a restart and a change of routes."""
    upstream.default = thinking(HARD)
    settings = {**BY_STATE, "storage": {"path": str(tmp_path / "runs.db")}}
    first = gateway_server({**settings, "model_routing": {"SLOW": "strong"}})
    agent = Agent(http, first.base_url, model="usual")
    await agent.run(5)
    upstream.script(Fault(FaultKind.DROP_MID_BODY))
    failed = await agent.send()
    again = await agent.send()
    await asyncio.to_thread(first.stop)
    agent.url = gateway_server({**settings, "model_routing": {"SLOW": "stronger"}}).base_url
    later = await agent.again()
    assert [failed.status, again.status, later.status] == [502, 200, 200]
    assert [again.identity, later.identity] == ["retry"] * 2
    assert {answer.place for answer in (failed, again, later)} == {failed.place}
    assert models(upstream)[-3:] == ["strong"] * 3


IMAGE = "aGVsbG8gd29ybGQ" * 20_000  # 300 kB, as a screenshot has


def tool_result(kind: str, image: object) -> dict[str, Any]:
    """The messages after a call in one dialect, with the result of a tool."""
    said = {"type": "text", "text": "Looking."}
    if kind == "messages":
        use = {"type": "tool_use", "id": "c1", "name": "look", "input": {}}
        result = {"type": "tool_result", "tool_use_id": "c1", "content": [image]}
        given = [
            {"role": "assistant", "content": [said, use]},
            {"role": "user", "content": [result]},
        ]
        return {"messages": [{"role": "user", "content": "Look."}, *given], "max_tokens": 9}
    if kind == "responses":
        asked = {"type": "function_call", "call_id": "c1", "name": "look", "arguments": "{}"}
        output = {"type": "function_call_output", "call_id": "c1", "output": [image]}
        return {"input": [{"role": "user", "content": "Look."}, asked, output]}
    function = {"name": "look", "arguments": "{}"}
    call = {"id": "c1", "type": "function", "function": function}
    given = [
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "c1", "content": [image]},
    ]
    return {"messages": [{"role": "user", "content": "Look."}, *given]}


SOURCE = {"type": "base64", "media_type": "image/png", "data": IMAGE}
URL = f"data:image/png;base64,{IMAGE}"


@pytest.mark.parametrize(
    ("kind", "path", "image"),
    [
        ("chat", "chat/completions", {"type": "image_url", "image_url": {"url": URL}}),
        ("responses", "responses", {"type": "input_image", "image_url": URL}),
        ("messages", "messages", {"type": "image", "source": SOURCE}),
    ],
)
async def test_an_image_needs_vision_and_its_bytes_are_not_text(
    gateway_server: Start,
    upstream: ScriptedUpstream,
    http: httpx.AsyncClient,
    kind: str,
    path: str,
    image: dict[str, Any],
) -> None:
    """A result with an image goes only to a model with vision, also when it is not the newest
    message; its 300 kB do not count as 75,000 tokens of text."""
    upstream.default = Reply("Looking on.")
    names = {"blind": {"supports_vision": False}, "seeing": {"supports_vision": True}}
    deployments = [
        {
            "model_name": name,
            "litellm_params": {
                "model": f"{'anthropic' if kind == 'messages' else 'openai'}/{name}",
                "api_base": upstream.base_url,
                "api_key": "sk-x",
            },
            "model_info": {**info, "max_input_tokens": 20_000},
        }
        for name, info in names.items()
    ]
    routes = {"one": {"NORMAL": "blind"}, "other": {"NORMAL": "seeing"}}
    settings = {**BY_STATE, "model_list": deployments, "model_routing_by_model": routes}
    server = gateway_server({**settings, "conversations": {"run_boundary": "never"}})
    body = tool_result(kind, image)
    asked = []
    for model in ("one", "other"):
        whole = {"model": model, **body}
        key = "input" if kind == "responses" else "messages"
        for _ in range(2):
            answer = await http.post(f"{server.base_url}/{path}", json=whole)
            asked.append((answer.headers["x-gateway-state"], answer.headers["x-gateway-model"]))
            said = {"role": "assistant", "content": "Looking on."}
            whole[key] = [*whole[key], said, {"role": "user", "content": "And?"}]
    assert asked == [("NORMAL", "one")] * 2 + [("NORMAL", "seeing")] * 2


async def test_a_conversation_keeps_its_deployment(
    gateway_server: Start, upstream: ScriptedUpstream, http: httpx.AsyncClient
) -> None:
    """All calls of one go to one of several deployments; several conversations use several."""
    upstream.default = thinking(EASY)
    deployments = [
        {
            "model_name": "usual",
            "litellm_params": {
                "model": "openai/x",
                "api_base": upstream.base_url,
                "api_key": f"key-{number}",
            },
        }
        for number in range(3)
    ]
    server = gateway_server({**BY_STATE, "model_list": deployments})
    kept = []
    for number in range(40):  # by chance the first few may be of one deployment
        upstream.requests.clear()
        await Agent(http, server.base_url, opening(f"Task {number}."), model="usual").run(5)
        keys = {request.header("authorization") for request in upstream.requests}
        assert len(upstream.requests) == 5
        assert len(keys) == 1
        kept.append(keys.pop())
        if len(set(kept)) > 1:
            break
    assert len(set(kept)) > 1
