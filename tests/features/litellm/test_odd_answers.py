"""The LiteLLM lane against every odd answer of `odd_answers`, in each dialect a client may speak.

The native lane relays such an answer to the byte; here it has to arrive with the same text, calls
and finish reason, or to be refused in words where a client of the native lane has nothing either.
"""

from __future__ import annotations

import asyncio
import itertools
import json
import re
from collections.abc import AsyncIterator
from typing import Any

import pytest
from msgspec import structs

from gateway.config import TimeoutSettings
from gateway.dialects import CHAT, MESSAGES, RESPONSES, Dialect
from gateway.errors import UpstreamFailure
from gateway.features.litellm.lane import LiteLLMLane
from steering_gateway_testing import Reply, ScriptedUpstream
from steering_gateway_testing.patience import ANSWER_S
from tests.examples import by_day
from tests.features.litellm.lane import a_lane, a_target
from tests.upstream.odd_answers import CASES, Case, View

PROVIDERS = {"groq": "chat", "openrouter": "chat", "hosted_vllm": "chat", "anthropic": "messages"}
CLIENTS = (CHAT, RESPONSES, MESSAGES)
SAID = [{"role": "user", "content": "hi"}]
TOOL: dict[str, Any] = {"name": "read", "description": "Read", "parameters": {"type": "object"}}
BODIES: dict[str, dict[str, Any]] = {
    "chat": {"messages": SAID, "tools": [{"type": "function", "function": TOOL}]},
    "responses": {"input": SAID, "tools": [{"type": "function", **TOOL}]},
    "messages": {
        "messages": SAID,
        "max_tokens": 64,
        "tools": [{"name": "read", "description": "Read", "input_schema": {"type": "object"}}],
    },
}


@pytest.fixture
async def lane() -> AsyncIterator[LiteLLMLane]:
    async with a_lane(TimeoutSettings(idle_s=120)) as made:
        await made.start()
        yield made


def a_client_of(dialect: Dialect, body: bytes, *, stream: bool) -> View:
    """The parts of an answer, as a client of the dialect puts them together."""
    if not stream:
        return VIEWS[dialect.name, False](json.loads(_shallow(body.decode())))
    data = [line[6:] for line in body.split(b"\n") if line.startswith(b"data: ")]
    return VIEWS[dialect.name, True]([json.loads(item) for item in data if item != b"[DONE]"])


def _of_chat(answer: Any) -> View:
    choice = answer["choices"][0]
    message = choice["message"]
    calls = message.get("tool_calls") or ()
    return _view(
        message.get("content"),
        [(call["function"]["name"], call["function"]["arguments"]) for call in calls],
        choice["finish_reason"],
    )


def _of_chunks(chunks: Any) -> View:
    calls: dict[int, tuple[str, str]] = {}
    text, finish = "", ""
    for chunk in chunks:
        for choice in chunk["choices"]:
            delta = choice["delta"]
            text += delta.get("content") or ""
            finish = choice["finish_reason"] or finish
            for call in delta.get("tool_calls") or ():
                name, arguments = calls.get(call["index"], ("", ""))
                function = call["function"]
                name += function.get("name") or ""
                calls[call["index"]] = (name, arguments + (function.get("arguments") or ""))
    return _view(text, list(calls.values()), finish)


def _of_response(answer: Any) -> View:
    text, calls = "", []
    for item in answer["output"]:
        if item["type"] == "message":
            text += "".join(part["text"] for part in item["content"])
        elif item["type"] == "function_call":
            calls.append((item["name"], item["arguments"]))
    finish = "tool_calls" if calls else "stop"
    if answer["status"] == "incomplete":
        reason = (answer.get("incomplete_details") or {}).get("reason")
        finish = "content_filter" if reason == "content_filter" else "length"
    return _view(text, calls, finish)


def _of_response_events(events: Any) -> View:
    last = events[-1]
    whole = _of_response(last["response"])
    text = "".join(e["delta"] for e in events if e["type"] == "response.output_text.delta")
    calls = [e for e in events if e["type"] == "response.output_item.done"]
    done = [e["item"] for e in calls if e["item"]["type"] == "function_call"]
    view = _view(text, [(item["name"], item["arguments"]) for item in done], whole.finish)
    assert (whole.text, whole.calls) == (view.text, view.calls), (whole, view)
    return view


_STOPS = {
    "tool_use": "tool_calls",
    "end_turn": "stop",
    "max_tokens": "length",
    "refusal": "content_filter",
}


def _of_message(answer: Any) -> View:
    blocks = answer["content"]
    text = "".join(block["text"] for block in blocks if block["type"] == "text")
    calls = [(b["name"], _dumped(b["input"])) for b in blocks if b["type"] == "tool_use"]
    return _view(text, calls, _STOPS.get(answer["stop_reason"], answer["stop_reason"]))


def _of_message_events(events: Any) -> View:
    blocks: dict[int | None, tuple[str, str]] = {}
    text, stop = "", ""
    for event in events:
        if event["type"] == "content_block_start" and event["content_block"]["type"] == "tool_use":
            blocks[event.get("index")] = (event["content_block"]["name"], "")
        elif event["type"] == "content_block_delta":
            delta = event["delta"]
            text += delta.get("text") or ""
            if "partial_json" in delta:
                name, arguments = blocks[event.get("index")]
                blocks[event.get("index")] = (name, arguments + delta["partial_json"])
        elif event["type"] == "message_delta":
            stop = event["delta"]["stop_reason"] or stop
    assert events[-1]["type"] == "message_stop"
    return _view(text, [(n, a or "{}") for n, a in blocks.values()], _STOPS.get(stop, stop))


