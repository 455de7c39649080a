"""`python -m bench.fault_matrix`: every fault of an upstream, directly and through the gateway.

Each fault of the scripted upstream in three dialects, as a stream and whole, with steering off, in
shadow and on, through both lanes. The client's view of the gateway's answer is compared with its
view of the upstream's own:

    .   the same: the same text to a proper end, or a failure where there is one
    +   better: the gateway's retry has helped, or what broke off without a word is told
    x   harmed: an answer that arrives whole from the upstream does not arrive through the gateway

Where the fault is a silence, small limits (idle and first byte .5 s) turn it into a failure on both
sides alike; the limits of the others are longer than a busy machine may take.
"""

from __future__ import annotations

import argparse
import asyncio
import dataclasses
import itertools
import sys
import tempfile
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import orjson

from gateway.app import build_app
from gateway.config import settings_from_dict
from gateway.observability.logging import configure_logging
from gateway.server import uvicorn_config
from steering_gateway_testing import AppServer, Fault, FaultKind, Reply, ScriptedUpstream
from steering_gateway_testing.received import ReceivedRequest

DIALECTS: Mapping[str, str] = {
    "chat": "chat/completions",
    "responses": "responses",
    "messages": "messages",
}
MODES = ("off", "shadow", "on")
LANES = ("native", "litellm")
REPLY = Reply("One two three four five.", id="fixed")
LIMIT_S = 0.5
PATIENT_S = 30.0
_SILENCES = (FaultKind.SLOW_FIRST_BYTE, FaultKind.STALL)
_ENDS = {"chat": "[DONE]", "responses": "response.completed", "messages": "message_stop"}
_PROVIDERS = {"chat": "openai", "responses": "openai", "messages": "anthropic"}


@dataclass(frozen=True, slots=True)
class Call:
    """One cell of the matrix."""

    kind: FaultKind
    dialect: str
    stream: bool
    mode: str
    lane: str


@dataclass(frozen=True, slots=True)
class View:
    """What a client has of an answer: its text, and whether it came to a proper end."""

    whole: bool
    text: str


def behaviour(request: ReceivedRequest) -> Reply | Fault:
    """The fault that the request's own last words name."""
    name = _last_words(request.json or {})
    delay = 2 * PATIENT_S if name in _SILENCES else None
    return Fault(FaultKind(name), delay_s=delay, retry_after="0", size_mb=0.2, reply=REPLY, times=9)


def _last_words(body: Mapping[str, Any]) -> str:
    """The text of the newest message, in any dialect, without guidance behind it."""
    kinds = {str(kind) for kind in FaultKind}
    items = body.get("messages") or body.get("input") or []
    texts = orjson.dumps(items).decode().replace('\\"', '"').split('"')
    return next(text for text in reversed(texts) if text in kinds)


def body_of(call: Call) -> dict[str, Any]:
    """A request in the middle of a run that repeats itself: there is something to steer."""
    said = [{"role": "user", "content": "Fix the test."}]
    for _ in range(4):
        said += [
            {"role": "assistant", "content": "I run the test again."},
            {"role": "user", "content": "1 failed: assert 1 == 2"},
        ]
    said.append({"role": "user", "content": str(call.kind)})
    model = "native" if call.lane == "native" else f"translated-{call.dialect}"
    body: dict[str, Any] = {"model": model, "stream": call.stream}
    if call.dialect == "responses":
        return {**body, "input": said}
    return {**body, "messages": said, "max_tokens": 64}


def view_of(dialect: str, stream: bool, status: int, received: bytes, ended: bool) -> View:
    """The client's view of an answer's bytes."""
    text = received.decode("utf-8", "replace")
    if status >= 400 or not ended:
        return View(False, "")
    try:
        if not stream:
            answer = orjson.loads(received)
            return View(not answer.get("error"), _content(answer))
        events = [orjson.loads(line[6:]) for line in received.splitlines() if _is_event(line)]
    except ValueError:
        return View(False, "")  # what the official clients cannot read, they raise
    failed = any(event.get("error") or event.get("type") == "error" for event in events)
    return View(_ENDS[dialect] in text and not failed, "".join(map(_piece, events)))


def _is_event(line: bytes) -> bool:
    return line.startswith(b"data: ") and line != b"data: [DONE]"


def _piece(event: Mapping[str, Any]) -> str:
    delta = event.get("delta")
    if isinstance(delta, str):
        return delta
    if isinstance(delta, Mapping):
        return str(delta.get("text") or "")
    choices = event.get("choices") or [{}]
    return str((choices[0].get("delta") or {}).get("content") or "")


def _content(answer: Mapping[str, Any]) -> str:
    if choices := answer.get("choices"):
        return str(choices[0]["message"].get("content") or "")
    parts = answer.get("content") or [
        part for item in answer.get("output") or [] for part in item.get("content") or []
    ]
    return "".join(str(part.get("text") or "") for part in parts)


