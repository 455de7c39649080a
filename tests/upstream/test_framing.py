"""Answers in every form that RFC 9112 allows, in both lanes' requests of every size.

Each is what one head says (sections 4 and 5 of the RFC) with a body that one frame delimits
(sections 6 and 7); httpx reads each of them too, as a witness that the bytes are HTTP.
"""

from __future__ import annotations

import itertools

import httpx
import pytest
from yarl import URL

from gateway.errors import UpstreamFailure
from gateway.upstream.base import LaneResponse
from tests.upstream.test_http1 import Raw, raw

BODY = b"hello world"
STARTS = {
    "usual": b"HTTP/1.1 200 OK\r\n",
    "no reason": b"HTTP/1.1 200 \r\n",
    "long reason": b"HTTP/1.1 200 All is well, \tand \xe9t\xe9 too\r\n",
    "another status": b"HTTP/1.1 299 Fine\r\n",
    "after 100": b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 200 OK\r\n",
    "after 103": b"HTTP/1.1 103 Early Hints\r\nlink: </a>\r\n\r\nHTTP/1.1 200 OK\r\n",
    "after two": b"HTTP/1.1 102 P\r\n\r\nHTTP/1.1 100 C\r\nx: y\r\n\r\nHTTP/1.1 200 OK\r\n",
}
FIELDS = {
    "none": b"",
    "no space": b"X-A:b\r\n",
    "tabs and spaces": b"X-A: \t b \t \r\n",
    "empty value": b"X-A:\r\n",
    "obs-text": b"X-A: \xff\xfe\r\n",
    "every token character": b"!#$%&'*+-.^_`|~09azAZ: v\r\n",
    "repeated": b"X-A: 1\r\nX-A: 2\r\n",
}
CHUNKS = b"Transfer-Encoding: chunked\r\n\r\n"
FRAMES = {
    "length": b"Content-Length: 11\r\n\r\n" + BODY,
    "length with spaces": b"content-length: \t11 \r\n\r\n" + BODY,
    "length with zeros": b"CONTENT-LENGTH: 0011\r\n\r\n" + BODY,
    "one chunk": b"Transfer-Encoding: chunked\r\n\r\nb\r\n" + BODY + b"\r\n0\r\n\r\n",
    "upper case": b"transfer-encoding: CHUNKED\r\n\r\nB\r\n" + BODY + b"\r\n0\r\n\r\n",
    "tab behind": b"Transfer-Encoding: chunked\t\r\n\r\nb\r\n" + BODY + b"\r\n0\r\n\r\n",
    "tab before": b"Transfer-Encoding:\tchunked\r\n\r\nb\r\n" + BODY + b"\r\n0\r\n\r\n",
    "two chunks": b"Transfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n6\r\n world\r\n0\r\n\r\n",
    "zeros before a size": b"Transfer-Encoding: chunked\r\n\r\n00b\r\n" + BODY + b"\r\n000\r\n\r\n",
    "extension": b"Transfer-Encoding: chunked\r\n\r\nb;a=b;c\r\n" + BODY + b"\r\n0;d\r\n\r\n",
    "quoted extension": b'Transfer-Encoding: chunked\r\n\r\nb;a="x;\\"y"\r\n'
    + BODY
    + b"\r\n0\r\n\r\n",
    "trailers": b"Transfer-Encoding: chunked\r\n\r\nb\r\n"
    + BODY
    + b"\r\n0\r\nX-T: 1\r\nX-U:\r\n\r\n",
    "single bytes": b"Transfer-Encoding: chunked\r\n\r\n"
    + b"".join(b"1\r\n%c\r\n" % byte for byte in BODY)
    + b"0\r\n\r\n",
}
ENDS = {
    "until the end": b"\r\n" + BODY,
    "until the end, said": b"Connection: close\r\n\r\n" + BODY,
    "length, then closed": b"Connection: close\r\nContent-Length: 11\r\n\r\n" + BODY,
}
ALLOWED = {
    f"{start}, {fields}, {frame}": STARTS[start] + FIELDS[fields] + FRAMES[frame]
    for start, fields, frame in (
        *((s, f, x) for s, f in itertools.product(STARTS, FIELDS) for x in ("length", "one chunk")),
        *(("usual", "none", frame) for frame in FRAMES),
        *(("after 103", "tabs and spaces", frame) for frame in FRAMES),
    )
}
CLOSED = {
    f"{start}, {end}": STARTS[start] + ENDS[end] for start, end in itertools.product(STARTS, ENDS)
} | {
    "HTTP/1.0, length": b"HTTP/1.0 200 OK\r\nContent-Length: 11\r\n\r\n" + BODY,
    "HTTP/1.0, until the end": b"HTTP/1.0 200 OK\r\n\r\n" + BODY,
    "HTTP/1.0, kept": b"HTTP/1.0 200 OK\r\nConnection: keep-alive\r\ncontent-length: 11\r\n\r\n"
    + BODY,
}
LIKE_LITELLM = [(b"Host", b"x"), (b"Content-Length", b"2"), (b"Connection", b"keep-alive")]
REQUESTS = {
    "small POST": ("POST", b"{}", False),
    "POST of 1 MiB": ("POST", b"x" * 2**20, False),
    "GET": ("GET", b"", False),
    "DELETE": ("DELETE", b"", False),
    "LiteLLM's": ("POST", b"{}", True),
}