def _dumped(value: Any) -> str:
    return json.dumps(value, separators=(",", ":"), ensure_ascii=False)


def _view(text: Any, calls: list[tuple[str, str]], finish: str) -> View:
    return View(
        text or "", tuple((name, _compact(said)) for name, said in calls), str(finish or "")
    )


def _shallow(text: str) -> str:
    """JSON without the depth of `nested`, which the parser of these tests does not reach."""
    return re.sub(r'(?:\{"a":){300,}1\}+', _depth, text)


def _depth(found: re.Match[str]) -> str:
    opened, closed = found[0].count("{"), found[0].count("}")
    return f'{{"depth":{opened}}}' + "}" * (closed - opened)


def _compact(arguments: str) -> str:
    """Arguments without the spaces in which forms differ; as they are if they are no JSON."""
    try:
        return _dumped(json.loads(_shallow(arguments)))
    except (ValueError, RecursionError):
        return arguments


VIEWS: dict[tuple[str, bool], Any] = {
    ("chat", False): _of_chat,
    ("chat", True): _of_chunks,
    ("responses", False): _of_response,
    ("responses", True): _of_response_events,
    ("messages", False): _of_message,
    ("messages", True): _of_message_events,
}


async def outcome(
    lane: LiteLLMLane,
    upstream: ScriptedUpstream,
    case: Case,
    provider: str,
    dialect: Dialect,
    *,
    stream: bool,
) -> str:
    """What is wrong with an answer of the lane; empty for nothing."""
    wire = PROVIDERS[provider]
    sent = case.sent(wire, stream=stream)
    upstream.default = Reply(
        raw=tuple(sent.body) if stream else b"".join(sent.body),
        content_type=sent.content_type,
        headers=sent.headers,
    )
    base = upstream.url if wire == "messages" else f"{upstream.url}/v1"
    dialects = frozenset({"chat"} if wire == "chat" else ())
    target = structs.replace(a_target(base, f"{provider}/m"), dialects=dialects)
    body = {"model": "m", "stream": stream, **BODIES[dialect.name]}
    got = b""
    try:
        async with asyncio.timeout(ANSWER_S):
            answer = await lane.send(target, body, [], dialect)
            async for part in answer:
                got += part
            await answer.aclose()
    except UpstreamFailure as exc:
        told = f"{exc.status} {exc.code}: {exc.message}"
        return "" if None in sent.views and len(exc.message) > 10 else f"failed {told}"
    except Exception as exc:
        return f"raised {exc!r:.300}"
    try:
        view = a_client_of(dialect, got, stream=stream)
    except Exception as exc:
        return f"unreadable {exc!r:.200} {got[-200:]!r}"
    wanted = {
        View(v.text, tuple((n, _compact(a)) for n, a in v.calls), v.finish)
        for v in sent.views
        if v is not None
    }
    return "" if view in wanted else f"differs {str(view)[:300]}"


Kind = tuple[str, Dialect, bool]
"""A provider, the dialect of the client, and whether the answer is a stream."""


def every_kind(case: Case) -> list[Kind]:
    """All kinds in which an answer of this case can be given."""
    given = [provider for provider, wire in PROVIDERS.items() if wire in case.wires]
    return list(itertools.product(given, CLIENTS, case.forms))


def one_kind(case: Case) -> Kind:
    """One kind for the case, another one for the next: they are spread over the odd answers."""
    number = CASES.index(case)
    given = [p for p in ("groq", "anthropic") if PROVIDERS[p] in case.wires]
    stream = case.forms[number % len(case.forms)]
    return given[number // 2 % len(given)], CLIENTS[number % len(CLIENTS)], stream


async def wrong_kinds(
    lane: LiteLLMLane, upstream: ScriptedUpstream, case: Case, kinds: list[Kind]
) -> dict[tuple[str, ...], str]:
    """What is wrong with the answers to a case, by its name and kind."""
    found = {
        (case.name, provider, dialect.name, "stream" if stream else "whole"): await outcome(
            lane, upstream, case, provider, dialect, stream=stream
        )
        for provider, dialect, stream in kinds
    }
    return {kind: text for kind, text in found.items() if text}


@pytest.mark.parametrize("group", by_day(sorted({case.group for case in CASES}), 6))
async def test_odd_answers_are_as_good_as_natively(
    lane: LiteLLMLane, upstream: ScriptedUpstream, group: str
) -> None:
    """Each case of a class in one kind."""
    wrong: dict[tuple[str, ...], str] = {}
    for case in CASES:
        if case.group == group:
            wrong |= await wrong_kinds(lane, upstream, case, [one_kind(case)])
    assert not wrong


@pytest.mark.nightly
@pytest.mark.parametrize("case", CASES, ids=lambda case: f"{case.group}: {case.name}")
async def test_an_odd_answer_of_every_kind_is_as_good_as_natively(
    lane: LiteLLMLane, upstream: ScriptedUpstream, case: Case
) -> None:
    """For all providers of each wire, in every dialect, whole and as a stream."""
    assert not await wrong_kinds(lane, upstream, case, every_kind(case))


def test_the_few_are_of_every_kind() -> None:
    """The quick form has each odd answer once, and all kinds but further providers of a wire."""
    chosen = {one_kind(case) for case in CASES}
    assert chosen == set(itertools.product(("groq", "anthropic"), CLIENTS, (False, True)))
