"""`python -m bench.calls`: function calls a request on the gateway's event loop.

The count is the same on a quiet machine and a busy one, and takes seconds, so `make check` holds
the tree to it: `bench/calls.json` has the most calls that a request of each kind may make. Those
limits only fall (`tests/test_limits.py`). What a call costs, this does not say: see
`bench.instructions` for that.

Counted are the calls that `sys.setprofile` sees on the main thread, which runs the event loop:
functions that are entered, written in Python or in C, and coroutines that continue, of the gateway
and of its libraries, from the moment the client sends the request until the gateway is quiet.
The smallest of several counts is taken, since what comes in other pieces can only add to one.
Python 3.12 and later call fewer functions (comprehensions are inlined), so the limits are those of
Python 3.11.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import os
import runpy
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

import yaml

from bench import bodies
from bench.bodies import Body
from bench.client import Connection, get, post
from bench.load import STREAM_CHUNKS, correct
from bench.processes import free_port
from bench.scripted import Answer, Provider

LIMITS = Path(__file__).parent / "calls.json"

CHAT, RESPONSES, MESSAGES = "/v1/chat/completions", "/v1/responses", "/v1/messages"
_SESSION_STEPS = 20
"""Tool calls in the history of a session's counted request: its middle, of 40."""
_COLD_STEPS = 29
"""61 messages: system, two of the user, 29 calls and their results."""
_WARM_UP = 3
"""Requests of a conversation before the counted one, where it is a session's."""
_ROUNDS = 3
_START_S = 120.0
_LONGEST_S = 60.0
_QUIET_S = 0.2
_POLL_S = 0.02
_RARELY_S = 300
_LEARN_S = 3.0
"""Without a request, for the clocks to be learned: the slowest of them ticks every two seconds."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Kind:
    """The requests of one conversation; the last one is counted."""

    path: str
    """Route below the gateway's address."""
    requests: Callable[[], Sequence[Body]]
    """Bodies in the order of sending."""
    answer: Answer
    """The provider's reply: a chat message, a number of chunks to stream, or a JSON body."""


def _session() -> list[Body]:
    """A session of an agent on chat completions, from a few calls before its middle."""
    steps = range(_SESSION_STEPS - _WARM_UP, _SESSION_STEPS + 1)
    return [bodies.agent("session", steps=count, result_bytes=1480) for count in steps]


def _cold() -> list[Body]:
    return [bodies.agent("cold", steps=_COLD_STEPS, result_bytes=1480)]


def _as(write: Callable[[dict[str, Any]], dict[str, Any]]) -> Callable[[], list[Body]]:
    """The same session as another client writes it."""

    def requests() -> list[Body]:
        return [_rewritten(body, write) for body in _session()]

    return requests


def _rewritten(body: Body, write: Callable[[dict[str, Any]], dict[str, Any]]) -> Body:
    chat = json.loads(body.numbered(0))
    fields = write(chat)
    head, tail = json.dumps(fields).split("conversation-0000000000")
    return Body(name=body.name, stream=False, head=head.encode(), tail=tail.encode())


def as_codex(chat: dict[str, Any]) -> dict[str, Any]:
    """The request as Codex 0.169 writes it: tools and developer messages are items of `input`."""
    tools = [{"type": "function", **tool["function"]} for tool in chat["tools"]]
    items: list[dict[str, Any]] = [
        {"type": "additional_tools", "role": "developer", "tools": tools}
    ]
    for message in chat["messages"]:
        items += _codex_items(message)
    return {
        "model": chat["model"],
        "input": items,
        "store": False,
        "stream": False,
        "include": ["reasoning.encrypted_content"],
        "parallel_tool_calls": True,
        "tool_choice": "auto",
    }


def _codex_items(message: dict[str, Any]) -> list[dict[str, Any]]:
    role = message["role"]
    if role == "tool":
        output = message["content"]
        call_id = message["tool_call_id"]
        return [{"type": "function_call_output", "call_id": call_id, "output": output}]
    kind = "output_text" if role == "assistant" else "input_text"
    role = "developer" if role == "system" else role
    part = {"type": kind, "text": message["content"]}
    items: list[dict[str, Any]] = [{"type": "message", "role": role, "content": [part]}]
    for call in message.get("tool_calls", ()):
        items.append({"type": "function_call", "call_id": call["id"], **call["function"]})
    return items


def as_claude_code(chat: dict[str, Any]) -> dict[str, Any]:
    """The request as Claude Code 2.1 writes it: lists of blocks, the newest with a cache mark."""
    system, *rest = chat["messages"]
    messages = [_claude_message(message) for message in rest]
    messages[-1]["content"][-1]["cache_control"] = {"type": "ephemeral"}
    tools = [
        {
            "name": tool["function"]["name"],
            "description": tool["function"]["description"],
            "input_schema": tool["function"]["parameters"],
        }
        for tool in chat["tools"]
    ]
    block = {"type": "text", "text": system["content"], "cache_control": {"type": "ephemeral"}}
    return {
        "model": chat["model"],
        "max_tokens": 32000,
        "system": [block],
        "messages": messages,
        "tools": tools,
        "metadata": {"user_id": json.dumps({"session_id": "00000000-0000-4000-8000-000000000000"})},
    }


