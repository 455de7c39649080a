"""One POST over a pooled connection, against a server that writes any bytes."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
from yarl import URL

from gateway.config import TimeoutSettings
from gateway.errors import UpstreamMalformed, UpstreamUnreachable
from gateway.upstream.base import LaneResponse
from gateway.upstream.http1 import Http1Answer
from gateway.upstream.native import NativeLane
from gateway.wire.headers import RawHeaders
from steering_gateway_testing.loopback import listening

OK = b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok"
CHUNKED = b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n"
LIMITS = TimeoutSettings(connect_s=60, first_byte_s=60, idle_s=60, total_s=0)


class Raw:
    """A server that answers each request with the next bytes of a list, and keeps what it heard."""

    def __init__(self, *answers: bytes, closes: bool = False, step: int = 0) -> None:
        self._answers = list(answers)
        self._step = step
        self._closes = closes
        self.heard: list[bytes] = []
        self.connections = 0
        self.port = 0
        self._serving: dict[asyncio.Task[None], asyncio.StreamWriter] = {}

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        task = asyncio.current_task()
        assert task is not None
        self._serving[task] = writer
        try:
            while self._answers:
                head = await reader.readuntil(b"\r\n\r\n")
                length = int(head.lower().partition(b"content-length: ")[2].split(b"\r\n")[0] or 0)
                self.heard.append(head + await reader.readexactly(length))
                await self._write(writer, self._answers.pop(0))
                if self._closes:
                    break
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        writer.close()

    async def stop(self) -> None:
        """Close what is open."""
        for writer in self._serving.values():
            writer.transport.abort()
        await asyncio.gather(*self._serving, return_exceptions=True)

    async def _write(self, writer: asyncio.StreamWriter, answer: bytes) -> None:
        step = self._step or max(1, len(answer))
        for at in range(0, len(answer), step):
            writer.write(answer[at : at + step])
            await writer.drain()
            await asyncio.sleep(0.01 if self._step else 0)  # or the pieces arrive as one


@asynccontextmanager
async def raw(
    *answers: bytes, closes: bool = False, step: int = 0
) -> AsyncIterator[tuple[Raw, NativeLane]]:
    """The server, and a lane to it; with `step` it sends so many bytes at a time."""
    there = Raw(*answers, closes=closes, step=step)
    lane = NativeLane(LIMITS, max_connections=2)
    async with listening(there.serve) as there.port:
        try:
            yield there, lane
        finally:
            await lane.aclose()
            await there.stop()


async def ask(there: Raw, lane: NativeLane, headers: RawHeaders = []) -> Http1Answer:  # noqa: B006
    url = URL(f"http://127.0.0.1:{there.port}/v1/a%2Fb?c=d%20e", encoded=True)
    answer = await lane.send("POST", url, headers, b"{}")
    assert isinstance(answer, Http1Answer)
    return answer


async def whole(answer: LaneResponse) -> bytes:
    try:
        return b"".join([chunk async for chunk in answer])
    finally:
        await answer.aclose()


async def test_what_leaves() -> None:
    """The request line, `Host`, the headers as they came, and the length."""
    async with raw(OK) as (there, lane):
        headers = [(b"x-a", b"1"), (b"x-a", b"2"), (b"x-utf8", "é".encode()), (b"x-old", b"\xe9")]
        assert await whole(await ask(there, lane, headers)) == b"ok"
        lines = (
            f"POST /v1/a%2Fb?c=d%20e HTTP/1.1\r\nHost: 127.0.0.1:{there.port}\r\n"
            "x-a: 1\r\nx-a: 2\r\nx-utf8: é\r\nx-old: é\r\nContent-Length: 2\r\n\r\n{}"
        )
        assert there.heard == [lines.encode()]


@pytest.mark.parametrize("value", [b"a\r\nx-other: b", b"a\nb", b"a\rb", b"a\0b"])
async def test_a_header_cannot_end_its_line(value: bytes) -> None:
    """It is refused before anything is sent."""
    async with raw(OK) as (there, lane):
        with pytest.raises(UpstreamMalformed):
            await ask(there, lane, [(b"x-a", value)])
        assert there.connections == 0


@pytest.mark.parametrize(
    ("sent", "content"),
    [
        (OK, b"ok"),
        (b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 103 Early Hints\r\nlink: x\r\n\r\n" + OK, b"ok"),
        (CHUNKED + b"1\r\no\r\n1;x=y\r\nk\r\n0\r\n\r\n", b"ok"),
        (b"HTTP/1.1 204 No Content\r\n\r\n", b""),
        (b"HTTP/1.1 200\nX-A: \tb \ncontent-length: 2\n\nok", b"ok"),
    ],
    ids=["length", "informational", "chunked", "none", "bare line feeds"],
)
async def test_an_answer_is_read_and_its_connection_used_again(sent: bytes, content: bytes) -> None:
    """Whatever frames it; informational answers are skipped with their headers."""
    async with raw(sent, sent) as (there, lane):
        for _ in range(2):
            answer = await ask(there, lane)
            assert b"link" not in dict(answer.headers)
            assert await whole(answer) == content
        assert there.connections == 1


ODD = {
    "a length twice": b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\ncontent-length:2\r\n\r\nok",
    "a length twice in one field": b"HTTP/1.1 200 OK\r\ncontent-length: 2, 2\r\n\r\nok",
    "after an informational answer": b"HTTP/1.1 103 x\r\nlink: y\r\n\r\n"
    b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\ncontent-length: 2\r\n\r\nok",
    "a newer version": b"HTTP/1.2 200 OK\r\ncontent-length: 2\r\n\r\nok",
    "many fields": b"HTTP/1.1 200 OK\r\n" + b"x: y\r\n" * 1000 + b"content-length: 2\r\n\r\nok",
    "a long field": b"HTTP/1.1 200 OK\r\nx: " + b"y" * 2**17 + b"\r\ncontent-length: 2\r\n\r\nok",
    "a long trailer": CHUNKED + b"2\r\nok\r\n0\r\nx: " + b"y" * 2**17 + b"\r\n\r\n",
    "many trailers": CHUNKED + b"2\r\nok\r\n0\r\n" + b"x: y\r\n" * 1000 + b"\r\n",
}


@pytest.mark.parametrize("pieces", [1, 3])
@pytest.mark.parametrize("case", ODD)
async def test_an_odd_answer_whose_meaning_is_certain_is_read(case: str, pieces: int) -> None:
    """As clients read it, in any pieces; one length is passed on, and the connection goes on."""
    step = -(-len(ODD[case]) // pieces)
    async with raw(ODD[case], ODD[case], step=step) as (there, lane):
        for _ in range(2):
            answer = await ask(there, lane)
            assert b"link" not in dict(answer.headers)
            lengths = [value for name, value in answer.headers if name == b"content-length"]
            assert lengths == ([] if "trailer" in case else [b"2"])
            assert await whole(answer) == b"ok"
        assert there.connections == 1


async def is_read_by_its_chunks(head: bytes) -> None:
    """Check that no length of `head` is passed on, and that its connection is not used again."""
    async with raw(head + b"2\r\nok\r\n0\r\n\r\n", OK) as (there, lane):
        answer = await ask(there, lane)
        assert answer.headers == []
        assert await whole(answer) == b"ok"
        assert await whole(await ask(there, lane)) == b"ok"
        assert there.connections == 2


async def test_a_length_twice_beside_chunks() -> None:
    """The chunks count, as beside one length, and the connection is not used again."""
    head = CHUNKED[:-2] + b"content-length: 7\r\ncontent-length: 7\r\n\r\n"
    await is_read_by_its_chunks(head)


@pytest.mark.parametrize("method", ["POST", "GET"])
@pytest.mark.parametrize("status", [600, 999])
async def test_a_status_that_http_does_not_have_is_passed_on(status: int, method: str) -> None:
    """It is for the client to judge."""
    head = b"HTTP/1.1 %d x\r\ncontent-length: 2\r\n\r\nok" % status
    async with raw(head) as (there, lane):
        url = URL(f"http://127.0.0.1:{there.port}/v1/files")
        answer = await lane.send(method, url, [], b"{}" if method == "POST" else b"")
        assert (answer.status, await whole(answer)) == (status, b"ok")


async def test_trailers_without_end_break_off() -> None:
    """So that nothing grows without end that nobody reads."""
    endless = CHUNKED + b"2\r\nok\r\n0\r\nx: " + b"y" * 2**22
    async with raw(endless) as (there, lane):
        with pytest.raises(UpstreamMalformed, match="broke off"):
            await whole(await ask(there, lane))


async def test_an_answer_without_a_length_ends_with_its_connection() -> None:
    """A server may end a body by closing."""
    async with raw(b"HTTP/1.1 200 OK\r\n\r\nok", closes=True) as (there, lane):
        assert await whole(await ask(there, lane)) == b"ok"


@pytest.mark.parametrize("frame", [b"content-length: 9", b"transfer-encoding: chunked"])
async def test_an_answer_that_is_cut_breaks_off(frame: bytes) -> None:
    """What has a length must have it."""
    start = b"HTTP/1.1 200 OK\r\n" + frame + b"\r\n\r\n2\r\nok\r\n"[: 4 if b"9" in frame else None]
    async with raw(start, closes=True) as (there, lane):
        with pytest.raises(UpstreamMalformed, match="broke off"):
            await whole(await ask(there, lane))


@pytest.mark.parametrize(
    "sent",
    [
        b"SSH-2.0-OpenSSH_9\r\n",
        b"HTTP/1.1 200 OK\r\nx: " + b"y" * 2**20 + b"\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nx: " + b"y" * 2**20,
        b"HTTP/1.1 200 OK\r\n" + (b"x: " + b"y" * 1000 + b"\r\n") * 1000 + b"\r\n",
        b"HTTP/1.1 103 Early Hints\r\n\r\n" * 2**14,
        b"HTTP/1.1 101 Switching Protocols\r\nupgrade: x\r\nconnection: upgrade\r\n\r\n",
        b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\ncontent-length: 3\r\n\r\nok",
        b"HTTP/1.1 200 OK\r\ncontent-length: 2, 3\r\n\r\nok",
        b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\ncontent-length: 02\r\n\r\nok",
        b"HTTP/1.1 200 OK\r\ncontent-length: +2\r\n\r\nok",
        b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\ncontent-length:\r\n , 3\r\n\r\nok",
        b"HTTP/1.1 200 OK\r\nx y: z\r\ncontent-length: 2\r\n\r\nok",
        b"HTTP/1.12 200 OK\r\ncontent-length: 2\r\n\r\nok",
        CHUNKED[:-2] + b"content-length: 2\r\ncontent-length: 3\r\n\r\n2\r\nok\r\n0\r\n\r\n",
    ],
    ids=[
        "not HTTP",
        "a field too large",
        "a field without end",
        "fields too large together",
        "informational answers without end",
        "another protocol",
        "two lengths",
        "a list of two lengths",
        "a length in two forms",
        "a length with a sign",
        "a length that is folded",
        "a name with a space",
        "no version",
        "two lengths beside chunks",
    ],
)
async def test_what_is_no_answer_is_refused(sent: bytes) -> None:
    """As malformed, and its connection is closed."""
    async with raw(sent, OK) as (there, lane):
        with pytest.raises(UpstreamMalformed):
            await ask(there, lane)
        assert await whole(await ask(there, lane)) == b"ok"
        assert there.connections == 2


@pytest.mark.parametrize(
    "more",
    [b"HTTP/1.1 4", OK, b"HTTP/1.1 200 OK\r\ncontent-length: 9\r\n\r\nsome", b"\r\n" + OK, b"x"],
)
async def test_a_connection_with_more_than_its_answer_is_not_used_again(more: bytes) -> None:
    """The next request would take the rest for its own answer; it is no part of this one, either:
    not even the body of a second answer."""
    async with raw(OK + more, OK) as (there, lane):
        assert await whole(await ask(there, lane)) == b"ok"
        assert await whole(await ask(there, lane)) == b"ok"
        assert there.connections == 2


@pytest.mark.parametrize("first", [b"content-length", b"transfer-encoding"])
async def test_chunks_count_where_there_is_a_length_too(first: bytes) -> None:
    """The length is not passed on, and the connection is not used again (RFC 9112, 6.3)."""
    frames = {b"content-length": b"7", b"transfer-encoding": b"chunked"}
    fields = [first, *(name for name in frames if name != first)]
    head = b"HTTP/1.1 200 OK\r\n" + b"".join(b"%b: %b\r\n" % (n, frames[n]) for n in fields)
    await is_read_by_its_chunks(head + b"\r\n")


@pytest.mark.parametrize("method", ["POST", "GET"])
@pytest.mark.parametrize("status", [204, 304])
async def test_an_answer_that_has_no_body_has_no_length(status: int, method: str) -> None:
    """A 304 may name the length of what it stands for, of which nothing comes."""
    head = b"HTTP/1.1 %d x\r\netag: a\r\ncontent-length: 7\r\n\r\n" % status
    async with raw(head, OK) as (there, lane):
        url = URL(f"http://127.0.0.1:{there.port}/v1/files")
        answer = await lane.send(method, url, [], b"{}" if method == "POST" else b"")
        assert (answer.status, answer.headers) == (status, [(b"etag", b"a")])
        assert await whole(answer) == b""
        assert await whole(await ask(there, lane)) == b"ok"
        assert there.connections == 1


async def test_a_connection_closed_before_its_answer() -> None:
    """The upstream cannot be reached, which may be tried again."""
    async with raw(b"", closes=True) as (there, lane):
        with pytest.raises(UpstreamUnreachable) as failed:
            await ask(there, lane)
        assert failed.value.retryable


async def test_pieces_go_to_the_sink_until_it_refuses() -> None:
    """What the sink does not take comes to the task, in order, and nothing twice."""
    released = asyncio.Event()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"{}")
        writer.write(CHUNKED)
        for letter in (b"a", b"b", b"c"):
            await released.wait()
            released.clear()
            writer.write(b"1\r\n" + letter + b"\r\n")
        writer.write(b"0\r\n\r\n")
        await writer.drain()
        writer.close()

    there = Raw()
    async with listening(serve) as there.port:
        lane = NativeLane(LIMITS, max_connections=1)
        answer = await ask(there, lane)
        taken: list[bytes] = []

        def sink(piece: bytes) -> bool:
            if piece != b"b":
                taken.append(piece)
            released.set()
            return piece != b"b"

        answer.pass_to(sink)
        asyncio.get_running_loop().call_soon(released.set)
        assert [chunk async for chunk in answer] == [b"b"]
        assert b"".join(taken) == b"ac"
        await answer.aclose()
        await lane.aclose()
