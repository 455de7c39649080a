"""The scripted upstream's other routes: models, embeddings, legacy completions, the echo."""

from __future__ import annotations

import socket
from typing import Any

import httpx
import pytest

from steering_gateway_testing import Reply, ScriptedUpstream
from steering_gateway_testing.official import openai


@pytest.mark.parametrize("encoding", ["float", "base64"])
def test_equal_texts_have_equal_embeddings(openai_client: openai.OpenAI, encoding: Any) -> None:
    """Embeddings are unit vectors that depend on the text alone, in either encoding."""
    asked = openai_client.embeddings.create(
        model="e", input=["a", "b", "a"], encoding_format=encoding, dimensions=20
    )
    if encoding == "base64":
        asked = openai_client.embeddings.create(model="e", input=["a", "b", "a"], dimensions=20)
    first, other, again = (entry.embedding for entry in asked.data)
    assert first == again != other
    assert len(first) == 20
    assert sum(number * number for number in first) == pytest.approx(1, abs=1e-5)


def test_tokens_are_one_input(openai_client: openai.OpenAI) -> None:
    """A list of token numbers is one text."""
    assert len(openai_client.embeddings.create(model="e", input=[1, 2, 3]).data) == 1


@pytest.mark.parametrize("stream", [False, True])
def test_legacy_completions(openai_client: openai.OpenAI, stream: bool) -> None:
    """The prompt comes back as a text completion, streamed or not."""
    answer = openai_client.completions.create(model="m", prompt="once upon", stream=stream)
    parts: list[Any] = list(answer) if stream else [answer]
    assert "".join(part.choices[0].text for part in parts) == "You said: once upon"
    assert parts[-1].choices[0].finish_reason == "stop"


def test_a_request_without_a_body_is_described(upstream: ScriptedUpstream) -> None:
    """The echo of a GET or DELETE is its request line."""
    answer = httpx.delete(f"{upstream.base_url}/files/f1?purge=1")
    assert answer.json() == {"method": "DELETE", "path": "/v1/files/f1", "query": "purge=1"}


def test_a_head_request_has_no_body(upstream: ScriptedUpstream) -> None:
    """The connection can be used again after a HEAD."""
    with httpx.Client() as client:
        assert client.head(f"{upstream.url}/api/hello").status_code == 200
        assert client.get(f"{upstream.base_url}/models").status_code == 200
    assert upstream.connections_opened == 1


def test_a_chunked_body_is_echoed_while_it_arrives(upstream: ScriptedUpstream) -> None:
    """The first piece comes back before the second is sent."""
    with socket.create_connection((upstream.host, upstream.port), timeout=120) as connection:
        connection.sendall(
            b"POST /v1/audio/stream HTTP/1.1\r\nHost: x\r\ncontent-type: audio/pcm\r\n"
            b"Transfer-Encoding: chunked\r\n\r\n5\r\nfirst\r\n"
        )
        received = b""
        while not received.endswith(b"5\r\nfirst\r\n"):
            received += connection.recv(65_536)
        assert b"content-type: audio/pcm" in received
        connection.sendall(b"6\r\nsecond\r\n0\r\n\r\n")
        while not received.endswith(b"6\r\nsecond\r\n0\r\n\r\n"):
            received += connection.recv(65_536)
    assert upstream.last.body == b"firstsecond"


def test_any_route_can_be_scripted(upstream: ScriptedUpstream) -> None:
    """A raw reply serves a binary download."""
    upstream.script(Reply(raw=b"ID3\x00", content_type="audio/mpeg"), path="/audio/speech")
    answer = httpx.post(f"{upstream.base_url}/audio/speech", json={"input": "hello"})
    assert (answer.content, answer.headers["content-type"]) == (b"ID3\x00", "audio/mpeg")
