"""Faults of the scripted upstream: what the tests of the relay do not see through the gateway.

Statuses, error codes and broken connections are asserted there, for every kind of fault.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import httpx
import pytest

from steering_gateway_testing import Fault, FaultKind, Reply, ScriptedUpstream
from steering_gateway_testing.official import openai

HELLO: dict[str, Any] = {
    "model": "m",
    "messages": [{"role": "user", "content": "one two three four"}],
}


@pytest.fixture
def http(upstream: ScriptedUpstream) -> Iterator[httpx.Client]:
    """A plain HTTP client whose connections end with the test."""
    with httpx.Client(base_url=upstream.base_url, timeout=120) as client:
        yield client


def ask(http: httpx.Client, *, stream: bool = False) -> httpx.Response:
    """One chat completion; the whole answer."""
    return http.post("/chat/completions", json={**HELLO, "stream": stream})


def read_until_it_breaks(
    http: httpx.Client, *, stream: bool = True, timeout_s: float = 60
) -> tuple[bytes, Exception | None]:
    """The bytes of a body up to its end, and the error that ended it."""
    received = b""
    body = {**HELLO, "stream": stream}
    with http.stream("POST", "/chat/completions", json=body, timeout=timeout_s) as answer:
        try:
            for data in answer.iter_raw():
                received += data
        except httpx.TransportError as error:
            return received, error
    return received, None


def events(stream: bytes) -> list[Any]:
    """The JSON events of a well-formed stream, `[DONE]` left out."""
    texts = [part.removeprefix(b"data: ") for part in stream.split(b"\n\n") if part]
    return [json.loads(text) for text in texts if text != b"[DONE]"]


def test_faults_repeat_and_then_the_script_goes_on(
    upstream: ScriptedUpstream, http: httpx.Client
) -> None:
    """`times` faults come in a row, then the next entry, then the default."""
    upstream.script(Fault(FaultKind.UNAVAILABLE, times=2), Reply("third"))
    assert [ask(http).status_code for _ in range(4)] == [503, 503, 200, 200]
    assert upstream.pending == 0


def test_retry_after_is_what_the_script_says(
    upstream: ScriptedUpstream, http: httpx.Client
) -> None:
    """The header has the scripted text, or is left out."""
    upstream.script(
        Fault(FaultKind.RATE_LIMIT, retry_after="0.25", headers={"x-limit": "9"}),
        Fault(FaultKind.RATE_LIMIT, retry_after=None),
    )
    first, second = ask(http), ask(http)
    assert (first.headers["retry-after"], first.headers["x-limit"]) == ("0.25", "9")
    assert "retry-after" not in second.headers


@pytest.mark.parametrize("stream", [False, True])
def test_the_content_filter_ends_a_reply(
    upstream: ScriptedUpstream, openai_client: openai.OpenAI, stream: bool
) -> None:
    """The finish reason names the filter."""
    upstream.script(Fault(FaultKind.CONTENT_FILTER))
    answer = openai_client.chat.completions.create(**HELLO, stream=stream)
    last: Any = list(answer)[-1] if stream else answer
    assert last.choices[0].finish_reason == "content_filter"


@pytest.mark.parametrize("stream", [False, True])
def test_a_stall_that_ends(
    upstream: ScriptedUpstream, openai_client: openai.OpenAI, stream: bool
) -> None:
    """A stall of given length is followed by the rest of the answer."""
    upstream.script(Fault(FaultKind.STALL, delay_s=0.01))
    answer = openai_client.chat.completions.create(**HELLO, stream=stream)
    last: Any = list(answer)[-1] if stream else answer
    assert last.choices[0].finish_reason == "stop"


@pytest.mark.parametrize("kind", [FaultKind.MALFORMED_JSON, FaultKind.MALFORMED_SSE])
def test_an_event_that_is_broken(
    upstream: ScriptedUpstream, http: httpx.Client, kind: FaultKind
) -> None:
    """One event of the stream is broken; those before and after are whole."""
    upstream.script(Fault(kind, after=3))
    received, error = read_until_it_breaks(http)
    assert error is None
    assert received.endswith(b"data: [DONE]\n\n")
    with pytest.raises(json.JSONDecodeError):
        events(received)
    assert len(events(b"\n\n".join(received.split(b"\n\n")[:3]))) == 3


def test_lines_that_are_no_fields(upstream: ScriptedUpstream, http: httpx.Client) -> None:
    """A malformed event stream has lines that start with no known field."""
    upstream.script(Fault(FaultKind.MALFORMED_SSE))
    received, _ = read_until_it_breaks(http)
    assert b"\ndta {\n" in received


@pytest.mark.parametrize("stream", [False, True])
def test_a_wrong_content_type(upstream: ScriptedUpstream, http: httpx.Client, stream: bool) -> None:
    """The right bytes come under the content type of a web page."""
    upstream.script(Fault(FaultKind.WRONG_CONTENT_TYPE))
    answer = ask(http, stream=stream)
    assert answer.headers["content-type"] == "text/html"
    assert b"four" in answer.content


@pytest.mark.parametrize("path", ["/chat/completions", "/messages", "/responses"])
@pytest.mark.parametrize("stream", [False, True])
def test_invalid_utf8(
    upstream: ScriptedUpstream, http: httpx.Client, path: str, stream: bool
) -> None:
    """The text holds bytes that cannot be decoded; around them the JSON is whole."""
    upstream.script(Fault(FaultKind.INVALID_UTF8))
    body = http.post(path, json={**HELLO, "input": "x", "stream": stream}).content
    with pytest.raises(UnicodeDecodeError):
        body.decode()
    text = body.decode(errors="replace")
    for line in text.splitlines() if stream else [f"data: {text}"]:
        if line.startswith("data: {"):
            json.loads(line.removeprefix("data: "))


@pytest.mark.parametrize("stream", [False, True])
def test_a_huge_body(upstream: ScriptedUpstream, http: httpx.Client, stream: bool) -> None:
    """The content has the asked size, in many events when streamed."""
    upstream.script(Fault(FaultKind.HUGE_BODY, size_mb=2))
    answer = ask(http, stream=stream)
    parts = events(answer.content) if stream else [answer.json()]
    choices = [part["choices"][0] for part in parts]
    texts = [(c.get("delta") or c.get("message") or {}).get("content") or "" for c in choices]
    assert len("".join(texts)) == 2 * 2**20
    assert len(parts) > 30 or not stream


def test_a_fault_can_be_the_default(http: httpx.Client, upstream: ScriptedUpstream) -> None:
    """As the default, a fault strikes every request that the script leaves over."""
    upstream.default = Fault(FaultKind.SERVER_ERROR)
    assert [ask(http).status_code for _ in range(3)] == [500, 500, 500]


@pytest.mark.parametrize("wrong", [{"times": 0}, {"after": -1}])
def test_impossible_faults_are_refused(wrong: dict[str, Any]) -> None:
    """A fault that never happens, or strikes before the beginning, is an error of the script."""
    with pytest.raises(ValueError, match=next(iter(wrong))):
        Fault(FaultKind.STALL, **wrong)
