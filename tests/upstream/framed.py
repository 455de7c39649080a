"""Answers in the forms that RFC 9112 allows, around any body, and a server that gives them."""

from __future__ import annotations

import asyncio
import itertools
import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from steering_gateway_testing.loopback import listening

STARTS = {
    "usual": b"HTTP/1.1 200 OK\r\n",
    "no reason": b"HTTP/1.1 200 \r\n",
    "no reason, no space": b"HTTP/1.1 200\r\n",
    "long reason": b"HTTP/1.1 200 All is well, \tand \xe9t\xe9 too\r\n",
    "another status": b"HTTP/1.1 299 Fine\r\n",
    "after 100": b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 200 OK\r\n",
    "after 102": b"HTTP/1.1 102 Processing\r\n\r\nHTTP/1.1 200 OK\r\n",
    "after 103": b"HTTP/1.1 103 Early Hints\r\nlink: </a>\r\n\r\nHTTP/1.1 200 OK\r\n",
    "after an unknown one": b"HTTP/1.1 199 Odd\r\nX-A: b\r\n\r\nHTTP/1.1 200 OK\r\n",
    "after three": b"HTTP/1.1 102 P\r\n\r\nHTTP/1.1 100 C\r\nx: y\r\n\r\n"
    b"HTTP/1.1 103 E\r\n\r\nHTTP/1.1 200 OK\r\n",
    "after 100 of HTTP/1.0": b"HTTP/1.0 100 Continue\r\n\r\nHTTP/1.1 200 OK\r\n",
    "after 100 that closes": b"HTTP/1.1 100 C\r\nConnection: close\r\n\r\nHTTP/1.1 200 OK\r\n",
    "after 100 with a length": b"HTTP/1.1 100 C\r\nContent-Length: 0\r\n\r\nHTTP/1.1 200 OK\r\n",
    "after 103 with a coding": b"HTTP/1.1 103 E\r\nTransfer-Encoding: chunked\r\n\r\n"
    b"HTTP/1.1 200 OK\r\n",
}
FIELDS = {
    "none": b"",
    "no space": b"X-A:b\r\n",
    "tabs and spaces": b"X-A: \t b \t \r\n",
    "empty value": b"X-A:\r\n",
    "only spaces": b"X-A: \t \r\n",
    "obs-text": b"X-A: \xff\xfe\r\n",
    "every token character": b"!#$%&'*+-.^_`|~09azAZ: v\r\n",
    "every visible character": b'X-A: "(),/:;<=>?@[\\]{}\r\n',
    "repeated": b"X-A: 1\r\nX-A: 2\r\n",
    "folded": b"X-A: a\r\n b\r\n\tc\r\n",
    "folded from its start": b"X-A:\r\n b\r\n",
    "long": b"X-A: " + b"y" * 60_000 + b"\r\n",
    "many": b"".join(b"X-%d: y\r\n" % number for number in range(500)),
    "connection options": b"Connection: keep-alive, X-A\r\nKeep-Alive: timeout=5\r\nX-A: b\r\n",
    "an offer to upgrade": b"Upgrade: h2c\r\nConnection: upgrade\r\n",
    "trailers announced": b"Trailer: X-T\r\n",
    "a bare line feed": b"X-A: b\n",
}
CODINGS = {
    "usual": b"Transfer-Encoding: chunked\r\n",
    "lower case": b"transfer-encoding: chunked\r\n",
    "upper case": b"TRANSFER-ENCODING: CHUNKED\r\n",
    "mixed case": b"tRANSFER-eNCODING: cHUNKED\r\n",
    "no space": b"Transfer-Encoding:chunked\r\n",
    "spaces": b"Transfer-Encoding:   chunked   \r\n",
    "tab before": b"Transfer-Encoding:\tchunked\r\n",
    "tab behind": b"Transfer-Encoding: chunked\t\r\n",
    "tabs and spaces": b"Transfer-Encoding: \t chunked \t \r\n",
    "length before": b"Content-Length: 3\r\nTransfer-Encoding: chunked\r\n",
    "length behind": b"Transfer-Encoding: chunked\r\nContent-Length: 99999\r\n",
}
LENGTHS = {
    "usual": b"Content-Length: %d\r\n",
    "tabs and spaces": b"content-length:\t %d \t\r\n",
    "no space": b"CONTENT-LENGTH:%d\r\n",
    "zeros": b"Content-Length: 00%d\r\n",
    "twice": b"Content-Length: %d\r\ncontent-length: %d\r\n",
    "a list": b"Content-Length: %d, %d\r\n",
    "a long list": b"Content-Length: %d,%d ,\t%d\r\n",
    "twice, of lists": b"Content-Length: %d, %d\r\nX-A: b\r\nContent-Length: %d\r\n",
}
EXTENSIONS = {
    "name": b";a",
    "value": b";a=b",
    "several": b';a=1;b;c="x"',
    "quoted": b';a="x;\\"y"',
    "quoted, empty": b';a=""',
    "quoted, white space": b';a="x \t= y"',
    "quoted, obs-text": b';a="\xe9\\\xff"',
    "quoted, every delimiter": b';a="(),/:<=>?@[]{}"',
    "every token character": b";!#$%&'*+-.^_`|~09azAZ=!#$%&'*+-.^_`|~09azAZ",
    "space before its name": b"; a=b",
    "tab before its name": b";\ta=b",
    "spaces around the sign": b";a \t=\t b",
    "space behind": b";a=b ",
    "empty": b";",
    "long": b";a=" + b"x" * 4000,
    "white space alone": b" \t",
}
TRAILERS = {
    "one": b"X-T: 1\r\n",
    "several": b"X-T: 1\r\nX-U:\r\nDigest: a=b=\r\n",
    "tabs and spaces": b"X-T:\t 1 \t\r\n",
    "obs-text": b"X-T: \xff\r\n",
    "folded": b"X-T: a\r\n b\r\n",
    "a length": b"Content-Length: 3\r\n",
    "a coding": b"Transfer-Encoding: chunked\r\n",
    "a connection": b"Connection: close\r\n",
}
OK = STARTS["usual"]
_FINAL = re.compile(rb"HTTP/1\.[01] 2[^\n]*\n")


