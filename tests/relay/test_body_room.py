"""`server.max_bytes_in_flight_mb`: how much of request bodies is held at one time."""

from __future__ import annotations

import asyncio
import json
import socket
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx
import pytest

from gateway.buffered_bytes import Room, Share
from gateway.config import ServerSettings
from gateway.endpoints.body import read_body
from gateway.exchange import Exchange, RequestInfo
from gateway.tasks import spawn
from steering_gateway_testing import Fault, FaultKind, ReceivedRequest, Reply, ScriptedUpstream
from steering_gateway_testing.hearing import HELLO, STREAMED, hear
from steering_gateway_testing.patience import until

Relay = Callable[..., httpx.Client]
ROOM: dict[str, Any] = {"max_bytes_in_flight_mb": 1, "body_wait_s": 0.2}


def weighing(kib: int, **fields: Any) -> bytes:
    """A chat body of about so many KiB."""
    return json.dumps({**HELLO, "input": "x", **fields, "user": "u" * kib * 1024}).encode()


def in_pieces(body: bytes) -> Iterator[bytes]:
    """The same without a declared length."""
    for start in range(0, len(body), 65_536):
        yield body[start : start + 65_536]


MIB = 2**20
JSON = {"content-type": "application/json"}


@pytest.mark.parametrize("path", ["/chat/completions", "/responses", "/messages", "/embeddings"])
def test_a_body_without_room_is_refused(
    upstream: ScriptedUpstream, relay: Relay, path: str
) -> None:
    """With 503, `retry-after` and the key, declared or chunked; a smaller body has room meanwhile,
    and with the end of the first request there is room again."""
    client = relay({"server": ROOM})
    upstream.script(Fault(FaultKind.STALL, after=1))
    big = weighing(700, input=HELLO["messages"], max_tokens=9)
    held = weighing(700, stream=True)
    with client.stream("POST", "/chat/completions", content=held, headers=JSON) as first:
        chunks = first.iter_raw()
        next(chunks)
        for content in (big, in_pieces(big)):
            refused = hear(client, path, content=content, headers=JSON)
            assert refused.status == 503
            assert int(refused.headers["retry-after"]) > 0
            assert "server.max_bytes_in_flight_mb" in refused.json["error"]["message"]
        assert hear(client, json=HELLO).status == 200
    upstream.requests[0].wait_disconnected()
    assert hear(client, path, content=big, headers=JSON).status == 200
    assert hear(client, path, content=in_pieces(big), headers=JSON).status == 200


def test_the_values_of_a_body_have_room_beside_it(upstream: ScriptedUpstream, relay: Relay) -> None:
    """A small body of many values takes as much memory as a large one, and both are counted."""
    client = relay({"server": {**ROOM, "max_bytes_in_flight_mb": 2}})
    many = weighing(1, stream=True, messages=[*HELLO["messages"]] * 1900, tools=[])
    for held in (weighing(700, stream=True), many):
        upstream.script(Fault(FaultKind.STALL, after=1))
        with client.stream("POST", "/chat/completions", content=held, headers=JSON) as first:
            chunks = first.iter_raw()
            next(chunks)
            assert hear(client, content=weighing(400), headers=JSON).status == 200
            assert hear(client, content=weighing(700), headers=JSON).status == 503
        upstream.requests[-2].wait_disconnected()
        assert hear(client, content=weighing(700), headers=JSON).status == 200


def test_a_body_whose_values_find_no_room_goes_out_unread(
    upstream: ScriptedUpstream, relay: Relay
) -> None:
    """After `steering.max_wait_ms`, as it was sent: an answer may hold the room for minutes. It is
    read when there is room again."""
    server = {"max_bytes_in_flight_mb": 2, "body_wait_s": 600}
    client = relay({"server": server, "steering": {"max_wait_ms": 1000}})
    many = weighing(1, messages=[*HELLO["messages"]] * 1900, tools=[])
    upstream.script(Fault(FaultKind.STALL, after=1))
    held = weighing(700, stream=True)
    with client.stream("POST", "/chat/completions", content=held, headers=JSON) as first:
        chunks = first.iter_raw()
        next(chunks)
        unread = hear(client, content=many, headers=JSON)
        assert (unread.status, unread.headers["x-gateway-unsteered"]) == (200, "size")
        assert upstream.last.body == many

    def is_read() -> bool:
        answer = hear(client, content=many, headers=JSON)
        return (answer.status, "x-gateway-unsteered" in answer.headers) == (200, False)

    until(is_read)


def test_bodies_wait_for_room(upstream: ScriptedUpstream, relay: Relay) -> None:
    """Of six that come at once each is served, and never more are held than there is room for."""
    counted, now, most = threading.Lock(), [0], [0]

    def answer(_: ReceivedRequest) -> Reply:
        with counted:
            most[0] = max(most[0], upstream.active_requests)
            now[0] += 1
        return Reply("well")

    upstream.default = answer
    client = relay({"server": {**ROOM, "body_wait_s": 60}})

    def send(_: int) -> int:
        return hear(client, content=weighing(400), headers=JSON).status

    with ThreadPoolExecutor(6) as pool:
        assert list(pool.map(send, range(6))) == [200] * 6
    assert now == [6]
    assert most[0] <= 2


