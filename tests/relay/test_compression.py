"""Compressed answers stay compressed, and are asked for only where they can be read."""

from __future__ import annotations

import gzip
from collections.abc import Callable
from typing import Any

import httpx
import pytest

from steering_gateway_testing import Reply, ScriptedUpstream
from steering_gateway_testing.hearing import HELLO, STREAMED, hear

Relay = Callable[..., httpx.Client]

STREAM = (
    b'data: {"choices": [{"index": 0, "delta": {}, "finish_reason": "stop"}]}\n\ndata: [DONE]\n\n'
)


@pytest.mark.parametrize(
    ("accepted", "asked"),
    [
        ("gzip, deflate, br, zstd", "gzip, deflate, br, zstd"),
        ("br;q=1.0, gzip;q=0.5, *;q=0.1", "br;q=1.0, gzip;q=0.5"),
        ("dcb, compress", "identity"),
        ("identity", "identity"),
        (None, None),
    ],
)
def test_what_steering_cannot_read_is_not_asked_for(
    upstream: ScriptedUpstream, relay: Relay, accepted: str | None, asked: str | None
) -> None:
    """Where requests are changed anyway, compressions are left out that it cannot undo."""
    client = relay({"steering": {"mode": "on"}})
    del client.headers["accept-encoding"]
    hear(client, json=HELLO, headers={"accept-encoding": accepted} if accepted else {})
    assert upstream.last.header("accept-encoding") == asked


@pytest.mark.parametrize("mode", ["off", "shadow"])
def test_a_request_that_is_not_changed_asks_for_what_the_client_does(
    upstream: ScriptedUpstream, relay: Relay, mode: str
) -> None:
    """Also for a compression that steering cannot undo."""
    hear(relay({"steering": {"mode": mode}}), json=HELLO, headers={"accept-encoding": "gzip, dcb"})
    assert upstream.last.header("accept-encoding") == "gzip, dcb"


def test_usage_is_hidden_in_streams_that_could_be_compressed(
    upstream: ScriptedUpstream, relay: Relay
) -> None:
    """A stream from which the usage chunk has to be taken is asked for uncompressed."""
    client = relay({"steering": {"mode": "on", "stream_usage": "always"}})
    heard = hear(client, json=STREAMED, headers={"accept-encoding": "gzip"})
    assert upstream.last.header("accept-encoding") == "identity"
    assert upstream.last.json["stream_options"] == {"include_usage": True}
    assert all(event == "[DONE]" or event["choices"] for event in heard.events)


@pytest.mark.parametrize("mode", ["on", "off"])
@pytest.mark.parametrize("body", [HELLO, STREAMED], ids=["whole", "stream"])
def test_compressed_answers_stay_compressed(
    upstream: ScriptedUpstream, relay: Relay, mode: str, body: dict[str, Any]
) -> None:
    """Whoever compresses all the same is relayed byte for byte, and read if possible."""
    plain = STREAM if body is STREAMED else b'{"choices": [], "usage": {"prompt_tokens": 5}}'
    packed = gzip.compress(plain)
    raw = (packed[:9], packed[9:]) if body is STREAMED else packed
    upstream.script(Reply(raw=raw, headers={"content-encoding": "gzip"}))
    client = relay({"steering": {"mode": mode, "stream_usage": "always"}})
    heard = hear(client, json=body)
    assert (heard.body, heard.broken) == (packed, None)
    assert heard.headers["content-encoding"] == "gzip"


def test_a_compressed_stream_that_breaks_off_just_ends(
    upstream: ScriptedUpstream, relay: Relay
) -> None:
    """No plain text is put behind compressed bytes: the connection ends without its proper end."""
    begun = b'data: {"choices": [{"index": 0, "delta": {"content": "a"}}]}\n\n'
    cut = gzip.compress(begun) + gzip.compress(STREAM)[:20]
    upstream.script(Reply(raw=(cut,), headers={"content-encoding": "gzip"}))
    heard = hear(relay(), json=STREAMED)
    assert heard.body == cut
    assert heard.broken is not None
