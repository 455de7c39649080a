"""A reader never judges: whatever an upstream streams, `off` relays it byte for byte."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from gateway.dialects import BEDROCK
from gateway.dialects.messages_cloud import _frame
from steering_gateway_testing import (
    AppServer,
    ReceivedRequest,
    ScriptedUpstream,
    chat,
    gemini,
    messages,
    responses,
)
from steering_gateway_testing.gateways import a_gateway
from steering_gateway_testing.hearing import hear
from steering_gateway_testing.values import Reply, ToolCall
from tests.dialects import converse
from tests.examples import examples

REPLY = Reply("One two.", tool_calls=(ToolCall("bash", {"command": "ls"}, id="c1"),), id="fixed")
SAID = [{"role": "user", "content": "hi"}]
CLAUDE = "/model/claude/invoke-with-response-stream"
TURN = {"contents": [{"parts": [{"text": "hi"}]}]}
BODIES: dict[str, tuple[str, dict[str, Any]]] = {
    "chat": ("/v1/chat/completions", {"model": "m", "messages": SAID, "stream": True}),
    "messages": (
        "/v1/messages",
        {"model": "m", "max_tokens": 9, "messages": SAID, "stream": True},
    ),
    "responses": ("/v1/responses", {"model": "m", "input": "hi", "stream": True}),
    "gemini": ("/v1beta/models/m:streamGenerateContent?alt=sse", TURN),
    "converse": ("/model/claude/converse-stream", {"messages": converse.in_blocks(SAID)}),
    "bedrock": (CLAUDE, {"anthropic_version": "x", "max_tokens": 9, "messages": SAID}),
}
RENDER = {
    "chat": chat.answer,
    "messages": messages.answer,
    "responses": responses.ResponsesApi().answer,
    "gemini": gemini.answer,
}
TYPES = dict.fromkeys(("bedrock", "converse"), BEDROCK.stream_type.decode())
HEADERS = {"authorization": "Bearer sk-mine"}


def recorded(dialect: str) -> list[bytes]:
    """The events of a whole answer, as the upstream writes them."""
    kind = "messages" if dialect in TYPES else dialect
    path, body = BODIES[kind]
    asked = ReceivedRequest(method="POST", target=path, headers=[], connection=1)
    whole = dialect == "converse"  # its frames are made of a whole answer
    asked.body = json.dumps({**body, "stream": False} if whole else body).encode()
    pieces = list(RENDER[kind](REPLY, asked).numbered(1).pieces)
    if whole:
        return converse.frames(converse.from_messages(json.loads(pieces[0])))
    if dialect == "bedrock":
        return [BEDROCK.in_envelope(piece) for piece in pieces]
    return pieces


STREAMS = {dialect: recorded(dialect) for dialect in BODIES}
EMPTY = _frame(b"", {":message-type": "event", ":event-type": "chunk"})
ODD = [
    b": waiting\n\n",
    b"event: novel\ndata: {}\n\n",
    b'data: {"type": "novel", "choices": null}\n\n',
    b"data: null\n\n",
    b"data: [1]\n\n",
    b'data: {"x"\n\n',
    b"nonsense\n\n",
    b"\n",
    b"retry: 10\n\n",
    b'data: {"candidates": [{"index": 1, "content": {"parts": [{"text": "x"}]}}]}\n\n',
    b'data: {"choices": [{"index": 1, "delta": {"content": "x"}}]}\n\n',
    EMPTY,
    converse.a_frame("novel", {"text": "x"}),
    converse.a_frame("contentBlockDelta", {"contentBlockIndex": [], "delta": {"text": 1}}),
    converse.a_frame("messageStop", None),
    _frame(b"[1]", {":message-type": "event", ":event-type": "novel"}),
]
"""What no reader expects, each whole as far as the wire goes."""


@st.composite
def mutated(draw: st.DrawFn, dialect: str) -> bytes:
    """A recorded stream with up to three events added, left out, moved or spoilt."""
    pieces = list(STREAMS[dialect])
    for _ in range(draw(st.integers(1, 3))):
        at = draw(st.integers(0, len(pieces) - 3))
        match draw(st.sampled_from(["insert", "append", "drop", "double", "swap"])):
            case "insert":
                pieces.insert(at, draw(st.sampled_from(ODD)))
            case "append":
                pieces.append(draw(st.sampled_from(ODD)))
            case "drop" if len(pieces) > 4:
                del pieces[at]
            case "double":
                pieces.insert(at, pieces[at])
            case "swap":
                pieces[at : at + 2] = reversed(pieces[at : at + 2])
    stream = b"".join(pieces)
    if draw(st.booleans()):
        # One byte; the end of the stream would be its truncation.
        at = draw(st.integers(0, len(stream) - 8))
        stream = stream[:at] + bytes([draw(st.integers(32, 255))]) + stream[at + 1 :]
    return stream


@pytest.fixture(scope="module")
def scene(
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[tuple[ScriptedUpstream, AppServer]]:
    """An upstream, and a gateway with steering off before it."""
    with ScriptedUpstream() as upstream:
        own = {f"{name}_api_base": upstream.url for name in ("bedrock", "gemini")}
        more: dict[str, Any] = {"default_upstream": own, "router": {"num_retries": 0}}
        folder: Path = tmp_path_factory.mktemp("mutations")
        with a_gateway(upstream.base_url, folder, more) as server:
            yield upstream, server


def heard(upstream: ScriptedUpstream, base: str, dialect: str) -> tuple[int, bytes, bool]:
    """Status, bytes, and whether the answer came to its proper end."""
    path, body = BODIES[dialect]
    if dialect in TYPES:  # the upstream knows no such route
        upstream.script(upstream.default, path=path)
    with httpx.Client(base_url=base, timeout=120, headers=HEADERS) as client:
        got = hear(client, path, json=body)
    return got.status, got.body, got.broken is None


def a_stream(dialect: str, stream: bytes) -> Reply:
    """An answer that consists of these bytes."""
    return Reply(raw=(stream,), content_type=TYPES.get(dialect, "text/event-stream"))


@pytest.mark.parametrize("dialect", BODIES)
def test_off_is_byte_equal_whatever_is_streamed(
    scene: tuple[ScriptedUpstream, AppServer], dialect: str
) -> None:
    """As it is without the gateway, with its proper end."""
    upstream, server = scene

    @examples(60, database=None)
    @given(stream=mutated(dialect))
    @example(stream=b"".join([*STREAMS[dialect], EMPTY]))
    @example(stream=b"".join([EMPTY, *STREAMS[dialect]]))
    def check(stream: bytes) -> None:
        upstream.default = a_stream(dialect, stream)
        assert heard(upstream, server.url, dialect) == (200, stream, True)

    check()


@pytest.mark.parametrize("dialect", BODIES)
def test_a_stream_of_which_the_end_is_missing_is_cut(
    scene: tuple[ScriptedUpstream, AppServer], dialect: str
) -> None:
    """Where all that came is understood, and its end did not come, the client can see that."""
    upstream, server = scene
    stream = b"".join(STREAMS[dialect][:2])
    upstream.default = a_stream(dialect, stream)
    status, body, whole = heard(upstream, server.url, dialect)
    assert (status, whole) == (200, False)
    assert body.startswith(stream)
    assert body != stream


@pytest.mark.parametrize("finished", [1, 2])
def test_candidates_that_do_not_all_finish(
    scene: tuple[ScriptedUpstream, AppServer], finished: int
) -> None:
    """An answer of Gemini's with two candidates is whole when one of them has ended."""
    upstream, server = scene
    texts = [{"index": n, "content": {"parts": [{"text": "x"}]}} for n in range(2)]
    ends = [{"index": n, "finishReason": "STOP"} for n in range(finished)]
    chunks = [{"candidates": texts}, {"candidates": ends, "usageMetadata": {"promptTokenCount": 1}}]
    stream = b"".join(b"data: %b\n\n" % json.dumps(chunk).encode() for chunk in chunks)
    upstream.default = Reply(raw=(stream,))
    assert heard(upstream, server.url, "gemini") == (200, stream, True)
