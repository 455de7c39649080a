"""Comments keep a quiet stream open, without touching its events."""

from __future__ import annotations

import gzip
import socket
import threading
from collections.abc import Callable

import httpx

from steering_gateway_testing import Fault, FaultKind, LoopbackServer, Reply, ScriptedUpstream
from steering_gateway_testing.hearing import HELLO, STREAMED, hear
from steering_gateway_testing.loopback import read_request
from steering_gateway_testing.patience import ANSWER_S

Relay = Callable[..., httpx.Client]
PING = b": keep-alive\n\n"
OFTEN = {"server": {"sse_keepalive_s": 0.03}}


EVENTS = (b'data: {"choices": []}\n\n', b"data: [DONE]\n\n")


class Pausing(LoopbackServer):
    """An upstream that sends one event, and the other when `go_on` is set."""

    def __init__(self) -> None:
        self.go_on = threading.Event()
        super().__init__()

    def serve(self, connection: socket.socket) -> None:
        """Answer one request."""
        read_request(connection)
        head = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\nconnection: close\r\n\r\n"
        connection.sendall(head + EVENTS[0])
        self.go_on.wait(ANSWER_S)
        connection.sendall(EVENTS[1])


def test_comments_stand_between_events(relay: Relay) -> None:
    """While the upstream pauses, comments are sent; without them the stream is the upstream's."""
    received = b""
    with Pausing() as there:
        client = relay({**OFTEN, "default_upstream": {"api_base": f"{there.url}/v1"}})
        with client.stream("POST", "/chat/completions", json=STREAMED) as answer:
            for piece in answer.iter_raw():
                received += piece
                if PING in received:
                    there.go_on.set()
    assert there.go_on.is_set()
    assert received.replace(PING, b"") == b"".join(EVENTS)


def test_no_comment_within_an_event(upstream: ScriptedUpstream, relay: Relay) -> None:
    """A pause in the middle of an event is waited out."""
    halves = (b'data: {"choices": [{"index": 0, "delta": {}, ', b'"finish_reason": "stop"}]}\n\n')
    upstream.script(Reply(raw=(*halves, b"data: [DONE]\n\n"), chunk_delay_s=0.15))
    heard = hear(relay(OFTEN), json=STREAMED)
    assert heard.body.replace(PING, b"") == b"".join(halves) + b"data: [DONE]\n\n"
    assert heard.events[-1] == "[DONE]"
    assert all(
        isinstance(event, dict) for event in heard.events if event not in ("[DONE]", PING[:-2])
    )
    assert b"".join(halves) in heard.body


def test_compressed_streams_get_none(upstream: ScriptedUpstream, relay: Relay) -> None:
    """Plain text in the middle of gzip would spoil it."""
    stream = b'data: {"choices": [{"index": 0, "delta": {}, "finish_reason": "stop"}]}\n\n'
    packed = gzip.compress(stream + b"data: [DONE]\n\n")
    pieces = (packed[:20], packed[20:40], packed[40:])
    said = {"content-encoding": "gzip"}
    upstream.script(Reply(raw=pieces, headers=said, chunk_delay_s=0.1))
    assert hear(relay(OFTEN), json=STREAMED).body == packed


def test_a_stall_still_ends(upstream: ScriptedUpstream, relay: Relay) -> None:
    """Comments of ours do not count as life upstream."""
    client = relay({**OFTEN, "timeouts": {"idle_s": 1}})
    upstream.script(Fault(FaultKind.STALL, reply=Reply("a b c d")))
    heard = hear(client, json=STREAMED)
    assert heard.body.count(PING) >= 2
    assert heard.events[-1]["error"]["code"] == "upstream_timeout"
    assert heard.broken is not None


def test_answers_that_are_no_streams_get_none(upstream: ScriptedUpstream, relay: Relay) -> None:
    """A JSON body is left alone."""
    upstream.script(Reply("fine", first_byte_delay_s=0.1))
    assert PING not in hear(relay(OFTEN), json=HELLO).body
