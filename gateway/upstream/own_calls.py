"""Calls that the gateway makes for itself: to a model of its own deployments, never steered."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import orjson

from gateway.dialects import CHAT
from gateway.upstream.deployments import Target
from gateway.upstream.dispatch import Dispatcher, UpstreamCall
from gateway.wire.coerce import as_text

_HEADERS = [(b"content-type", b"application/json"), (b"accept-encoding", b"identity")]
_OK = 200

Messages = Sequence[Mapping[str, Any]]


class ModelRefused(ValueError):
    """The answer is an error: nothing was generated."""


@dataclass(frozen=True, slots=True, kw_only=True)
class OwnAnswer:
    """A model's answer: its text, the usage that was reported, who gave it."""

    text: str
    usage: Mapping[str, Any] | None
    target: Target


async def ask(
    dispatcher: Dispatcher,
    model: str,
    messages: Messages,
    *,
    admits: Callable[[Target], Awaitable[bool]] | None = None,
) -> OwnAnswer:
    """Ask the model of that name, with nothing of any client's request.

    `admits`: whether a fallback may be asked; None: any may.

    Raises:
        UpstreamFailure: no deployment answered.
        ModelRefused: the answer is an error.
        ValueError, LookupError, TypeError: the answer is not a chat completion.
    """

    def parsed(target: Target) -> Mapping[str, Any]:
        own = target.params if target.lane == "native" else {}
        return {**own, "model": target.model or model, "messages": list(messages)}

    call = UpstreamCall(
        method="POST",
        path=CHAT.path,
        dialect=CHAT,
        headers=list(_HEADERS),
        body=lambda target: orjson.dumps(parsed(target)),
        parsed=parsed,
        admits=admits,
    )
    delivery = await dispatcher.send(call, model)
    response = delivery.response
    try:
        body = b"".join([chunk async for chunk in response])
    finally:
        await response.aclose()
    if response.status != _OK:
        raise ModelRefused(f"status {response.status}")
    completion = orjson.loads(body)
    content = completion["choices"][0]["message"]["content"]
    usage = response.usage or completion.get("usage")
    return OwnAnswer(text=as_text(content, ""), usage=usage, target=delivery.target)
