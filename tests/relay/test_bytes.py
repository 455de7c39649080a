"""With nothing to change, the bytes of a call arrive as they were sent, in both directions."""

from __future__ import annotations

import json
from typing import Any

import httpx
import pytest
from hypothesis import HealthCheck, given
from hypothesis import strategies as st

from steering_gateway_testing import Fault, FaultKind, Reply, ScriptedUpstream, ToolCall
from steering_gateway_testing.hearing import HELLO, STREAMED, hear
from steering_gateway_testing.json_texts import Member, bodies, rendered
from tests.examples import examples

PLAIN = Reply("fine", model="m")  # the usual one would echo surrogates, which it cannot encode
JSON = {"content-type": "application/json"}
Body = tuple[list[Member], tuple[str, str, str]]


@examples(40, suppress_health_check=list(HealthCheck))
@given(bodies())
def test_request_bodies_arrive_byte_for_byte(
    there: ScriptedUpstream, here: httpx.Client, made: Body
) -> None:
    """Whatever a client writes and however it formats it, the upstream reads the same bytes."""
    there.default = PLAIN
    raw = rendered(*made)
    hear(here, content=raw, headers=JSON)
    assert there.last.body == raw


@pytest.mark.parametrize(
    "raw",
    [
        b' {"model" : "m","messages":[ ],"temperature":1.0,"seed":1180591620717411303424}\r\n',
        b'{"messages":[{"role":"user","content":null}],"x":{"y":[1e5,-0.0]},"model":"m"}',
        b'{"model":"m","messages":[{"role":"user","content":"\\ud83d\\ude00 \\ud800"}]}',
        '{"model":"m","messages":[{"role":"user","content":"\u4f60\u597d"}]}'.encode(),
        b'{"model":"m","messages":[{"role":"user","content":"\xff\xfe"}]}',
        b'{"model":"m","messages":[],"x":' + b"[" * 400 + b"]" * 400 + b"}",
    ],
)
def test_unusual_bodies_arrive_byte_for_byte(
    there: ScriptedUpstream, here: httpx.Client, raw: bytes
) -> None:
    """Odd numbers, surrogates, bytes that are no UTF-8, deep nesting: all as they came."""
    there.default = PLAIN
    hear(here, content=raw, headers=JSON)
    assert there.last.body == raw


def test_a_large_body_arrives_byte_for_byte(there: ScriptedUpstream, here: httpx.Client) -> None:
    """Several megabytes of history go through, declared or chunked."""
    raw = json.dumps({**HELLO, "x": "\u00e9" * 3_000_000}, ensure_ascii=False).encode()
    assert hear(here, content=raw, headers=JSON).status == 200
    assert there.last.body == raw
    pieces = (raw[i : i + 100_000] for i in range(0, len(raw), 100_000))
    assert hear(here, content=pieces, headers=JSON).status == 200
    assert there.last.body == raw


@pytest.mark.parametrize(
    "raw",
    [
        b'{"choices": [], "unknown": {"x": 1.0}, "n": 1e400, "big": 123456789012345678901234}',
        b' {\n "id" : "x" }\n ',
        '{"id": "\u4f60\u597d"}'.encode(),
        b'{"id": "\xff\xfe"}',
        b"{}",
    ],
)
def test_answers_arrive_byte_for_byte(
    there: ScriptedUpstream, here: httpx.Client, raw: bytes
) -> None:
    """The body the client gets is the one the upstream wrote, unknown fields and all."""
    there.script(Reply(raw=raw))
    heard = hear(here, json=HELLO)
    assert (heard.status, heard.body) == (200, raw)
    assert heard.headers["content-length"] == str(len(raw))


