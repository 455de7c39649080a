"""Upstreams that answer in any form of HTTP, or break off: each call is executed once, or as often
as its answer says, and every client gets the answer to its own."""

from __future__ import annotations

import json
import socket
import struct
import threading
from collections.abc import Callable, Iterator
from typing import Any

import httpx
import pytest
from anyio.from_thread import start_blocking_portal

from steering_gateway_testing import LoopbackServer
from steering_gateway_testing.framed import Answering, answering, closed, kept_open, typed
from steering_gateway_testing.hearing import HELLO, STREAMED, hear
from steering_gateway_testing.loopback import read_body, read_head
from tests.examples import by_day

Relay = Callable[..., httpx.Client]
WHOLE: dict[str, Any] = {
    "id": "chatcmpl-1",
    "object": "chat.completion",
    "created": 1,
    "model": "m",
    "choices": [
        {"index": 0, "message": {"role": "assistant", "content": "fine"}, "finish_reason": "stop"}
    ],
    "usage": {"prompt_tokens": 5, "completion_tokens": 3, "total_tokens": 8},
}
MESSAGE: dict[str, Any] = {
    "id": "msg_1",
    "type": "message",
    "role": "assistant",
    "model": "m",
    "content": [{"type": "text", "text": "fine"}],
    "stop_reason": "end_turn",
    "stop_sequence": None,
    "usage": {"input_tokens": 5, "output_tokens": 3},
}
DELTA = {"choices": [{"index": 0, "delta": {"content": "fine"}, "finish_reason": None}]}
END = {"choices": [{"index": 0, "delta": {}, "finish_reason": "stop"}]}
EVENTS = b"".join(b"data: %b\n\n" % json.dumps(event).encode() for event in (DELTA, END))
PARTS: list[dict[str, Any]] = [
    {"type": "message_start", "message": {**MESSAGE, "content": [], "stop_reason": None}},
    {"type": "content_block_start", "index": 0, "content_block": {"type": "text", "text": ""}},
    {"type": "content_block_delta", "index": 0, "delta": {"type": "text_delta", "text": "fine"}},
    {"type": "content_block_stop", "index": 0},
    {"type": "message_delta", "delta": {"stop_reason": "end_turn"}, "usage": {"output_tokens": 3}},
    {"type": "message_stop"},
]
MESSAGE_EVENTS = b"".join(
    b"event: %b\ndata: %b\n\n" % (str(part["type"]).encode(), json.dumps(part).encode())
    for part in PARTS
)
JSON, SSE = b"application/json", b"text/event-stream"
BIG = {**HELLO, "input": "x" * 2**20}
FILE = {"file": b"x" * 2**17}
KINDS: dict[str, tuple[dict[str, Any], bytes, bytes]] = {
    "chat": ({"json": HELLO}, json.dumps(WHOLE).encode(), JSON),
    "streamed chat": ({"json": STREAMED}, EVENTS + b"data: [DONE]\n\n", SSE),
    "chat of 1 MiB": ({"json": BIG}, json.dumps(WHOLE).encode(), JSON),
    "LiteLLM's chat": ({"json": {**HELLO, "model": "claude"}}, json.dumps(MESSAGE).encode(), JSON),
    "LiteLLM's streamed chat": ({"json": {**STREAMED, "model": "claude"}}, MESSAGE_EVENTS, SSE),
    "compact": ({"path": "/responses/compact", "json": HELLO}, b'{"a": 1}', JSON),
    "image": ({"path": "/images/generations", "json": HELLO}, b'{"a": 1}', JSON),
    "image of 1 MiB": ({"path": "/images/edits", "json": BIG}, b'{"a": 1}', JSON),
    "batch": ({"path": "/batches", "json": {"input_file_id": "f"}}, b'{"a": 1}', JSON),
    "GET": ({"path": "/files/f1", "method": "GET"}, b'{"a": 1}', JSON),
    "DELETE": ({"path": "/files/f1", "method": "DELETE"}, b'{"a": 1}', JSON),
    "PUT": ({"path": "/x/f1", "method": "PUT", "content": b"x"}, b'{"a": 1}', JSON),
    "upload": ({"path": "/files", "files": FILE}, b'{"a": 1}', JSON),
}


def settings(port: int) -> dict[str, Any]:
    """One upstream for both lanes."""
    claude = {
        "model_name": "claude",
        "litellm_params": {
            "model": "anthropic/claude-sonnet-4-5",
            "api_base": f"http://127.0.0.1:{port}",
            "api_key": "sk-ant-not-a-real-key",
        },
    }
    upstream = {"api_base": f"http://127.0.0.1:{port}/v1"}
    return {"default_upstream": upstream, "model_list": [claude]}


