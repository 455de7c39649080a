"""With steering off, and in shadow, not one byte differs, in either direction."""

from __future__ import annotations

import gzip
import json

import httpx
import pytest

from steering_gateway_testing import Reply, ScriptedUpstream
from steering_gateway_testing.looping import OFF, STEERING, Start, states
from tests.examples import by_day

SHADOW = {"steering": {**STEERING["steering"], "mode": "shadow"}}
REQUESTS = {
    "messages": b'{"stream": %s,  "model":"m", "max_tokens": 64,"x":1.0, "messages":'
    b'[{"content":"\\u00e9","role":"user"}], "system" : "S", "big":%d}',
    "responses": b'{ "input":[{"role":"user","content":"\\ud83d\\ude00"}], "stream":%s,'
    b'"model":"m","x":{"y":1e2}, "instructions":"S","store":false, "big":%d}',
}
ANSWERS = {
    "messages": {"type": "message", "content": [{"type": "text", "text": "ok"}], "new": 1.0},
    "responses": {"object": "response", "status": "completed", "output": [], "new": 1.0},
}
STREAMS = {
    "messages": (
        b'event: message_start\ndata: {"type": "message_start", "message": {"id":"m"}}\n\n',
        b': keep\n\nevent: ping\ndata: {"type": "ping"}\n\n',
        b'event: novel\ndata: {"type":"novel"}\n\n',
        b'event: message_delta\ndata: {"type":"message_delta","delta":{"stop_reason":"end_turn"}}',
        b'\n\nevent: message_stop\ndata: {"type": "message_stop" }\n\n',
    ),
    "responses": (
        b'event: response.created\ndata: {"type":"response.created","response":{}}\n\n: keep\n\n',
        b'event: response.novel\ndata: {"type":"response.novel"}\n\n',
        b'event: response.completed\r\ndata: {"type": "response.completed", "response": ',
        b'{"status":"completed","output":[]}}\r\n\r\n',
    ),
}


@pytest.mark.parametrize("dialect", by_day(REQUESTS, 4))
@pytest.mark.parametrize("streamed", [False, True])
@pytest.mark.parametrize("settings", [OFF, SHADOW], ids=["off", "shadow"])
def test_no_byte_changes(
    gateway_server: Start,
    upstream: ScriptedUpstream,
    dialect: str,
    streamed: bool,
    settings: dict[str, object],
) -> None:
    """Request and answer are the bytes that were sent, and the call is on record."""
    whole = json.dumps(ANSWERS[dialect], indent=1).encode()
    upstream.default = Reply(raw=STREAMS[dialect] if streamed else whole)
    raw = REQUESTS[dialect] % (b"true" if streamed else b"false", 2**70)
    server = gateway_server(settings)
    answer = httpx.post(f"{server.base_url}/{dialect}?beta=true", content=raw)
    assert upstream.last.body == raw
    assert upstream.last.query == "beta=true"
    assert answer.content == (b"".join(STREAMS[dialect]) if streamed else whole)
    assert len(states(server)) == 1


@pytest.mark.parametrize("dialect", REQUESTS)
def test_compressed_answers_are_read_and_relayed(
    gateway_server: Start, upstream: ScriptedUpstream, dialect: str
) -> None:
    """A compressed answer goes through as it is, and its usage is counted all the same."""
    body = {**ANSWERS[dialect], "usage": {"input_tokens": 7, "output_tokens": 3}}
    packed = gzip.compress(json.dumps(body).encode())
    upstream.default = Reply(raw=packed, headers={"content-encoding": "gzip"})
    server = gateway_server(OFF)
    raw = REQUESTS[dialect] % (b"false", 1)
    with httpx.stream("POST", f"{server.base_url}/{dialect}", content=raw) as answer:
        assert b"".join(answer.iter_raw()) == packed
    run = httpx.get(f"{server.url}/api/runs").json()["runs"][0]
    assert (run["totals"]["input_tokens"], run["totals"]["output_tokens"]) == (7, 3)