def _claude_message(message: dict[str, Any]) -> dict[str, Any]:
    if message["role"] == "tool":
        result = {"type": "tool_result", "tool_use_id": message["tool_call_id"]}
        return {"role": "user", "content": [{**result, "content": message["content"]}]}
    content: list[dict[str, Any]] = [{"type": "text", "text": message["content"]}]
    for call in message.get("tool_calls", ()):
        function = call["function"]
        given = json.loads(function["arguments"])
        use = {"type": "tool_use", "id": call["id"], "name": function["name"], "input": given}
        content.append(use)
    return {"role": message["role"], "content": content}


_SHORT = {"role": "assistant", "content": "The report test fails because of a wrong path."}
_NEXT = bodies.step(_SESSION_STEPS, 0)[0]
_CALL = _NEXT["tool_calls"][0]
_CODEX_ANSWER = {
    "id": "resp_0000",
    "object": "response",
    "status": "completed",
    "model": bodies.MODEL,
    "output": [{**item, "id": f"item_{number}"} for number, item in enumerate(_codex_items(_NEXT))],
    "usage": {"input_tokens": 120, "output_tokens": 12, "total_tokens": 132},
}
_CLAUDE_ANSWER = {
    "id": "msg_0000",
    "type": "message",
    "model": bodies.MODEL,
    **_claude_message(_NEXT),
    "stop_reason": "tool_use",
    "stop_sequence": None,
    "usage": {"input_tokens": 120, "output_tokens": 12},
}

KINDS = {
    "small": Kind(path=CHAT, requests=lambda: [bodies.small()], answer=_SHORT),
    "session": Kind(path=CHAT, requests=_session, answer=_NEXT),
    "cold": Kind(path=CHAT, requests=_cold, answer=bodies.step(_COLD_STEPS, 0)[0]),
    "stream": Kind(path=CHAT, requests=lambda: [bodies.small(stream=True)], answer=STREAM_CHUNKS),
    "codex": Kind(
        path=RESPONSES, requests=_as(as_codex), answer=json.dumps(_CODEX_ANSWER).encode()
    ),
    "claude": Kind(
        path=MESSAGES, requests=_as(as_claude_code), answer=json.dumps(_CLAUDE_ANSWER).encode()
    ),
}


class CallCounter:
    """A profile function that counts call events, but for those of the gateway's own clocks.

    A clock is whatever the event loop runs while no request is there: uvicorn's tick, a look at
    the config file. They are learned once, by the function that the loop enters first.
    """

    def __init__(self) -> None:
        self.calls = 0
        self.learning = False
        """Whether what runs now is a clock."""
        self._clocks: set[CodeType] = set()
        self._entered: FrameType | None = None
        """The clock that runs now."""

    def __call__(self, frame: FrameType, event: str, arg: object) -> None:
        if self._entered is not None:
            if frame is self._entered and event == "return":
                self._entered = None
            return
        if event not in ("call", "c_call"):
            return
        if event == "call" and _is_first(frame):
            if self.learning:
                self._clocks.add(frame.f_code)
            if frame.f_code in self._clocks:
                self._entered = frame
                return
        self.calls += 1


def _is_first(frame: FrameType) -> bool:
    """Whether the event loop called this function itself; the loop's own frames are not seen."""
    caller = frame.f_back
    return caller is not None and caller.f_code is asyncio.Runner.run.__code__


async def measure(port: int, provider: Provider, counter: CallCounter) -> dict[str, int]:
    """The smallest count of each kind. Raises: RuntimeError for an answer that is not right."""
    await _until_ready(port)
    connection = await Connection.open(port)
    counter.learning = True
    await asyncio.sleep(_LEARN_S)
    counter.learning = False
    numbers = iter(range(10_000))
    counts: dict[str, int] = {}
    # The first round of a kind warms up: caches fill, and what is imported late is imported.
    for name, kind in KINDS.items():
        rounds = [
            await _counted(connection, provider, kind, next(numbers), counter)
            for _ in range(_ROUNDS + 1)
        ]
        counts[name] = min(rounds[1:])
    connection.close()
    return counts


async def _counted(
    connection: Connection, provider: Provider, kind: Kind, number: int, counter: CallCounter
) -> int:
    """The calls of the last request of one conversation."""
    provider.answer = kind.answer
    requests = kind.requests()
    for body in requests:
        if body is requests[-1]:
            await _quiet(counter)
            counter.calls = 0
        answer = await connection.ask(post(kind.path, body.numbered(number)))
        right = correct(answer, body.stream) if kind.path == CHAT else answer.status == 200
        if not right:
            raise RuntimeError(f"{kind.path} answered {answer.status}: {answer.raw[:300]!r}")
    await _quiet(counter)
    return counter.calls


