"""Whatever an upstream answers reaches the client as it is; what cannot be read is recorded so."""

from __future__ import annotations

import asyncio
import gzip
import json
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import httpx
import pytest

from steering_gateway_testing import Reply, ScriptedUpstream
from steering_gateway_testing.agents import trace
from steering_gateway_testing.gateways import a_gateway
from steering_gateway_testing.hearing import hear
from tests.examples import by_day

BOM = b"\xef\xbb\xbf"
SSE, JSON = "text/event-stream", "application/json"
DEEP = b"[" * 100_000 + b"]" * 100_000
BODIES: dict[str, dict[str, Any]] = {
    "chat/completions": {"model": "m", "messages": [{"role": "user", "content": "one two"}]},
    "responses": {"model": "m", "input": "one two"},
    "messages": {
        "model": "m",
        "max_tokens": 9,
        "messages": [{"role": "user", "content": "one two"}],
    },
}
WHOLE = {
    "chat/completions": {
        "choices": [
            {
                "index": 0,
                "message": {"role": "assistant", "content": "fine"},
                "finish_reason": "stop",
            }
        ],
        "usage": {"prompt_tokens": 5, "completion_tokens": 3, "total_tokens": 8},
    },
    "responses": {
        "id": "resp_1",
        "status": "completed",
        "output": [{"type": "message", "content": [{"type": "output_text", "text": "fine"}]}],
        "usage": {"input_tokens": 5, "output_tokens": 3, "total_tokens": 8},
    },
    "messages": {
        "type": "message",
        "role": "assistant",
        "content": [{"type": "text", "text": "fine"}],
        "stop_reason": "end_turn",
        "usage": {"input_tokens": 5, "output_tokens": 3},
    },
}
STREAMS: dict[str, tuple[bytes, ...]] = {
    "chat/completions": (
        b'data: {"choices": [{"index": 0, "delta": {"content": "fine"}}]}\n\n',
        b'data: {"choices": [{"index": 0, "delta": {}, "finish_reason": "stop"}],'
        b' "usage": {"prompt_tokens": 5, "completion_tokens": 3}}\n\n',
        b"data: [DONE]\n\n",
    ),
    "responses": (
        b'event: response.created\ndata: {"type": "response.created", "response": {}}\n\n',
        b'event: response.completed\ndata: {"type": "response.completed", "response": '
        + json.dumps(WHOLE["responses"]).encode()
        + b"}\n\n",
    ),
    "messages": (
        b'event: message_start\ndata: {"type": "message_start", "message": {"role": "assistant",'
        b' "usage": {"input_tokens": 5}}}\n\n',
        b'event: message_delta\ndata: {"type": "message_delta", "delta": {"stop_reason": '
        b'"end_turn"}, "usage": {"output_tokens": 3}}\n\n',
        b'event: message_stop\ndata: {"type": "message_stop"}\n\n',
    ),
}


class Odd(NamedTuple):
    """An answer, and why it is not read; None for one that is read all the same."""

    reply: Reply
    unread: str | None


