"""Answers in every form that RFC 9112 allows, to both lanes' requests of every kind and size.

httpx and curl read each of them too: what both read the same, the lane has to read the same.
"""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import httpx
import pytest
from yarl import URL

from gateway.errors import UpstreamFailure, UpstreamMalformed, UpstreamUnreachable
from gateway.upstream.base import LaneResponse
from gateway.upstream.native import NativeLane
from gateway.wire.headers import RawHeaders
from steering_gateway_testing.framed import (
    CODINGS,
    OK,
    Answering,
    answering,
    chunks,
    closed,
    kept_open,
)
from steering_gateway_testing.loopback import listening
from tests.examples import by_day
from tests.upstream.test_http1 import LIMITS

BODY = b"hello world"
CLOSED = closed(BODY)
ALLOWED = kept_open(BODY) | CLOSED
EMPTY = kept_open(b"") | closed(b"")
WITHOUT_BODY = {
    "204": b"HTTP/1.1 204 No Content\r\n\r\n",
    "204, a length": b"HTTP/1.1 204 No Content\r\nContent-Length: 7\r\n\r\n",
    "204, chunks": b"HTTP/1.1 204 No Content\r\nTransfer-Encoding: chunked\r\n\r\n",
    "304, a length": b"HTTP/1.1 304 Not Modified\r\nContent-Length: 7\r\n\r\n",
    "304, chunks": b"HTTP/1.1 304 Not Modified\r\nTransfer-Encoding: chunked\r\n\r\n",
    "205": b"HTTP/1.1 205 Reset Content\r\nContent-Length: 0\r\n\r\n",
}
CONTENT = (
    b"HTTP/1.1 200 OK\r\nContent-Length: 3\r\n\r\nabc",
    b"0\r\n\r\nHTTP/1.1 200 OK\r\n\r\n",
    b"\r\n5;a=b\r\nhello\r\n0\r\n\r\n",
    b"\0\xff\r\n\r\n",
)
"""Bodies that look like what frames one."""

LIKE_LITELLM = [(b"Host", b"x"), (b"Content-Length", b"2"), (b"Connection", b"keep-alive")]
REQUESTS = {
    "small POST": ("POST", b"{}"),
    "POST of 1 MiB": ("POST", b"x" * 2**20),
    "PUT": ("PUT", b"{}"),
    "GET": ("GET", b""),
    "DELETE": ("DELETE", b""),
    "LiteLLM's": ("POST", b"{}"),
    "upload": ("POST", b"x" * 2**17),
    "upload in chunks": ("PUT", b"x" * 2**17),
    "a login in the URL": ("POST", b"{}"),
    "through a proxy": ("POST", b"{}"),
}
PROXIED = "through a proxy"


async def _parts(content: bytes) -> AsyncIterator[bytes]:
    for at in range(0, len(content), 2**16):
        yield content[at : at + 2**16]


async def ask(there: Answering, lane: NativeLane, request: str, at: str = "x") -> LaneResponse:
    """The answer to a request of `REQUESTS`."""
    method, content = REQUESTS[request]
    login = "u:p@" if request == "a login in the URL" else ""
    host = "else.invalid" if request == PROXIED else f"{login}127.0.0.1:{there.port}"
    address = f"http://{host}/v1/{at}"
    headers: RawHeaders = LIKE_LITELLM if request == "LiteLLM's" else []
    url = address if request == "LiteLLM's" else URL(address)
    if not request.startswith("upload"):
        return await lane.send(method, url, list(headers), content)
    if request == "upload":
        headers = [(b"content-length", b"%d" % len(content))]
    return await lane.send(method, url, headers, _parts(content))


async def body_of(answer: LaneResponse) -> bytes:
    try:
        return b"".join([chunk async for chunk in answer])
    finally:
        await answer.aclose()