async def _quiet(counter: CallCounter) -> None:
    """Wait until nothing is called any more: recording a step goes on behind its answer."""
    since = time.monotonic()
    ends_at = since + _LONGEST_S
    before = counter.calls
    while time.monotonic() - since < _QUIET_S:
        await asyncio.sleep(_POLL_S)
        if counter.calls != before:
            before = counter.calls
            since = time.monotonic()
        if since > ends_at:
            raise RuntimeError("the gateway is never quiet: let what it does by itself rest")


async def _until_ready(port: int) -> None:
    ends_at = time.monotonic() + _START_S
    while time.monotonic() < ends_at:
        with contextlib.suppress(OSError):
            connection = await Connection.open(port)
            answer = await connection.ask(get("/readyz"))
            connection.close()
            if answer.status == 200:
                return
        await asyncio.sleep(_POLL_S)
    raise RuntimeError("the gateway did not start")


def _client(port: int, provider_port: int, counter: CallCounter, result: Path) -> None:
    """Measure from a thread, which the profile function does not see, and stop the gateway."""

    async def run() -> dict[str, int]:
        async with Provider(provider_port) as provider:
            return await measure(port, provider, counter)

    try:
        result.write_text(json.dumps(asyncio.run(run())))
    finally:
        os.kill(os.getpid(), signal.SIGTERM)


def _serve(home: Path) -> None:
    """Run the gateway in this process's main thread, and write what was counted."""
    port = free_port()
    provider_port = free_port()
    config = home / "gateway.yaml"
    config.write_text(yaml.safe_dump(_config(home, provider_port)))
    counter = CallCounter()
    arguments = (port, provider_port, counter, home / "calls.json")
    threading.Thread(target=_client, args=arguments, daemon=True).start()
    sys.argv = ["gateway", "serve", "--config", str(config), "--port", str(port)]
    sys.setprofile(counter)
    with contextlib.suppress(SystemExit):
        runpy.run_module("gateway", run_name="__main__", alter_sys=True)
    sys.setprofile(None)


def _config(home: Path, provider_port: int) -> dict[str, Any]:
    """Mode `on` with a database; what only looks for something now and then rests."""
    base = f"http://127.0.0.1:{provider_port}"
    return {
        "default_upstream": {"api_base": f"{base}/v1"},
        "storage": {
            "path": str(home / "gateway.db"),
            "commit_limit_ms": 60_000,
            "probe_interval_s": _RARELY_S,
        },
        "auth": {"poll_s": _RARELY_S},
        "control": {"poll_s": _RARELY_S},
        "learning": {"interval_s": _RARELY_S},
        "alerts": {"check_interval_s": _RARELY_S},
        "steering": {"mode": "on", "deadline_ms": 60_000, "max_wait_ms": 120_000},
        "logging": {"level": "warning"},
    }


def count() -> dict[str, int]:
    """The calls of a request of each kind, counted in a process of its own.

    Raises: RuntimeError when that process ends without a result.
    """
    environment = {
        name: value for name, value in os.environ.items() if not name.startswith("GATEWAY_")
    }
    environment |= {"PYTHONHASHSEED": "0", "ANTHROPIC_BASE_URL": "", "OPENAI_BASE_URL": ""}
    with tempfile.TemporaryDirectory() as home:
        command = [sys.executable, "-m", "bench.calls", "--serve", home]
        ended = subprocess.run(command, env=environment, capture_output=True, text=True)
        result = Path(home, "calls.json")
        if not result.exists():
            raise RuntimeError(f"nothing was counted\n{ended.stdout}\n{ended.stderr}")
        counts: dict[str, int] = json.loads(result.read_text())
    return counts


def beyond(counts: dict[str, int], limits: dict[str, int]) -> list[str]:
    """The kinds whose requests make more calls than they may, as lines for people."""
    return [
        f"{kind}: {calls:,} calls, limit {limits[kind]:,}"
        for kind, calls in counts.items()
        if calls > limits[kind]
    ]


def main(argv: Sequence[str] | None = None) -> int:
    """Count, print, compare with the limits; 1 when one is exceeded."""
    parser = argparse.ArgumentParser(prog="python -m bench.calls", description=__doc__)
    parser.add_argument("--serve", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args(argv)
    if options.serve is not None:
        _serve(options.serve)
        return 0
    counts = count()
    limits = json.loads(LIMITS.read_text())
    for kind, calls in counts.items():
        print(f"{kind:<10}{calls:>8,}   limit {limits[kind]:>8,}")
    over = beyond(counts, limits)
    for line in over:
        print(f"too many calls: {line}", file=sys.stderr)
    return 1 if over else 0


if __name__ == "__main__":
    sys.exit(main())
