"""A provider in the bench's own process: it answers with prepared bytes."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from typing import Any

from bench.bodies import MODEL
from bench.client import LOOPBACK

_PACE_S = 0.03
"""Between two writes: a server under valgrind then reads each alone, as a quick one would."""
_CHUNKS_A_WRITE = 2
"""As a server meets them that is busy with others: some alone, some several at once."""


Message = dict[str, Any]
Answer = Message | int | bytes | Callable[[bytes], Message]


class Provider:
    """Answers every request with `answer`: a message, the number of chunks of a stream, the bytes
    of a JSON body, or what a function makes of the request's body."""

    def __init__(self, port: int = 0) -> None:
        """`port`: the one to listen on; 0 for any that is free."""
        self.answer: Answer = {"role": "assistant", "content": "Done."}
        self.port = port
        self.paused_s = 0.0
        """Seconds of pauses in its streams."""
        self._server: asyncio.Server | None = None

    async def __aenter__(self) -> Provider:
        self._server = await asyncio.start_server(self._serve, LOOPBACK, self.port, limit=2**24)
        self.port = self._server.sockets[0].getsockname()[1]
        return self

    async def __aexit__(self, *_: object) -> None:
        if self._server is not None:
            self._server.close()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while True:
                head = await reader.readuntil(b"\r\n\r\n")
                length = head.lower().partition(b"content-length:")[2].split(b"\r\n")[0]
                body = await reader.readexactly(int(length or 0))
                await self._reply(
                    writer, self.answer(body) if callable(self.answer) else self.answer
                )
        except (asyncio.IncompleteReadError, ConnectionError):
            writer.close()

    async def _reply(self, writer: asyncio.StreamWriter, answer: Message | int | bytes) -> None:
        if isinstance(answer, int):
            writer.write(
                b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\n"
                b"transfer-encoding: chunked\r\n\r\n"
            )
            events = [b"%x\r\n%b\r\n" % (len(event), event) for event in _events(answer)]
            for first in range(0, len(events), _CHUNKS_A_WRITE):
                writer.write(b"".join(events[first : first + _CHUNKS_A_WRITE]))
                await asyncio.sleep(_PACE_S)
                self.paused_s += _PACE_S
            writer.write(b"0\r\n\r\n")
            return
        body = answer if isinstance(answer, bytes) else json.dumps(completion(answer)).encode()
        head = b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n"
        writer.write(head % len(body) + body)


def completion(message: dict[str, Any]) -> dict[str, Any]:
    """A chat completion with this message."""
    finish = "tool_calls" if message.get("tool_calls") else "stop"
    return {
        "id": "chatcmpl-bench0000000000000000000000",
        "object": "chat.completion",
        "created": 1_760_000_000,
        "model": MODEL,
        "choices": [{"index": 0, "message": message, "logprobs": None, "finish_reason": finish}],
        "usage": {
            "prompt_tokens": 120,
            "completion_tokens": 12,
            "total_tokens": 132,
            "prompt_tokens_details": {"cached_tokens": 0},
        },
        "system_fingerprint": "fp_bench",
    }


def _events(chunks: int) -> list[bytes]:
    """The events of a stream of `chunks` pieces of text, in the shape of OpenAI's."""

    def event(delta: dict[str, Any], finish: str | None) -> bytes:
        choice = {"index": 0, "delta": delta, "logprobs": None, "finish_reason": finish}
        chunk = {
            "id": "chatcmpl-bench0000000000000000000000",
            "object": "chat.completion.chunk",
            "created": 1_760_000_000,
            "model": MODEL,
            "system_fingerprint": "fp_bench",
            "choices": [choice],
        }
        return b"data: " + json.dumps(chunk, separators=(",", ":")).encode() + b"\n\n"

    first = event({"role": "assistant", "content": ""}, None)
    texts = [event({"content": f" word{number}"}, None) for number in range(chunks)]
    return [first, *texts, event({}, "stop"), b"data: [DONE]\n\n"]
