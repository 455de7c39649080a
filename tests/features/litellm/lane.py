"""What the tests of the LiteLLM lane share: targets, requests, and ways to read an answer."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from gateway.config import TimeoutSettings
from gateway.config.base_url import base_url
from gateway.features.litellm.lane import LiteLLMLane
from gateway.upstream.base import LaneResponse
from gateway.upstream.deployments import Target
from gateway.upstream.native import NativeLane
from steering_gateway_testing import ScriptedUpstream

KEY = "sk-ant-api03-not-a-real-key"
CLAUDE = "anthropic/claude-sonnet-4-5"

READ: dict[str, Any] = {
    "type": "function",
    "function": {
        "name": "read",
        "description": "Read a file",
        "parameters": {"type": "object", "properties": {"path": {"type": "string"}}},
    },
}


@asynccontextmanager
async def a_lane(limits: TimeoutSettings, **more: Any) -> AsyncIterator[LiteLLMLane]:
    """The lane over a pool of its own."""
    native = NativeLane(limits, max_connections=100)
    yield LiteLLMLane(native, limits, **more)
    await native.aclose()


def a_target(upstream: ScriptedUpstream | str, model: str = CLAUDE, **params: Any) -> Target:
    """A deployment of the LiteLLM lane that points at `upstream`."""
    base = upstream if isinstance(upstream, str) else upstream.url
    return Target(
        name="smart",
        lane="litellm",
        model=model.partition("/")[2],
        api_base=base_url(base),
        params={"model": model, "api_base": base, "api_key": KEY, **params},
    )


def a_body(text: str = "hi", **fields: Any) -> dict[str, Any]:
    """A chat request with one user message."""
    return {"model": "smart", "messages": [{"role": "user", "content": text}], **fields}


async def read_json(answer: LaneResponse) -> Any:
    """The body of a complete answer."""
    body = b"".join([part async for part in answer])
    await answer.aclose()
    return json.loads(body)


def events(body: bytes) -> list[Any]:
    """The chunks of an SSE body, its end marker as the text `[DONE]`."""
    assert body.endswith(b"\n\n")
    data = [line.removeprefix(b"data: ") for line in body.split(b"\n\n") if line]
    return [item.decode() if item == b"[DONE]" else json.loads(item) for item in data]


async def read_events(answer: LaneResponse) -> list[Any]:
    """The chunks of a streamed answer, as far as it goes; raises what the stream raises."""
    try:
        return events(b"".join([part async for part in answer]))
    finally:
        await answer.aclose()


def message_of(chunks: list[Any], choice: int = 0) -> dict[str, Any]:
    """The message a client joins from the deltas: strings add up, calls by index."""
    out: dict[str, Any] = {}
    calls: dict[int, dict[str, Any]] = {}
    for chunk in chunks:
        for part in chunk["choices"] if isinstance(chunk, dict) else ():
            if part["index"] == choice:
                _join(out, calls, part["delta"])
    if calls:
        out["tool_calls"] = [calls[index] for index in sorted(calls)]
    return out


def _join(out: dict[str, Any], calls: dict[int, dict[str, Any]], delta: dict[str, Any]) -> None:
    for key, value in delta.items():
        if key == "tool_calls":
            for call in value:
                known = calls.setdefault(call["index"], {"id": "", "name": "", "arguments": ""})
                known["id"] += call.get("id", "")
                known["name"] += call["function"].get("name", "")
                known["arguments"] += call["function"].get("arguments", "")
        elif isinstance(value, list):
            out.setdefault(key, []).extend(value)
        elif isinstance(value, dict):
            out.setdefault(key, {}).update(value)
        else:
            out[key] = out.get(key, "") + value


def finish_reasons(chunks: list[Any]) -> list[str]:
    """Every finish reason of a stream, in order."""
    return [
        choice["finish_reason"]
        for chunk in chunks
        if isinstance(chunk, dict)
        for choice in chunk["choices"]
        if choice["finish_reason"] is not None
    ]
