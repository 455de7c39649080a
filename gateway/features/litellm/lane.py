"""The LiteLLM lane: calls to upstreams that do not speak the dialect of the client."""

import asyncio
import json
import os
import time
from abc import ABC, abstractmethod
from collections.abc import AsyncGenerator, AsyncIterator, Iterator, Mapping
from itertools import takewhile
from typing import Any, Self
from uuid import uuid4

import orjson

from gateway.config import TimeoutSettings
from gateway.config.base_url import base_url
from gateway.dialects import CHAT, Dialect
from gateway.errors import UpstreamFailure, UpstreamTimeout
from gateway.features.litellm import chunks, errors, request, sdk
from gateway.features.litellm.credential_hosts import Destination
from gateway.features.litellm.request import ENDS
from gateway.features.litellm.transport import SHORTEST_SECRET, ProviderCall, current_call
from gateway.tasks import loading, off_loop
from gateway.upstream import credentials
from gateway.upstream.base import LaneResponse
from gateway.upstream.deployments import Target
from gateway.upstream.native import NativeLane
from gateway.upstream.providers import keys_of_others, split_model
from gateway.upstream.translation import TranslatingLane
from gateway.values import FieldDict, Fields, Texts
from gateway.wire.coerce import mapping_at
from gateway.wire.headers import RawHeaders, end_to_end, header

# These describe the provider's bytes, and the client gets other ones.
_OF_THE_OTHER_BODY = frozenset(
    {b"content-length", b"content-type", b"content-encoding", b"etag", b"last-modified"}
    | {b"accept-ranges", b"vary", b"set-cookie", b"alt-svc", b"date", b"server", b"via"}
)
# Retries are the gateway's own. Tools of type `mcp` are the provider's to run; LiteLLM's handler of
# them is 15 MB and 0.6 s to load.
_FIXED = {"max_retries": 0, "num_retries": 0, "drop_params": True, "_skip_mcp_handler": True}
_SECRET_PARAMS = ("key", "secret", "token", "password", "credentials")