@asynccontextmanager
async def a_lane(there: Answering, request: str) -> AsyncIterator[NativeLane]:
    """A lane to the server, which is also the proxy of what goes through one."""
    with pytest.MonkeyPatch.context() as environment:
        if request == PROXIED:
            environment.setenv("http_proxy", f"http://u:p@127.0.0.1:{there.port}")
        lane = NativeLane(LIMITS, max_connections=2)
        yield lane
        await lane.aclose()


async def read_all(
    answers: dict[str, bytes], request: str = "small POST", *, step: int = 0
) -> dict[str, tuple[int, bytes]]:
    """What the lane reads of each answer."""
    found = {}
    async with answering(list(answers.values())) as there, a_lane(there, request) as lane:
        there.closing, there.step = {*CLOSED.values(), *closed(b"").values()}, step
        for number, name in enumerate(answers):
            try:
                answer = await ask(there, lane, request, str(number))
                found[name] = answer.status, await body_of(answer)
            except UpstreamFailure as error:
                found[name] = 0, str(error).encode()
    return found


def due(answers: dict[str, bytes], body: bytes) -> dict[str, tuple[int, bytes]]:
    """What every reader has to read."""
    return {name: (299 if "another status" in name else 200, body) for name in answers}


def test_there_are_enough() -> None:
    """The forms are as many as the RFC has, with room."""
    assert len(set(ALLOWED.values())) >= 119


async def test_httpx_reads_them() -> None:
    """The first witness, without decoding."""
    async with answering(list(ALLOWED.values())) as there:
        there.closing = set(CLOSED.values())
        found = {}
        async with httpx.AsyncClient(trust_env=False) as client:
            for number, name in enumerate(ALLOWED):
                answer = await client.post(f"http://127.0.0.1:{there.port}/{number}", content=b"{}")
                found[name] = answer.status_code, answer.content
    assert found == due(ALLOWED, BODY)


@pytest.mark.skipif(shutil.which("curl") is None, reason="curl is not installed")
async def test_curl_reads_them(tmp_path: Path) -> None:
    """The second witness (as of 7.88.1)."""
    async with answering(list(ALLOWED.values())) as there:
        there.closing = set(CLOSED.values())
        asked = [
            f'url = "http://127.0.0.1:{there.port}/{number}"\ndata = "{{}}"\n'
            'silent\nnoproxy = "*"\n'
            f'output = "{tmp_path / str(number)}"\nwrite-out = "%{{http_code}} %{{exitcode}}\\n"\n'
            for number in range(len(ALLOWED))
        ]
        commands = tmp_path / "commands"
        commands.write_text("next\n".join(asked))
        process = await asyncio.create_subprocess_exec(
            "curl", "-q", "--config", str(commands), stdout=asyncio.subprocess.PIPE
        )
        said = (await process.communicate())[0].decode().splitlines()
    found = {}
    for number, (name, line) in enumerate(zip(ALLOWED, said, strict=True)):
        status, failed = map(int, line.split())
        found[name] = 0 if failed else status, (tmp_path / str(number)).read_bytes()
    assert found == due(ALLOWED, BODY)


@pytest.mark.parametrize("request_of", by_day(REQUESTS, 4))
async def test_every_allowed_answer_is_read(request_of: str) -> None:
    """None is refused and none misread, whatever request it answers; the bodies may be empty."""
    assert await read_all(ALLOWED, request_of) == due(ALLOWED, BODY)
    assert await read_all(EMPTY, request_of) == due(EMPTY, b"")


async def test_every_allowed_answer_is_read_byte_by_byte() -> None:
    """A read may end anywhere."""
    answers = {name: sent for name, sent in ALLOWED.items() if len(sent) < 1000}
    assert len(answers) >= 119
    assert await read_all(answers, step=1) == due(answers, BODY)


@pytest.mark.parametrize("content", [*CONTENT, b"0123456789abcdef" * 2**15])
async def test_the_body_may_be_anything(content: bytes) -> None:
    """What looks like a frame is none within one, and a body may be longer than any buffer."""
    answers = {k: v for k, v in kept_open(content).items() if len(content) < 99 or "many" not in k}
    assert await read_all(answers) == due(answers, content)


