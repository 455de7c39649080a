"""The answers of the lane: a complete body, or a stream that is read as it arrives."""

from __future__ import annotations

import asyncio
import json
from abc import ABC, abstractmethod
from collections.abc import AsyncGenerator, AsyncIterator, Iterator, Mapping
from typing import Any

import orjson

from gateway.upstream.base import RawHeaders
from gateway.upstream.litellm_lane import chunks, completions, errors, legacy
from gateway.upstream.litellm_lane.readable import restored
from gateway.upstream.litellm_lane.transport import ProviderCall

_END = object()


def encode(value: Any) -> bytes:
    """Compact UTF-8 JSON, including integers above 64 bits, which orjson refuses."""
    try:
        return orjson.dumps(value)
    except TypeError:
        return json.dumps(value, separators=(",", ":"), default=str).encode("utf-8", "replace")


class CompleteAnswer:
    """A completion in one piece."""

    def __init__(
        self, completion: Mapping[str, Any], headers: RawHeaders, nested: Mapping[bytes, bytes]
    ) -> None:
        self._body = restored(encode(completion), nested)
        self.status = 200
        self.usage: dict[str, Any] | None = completion.get("usage")
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

    def __init__(self, call: ProviderCall, headers: RawHeaders) -> None:
        self._call = call
        self._pending = b""
        self.status = 200
        self.usage: dict[str, Any] | None = None
        self.headers: RawHeaders = [
            (b"content-type", b"text/event-stream; charset=utf-8"),
            *headers,
        ]

    async def prime(self) -> None:
        """Wait for the first event, so that an early failure can still set the status.

        Raises:
            UpstreamFailure: there is none.
        """
        self._pending = await self._next()

    def __aiter__(self) -> AsyncIterator[bytes]:
        return self

    async def __anext__(self) -> bytes:
        ready, self._pending = self._pending, b""
        ready = ready or await self._next()
        if not ready:
            raise StopAsyncIteration
        return ready

    @abstractmethod
    async def _next(self) -> bytes:
        """The next events; empty at the end of a complete stream."""


class StreamedAnswer(PrimedStream):
    """A stream of server-sent events in OpenAI's form.

    Ends with `[DONE]` when the provider ended its turn, and raises when it did not. `usage` is set
    as soon as the provider reports it, even when the client did not ask for it.
    """

    def __init__(
        self,
        source: Any,
        call: ProviderCall,
        out: chunks.ChunkStream,
        *,
        headers: RawHeaders,
        include_usage: bool,
        legacy: bool = False,
    ) -> None:
        super().__init__(call, headers)
        self._source = source
        self._out = out
        self._include_usage = include_usage
        self._legacy = legacy
        self._received = _received(source)
        self._ended = False

    async def aclose(self) -> None:
        """End the call; if the provider is still sending, its connection is closed at once."""
        self._ended = True
        await self._call.close()
        await self._received.aclose()

    @property
    def _complete(self) -> bool:
        return self._out.complete and self._call.ended

    async def _next(self) -> bytes:
        if self._ended:
            return b""
        try:
            return await self._converted()
        except BaseException:
            await self.aclose()
            raise

    async def _converted(self) -> bytes:
        while True:
            try:
                ready = await self._step()
            except Exception as exc:
                if not self._complete:
                    raise errors.failure(exc, self._call, streaming=True) from exc
                ready = None  # broken off behind the finish reason: nothing is missing
            if ready is None:
                return await self._finish()
            if ready:
                return self._encoded(ready)

    async def _step(self) -> list[dict[str, Any]] | None:
        """The chunks to send for the next one received; None at the end."""
        chunk = await anext(self._received, _END)
        if chunk is _END:
            return None
        ready = self._out.push(self._as_mapping(chunk))
        self.usage = self._out.usage
        return ready

    async def _finish(self) -> bytes:
        self._out.end(getattr(self._source, "received_finish_reason", None))
        if not self._complete:
            raise errors.unfinished(self._call)
        await self.aclose()
        last = self._out.finish(include_usage=self._include_usage)
        return self._encoded(last) + b"data: [DONE]\n\n"

    def _encoded(self, chunks: list[dict[str, Any]]) -> bytes:
        if self._legacy:
            chunks = [legacy.as_legacy(chunk) for chunk in chunks]
        return b"".join(b"data: %b\n\n" % encode(chunk) for chunk in chunks)

    def _as_mapping(self, chunk: Any) -> Mapping[str, Any]:
        """A chunk of any kind that LiteLLM's adapters produce, as OpenAI's JSON."""
        if isinstance(chunk, dict) and "text" in chunk:
            return completions.from_generic(chunk, finished=self._out.complete) or {}
        if isinstance(chunk, dict):
            return chunk
        if not hasattr(chunk, "choices"):
            chunk = self._source.chunk_creator(chunk)
        return {} if chunk is None else chunk.model_dump(exclude_none=True)


async def _received(source: Any) -> AsyncGenerator[Any]:
    """The chunks of a LiteLLM stream, read below its wrapper if it has one.

    The wrapper invents a finish reason for a stream that broke off, keeps one choice of several and
    spends four fifths of the CPU of a stream; the adapter below it has none of these faults.
    """
    if hasattr(source, "model_dump"):
        yield completions.as_chunk(source.model_dump())
        return
    if getattr(source, "completion_stream", _END) is None:
        await source.fetch_stream()
    inner = getattr(source, "completion_stream", source)
    if hasattr(inner, "chunk_parser"):
        _keep_early_input(inner)
    if hasattr(inner, "__aiter__"):
        async for chunk in inner:
            yield chunk
        return
    steps: Iterator[Any] = iter(inner)
    while (chunk := await asyncio.to_thread(next, steps, _END)) is not _END:
        yield chunk


def _keep_early_input(adapter: Any) -> None:
    """Keep arguments that come with the start of a tool call.

    Anthropic sends them in deltas. Servers that imitate it send them at the start, which LiteLLM's
    adapter takes for the usual empty placeholder.
    """
    parse = adapter.chunk_parser

    def parse_with_input(chunk: Any) -> Any:
        parsed = parse(chunk)
        block = chunk.get("content_block") if isinstance(chunk, dict) else None
        if isinstance(block, dict) and block.get("type") == "tool_use" and block.get("input"):
            for call in parsed.choices[0].delta.tool_calls or ():
                call.function.arguments = json.dumps(block["input"], ensure_ascii=False)
        return parsed

    adapter.chunk_parser = parse_with_input