@pytest.fixture
def odd() -> Iterator[Answering]:
    """The server that answers in any form."""
    with start_blocking_portal() as portal, portal.wrap_async_context_manager(answering()) as there:
        yield there


@pytest.mark.parametrize("share", ["some", pytest.param("all", marks=pytest.mark.nightly)])
@pytest.mark.parametrize("kind", KINDS)
def test_every_form_of_an_answer_reaches_the_client(
    odd: Answering, relay: Relay, kind: str, share: str
) -> None:
    """Through the whole gateway, for each lane and size of request, asked once; each form with
    some kind of request, at night with all."""
    how, content, of_kind = KINDS[kind]
    ends = typed(closed(content), of_kind)
    answers = typed(kept_open(content), of_kind) | ends
    if share == "some":  # the lane alone is tested with all of them
        chosen = list(answers)[list(KINDS).index(kind) :: len(KINDS)]
        answers = {name: answers[name] for name in chosen}
    odd.closing = set(ends.values())
    client = relay(settings(odd.port))
    wrong = []
    for name, sent in answers.items():
        odd.now = sent
        heard = hear(client, **how)
        same = b"fine" in heard.body if kind.startswith("LiteLLM") else heard.body == content
        if heard.status not in (200, 299) or not same or heard.broken:
            wrong.append((name, heard))
    assert wrong == []
    assert len(odd.heard) == len(answers)


class Breaking(LoopbackServer):
    """An upstream that breaks off while `is_broken`; it counts what it was asked to execute."""

    def __init__(self, fault: str) -> None:
        self.executed = 0
        self.is_broken = False
        self._fault = fault
        self._lock = threading.Lock()
        self._answer = b""
        super().__init__()

    def answer_with(self, content: bytes, kind: bytes) -> None:
        """Set the answer of what is not broken off."""
        head = b"HTTP/1.1 200 OK\r\ncontent-type: %b\r\ncontent-length: %d\r\n\r\n"
        self._answer = head % (kind, len(content)) + content

    def serve(self, connection: socket.socket) -> None:
        """Answer until it breaks off."""
        while True:
            head, rest = read_head(connection)
            with self._lock:
                self.executed += 1
            if self.is_broken and self._fault in ("resets at the head", "answers early"):
                break
            read_body(connection, head, rest)
            if self.is_broken:
                break
            connection.sendall(self._answer)
            if self._fault == "closes behind an answer":
                return
        self._break_off(connection)

    def _break_off(self, connection: socket.socket) -> None:
        if self._fault == "answers in part":
            connection.sendall(self._answer[:20])
        elif self._fault == "answers without an end":
            connection.sendall(self._answer[: self._answer.index(b"\r\n\r\n") + 5])
        elif self._fault == "answers early":
            connection.sendall(b"HTTP/1.1 413 No\r\ncontent-length: 2\r\n\r\n{}")
        if self._fault.startswith("resets"):
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))


FAULTS = (
    "closes",
    "closes behind an answer",
    "resets",
    "resets at the head",
    "answers in part",
    "answers without an end",
    "answers early",
)


@pytest.mark.parametrize("fault", by_day(FAULTS, 4))
@pytest.mark.parametrize("fresh", [True, False], ids=["new connection", "used connection"])
def test_what_was_executed_is_what_the_answer_says(relay: Relay, fault: str, fresh: bool) -> None:
    """However the upstream breaks off, on a connection that is new or was used before."""
    there = Breaking(fault)
    client = relay(settings(there.port))
    for kind, (how, content, of_kind) in KINDS.items():
        there.answer_with(content, of_kind)
        if not fresh:
            there.is_broken = False
            first = hear(client, **how)
            # Both close a connection behind an answer: its end may come after it is used again.
            assert first.status == 200 or fault in ("closes behind an answer", "answers early")
        there.is_broken = fault != "closes behind an answer"
        before = there.executed
        heard = hear(client, **how)
        executed = there.executed - before
        assert executed <= int(heard.headers.get("x-gateway-attempts", "1")), kind
        if there.is_broken:
            assert heard.status >= 400 or heard.broken or b"error" in heard.body, kind
        if how.get("method", "POST") == "POST" and "path" in how:
            assert executed <= 1, kind
    there.close()