STREAM = (
    b'data: {"choices": [{"index": 0, "delta": {"content": "a", "unknown": 1.0}}], "x": 1}\n\n',
    b": a comment\n\n",
    b"event: delta\nid: 7\nretry: 10\ndata: {}\n\n",
    'data: {"choices": [{"index": 0, "delta": {"content": "\u4f60"}}]}\r\n\r\n'.encode(),
    b'data: {"choices": [{"index": 0, "delta": {},\ndata: "finish_reason": "stop"}]}\n\n',
    b"data: [DONE]\n\n",
)


@pytest.mark.parametrize("write_bytes", [None, 1, 7, 4096])
def test_event_streams_arrive_byte_for_byte(
    there: ScriptedUpstream, here: httpx.Client, write_bytes: int | None
) -> None:
    """Comments, names, ids, line ends and unknown fields of a stream survive, in any cut."""
    there.script(Reply(raw=STREAM, write_bytes=write_bytes))
    heard = hear(here, json=STREAMED)
    assert heard.body == b"".join(STREAM)
    assert heard.broken is None
    assert heard.headers["content-type"].startswith("text/event-stream")


def test_every_form_of_reply_survives(there: ScriptedUpstream, here: httpx.Client) -> None:
    """Refusal, reasoning, parallel calls, alternatives and unknown fields are the upstream's."""
    reply = Reply(
        "text",
        tool_calls=(ToolCall("f", {"a": 1}), ToolCall("g", "not json", id="call_x")),
        reasoning="because",
        refusal="no",
        alternatives=(Reply("other"),),
        extra={"x_extra": [1.0, None]},
        message_extra={"annotations": [{"type": "url"}], "audio": None},
        interleave=True,
    )
    direct = httpx.Client(base_url=there.base_url, timeout=120)
    for body in (HELLO, STREAMED, {**STREAMED, "stream_options": {"include_usage": True}}):
        there.script(reply, reply)
        straight, through = hear(direct, json=body), hear(here, json=body)
        numbered = straight.body.replace(b"%08d" % (there.last.sequence - 1), b"N")
        assert through.body.replace(b"%08d" % there.last.sequence, b"N") == numbered
    direct.close()


def test_the_client_is_told_nothing_it_did_not_ask_for(
    there: ScriptedUpstream, here: httpx.Client
) -> None:
    """Without `include_usage` neither side sees a trace of it when nothing is steered."""
    heard = hear(here, json=STREAMED)
    assert "stream_options" not in there.last.json
    assert all("usage" not in event for event in heard.events if isinstance(event, dict))


def test_events_are_relayed_as_they_arrive(there: ScriptedUpstream, here: httpx.Client) -> None:
    """The first event is with the client while the upstream still holds the rest back."""
    there.script(Fault(FaultKind.STALL, after=1))
    with here.stream("POST", "/chat/completions", json=STREAMED) as answer:
        chunks = answer.iter_raw()
        assert next(chunks).startswith(b"data: ")
        assert not there.last.ended.is_set()
    there.last.wait_disconnected()


@given(st.data())
@examples(25, suppress_health_check=list(HealthCheck))
def test_a_deployments_model_is_the_only_change(
    alias: tuple[ScriptedUpstream, httpx.Client], data: Any
) -> None:
    """For a configured name only the value of `model` differs, to the byte."""
    upstream, client = alias
    upstream.default = PLAIN
    pairs, spaces = data.draw(bodies())
    named = [(k, '"my-model"' if k == '"model"' else v) for k, v in pairs]
    hear(client, content=rendered(named, spaces), headers=JSON)
    routed = [(k, '"real/\u00e9"' if k == '"model"' else v) for k, v in pairs]
    assert upstream.last.body == rendered(routed, spaces)


@pytest.fixture
def alias(upstream: ScriptedUpstream, relay: Any) -> tuple[ScriptedUpstream, httpx.Client]:
    """A gateway that maps `my-model` to another name."""
    params = {"model": "openai/real/\u00e9", "api_base": upstream.base_url, "api_key": "k"}
    return upstream, relay({"model_list": [{"model_name": "my-model", "litellm_params": params}]})