async def ask(there: Raw, lane: object, request: str) -> LaneResponse:
    method, content, by_litellm = REQUESTS[request]
    address = f"http://127.0.0.1:{there.port}/v1/x"
    headers = LIKE_LITELLM if by_litellm else []
    url = httpx.URL(address) if by_litellm else URL(address)
    return await lane.send(method, url, list(headers), content)  # type: ignore[attr-defined]


async def body_of(answer: LaneResponse) -> bytes:
    try:
        return b"".join([chunk async for chunk in answer])
    finally:
        await answer.aclose()


def test_there_are_enough() -> None:
    """Of heads and frames, each at least once."""
    assert len(ALLOWED) + len(CLOSED) >= 119


@pytest.mark.parametrize("request_of", REQUESTS)
async def test_every_allowed_answer_is_read(request_of: str) -> None:
    """None is refused and none misread, whatever request it answers; httpx reads the same."""
    wrong = []
    for closes, answers in ((False, ALLOWED), (True, CLOSED)):
        for name, sent in answers.items():
            async with raw(sent, sent, closes=closes) as (there, lane):
                try:
                    answer = await ask(there, lane, request_of)
                    found = (answer.status, await body_of(answer))
                except UpstreamFailure as error:
                    found = (0, str(error).encode())
                if found != (299 if "another" in name else 200, BODY):
                    wrong.append((name, found))
                if request_of == "small POST":
                    async with httpx.AsyncClient(trust_env=False) as client:
                        seen = await client.post(f"http://127.0.0.1:{there.port}/", content=b"{}")
                    assert seen.content == BODY, name
    assert wrong == []


AMBIGUOUS = {
    "a size that is none": b"Transfer-Encoding: chunked\r\n\r\nzz\r\nhello\r\n0\r\n\r\n",
    "a negative size": b"Transfer-Encoding: chunked\r\n\r\n-5\r\nhello\r\n0\r\n\r\n",
    "a chunk that is too short": b"Transfer-Encoding: chunked\r\n\r\n9\r\nhello\r\n0\r\n\r\n",
    "two lengths": b"Content-Length: 5\r\nContent-Length: 6\r\n\r\nhello!",
    "a negative length": b"Content-Length: -5\r\n\r\nhello",
    "a length that is none": b"Content-Length: five\r\n\r\nhello",
    "a NUL in a header": b"X-A: a\0b\r\nContent-Length: 5\r\n\r\nhello",
    "no end of the last chunk": b"Transfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n",
}


@pytest.mark.parametrize("request_of", REQUESTS)
@pytest.mark.parametrize("case", AMBIGUOUS)
async def test_what_is_not_certain_is_an_error(case: str, request_of: str) -> None:
    """Never a complete answer with a part of it."""
    async with raw(STARTS["usual"] + AMBIGUOUS[case], closes=True) as (there, lane):
        with pytest.raises(UpstreamFailure):
            await body_of(await ask(there, lane, request_of))


UNASKED = b"HTTP/1.1 200 OK\r\nContent-Length: 7\r\n\r\nanother"


@pytest.mark.parametrize("later", [False, True], ids=["with the answer", "while idle"])
@pytest.mark.parametrize("request_of", REQUESTS)
async def test_what_comes_unasked_answers_nobody(request_of: str, later: bool) -> None:
    """An upstream that speaks out of turn: the next request gets its own answer."""
    first = STARTS["usual"] + FRAMES["length"]
    async with raw(first if later else first + UNASKED, first, first) as (there, lane):
        assert await body_of(await ask(there, lane, "small POST")) == BODY
        if later:
            for writer in there._serving.values():
                writer.write(UNASKED)
                await writer.drain()
        assert await body_of(await ask(there, lane, request_of)) == BODY