def odd_answers(path: str) -> Iterator[Odd]:
    """Answers with which nothing is wrong but the way they are wrapped, and broken ones."""
    whole, stream = json.dumps(WHOLE[path]).encode(), STREAMS[path]
    events = b"".join(stream)
    half = len(whole) // 2
    members = gzip.compress(whole[:half]) + gzip.compress(whole[half:])
    coded = {"content-encoding": "gzip"}
    yield Odd(Reply(raw=BOM + whole), None)
    yield Odd(Reply(raw=(BOM, *stream)), None)
    yield Odd(Reply(raw=b"\n \n" + whole, write_bytes=1), None)
    yield Odd(Reply(raw=members, headers=coded), None)
    yield Odd(Reply(raw=(*map(gzip.compress, stream),), headers=coded), None)
    yield Odd(Reply(raw=members + b"\0" * 512, headers=coded), None)
    yield Odd(Reply(raw=whole, content_type=SSE), None)
    yield Odd(Reply(raw=whole, content_type="text/plain"), None)
    yield Odd(Reply(raw=stream, content_type=JSON), None)
    yield Odd(Reply(raw=events, content_type=JSON), None)
    yield Odd(Reply(raw=(events,), content_type=JSON, write_bytes=1), None)
    yield Odd(Reply(raw=events.replace(b"\n", b"\r\n"), content_type="text/plain"), None)
    yield Odd(Reply(raw=zlib.compress(whole), headers={"content-encoding": "deflate"}), None)
    yield Odd(Reply(raw=b"", status=204), "empty")
    yield Odd(Reply(raw=b""), "empty")
    yield Odd(Reply(raw=b"", content_type=SSE), "empty")
    yield Odd(Reply(raw=b" \n", content_type="text/plain", status=202), "empty")
    yield Odd(Reply(raw=BOM), "empty")
    yield Odd(Reply(raw=whole, headers=coded), "encoding")
    yield Odd(Reply(raw=stream, headers=coded), "encoding")
    yield Odd(Reply(raw=gzip.compress(whole) + b"more", headers=coded), "encoding")
    yield Odd(Reply(raw=gzip.compress(whole)[:20], headers=coded), "encoding")
    yield Odd(Reply(raw=b"\x1b\x2c", headers={"content-encoding": "br, gzip"}), "encoding")
    yield Odd(Reply(raw=whole[:half]), "form")
    yield Odd(Reply(raw=whole[:half], content_type=SSE), "form")
    yield Odd(Reply(raw=b"<html>log in</html>", content_type="text/html"), "form")
    yield Odd(Reply(raw=b"\xff\xfe\x00", content_type=JSON), "form")
    yield Odd(Reply(raw=whole.decode().encode("utf-16"), content_type=JSON), "form")
    yield Odd(Reply(raw=b"[1, 2]"), "form")
    yield Odd(Reply(raw=b"null"), "form")
    yield Odd(Reply(raw=b'{"choices": ' + DEEP + b"}"), "form")
    yield Odd(Reply(raw=b"data: " + DEEP + b"\n\n", content_type=SSE), "form")
    yield Odd(Reply(raw=(b": waiting\n\n", b"data: what is this\n\n")), "form")
    yield Odd(Reply(raw=b"data: no JSON\n\n", content_type=JSON), "form")


def headed(heard: Any) -> tuple[int, bytes, bool, str | None, str | None]:
    """What of an answer must be equal."""
    kept = [heard.headers.get(name) for name in ("content-type", "content-encoding")]
    return heard.status, heard.body, heard.broken is None, kept[0], kept[1]


@pytest.mark.parametrize(
    ("mode", "path"),
    by_day(
        [*(("off", path) for path in BODIES), ("shadow", "messages"), ("on", "chat/completions")], 2
    ),
)
def test_any_successful_answer_goes_through(
    upstream: ScriptedUpstream, tmp_path: Path, mode: str, path: str
) -> None:
    """The client gets the status and the bytes it would get directly, asked as stream or not."""
    expected: dict[str, str | None] = {}
    with (
        a_gateway(upstream.base_url, tmp_path, {"steering": {"mode": mode}}) as server,
        httpx.Client(base_url=server.base_url, timeout=120) as client,
        httpx.Client(base_url=upstream.base_url, timeout=120) as direct,
    ):
        for odd in odd_answers(path):
            for streamed in (False, True):
                upstream.script(odd.reply, odd.reply)
                body = {**BODIES[path], "stream": streamed}
                straight = hear(direct, path, json=body)
                named = {"x-conversation-id": f"c-{len(expected)}"}
                through = hear(client, path, json=body, headers=named)
                assert headed(through) == headed(straight), (odd, streamed)
                expected[through.headers["x-gateway-conversation-id"]] = odd.unread
        exposition = server.app.runtime.metrics.render().decode()
    assert asyncio.run(recorded(tmp_path / "gateway.db", list(expected))) == expected
    for reason in ("empty", "encoding", "form"):
        times = list(expected.values()).count(reason)
        assert f'gateway_unread_answers_total{{reason="{reason}"}} {times}.0' in exposition


async def recorded(path: Path, conversations: list[str]) -> dict[str, str | None]:
    """Why the answer of each conversation's call was not read, None where its tokens are known."""
    found: dict[str, str | None] = {}
    for name in conversations:
        (step,) = (await trace(path, name)).steps
        assert step.call is not None
        reasons = [r for r in step.call.reasons if r.startswith("answer not read: ")]
        found[name] = reasons[0].removeprefix("answer not read: ") if reasons else None
        known = (step.call.input_tokens, step.call.output_tokens)
        assert known == ((None, None) if reasons else (5, 3)), step.call
    return found