@pytest.mark.parametrize("request_of", REQUESTS)
async def test_every_answer_without_a_body_is_read(request_of: str) -> None:
    """It ends with its head, and nothing of the next answer is taken for it."""
    found = await read_all(WITHOUT_BODY, request_of)
    assert found == {name: (int(name[:3]), b"") for name in WITHOUT_BODY}


async def test_the_answer_to_head_has_no_body() -> None:
    """Each head without what follows it, over one connection; its length is passed on."""
    heads = {
        name: sent[: sent.rindex(b"\r\n\r\n" + BODY) + 4]
        for name, sent in ALLOWED.items()
        if name.startswith("length: ") or "a length" in name
        if b"\r\n\r\n" + BODY in sent and name not in CLOSED and "close" not in name
    }
    async with answering(list(heads.values())) as there, a_lane(there, "") as lane:
        for number in range(len(heads)):
            url = URL(f"http://127.0.0.1:{there.port}/{number}")
            answer = await lane.send("HEAD", url, [], b"")
            assert int(dict(answer.headers)[b"content-length"]) == len(BODY)
            assert await body_of(answer) == b""
        assert len(there.heard) == len(heads) > 30
        assert len(there.writers) == 1


LENIENT = {
    "a length that is folded": OK + b"Content-Length:\r\n 11\r\n\r\n" + BODY,
    "a coding that is folded": OK + b"Transfer-Encoding:\r\n chunked\r\n\r\n" + chunks(BODY),
    "an empty element": OK + b"Transfer-Encoding: , chunked,\r\n\r\n" + chunks(BODY),
    "chunked twice": OK + CODINGS["usual"] * 2 + b"\r\n" + chunks(BODY),
    "identity": OK + b"Transfer-Encoding: identity\r\nContent-Length: 11\r\n\r\n" + BODY,
    "spaces before an extension": OK
    + CODINGS["usual"]
    + b"\r\n"
    + chunks(BODY, extension=b" \t; a"),
    "line feeds in chunks": OK + CODINGS["usual"] + b"\r\nb\n" + BODY + b"\n0\nX: y\n\n",
    "many zeros": OK + CODINGS["usual"] + b"\r\n" + chunks(BODY, size="%040x"),
    "an empty line first": b"\r\n" + OK + b"Content-Length: 11\r\n\r\n" + BODY,
    "HTTP/1.2": b"HTTP/1.2 200 OK\r\nContent-Length: 11\r\n\r\n" + BODY,
}
"""Not every reader takes these; their meaning is certain."""


async def test_what_not_every_reader_takes_is_read() -> None:
    """The same by each way."""
    assert await read_all(LENIENT) == due(LENIENT, BODY)
    assert await read_all(LENIENT, step=1) == due(LENIENT, BODY)


AMBIGUOUS = {
    "a size that is none": b"Transfer-Encoding: chunked\r\n\r\nzz\r\nhello\r\n0\r\n\r\n",
    "a negative size": b"Transfer-Encoding: chunked\r\n\r\n-5\r\nhello\r\n0\r\n\r\n",
    "a chunk that is too short": b"Transfer-Encoding: chunked\r\n\r\n9\r\nhello\r\n0\r\n\r\n",
    "two lengths": b"Content-Length: 5\r\nContent-Length: 6\r\n\r\nhello!",
    "a negative length": b"Content-Length: -5\r\n\r\nhello",
    "a length that is none": b"Content-Length: five\r\n\r\nhello",
    "a NUL in a header": b"X-A: a\0b\r\nContent-Length: 5\r\n\r\nhello",
    "a coding that was not asked for": b"Transfer-Encoding: gzip, chunked\r\n\r\n0\r\n\r\n",
    "an unknown coding": b"Transfer-Encoding: x\r\n\r\nhello",
    "a coding after the chunks": b"Transfer-Encoding: chunked, x\r\n\r\n0\r\n\r\n",
    "a sign before a size": b"Transfer-Encoding: chunked\r\n\r\n+5\r\nhello\r\n0\r\n\r\n",
    "a size with a prefix": b"Transfer-Encoding: chunked\r\n\r\n0x5\r\nhello\r\n0\r\n\r\n",
    "a size with a mark": b"Transfer-Encoding: chunked\r\n\r\n0_5\r\nhello\r\n0\r\n\r\n",
    "no size": b"Transfer-Encoding: chunked\r\n\r\n;a\r\nhello\r\n0\r\n\r\n",
    "a chunk that is too long": b"Transfer-Encoding: chunked\r\n\r\n4\r\nhello\r\n0\r\n\r\n",
    "no end of the trailers": b"Transfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n0\r\nX: y\r\n",
    "no end of the last chunk": b"Transfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n",
}


