"""Messages of WebSockets have their place in `server.max_bytes_in_flight_mb`, and an end."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from typing import Any

import aiohttp
import pytest
from wsproto.connection import Connection, ConnectionType
from wsproto.events import BytesMessage, CloseConnection, Event, TextMessage
from wsproto.frame_protocol import CloseReason

from gateway.buffered_bytes import Room, Share
from gateway.config.settings import ServerSettings
from gateway.errors import Overloaded
from gateway.tasks import spawn
from gateway.upstream.websocket import MessageSide
from steering_gateway_testing import AppServer
from steering_gateway_testing.patience import ANSWER_S
from tests.seats.socket_provider import create, message, running

KIB = 1024
MIB = 2**20
HALF = b"\x01\xff" + (700 * KIB).to_bytes(8, "big") + b"\0\0\0\0" + b"x" * 700 * KIB
"""The first frame of a message that goes on."""


class Wire:
    """A client whose bytes the gateway reads from memory, and the gateway's side of it."""

    def __init__(self, room: Room, settings: ServerSettings, key: str = "") -> None:
        self.reader = asyncio.StreamReader(limit=2**26)
        self.sent = bytearray()
        self.share = Share(room, settings, key)
        self.side = MessageSide((self.reader, self), settings.max_body_mb, self.share)  # type: ignore[arg-type]
        self._client = Connection(ConnectionType.CLIENT)

    def write(self, data: bytes) -> None:
        """What the gateway sends to the client."""
        self.sent += data

    async def drain(self) -> None:
        """The client reads everything at once."""

    def send(self, data: str | bytes, *, finished: bool) -> None:
        """A frame from the client."""
        kind = TextMessage if isinstance(data, str) else BytesMessage
        self.reader.feed_data(self._client.send(kind(data=data, message_finished=finished)))  # type: ignore[arg-type]

    async def next(self) -> Event:
        """The next message or control frame that the gateway sees."""
        self.events = getattr(self, "events", None) or self.side.events()
        return await asyncio.wait_for(anext(self.events), ANSWER_S)


async def until(happened: Callable[[], bool]) -> None:
    """Return when something has happened; others run meanwhile."""
    while not happened():  # noqa: ASYNC110 - it has no event
        await asyncio.sleep(0)


@pytest.mark.parametrize(
    ("frames", "size", "whole"), [(4000, 1, True), (5000, 1, False), (9000, 1024, True)]
)
async def test_a_message_of_very_many_small_frames_ends_the_connection(
    frames: int, size: int, whole: bool
) -> None:
    """Each frame costs the loop as much as 4 KB of a large one; frames of 1 KB are no attack."""
    wire = Wire(Room(), ServerSettings())
    for number in range(frames):
        wire.send(b"x" * size, finished=number == frames - 1)
    event = await wire.next()
    if whole:
        assert event == BytesMessage(b"x" * size * frames)
    else:
        assert isinstance(event, CloseConnection)
        assert event.code == CloseReason.MESSAGE_TOO_BIG


@pytest.mark.parametrize("half", ["x" * MIB, b"x" * MIB], ids=["text", "bytes"])
async def test_half_a_message_is_held_and_counted(half: str | bytes) -> None:
    """With the bytes that have arrived, until the message has been handled."""
    room, settings = Room(), ServerSettings(max_bytes_in_flight_mb=4)
    wire = Wire(room, settings)
    wire.send(half, finished=False)
    waiting = spawn(wire.next())
    await until(lambda: wire.share.size == MIB)
    wire.send(half, finished=True)
    event = await waiting
    assert isinstance(event, (TextMessage, BytesMessage))
    assert event.data == half + half  # type: ignore[operator]
    assert wire.share.size == 2 * MIB
    wire.send("next", finished=True)
    assert await wire.next() == TextMessage("next")
    assert wire.share.size == 4


async def test_messages_wait_for_room_like_bodies() -> None:
    """And a body waits for messages: it is one room."""
    room, settings = Room(), ServerSettings(max_bytes_in_flight_mb=4, body_wait_s=ANSWER_S)
    body = Share(room, settings)
    await body.grow(3 * MIB)
    wire = Wire(room, settings)
    wire.send("x" * 2 * MIB, finished=True)
    waiting = spawn(wire.next())
    await until(lambda: bool(room._waiting))
    assert not waiting.done()
    body.shrink(0)
    assert await waiting == TextMessage("x" * 2 * MIB)
    assert not body.take(3 * MIB)
    wire.share.shrink(0)
    assert body.take(3 * MIB)


async def test_messages_do_not_wait_for_each_other() -> None:
    """Of those that all need more room the one with the most is let through, then the next."""
    room, settings = Room(), ServerSettings(max_bytes_in_flight_mb=1, body_wait_s=ANSWER_S)
    first, second = Wire(room, settings), Wire(room, settings)
    texts = "x" * 600 * KIB, "y" * 500 * KIB
    for wire, text in zip((first, second), texts, strict=True):
        wire.send(text, finished=False)
    waiting = [spawn(first.next()), spawn(second.next())]
    await until(lambda: first.share.size + second.share.size == 1100 * KIB or bool(room._waiting))
    for wire, text in zip((first, second), texts, strict=True):
        wire.send(text, finished=True)
    done, _ = await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
    assert done == {waiting[0]}
    assert first.share.size == 1200 * KIB
    first.share.shrink(0)
    assert await waiting[1] == TextMessage("y" * 1000 * KIB)


