"""Dialects that LiteLLM itself translates (Responses, Messages): its arguments and its answers."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from typing import Any

from gateway.dialects import RESPONSES, LiteLLMCall
from gateway.errors import UpstreamFailure
from gateway.upstream.base import RawHeaders, header
from gateway.upstream.deployments import Target
from gateway.upstream.litellm_lane import errors, request
from gateway.upstream.litellm_lane.answers import PrimedStream, encode
from gateway.upstream.litellm_lane.messages import copied
from gateway.upstream.litellm_lane.transport import ProviderCall

_ENVELOPE = frozenset({"model", "stream", "stream_options"})
_ENDS = (b"message_stop", b"response.completed", b"response.incomplete", b"response.failed")
# Of LiteLLM's events, several of which may be in one piece; no text of a model has a bare quote.
_END_EVENTS = tuple(mark for end in _ENDS for mark in (b"event: " + end, b'"type":"' + end + b'"'))
# LiteLLM ends its stream at the finish reason, before it reads `[DONE]`.
_OPENAI_ENDS = (b'"finish_reason":"', b'"finish_reason": "', *_ENDS[1:])
# LiteLLM would ask an `openai` deployment in Responses; this name makes it ask in chat completions.
_CHAT_ONLY_PROVIDER = "hosted_vllm"


def arguments(
    target: Target, body: Mapping[str, Any], call: LiteLLMCall
) -> tuple[dict[str, Any], tuple[str, ...]]:
    """The keyword arguments of one call, and the client's fields that are left out.

    Raises:
        UpstreamFailure: the request refers to a history that LiteLLM does not store.
    """
    for name in call.stored_history:
        if body.get(name):
            raise UpstreamFailure(
                f"{name} needs an upstream that keeps responses; send the items again",
                status=400,
                type="invalid_request_error",
                code="unsupported_parameter",
                param=name,
            )
    sent = {k: v for k, v in body.items() if v is not None and k not in _ENVELOPE}
    kwargs = request.of_deployment(target.params)
    kwargs.update(copied({k: v for k, v in sent.items() if k in call.fields}))
    if call.function == "aresponses" and not target.speaks(RESPONSES):
        kwargs["use_chat_completions_api"] = True
    return kwargs, tuple(k for k in sent if k not in call.fields)


def asked_as(target: Target, provider: str, model: str, name: str, call: LiteLLMCall) -> str:
    """The model name for LiteLLM, chosen so that it asks in a form that the upstream speaks."""
    by_messages = call.function == "anthropic_messages"
    if by_messages and provider == "openai" and not target.speaks(RESPONSES):
        return f"{_CHAT_ONLY_PROVIDER}/{name}"
    return model


def end_marks(provider: str, name: str, *, speaks_openai: bool) -> tuple[bytes, ...]:
    """Byte strings one of which the provider sends at the end of a turn; none if not known."""
    if provider == "anthropic":
        return _ENDS[:1]
    return _OPENAI_ENDS if speaks_openai else request.end_marks(provider, name)


def plain(answer: Any) -> Any:
    """LiteLLM's answer, or one of its events, as JSON values in the form of the API."""
    if not hasattr(answer, "model_dump"):
        return answer
    values = answer.model_dump(mode="json")
    for holder in (values, values.get("response") or {}):
        for item in holder.get("output") or ():
            _set_right(item)
    _set_right(values.get("item"))
    return values


def is_answer(answer: Any) -> bool:
    """Whether a whole answer has anything in it; an error of status 200 has not."""
    if not isinstance(answer, Mapping):
        return False
    return isinstance(answer.get("content"), list) or isinstance(answer.get("output"), list)


def _join_arguments(source: Any, event: Any) -> None:
    """Join the waiting deltas of a call's arguments to `event`, the first of them.

    LiteLLM cuts arguments into ten characters each: a megabyte took the event loop for minutes.
    """
    waiting = getattr(source, "_pending_tool_events", None)
    kind = getattr(event, "type", None)
    if not waiting or kind != "response.function_call_arguments.delta":
        return
    count = next(
        (
            at
            for at, later in enumerate(waiting)
            if later.type != kind or later.item_id != event.item_id
        ),
        len(waiting),
    )
    event.delta += "".join([later.delta for later in waiting[:count]])
    del waiting[:count]


def _set_right(item: Any) -> None:
    """Remove the role that LiteLLM gives to reasoning: with it, it would be read as a message."""
    if isinstance(item, dict) and item.get("type") == "reasoning":
        item.pop("role", None)
        item.setdefault("summary", [])
        for part in item.get("content") or ():
            part["type"] = "reasoning_text"


class TranslatedStream(PrimedStream):
    """The events of a translated stream, as bytes.

    LiteLLM ends its stream properly even when the provider's broke off. So its last event is held
    back unless the provider ended its turn.
    """

    def __init__(self, source: AsyncIterator[Any], call: ProviderCall, headers: RawHeaders) -> None:
        super().__init__(call, headers)
        self._source = source
        self._count = 0
        self._ended = False

    async def aclose(self) -> None:
        """End the call; if the provider is still sending, its connection is closed at once."""
        await self._call.close()
        if hasattr(self._source, "aclose"):
            await self._source.aclose()

    @property
    def _complete(self) -> bool:
        """Whether the provider ended its turn, or answered without a stream."""
        if self._call.events is not None:
            return self._call.ended
        streamed = b"event-stream" in header(self._call.headers, b"content-type")
        return self._call.ended or not streamed

    async def _next(self) -> bytes:
        try:
            event = await anext(self._source, None)
        except Exception as exc:
            if self._ended:
                return b""
            raise errors.failure(exc, self._call, streaming=True) from exc
        _join_arguments(self._source, event)
        out = b"" if event is None else self._encoded(event)
        if out.startswith(b"event: error"):
            # LiteLLM's own message; what the transport saw says more.
            broken = RuntimeError("the provider's stream broke off")
            raise errors.failure(broken, self._call, streaming=True)
        if event is None and not self._ended:
            raise errors.unfinished(self._call)
        if not self._ended and any(mark in out for mark in _END_EVENTS):
            self._ended = True
            if not self._complete:
                raise errors.unfinished(self._call)
        return out

    def _encoded(self, event: Any) -> bytes:
        if isinstance(event, bytes):
            return event
        payload = {**plain(event), "sequence_number": self._count}
        self._count += 1
        return b"event: %b\ndata: %b\n\n" % (str(payload["type"]).encode(), encode(payload))
