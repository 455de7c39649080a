"""`python -m bench.hostile`: other clients and memory beside clients that send hostile bytes.

For each kind a gateway process of its own is started. Two clients send small chats, first alone
(quiet), then beside 100 clients that send small harmless chats, one after the other (busy), then
beside 100 hostile bodies or 200 hostile connections, which stay for the whole time: a body that was
answered is sent again. What a hostile body costs others is the difference to *busy*: as many
clients that send without a pause fill the processor whatever they send. The table has the other
clients' p50 and p99 in each part, and the most memory that the gateway's process had, which Linux
keeps for it.
"""

from __future__ import annotations

import argparse
import asyncio
import base64
import contextlib
import gzip
import hashlib
import itertools
import json
import multiprocessing
import os
import socket
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import uvloop
from backports import zstd

from bench import bodies
from bench.arms import Arm, Running, gateway_command, start
from bench.client import LOOPBACK, Connection, post
from bench.scripted import completion

CHAT = "/v1/chat/completions"
MIB = 2**20
_GUID = b"258EAFA5-E914-47DA-95CA-C5AB0DC85B11"
_LARGE = b"a-large-answer"
_SOCKET = (
    b"GET /v1/responses HTTP/1.1\r\nhost: 127.0.0.1\r\nupgrade: websocket\r\n"
    b"connection: Upgrade\r\nauthorization: Bearer sk-bench-0000\r\n"
    b"sec-websocket-version: 13\r\nsec-websocket-key: AAAAAAAAAAAAAAAAAAAAAA==\r\n\r\n"
)
_HALF = 4 * MIB
_PIECE = 2**17
_WHOLE = 60 * MIB


def _coded(content: bytes, coding: str) -> bytes:
    return post(CHAT, content, (("content-encoding", coding),))


def _chat(inside: bytes) -> bytes:
    return b'{"model": "m", "messages": [' + inside + b"1]}"


def _asks(path: str, members: bytes) -> bytes:
    """A request in any dialect, with these members beside the model's name."""
    return post(path, b'{"model": "m", "max_tokens": 9, ' + members + b"}")


def _with(members: bytes) -> bytes:
    """An ordinary short chat with further members."""
    return _asks(CHAT, b'"messages": [{"role": "user", "content": "Go on."}], ' + members)


def _of_many(key: bytes, item: bytes, count: int) -> bytes:
    """The member of a body that is a list of so many equal items."""
    return b'"%b": [' % key + b",".join([item] * count) + b"]"


def _many_keys(count: int) -> bytes:
    """An object of so many members."""
    return json.dumps({f"k{number}": number for number in range(count)}).encode()