class LiteLLMLane(TranslatingLane):
    """Calls providers through `litellm.acompletion`, over the native lane's connections. LiteLLM is
    imported by `start()` or by the first call, in a thread."""

    def __init__(
        self,
        native: NativeLane,
        timeouts: TimeoutSettings,
        *,
        headers: Texts | None = None,
    ):
        self._native = native
        self._timeouts = timeouts
        self._headers = dict(headers or {})
        self._sdk: sdk.Sdk | None = None
        self._loading = asyncio.Lock()  # calls that wait for the import take no thread each

    async def start(self) -> None:
        """Import LiteLLM before the first call. Raises: ImportError: it is not installed."""
        async with self._loading:
            self._sdk = self._sdk or await loading(sdk.load)

    async def send(
        self, target: Target, body: Fields, headers: RawHeaders, dialect: Dialect = CHAT
    ) -> LaneResponse:
        """One call; the answer streams when the body says so, and then its first event is there.
        Raises: UpstreamFailure: in OpenAI's form, also where LiteLLM cannot be asked in the
        dialect."""
        if dialect.litellm is None:
            raise UpstreamFailure(
                f"the upstream of {target.name!r} does not speak {dialect.name}",
                status=404,
                type="invalid_request_error",
                code="not_found",
            )
        params = target.params
        base = params.get("api_base") or params.get("base_url")
        call = ProviderCall(
            send=self._native.send,
            to=Destination(base_host=base_url(str(base)).host if base else ""),
            translated=dialect.litellm.function != "acompletion",
            secrets={
                value
                for name, value in params.items()
                if isinstance(value, str)
                and len(value) >= SHORTEST_SECRET
                and any(part in name for part in _SECRET_PARAMS)
            },
        )
        token = current_call.set(call)
        limit = asyncio.timeout(_limit_s(params, streaming=bool(body.get("stream"))))
        try:
            if self._sdk is None:
                await self.start()
            assert self._sdk is not None
            async with limit:
                return await self._ask(
                    self._sdk, dialect, target, body=body, headers=headers, call=call
                )
        except Exception as exc:
            await call.close()
            if limit.expired():
                raise UpstreamTimeout("no answer within litellm_params.timeout") from exc
            raise errors.failure(exc, call) from exc
        except BaseException:
            await call.close()
            raise
        finally:
            current_call.reset(token)

    async def _ask(
        self,
        loaded: sdk.Sdk,
        dialect: Dialect,
        target: Target,
        body: Fields,
        headers: RawHeaders,
        call: ProviderCall,
    ) -> LaneResponse:
        """A call by LiteLLM's function for the dialect."""
        streaming = bool(body.get("stream"))
        prefix, model = split_model(str(target.params["model"]))
        model = f"{prefix}/{model}" if prefix else model  # as LiteLLM names it
        provider, name = loaded.split(model, target.params)
        call.to.provider = provider
        call.to.withheld = keys_of_others(provider, target.params, os.environ)
        translated = None
        if call.translated:
            translated = dialect.litellm
        openai = loaded.speaks_openai(provider)
        if translated is not None:
            kwargs, dropped = request.translated_arguments(
                target, body, translated, provider=provider, name=name
            )
        else:
            kwargs, dropped = request.prepare(
                body,
                target.params,
                provider=provider,
                supported=loaded.supported(provider, name),
                speaks_openai=openai,
            )
        if streaming:
            call.end_marks = request.end_marks(
                provider, name, translated=call.translated, speaks_openai=openai
            )
            if not call.translated:
                kwargs["stream_options"] = {"include_usage": True}
        if not kwargs.get("api_key"):
            operators = credentials.operator_key(target)
            key = operators or credentials.client_key(headers, target, dialect.api)
            if key is not None:  # else LiteLLM looks for the provider's own variable
                kwargs["api_key"] = key
        asked = kwargs.setdefault("model", model)
        if call.translated:
            messages = []
        else:
            messages = kwargs["messages"]
        kwargs |= _FIXED | {
            "stream": streaming,
            "timeout": self._timeouts.first_byte_s or None,
            "extra_headers": request.extra_headers(target.params, headers, self._headers),
            "litellm_logging_obj": loaded.call_log(asked, messages, stream=streaming),
        }
        ask = loaded.in_dialect[dialect.name]
        result = await (loaded.streamed.get(dialect.name, ask) if streaming else ask)(**kwargs)
        return await _answered(result, call, body, dropped=dropped, dialect=dialect, model=name)


def _limit_s(params: Fields, *, streaming: bool) -> float | None:
    """LiteLLM's own limit of a deployment, in seconds; up to the first event for a stream."""
    value = None
    if streaming:
        value = params.get("stream_timeout")
    if value is None:
        value = params.get("timeout")
    if value:
        return float(value)
    return None


async def _answered(
    result: Any,
    call: ProviderCall,
    body: Fields,
    dropped: tuple[str, ...],
    dialect: Dialect,
    *,
    model: str,
) -> LaneResponse:
    """LiteLLM's result as the answer to a request; a stream with its first event."""
    streaming = bool(body.get("stream"))
    headers = end_to_end(call.received.headers, _OF_THE_OTHER_BODY)
    if dropped:
        left_out = ",".join(dropped).encode("ascii", "replace")
        headers.append((b"x-gateway-dropped-params", left_out))
    if streaming and call.translated:
        return await TranslatedStream(result.__aiter__(), call, headers, dialect=dialect).primed()
    if streaming:
        id = f"chatcmpl-{uuid4().hex}"
        now = int(time.time())
        return await StreamedAnswer(
            result,
            call,
            chunks.ChunkStream(id=id, created=now, model=model),
            headers=headers,
            include_usage=bool(mapping_at(body, "stream_options").get("include_usage")),
        ).primed()
    if call.translated:
        whole = plain(result)
        if not is_answer(whole):
            raise ValueError("an answer without content")
    else:
        whole = chunks.completion(result.model_dump(), model=model)
    return CompleteAnswer(whole, headers)