async def ask(client: httpx.AsyncClient, base: str, call: Call) -> View:
    """One call, read to its end."""
    url = f"{base}/{DIALECTS[call.dialect]}"
    headers = {"x-gateway-mode": call.mode, "authorization": "Bearer k", "x-api-key": "k"}
    headers["x-conversation-id"] = "-".join(map(str, dataclasses.astuple(call)))
    received, status = b"", 599
    body = body_of(call)
    try:
        async with asyncio.timeout(2 * PATIENT_S):
            async with client.stream("POST", url, json=body, headers=headers) as answer:
                status = answer.status_code
                async for piece in answer.aiter_bytes():
                    received += piece
    except (httpx.HTTPError, TimeoutError):
        return View(False, "")
    return view_of(call.dialect, call.stream, status, received, True)


def verdict(direct: View, through: View) -> str:
    """One of `.`, `+` and `x`."""
    if direct == through:
        return "."
    if direct.whole and direct.text:
        return "x"
    return "+" if through.whole or not direct.whole else "x"


def settings(upstream: ScriptedUpstream, folder: Path, limit_s: float) -> Any:
    """A gateway that acts on everything, with a deployment for each lane and dialect.

    limit_s: how long the upstream may be silent.
    """
    translated = [
        {
            "model_name": f"translated-{dialect}",
            "lane": "litellm",
            "litellm_params": {
                "model": f"{_PROVIDERS[dialect]}/m",
                "api_base": upstream.url if dialect == "messages" else f"{upstream.url}/v1",
                "api_key": "k",
            },
        }
        for dialect in DIALECTS
    ]
    return settings_from_dict(
        {
            "default_upstream": {"api_base": f"{upstream.url}/v1"},
            "model_list": translated,
            "storage": {"path": str(folder / "matrix.db")},
            "steering": {"deadline_ms": 60_000},
            "timeouts": {"first_byte_s": limit_s, "idle_s": limit_s},
            "router": {"num_retries": 1, "backoff_s": 0, "allowed_fails": 1_000_000},
            "logging": {"level": "error"},
        },
        {},
    )


async def matrix(
    gateway: str, upstream: str, kinds: Sequence[FaultKind], lanes: Sequence[str], limit_s: float
) -> dict[Call, str]:
    """The verdict of every cell."""
    limits = httpx.Timeout(limit_s * 2, connect=PATIENT_S)
    found: dict[Call, str] = {}
    async with (
        httpx.AsyncClient(timeout=limits) as alone,
        httpx.AsyncClient(timeout=2 * PATIENT_S) as client,
    ):
        for kind, dialect, stream in itertools.product(kinds, DIALECTS, (False, True)):
            direct = await ask(alone, upstream, Call(kind, dialect, stream, "off", "native"))
            for mode, lane in itertools.product(MODES, lanes):
                call = Call(kind, dialect, stream, mode, lane)
                found[call] = verdict(direct, await ask(client, gateway, call))
    return found


def run(kinds: Sequence[FaultKind], lanes: Sequence[str]) -> dict[Call, str]:
    """The matrix, the silences last, with a gateway of their own."""
    silent = [kind for kind in kinds if kind in _SILENCES]
    others = [kind for kind in kinds if kind not in _SILENCES]
    found: dict[Call, str] = {}
    for some, limit_s in ((others, PATIENT_S), (silent, LIMIT_S)):
        if some:
            found |= _part(some, lanes, limit_s)
    return found


def _part(kinds: Sequence[FaultKind], lanes: Sequence[str], limit_s: float) -> dict[Call, str]:
    """Start a scripted upstream and a gateway, and fill in the rows of some faults."""
    with tempfile.TemporaryDirectory() as folder, ScriptedUpstream(behaviour, record=0) as upstream:
        loaded = settings(upstream, Path(folder), limit_s)
        app = build_app(loaded)
        configure_logging(loaded.logging)
        server = AppServer(app, config=uvicorn_config(app, loaded))
        server.start()
        try:
            gateway, direct = f"{server.url}/v1", f"{upstream.url}/v1"
            return asyncio.run(matrix(gateway, direct, kinds, lanes, limit_s))
        finally:
            server.stop()


def table(found: Mapping[Call, str]) -> str:
    """A row per fault; a column per lane, dialect and form, with a mark for each mode."""
    columns = list(dict.fromkeys((c.lane, c.dialect, c.stream) for c in found))
    names = [f"{lane[:3]} {d[:4]} {'stream' if s else 'whole'}" for lane, d, s in columns]
    lines = [" " * 22 + "  ".join(f"{name:16}" for name in names)]
    for kind in dict.fromkeys(call.kind for call in found):
        cells = [
            "".join(found[Call(kind, d, s, mode, lane)] for mode in MODES) for lane, d, s in columns
        ]
        lines.append(f"{kind!s:22}" + "  ".join(f"{cell:16}" for cell in cells))
    counts = Counter(found.values())
    lines.append(
        f"{len(found)} calls (marks: off, shadow, on): {counts['.']} the same, "
        f"{counts['+']} better, {counts['x']} harmed"
    )
    return "\n".join(lines)


def main() -> int:
    """Print the matrix; status 1 if a call was harmed."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--kind", action="append", choices=[str(kind) for kind in FaultKind])
    parser.add_argument("--lane", action="append", choices=LANES)
    args = parser.parse_args()
    kinds = [FaultKind(kind) for kind in args.kind] if args.kind else list(FaultKind)
    found = run(kinds, args.lane or LANES)
    print(table(found))
    return int("x" in found.values())


if __name__ == "__main__":
    sys.exit(main())