def test_a_body_larger_than_all_room_goes_alone(upstream: ScriptedUpstream, relay: Relay) -> None:
    """`server.max_body_mb` is what decides about one body; beside others it has to wait."""
    client = relay({"server": ROOM})
    for content in (weighing(3000), in_pieces(weighing(3000))):
        assert hear(client, content=content, headers=JSON).status == 200
    upstream.script(Fault(FaultKind.STALL, after=1))
    with client.stream("POST", "/chat/completions", json=STREAMED) as first:
        chunks = first.iter_raw()
        next(chunks)
        assert hear(client, content=weighing(3000), headers=JSON).status == 503


def test_without_a_limit_nobody_waits(upstream: ScriptedUpstream, relay: Relay) -> None:
    """`server.max_bytes_in_flight_mb: 0` holds whatever comes."""
    client = relay({"server": {"max_bytes_in_flight_mb": 0, "body_wait_s": 0}})
    upstream.script(Fault(FaultKind.STALL, after=1))
    held = weighing(700, stream=True)
    with client.stream("POST", "/chat/completions", content=held, headers=JSON) as first:
        chunks = first.iter_raw()
        next(chunks)
        assert hear(client, content=weighing(3000), headers=JSON).status == 200


@pytest.mark.slow
def test_an_answer_counts_until_its_client_has_read_it(
    upstream: ScriptedUpstream, relay: Relay
) -> None:
    """Its bytes are in the process as long; what is read of it later is whole."""
    client = relay({"server": {"max_bytes_in_flight_mb": 40, "body_wait_s": 0.2}})
    upstream.script(Reply("x" * 16 * 2**20))
    body = json.dumps(HELLO).encode()
    head = (
        f"POST /v1/chat/completions HTTP/1.1\r\nhost: localhost\r\ncontent-length: {len(body)}\r\n"
    )
    address = client.base_url
    with socket.socket() as slow:
        slow.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 2**16)
        slow.connect((address.host, address.port))
        slow.sendall(f"{head}connection: close\r\n\r\n".encode() + body)
        answer = slow.recv(2**12)
        big = weighing(26 * 1024)
        assert hear(client, content=big, headers=JSON).status == 503
        assert hear(client, json=HELLO).status == 200
        while piece := slow.recv(2**20):
            answer += piece
    told, _, content = answer.partition(b"\r\n\r\n")
    assert told.startswith(b"HTTP/1.1 200")
    message = json.loads(content)["choices"][0]["message"]
    assert len(message["content"]) == 16 * 2**20
    assert hear(client, content=big, headers=JSON).status == 200


def test_a_small_body_passes_a_full_room() -> None:
    """Also one that holds more than there is, as after those who waited for each other."""
    room, settings = Room(lambda: 2**20), ServerSettings(max_bytes_in_flight_mb=4)
    with Share(room, settings) as full, Share(room, settings) as small:
        assert full.take(4 * 2**20)
        assert small.take(2**16)
        assert not small.take(2**16 + 1)


def test_answers_leave_half_of_the_room_to_bodies() -> None:
    """Nobody has to read what is sent; what is not held is relayed all the same."""
    room, settings = Room(), ServerSettings(max_bytes_in_flight_mb=4)
    with Share(room, settings) as one, Share(room, settings) as other:
        assert one.take(2**20)
        grows = one.beside()
        assert grows(2**20)
        assert grows(2 * 2**20)
        assert not other.beside()(1)
        assert other.take(2**20)
    with Share(room, settings) as one, Share(room, settings) as other:
        assert other.beside()(2 * 2**20)
        assert not one.beside()(1)


async def test_one_large_body_goes_on_in_each_step_of_the_loop() -> None:
    """Others go on between two pieces, and not only between those of all large bodies."""
    room = Room()
    step = 0
    read_at = []

    async def count() -> None:
        nonlocal step
        while True:
            step += 1
            await asyncio.sleep(0)

    async def read() -> bytes:
        pieces = [b"x" * 100_000] * 4

        async def receive() -> dict[str, Any]:
            if len(pieces) < 4:
                read_at.append(step)
            return {"type": "http.request", "body": pieces.pop(), "more_body": bool(pieces)}

        exchange = Exchange(RequestInfo(method="POST", path="/", id="r"))
        with Share(room, ServerSettings()) as share:
            return await read_body([], receive, exchange, limit=MIB, share=share)

    counting = spawn(count())
    bodies = await asyncio.gather(*[read() for _ in range(5)])
    counting.cancel()
    assert [len(body) for body in bodies] == [400_000] * 5
    assert len(set(read_at)) == len(read_at) == 15