_END = object()


def encode(value: Any) -> bytes:
    """Compact UTF-8 JSON, including integers above 64 bits, which orjson refuses."""
    try:
        return orjson.dumps(value)
    except TypeError:
        return json.dumps(value, separators=(",", ":"), default=str).encode("utf-8", "replace")


class CompleteAnswer:
    """A completion in one piece."""

    status = 200

    def __init__(self, completion: Fields, headers: RawHeaders):
        self._body = encode(completion)
        self.usage: FieldDict | None = completion.get("usage")
        self.headers: RawHeaders = [
            (b"content-type", b"application/json"),
            (b"content-length", str(len(self._body)).encode()),
            *headers,
        ]

    async def __aiter__(self) -> AsyncIterator[bytes]:
        yield self._body

    async def aclose(self) -> None:
        """Nothing is open."""


class PrimedStream(ABC):
    """Server-sent events; the status is sent when the first event is there."""

    status = 200

    def __init__(self, call: ProviderCall, headers: RawHeaders, dialect: Dialect = CHAT):
        self._call = call
        self._dialect = dialect
        self._pending = b""
        self.usage: FieldDict | None = None
        self.headers: RawHeaders = [(b"content-type", dialect.stream_type), *headers]

    async def primed(self) -> Self:
        """The answer with its first event, so that an early failure can still set the status."""
        self._pending = await self._next()
        return self

    def __aiter__(self) -> AsyncIterator[bytes]:
        return self

    async def __anext__(self) -> bytes:
        ready = self._pending
        self._pending = b""
        ready = ready or await self._next()
        if not ready:
            raise StopAsyncIteration
        return ready

    async def aclose(self) -> None:
        """End the call; if the provider is still sending, its connection is closed at once."""
        await self._call.close()

    @abstractmethod
    async def _next(self) -> bytes:
        """The next events; empty at the end of a complete stream."""


class StreamedAnswer(PrimedStream):
    """A stream of server-sent events in OpenAI's form. Ends with `[DONE]` when the provider ended
    its turn, and raises when it did not. `usage` is set even when the client did not ask for it."""

    def __init__(
        self,
        source: Any,
        call: ProviderCall,
        out: chunks.ChunkStream,
        *,
        headers: RawHeaders,
        include_usage: bool,
    ):
        super().__init__(call, headers)
        self._source = source
        self._out = out
        self._include_usage = include_usage
        self._received = _received(source)
        self._ended = False

    async def aclose(self) -> None:
        self._ended = True
        await super().aclose()
        await self._received.aclose()

    async def _next(self) -> bytes:
        try:
            while not self._ended:
                try:
                    chunk = await anext(self._received, _END)
                    if chunk is _END:
                        ready = []
                    else:
                        ready = self._out.push(self._as_mapping(chunk))
                except Exception as exc:
                    if not (self._out.complete and self._call.ended):
                        raise errors.failure(exc, self._call, streaming=True) from exc
                    chunk = _END  # broken off behind the finish reason: nothing is missing
                self.usage = self._out.usage
                if chunk is _END:
                    return await self._finish()
                if ready:
                    return self._encoded(ready)
        except BaseException:
            await self.aclose()
            raise
        return b""

    async def _finish(self) -> bytes:
        self._out.end(getattr(self._source, "received_finish_reason", None))
        if not (self._out.complete and self._call.ended):
            raise errors.unfinished(self._call)
        await self.aclose()
        last = self._out.finish(include_usage=self._include_usage)
        return self._encoded(last) + b"data: [DONE]\n\n"

    def _encoded(self, chunks: list[FieldDict]) -> bytes:
        return b"".join(b"data: %b\n\n" % encode(chunk) for chunk in chunks)

    def _as_mapping(self, chunk: Any) -> Fields:
        """A chunk of any kind that LiteLLM's adapters produce, as OpenAI's JSON."""
        if isinstance(chunk, dict):
            if "text" in chunk:
                return chunks.from_generic(chunk, finished=self._out.complete) or {}
            return chunk
        if not hasattr(chunk, "choices"):
            chunk = self._source.chunk_creator(chunk)
        return {} if chunk is None else chunk.model_dump(exclude_none=True)