def _tables(size: int) -> bytes:
    """gzip of blocks that hold nothing but the tables for what they hold."""
    lengths = dict.fromkeys(range(18), 0) | {2: 1, 3: 2, 17: 2}  # of 18, of 0 and of 1
    block = _Bits()
    for value, width in ((0, 1), (2, 2), (0, 5), (0, 5), (14, 4)):
        block.add(value, width)
    for place in range(18):
        block.add(lengths[place], 3)
    block.code("0")
    block.add(127, 7)  # 138 zeros
    block.code("0")
    block.add(107, 7)  # 118 zeros
    block.code("11")
    block.code("10")
    block.code("0")  # the end of the block
    one = block.text
    whole = one * 8  # whole bytes
    raw = int(whole[::-1], 2).to_bytes(len(whole) // 8, "little")
    return gzip.compress(b"")[:10] + raw * (size // len(raw))


class _Bits:
    """Bits in the order of RFC 1951 section 3.1.1."""

    def __init__(self) -> None:
        self.text = ""

    def add(self, value: int, width: int) -> None:
        """A number, its lowest bit first."""
        self.text += format(value, f"0{width}b")[::-1]

    def code(self, bits: str) -> None:
        """A Huffman code, its highest bit first."""
        self.text += bits


def _long_chat(size: int) -> bytes:
    """A chat about this module that nobody would call hostile but for its size."""
    code = Path(__file__).read_text()
    turns = itertools.cycle({"role": "user", "content": code[at:]} for at in range(0, 4000, 40))
    messages = list(itertools.islice(turns, size // len(code)))
    return json.dumps({"model": "m", "messages": messages}).encode()


def _bodies() -> dict[str, Callable[[], bytes]]:
    """Hostile requests that are complete."""
    noise = b'"' + base64.b64encode(os.urandom(400_000)) + b'",'
    deep = b"[" * 900 + b"]" * 900 + b","
    return {
        "empty zstd frames, 3 MB": lambda: _coded(zstd.compress(b"") * 340_000, "zstd"),
        "empty gzip members, 3 MB": lambda: _coded(gzip.compress(b"") * 150_000, "gzip"),
        "a bomb, 32 MB to 32 GB": lambda: _coded(zstd.compress(bytes(MIB)) * 32_000, "zstd"),
        "tables for nothing, 3 MB": lambda: _coded(_tables(3 * MIB), "gzip"),
        "nested JSON, 60 MB in zstd": lambda: _coded(
            zstd.compress(_chat(noise + deep * (60 * MIB // len(deep)))), "zstd"
        ),
        "nested JSON, 8 MB": lambda: post(CHAT, _chat(deep * (8 * MIB // len(deep)))),
        "tiny messages, 1 MB": lambda: post(CHAT, _chat(b'{"a":1},' * 130_000)),
        "tiny parts, 60 kB": lambda: post(
            CHAT, _chat(b'{"role":"user","content":[' + b'{"a":1},' * 7500 + b"1]},")
        ),
        "tiny items, 1 MB of Responses": lambda: _asks(
            "/v1/responses", _of_many(b"input", b'{"a":1}', 130_000)
        ),
        "tiny blocks, 60 kB of Messages": lambda: _asks(
            "/v1/messages",
            b'"messages": [{"role": "user", %b}]' % _of_many(b"content", b'{"a":1}', 7500),
        ),
        "tiny parts, 60 kB of Gemini": lambda: _asks(
            "/v1beta/models/m:generateContent",
            b'"contents": [{"role": "user", %b}]' % _of_many(b"parts", b'{"a":1}', 7500),
        ),
        "short messages, 4 MB": lambda: _asks(
            CHAT, _of_many(b"messages", b'{"role": "user", "content": "%b"}' % (b"x" * 90), 34_000)
        ),
        "3,400 messages, 220 kB": lambda: _asks(
            CHAT, _of_many(b"messages", b'{"role": "user", "content": "%b"}' % (b"x" * 30), 3400)
        ),
        "short messages, 500 kB": lambda: _asks(
            CHAT, _of_many(b"messages", b'{"role": "user", "content": "%b"}' % (b"x" * 30), 8000)
        ),
        "10,000 tools": lambda: _with(
            _of_many(b"tools", b'{"type": "function", "function": {"name": "f"}}', 10_000)
        ),
        "50,000 keys of metadata": lambda: _with(b'"metadata": ' + _many_keys(50_000)),
        "50,000 keys of a call": lambda: _asks(
            "/v1/messages",
            b'"messages": [{"role": "user", "content": "Go on."}, {"role": "assistant", "content": '
            b'[{"type": "tool_use", "id": "c", "name": "f", "input": %b}]}]' % _many_keys(50_000),
        ),
        "empty texts, 1 MB": lambda: _with(_of_many(b"stop", b'""', 350_000)),
        "quotes in a text, 1 MB": lambda: _asks(
            CHAT, b'"messages": [{"role": "user", "content": "%b"}]' % (b'\\",{[' * 200_000)
        ),
        "100,000 embeddings": lambda: _asks("/v1/embeddings", _of_many(b"input", b'"x"', 100_000)),
        "a batch of 100,000 lines": lambda: post("/v1/files", b'{"custom_id":"1"}\n' * 100_000),
        "a text of 60 MB": lambda: post(CHAT, _chat(b'"' + b"x" * _WHOLE + b'",')),
        "an ordinary chat, 3 MB": lambda: post(CHAT, _long_chat(3 * MIB)),
        "an ordinary chat, 8 MB": lambda: post(CHAT, _long_chat(8 * MIB)),
    }


def _connections() -> dict[str, bytes]:
    """Hostile beginnings, after which nothing follows and nothing is read."""
    declared = post(CHAT, b"").replace(b"length: 0", b"length: %d" % _WHOLE)
    chunked = post(CHAT, b"").replace(b"content-length: 0", b"transfer-encoding: chunked")
    frame = b"\x81\xff" + _WHOLE.to_bytes(8, "big") + b"\0\0\0\0"
    item = json.dumps({"type": "response.create", "model": "m", "input": "x" * _HALF}).encode()
    whole = b"\x81\xff" + len(item).to_bytes(8, "big") + b"\0\0\0\0" + item
    fragment = b"\x00\x81\0\0\0\0 "
    large = _chat(b'{"role": "user", "content": "' + _LARGE + b'"},')
    return {
        "half a body": declared + b"x" * _HALF,
        "half a chunked body": chunked + b"%x\r\n" % _WHOLE + b"x" * _HALF,
        "half a message": _SOCKET + frame + b"x" * _HALF,
        "a message in bytes": _SOCKET + b"\x01\x82\0\0\0\0{}" + fragment * 100_000,
        "whole messages": _SOCKET + whole * 4,
        "an answer that is not read": post(CHAT, large),
    }


class _Provider:
    """Answers chats, and accepts WebSockets on which it says nothing."""

    def __init__(self) -> None:
        self._large = json.dumps(completion({"role": "assistant", "content": "x" * _HALF})).encode()
        self._small = json.dumps(completion({"role": "assistant", "content": "Done."})).encode()

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """One connection."""
        with contextlib.suppress(OSError, asyncio.IncompleteReadError):
            while True:
                head = await reader.readuntil(b"\r\n\r\n")
                named = {
                    k.lower(): v for k, _, v in (x.partition(b": ") for x in head.split(b"\r\n"))
                }
                if b"sec-websocket-key" in named:
                    digest = hashlib.sha1(
                        named[b"sec-websocket-key"] + _GUID, usedforsecurity=False
                    ).digest()
                    accepted = base64.b64encode(digest)
                    writer.write(
                        b"HTTP/1.1 101 Switching Protocols\r\nupgrade: websocket\r\n"
                        b"connection: Upgrade\r\nsec-websocket-accept: " + accepted + b"\r\n\r\n"
                    )
                    while await reader.read(MIB):
                        pass
                    return
                body = await reader.readexactly(int(named.get(b"content-length", b"0")))
                answer = self._large if _LARGE in body[:200] else self._small
                kind = b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: %d"
                writer.write(kind % len(answer) + b"\r\n\r\n" + answer)
                await writer.drain()


async def _hostile(port: int, request: bytes, *, again: bool) -> None:
    """One hostile client, until it is cancelled."""
    while True:
        with contextlib.suppress(OSError):
            reader, writer = await asyncio.open_connection(LOOPBACK, port, limit=2**16)
            try:
                for at in range(0, len(request), _PIECE):
                    writer.write(request[at : at + _PIECE])
                    await writer.drain()
                if again:
                    await reader.readuntil(b"\r\n\r\n")
                else:
                    await asyncio.Event().wait()
            except (asyncio.IncompleteReadError, asyncio.LimitOverrunError):
                pass
            finally:
                writer.transport.abort()
        await asyncio.sleep(0)


def _all_answers(listener: socket.socket) -> None:
    """A process of the provider: what it reads of hostile requests delays no client here."""

    async def run() -> None:
        await asyncio.start_server(_Provider().serve, sock=listener, limit=2**26)
        await asyncio.Event().wait()

    uvloop.run(run())


def _all_hostile(port: int, request: bytes, count: int, again: bool) -> None:
    """A process of hostile clients, so that the others' do not wait for them here."""

    async def run() -> None:
        await asyncio.gather(*[_hostile(port, request, again=again) for _ in range(count)])

    uvloop.run(run())


async def _others(port: int, seconds: float, numbers: Iterator[int]) -> list[float]:
    """Milliseconds of each small chat of two clients; a refused one raises."""
    small = bodies.small()

    async def client() -> list[float]:
        connection = await Connection.open(port)
        took = []
        ends = time.perf_counter() + seconds
        while time.perf_counter() < ends:
            answer = await connection.ask(post(CHAT, small.numbered(next(numbers))))
            if answer.status != 200:
                raise RuntimeError(answer.raw[:400].decode("latin-1"))
            took.append(answer.last_s * 1000)
            await asyncio.sleep(0.005)
        connection.close()
        return took

    return list(itertools.chain(*await asyncio.gather(client(), client())))


def _most_mb(running: Running) -> float:
    """The most memory that the process has had, in MB."""
    assert running.server is not None
    status = Path(f"/proc/{running.server.pid}/status").read_text()
    return int(status.split("VmHWM:")[1].split()[0]) * 1024 / 1e6


async def _kind(
    name: str, request: bytes, count: int, *, again: bool, seconds: float, home: Path
) -> str:
    """The row of one kind."""
    forked = multiprocessing.get_context("fork").Process
    listener = socket.create_server((LOOPBACK, 0))
    port = listener.getsockname()[1]
    provider = forked(target=_all_answers, args=(listener,), daemon=True)
    provider.start()
    listener.close()
    arm = Arm(
        name="gateway",
        what="",
        command=lambda place: gateway_command(place, "on"),
        ready="/healthz",
    )
    running = await asyncio.to_thread(start, arm, port, home)
    try:
        numbers = itertools.count()
        await _others(running.port, 2, numbers)
        quiet = await _others(running.port, seconds, numbers)
        idle_mb = _most_mb(running)
        parts = [quiet]
        for sent, kept in ((post(CHAT, bodies.small().numbered(0)), True), (request, again)):
            hostile = forked(
                target=_all_hostile, args=(running.port, sent, count, kept), daemon=True
            )
            hostile.start()
            await asyncio.sleep(2)
            parts.append(await _others(running.port, seconds, numbers))
            hostile.kill()
            await asyncio.to_thread(hostile.join)
        most_mb = _most_mb(running)
    finally:
        assert running.server is not None
        await asyncio.to_thread(running.server.stop)
        provider.kill()
    cells = [f"{_rank(times, share):.1f}" for times in parts for share in (50, 99)]
    return f"| {count} of: {name} | {' | '.join(cells)} | {idle_mb:.0f} | {most_mb:.0f} |"


def _rank(times: list[float], percent: int) -> float:
    return statistics.quantiles(times, n=100)[percent - 1]


async def measure(seconds: float, chosen: str) -> None:
    """Print the table."""
    print("| hostile | quiet p50 ms | p99 | busy p50 | p99 | hostile p50 | p99 | MB quiet | most |")
    print("| --- | --- | --- | --- | --- | --- | --- | --- | --- |")
    kinds = [(name, make(), 100, True) for name, make in _bodies().items() if chosen in name]
    kinds += [(name, sent, 200, False) for name, sent in _connections().items() if chosen in name]
    for name, request, count, again in kinds:
        with tempfile.TemporaryDirectory() as home:
            about = {"again": again, "seconds": seconds, "home": Path(home)}
            print(await _kind(name, request, count, **about), flush=True)  # type: ignore[arg-type]


def main() -> None:
    """Read the options, measure, print."""
    parser = argparse.ArgumentParser(prog="python -m bench.hostile", description=__doc__)
    parser.add_argument("--seconds", type=float, default=10.0, help="of each part")
    parser.add_argument("--only", default="", help="kinds with this in their name")
    options = parser.parse_args()
    uvloop.run(measure(options.seconds, options.only))


if __name__ == "__main__":
    main()