@pytest.mark.parametrize("request_of", REQUESTS)
@pytest.mark.parametrize("case", AMBIGUOUS)
async def test_what_is_not_certain_is_an_error(case: str, request_of: str) -> None:
    """Never a complete answer with a part of it."""
    sent = OK + AMBIGUOUS[case]
    async with answering([sent]) as there, a_lane(there, request_of) as lane:
        there.closing = {sent}
        with pytest.raises(UpstreamFailure):
            await body_of(await ask(there, lane, request_of, "0"))


UNASKED = b"HTTP/1.1 200 OK\r\nContent-Length: 7\r\n\r\nanother"


MOMENTS = ["with the answer", "while idle", "while the loop is busy"]
PIECES = {
    "an answer": UNASKED,
    "two answers": UNASKED * 2,
    "a head": UNASKED[:-7],
    "a part of a head": UNASKED[:20],
    "an informational answer": b"HTTP/1.1 100 Continue\r\n\r\n",
    "an empty line": b"\r\n",
    "a byte": b"x",
}


@pytest.mark.parametrize("moment", MOMENTS)
@pytest.mark.parametrize("request_of", by_day([*REQUESTS, "HEAD"], 4))
async def test_what_comes_unasked_answers_nobody(request_of: str, moment: str) -> None:
    """An upstream that speaks out of turn: the next request gets its own answer, and is executed
    once."""
    first = OK + b"Content-Length: 11\r\n\r\n" + BODY
    for piece in PIECES.values():
        async with answering() as there, a_lane(there, request_of) as lane:
            there.now = first + piece if moment == MOMENTS[0] else first
            before = PROXIED if request_of == PROXIED else "small POST"
            assert await body_of(await ask(there, lane, before)) == BODY
            there.now = first[:-11] if request_of == "HEAD" else first
            if moment != MOMENTS[0]:
                for writer in there.writers:
                    writer.write(piece)
                await asyncio.sleep(0.01 if moment == MOMENTS[1] else 0)
            if request_of == "HEAD":
                url = URL(f"http://127.0.0.1:{there.port}/x")
                answer = await lane.send("HEAD", url, [], b"")
                assert dict(answer.headers)[b"content-length"] == b"11"
            else:
                assert await body_of(await ask(there, lane, request_of)) == BODY
            assert len(there.heard) == 2


@pytest.mark.parametrize("first", [b"SSH-2.0-x\r\n", UNASKED, b""])
async def test_an_upstream_that_does_not_wait_to_be_asked(first: bytes) -> None:
    """It speaks, or closes, as soon as it is connected: an answer or an error, once."""
    connections = 0

    async def serve(_reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal connections
        connections += 1
        writer.write(first)
        writer.close()

    there = Answering()
    async with listening(serve) as there.port, a_lane(there, "") as lane:
        try:
            assert await body_of(await ask(there, lane, "GET")) == b"another"
            assert first == UNASKED
        except (UpstreamMalformed, UpstreamUnreachable):
            pass
    assert connections == 1