async def _received(source: Any) -> AsyncGenerator[Any]:
    """The chunks of a LiteLLM stream, read below its wrapper if it has one. The wrapper invents a
    finish reason for a stream that broke off, keeps one choice of several and spends four fifths of
    the CPU of a stream; the adapter below it has none of these faults."""
    if hasattr(source, "model_dump"):
        yield chunks.as_chunk(source.model_dump())
        return
    if getattr(source, "completion_stream", _END) is None:
        await source.fetch_stream()
    inner = getattr(source, "completion_stream", source)
    if hasattr(inner, "__aiter__"):
        async for chunk in inner:
            yield chunk
        return
    steps: Iterator[Any] = iter(inner)
    while (chunk := await off_loop(next, steps, _END)) is not _END:
        yield chunk


# Of LiteLLM's events, several of which may be in one piece; no text of a model has a bare quote.
_END_EVENTS = (
    *(mark for end in ENDS for mark in (b"event: " + end, b'"type":"' + end + b'"')),
    b'"finishReason":"',
    b'"finishReason": "',
    b'"blockReason":',
)


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
    return any(isinstance(answer.get(key), list) for key in ("content", "output", "candidates"))


def _join_arguments(source: Any, event: Any) -> None:
    """Join the waiting deltas of a call's arguments to `event`, the first of them. LiteLLM cuts
    arguments into ten characters each: a megabyte took the event loop for minutes."""
    kind = getattr(event, "type", None)
    if kind != "response.function_call_arguments.delta":
        return
    waiting = getattr(source, "_pending_tool_events", None) or []
    same = (later.type == kind and later.item_id == event.item_id for later in waiting)
    count = sum(takewhile(bool, same))
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
    """The events of a translated stream, as bytes. LiteLLM ends its stream properly even when the
    provider's broke off. So its last event is held back unless the provider ended its turn."""

    def __init__(
        self,
        source: AsyncIterator[Any],
        call: ProviderCall,
        headers: RawHeaders,
        dialect: Dialect,
    ):
        super().__init__(call, headers, dialect)
        self._source = source
        self._count = 0
        self._ended = False

    async def aclose(self) -> None:
        await super().aclose()
        if hasattr(self._source, "aclose"):
            await self._source.aclose()

    async def _next(self) -> bytes:
        try:
            event = await anext(self._source, None)
        except Exception as exc:
            if self._ended:
                return b""
            raise errors.failure(exc, self._call, streaming=True) from exc
        _join_arguments(self._source, event)
        if event is None:
            out = b""
        else:
            out = self._encoded(event)
        if out.startswith(b"event: error"):
            # LiteLLM's own message; what the transport saw says more.
            broken = RuntimeError("the provider's stream broke off")
            raise errors.failure(broken, self._call, streaming=True)
        if event is None and not self._ended:
            raise errors.unfinished(self._call)
        if not self._ended and any(mark in out for mark in _END_EVENTS):
            self._ended = True
            got = self._call.received
            whole = b"event-stream" not in header(got.headers, b"content-type")
            if not (self._call.ended or (whole and got.events is None)):
                raise errors.unfinished(self._call)
        return self._dialect.in_envelope(out)

    def _encoded(self, event: Any) -> bytes:
        if isinstance(event, bytes):
            return event
        payload = {**plain(event), "sequence_number": self._count}
        self._count += 1
        return b"event: %b\ndata: %b\n\n" % (str(payload["type"]).encode(), encode(payload))