def chunks(*parts: bytes, extension: bytes = b"", size: str = "%x", trailers: bytes = b"") -> bytes:
    """Parts as chunks, and the last chunk."""
    made = [(size % len(part)).encode() + extension + b"\r\n" + part + b"\r\n" for part in parts]
    last = (size % 0).encode() + extension + b"\r\n" + trailers + b"\r\n"
    return b"".join(made) + last


def kept_open(body: bytes) -> dict[str, bytes]:
    """By a name: answers with this body whose end does not need the end of the connection."""
    one = CODINGS["usual"] + b"\r\n" + chunks(body)
    half = len(body) // 2

    def measured(form: bytes = LENGTHS["usual"]) -> bytes:
        return form.replace(b"%d", b"%d" % len(body)) + b"\r\n" + body

    def chunked(**how: object) -> bytes:
        head = OK + CODINGS["usual"] + b"\r\n"
        return head + chunks(body[:half], body[half:], **how)  # type: ignore[arg-type]

    frames = {"a length": measured(), "chunks": one}
    return {
        **{
            f"start: {start}; field: {field}; {frame}": STARTS[start] + FIELDS[field] + rest
            for start, field in [
                *((start, "none") for start in STARTS),
                *(("usual", field) for field in FIELDS),
                *(itertools.product(("after three", "no reason"), ("tabs and spaces", "obs-text"))),
            ]
            for frame, rest in frames.items()
        },
        **{f"length: {name}": OK + measured(form) for name, form in LENGTHS.items()},
        **{f"coding: {k}": OK + v + b"\r\n" + chunks(body) for k, v in CODINGS.items()},
        **{f"extension: {k}": chunked(extension=v) for k, v in EXTENSIONS.items()},
        **{f"trailers: {k}": chunked(trailers=v) for k, v in TRAILERS.items()},
        "size: upper case": chunked(size="%X"),
        "size: zeros": chunked(size="000%x"),
        "size: 16 digits": chunked(size="%016x"),
        "chunks: many": OK
        + CODINGS["usual"]
        + b"\r\n"
        + chunks(*(body[at : at + 1] for at in range(len(body)))),
        "line feeds alone": b"HTTP/1.1 200 OK\nContent-Length: %d\n\n" % len(body) + body,
        "line feeds alone, chunks": OK.replace(b"\r", b"")
        + b"Transfer-Encoding: chunked\n\n"
        + chunks(body),
        "close, a length": OK + b"Connection: close\r\n" + measured(),
        "close, chunks": OK + b"Connection:\tfoo,, Close\r\n" + one,
        "HTTP/1.0, kept": b"HTTP/1.0 200 OK\r\nConnection: keep-alive\r\n" + measured(),
    }


