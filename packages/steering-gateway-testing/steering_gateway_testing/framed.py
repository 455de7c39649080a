"""Answers in the forms that RFC 9112 allows, around any body, and a server that gives them."""

from __future__ import annotations

import asyncio
import itertools
import re
import tomllib
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from steering_gateway_testing.loopback import listening

FORMS: dict[str, dict[str, bytes]] = {
    group: {name: form.encode("latin-1") for name, form in forms.items()}
    for group, forms in tomllib.loads(Path(__file__).with_suffix(".toml").read_text()).items()
}
STARTS = FORMS["starts"]
FIELDS = FORMS["fields"] | {
    "long": b"X-A: " + b"y" * 60_000 + b"\r\n",
    "many": b"".join(b"X-%d: y\r\n" % number for number in range(500)),
}
CODINGS = FORMS["codings"]
LENGTHS = FORMS["lengths"]
EXTENSIONS = FORMS["extensions"] | {"long": b";a=" + b"x" * 4000}
TRAILERS = FORMS["trailers"]
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

    def chunked(**how: Any) -> bytes:
        head = OK + CODINGS["usual"] + b"\r\n"
        return head + chunks(body[:half], body[half:], **how)

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