async def test_a_message_without_room_ends_its_connection() -> None:
    """With the code that says to try again, and the key."""
    room, settings = Room(), ServerSettings(max_bytes_in_flight_mb=4, body_wait_s=0.01)
    await Share(room, settings).grow(3 * MIB)
    wire = Wire(room, settings)
    wire.send("x" * 2 * MIB, finished=True)
    event = await wire.next()
    assert isinstance(event, CloseConnection)
    assert event.code == 1013
    assert "server.max_bytes_in_flight_mb" in str(event.reason)
    assert b"server.max_bytes_in_flight_mb" in wire.sent


async def test_a_message_that_never_ends_ends_its_connection() -> None:
    """However it trickles in; one that is complete may be followed by any silence."""
    settings = ServerSettings(max_body_s=0.01)
    wire = Wire(Room(), settings)
    wire.send("whole", finished=True)
    assert await wire.next() == TextMessage("whole")
    wire.send("", finished=False)
    event = await wire.next()
    assert isinstance(event, CloseConnection)
    assert event.code == 1008
    assert "server.max_body_s" in str(event.reason)


async def test_one_key_has_half_of_the_room() -> None:
    """However many connections and requests it has; another key has the other half."""
    room, settings = Room(), ServerSettings(max_bytes_in_flight_mb=4, body_wait_s=0.01)
    first, second, other = (Share(room, settings, key) for key in ("one", "one", "two"))
    assert first.take(MIB)
    assert second.take(MIB)
    assert not second.take(MIB + 1)
    with pytest.raises(Overloaded, match="2 MiB of this key"):
        await second.grow(2 * MIB)
    assert other.take(2 * MIB)
    assert not Share(room, settings, "three").take(100 * KIB)
    with first, second, other:
        pass
    assert Share(room, settings, "one").take(3 * MIB)  # one that is larger goes alone


async def test_what_waits_for_the_database_takes_room() -> None:
    """But never all of it: one body goes through."""
    room, settings = Room(lambda: 3 * MIB), ServerSettings(max_bytes_in_flight_mb=4)
    first, second = Share(room, settings), Share(room, settings)
    assert first.take(2 * MIB)
    assert not second.take(100 * KIB)
    first.shrink(KIB)
    assert second.take(100 * KIB)


Start = Callable[..., AppServer]


@pytest.fixture
async def gateway(gateway_server: Start) -> AsyncIterator[Callable[..., Any]]:
    """Start a gateway before a provider, and connect to it."""
    async with running() as provider, aiohttp.ClientSession() as session:

        async def start(**server: Any) -> tuple[str, Callable[..., Any]]:
            upstream = {"api_base": f"{provider.url}/v1"}
            mapping = {"default_upstream": upstream, "server": server}
            started = await asyncio.to_thread(gateway_server, mapping)

            async def connect() -> aiohttp.ClientWebSocketResponse:
                headers = {"authorization": "Bearer sk-mine"}
                url = f"{started.url}/v1/responses"
                return await session.ws_connect(url, headers=headers, autoping=False)

            return started.url, connect

        yield start


async def test_a_half_sent_message_takes_the_room_of_bodies(gateway: Callable[..., Any]) -> None:
    """A body is refused as long as it is held, and let through after its end."""
    url, connect = await gateway(max_bytes_in_flight_mb=1, body_wait_s=0.1)
    body = {"model": "m", "input": "x" * 600 * KIB}
    half = await connect()
    half._writer.transport.write(HALF)
    await half.ping()
    assert (await half.receive()).type is aiohttp.WSMsgType.PONG  # so that the frame is held
    async with aiohttp.ClientSession() as session:

        async def refused() -> bool:
            async with session.post(f"{url}/v1/responses", json=body) as answer:
                named = "server.max_bytes_in_flight_mb" in await answer.text()
                assert named == (answer.status == 503)
                return named

        async with asyncio.timeout(ANSWER_S):
            assert await refused()
            half._writer.transport.abort()
            while await refused():
                pass


async def test_a_socket_gives_back_all_its_room(gateway: Callable[..., Any]) -> None:
    """After each answer, and after its end in the middle of a message: large ones still pass."""
    _, connect = await gateway(max_bytes_in_flight_mb=1, body_wait_s=ANSWER_S)
    for _ in range(3):
        socket = await connect()
        for _ in range(3):
            await socket.send_json(create(message("x" * 600 * KIB)))
            kind = ""
            while kind != "response.completed":
                event = await socket.receive_json()
                kind = event["type"]
                assert kind != "error", event
        socket._writer.transport.write(HALF)
        socket._writer.transport.abort()