def closed(body: bytes) -> dict[str, bytes]:
    """The same for answers that end with their connection."""
    starts = ("usual", "no reason", "after three", "after 100 of HTTP/1.0")
    ends = {
        "nothing said": b"",
        "close": b"Connection: close\r\n",
        "keep-alive": b"Connection: keep-alive\r\n",
        "an offer to upgrade": FIELDS["an offer to upgrade"],
    }
    return {
        f"start: {start}; to the end, {end}": STARTS[start] + ends[end] + b"\r\n" + body
        for start, end in itertools.product(starts, ends)
    } | {
        "HTTP/1.0, a length": b"HTTP/1.0 200 OK\r\nContent-Length: %d\r\n\r\n" % len(body) + body,
        "HTTP/1.0, to the end": b"HTTP/1.0 200 OK\r\n\r\n" + body,
    }


class Answering:
    """A server that answers `/<n>` with the nth of its answers, and other paths with `now`.

    It closes the connection behind an answer of `closing`; with `step` it sends so many bytes at
    a time.
    """

    def __init__(self, answers: list[bytes] | None = None) -> None:
        self.answers = answers or []
        self.closing: set[bytes] = set()
        self.now = b""
        self.step = 0
        self.heard: list[bytes] = []
        self.port = 0
        self.writers: list[asyncio.StreamWriter] = []

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Answer the requests of one connection."""
        self.writers.append(writer)
        try:
            while True:
                head = await reader.readuntil(b"\r\n\r\n")
                await _skip_body(head.lower(), reader)
                self.heard.append(head)
                numbered = re.match(rb"\S+ \S*?/(\d+) ", head)
                answer = self.answers[int(numbered[1])] if numbered else self.now
                step = self.step or max(len(answer), 1)
                for at in range(0, len(answer), step):
                    writer.write(answer[at : at + step])
                    for _ in range(3 if self.step else 0):  # or the pieces arrive as one
                        await asyncio.sleep(0)
                if answer in self.closing:
                    break
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        writer.close()


async def _skip_body(head: bytes, reader: asyncio.StreamReader) -> None:
    if b"transfer-encoding: chunked" in head:
        while size := int(await reader.readuntil(b"\r\n"), 16):
            await reader.readexactly(size + 2)
        await reader.readexactly(2)
    elif found := re.search(rb"content-length: *(\d+)", head):
        await reader.readexactly(int(found[1]))


@asynccontextmanager
async def answering(answers: list[bytes] | None = None) -> AsyncIterator[Answering]:
    """The server while the block runs."""
    there = Answering(answers)
    async with listening(there.serve) as there.port:
        try:
            yield there
        finally:
            for writer in there.writers:
                writer.transport.abort()
            await asyncio.sleep(0)


def typed(answers: dict[str, bytes], kind: bytes) -> dict[str, bytes]:
    """The answers with a content type."""
    field = b"Content-Type: " + kind + b"\r\n"
    return {name: _FINAL.sub(rb"\g<0>" + field, sent, count=1) for name, sent in answers.items()}
