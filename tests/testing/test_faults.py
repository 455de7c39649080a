"""Every fault of the scripted upstream, as the bytes and ends of connection a client gets."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import httpx
import openai
import pytest

from gateway.testing import Fault, FaultKind, Reply, ScriptedUpstream, closed_port

HELLO = {"model": "m", "messages": [{"role": "user", "content": "one two three four"}]}
TEXT = "You said: one two three four"


@pytest.fixture
def http(upstream: ScriptedUpstream) -> Iterator[httpx.Client]:
    """A plain HTTP client whose connections end with the test."""
    with httpx.Client(base_url=upstream.base_url, timeout=10) as client:
        yield client


def ask(http: httpx.Client, *, stream: bool = False) -> httpx.Response:
    """One chat completion; the whole answer."""
    return http.post("/chat/completions", json={**HELLO, "stream": stream})


def read_until_it_breaks(
    http: httpx.Client, *, stream: bool = True, timeout_s: float = 10
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


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(
    ("kind", "status", "code"),
    [
        (FaultKind.RATE_LIMIT, 429, "rate_limit_exceeded"),
        (FaultKind.SERVER_ERROR, 500, None),
        (FaultKind.UNAVAILABLE, 503, None),
        (FaultKind.OVERLOADED, 529, None),
        (FaultKind.UNAUTHORIZED, 401, "invalid_api_key"),
        (FaultKind.FORBIDDEN, 403, "forbidden"),
        (FaultKind.NOT_FOUND, 404, "model_not_found"),
        (FaultKind.BAD_REQUEST, 400, "invalid_value"),
        (FaultKind.CONTEXT_LENGTH, 400, "context_length_exceeded"),
        (FaultKind.CONTENT_FILTER_ERROR, 400, "content_filter"),
    ],
)
def test_error_answers(
    upstream: ScriptedUpstream,
    http: httpx.Client,
    kind: FaultKind,
    status: int,
    code: str | None,
    stream: bool,
) -> None:
    """An error answer has its status, OpenAI's shape, its code, and a JSON content type."""
    upstream.script(Fault(kind, message="so it is"))
    answer = ask(http, stream=stream)
    error = answer.json()["error"]
    assert (answer.status_code, error["code"], error["message"]) == (status, code, "so it is")
    assert answer.headers["content-type"] == "application/json"
    assert ("retry-after" in answer.headers) == (status in (429, 503, 529))


@pytest.mark.parametrize(
    ("kind", "raised"),
    [
        (FaultKind.RATE_LIMIT, openai.RateLimitError),
        (FaultKind.UNAUTHORIZED, openai.AuthenticationError),
        (FaultKind.CONTEXT_LENGTH, openai.BadRequestError),
        (FaultKind.SERVER_ERROR, openai.InternalServerError),
        (FaultKind.DROP_BEFORE_RESPONSE, openai.APIConnectionError),
    ],
)
def test_the_official_client_raises_the_matching_class(
    upstream: ScriptedUpstream,
    openai_client: openai.OpenAI,
    kind: FaultKind,
    raised: type[Exception],
) -> None:
    """OpenAI's client takes the faults for what they stand for."""
    upstream.script(Fault(kind))
    with pytest.raises(raised):
        openai_client.chat.completions.create(**HELLO)


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


def test_a_proxys_error_page(upstream: ScriptedUpstream, http: httpx.Client) -> None:
    """An error page is HTML with status 502, or another one."""
    upstream.script(Fault(FaultKind.HTML_ERROR), Fault(FaultKind.HTML_ERROR, status=504))
    first, second = ask(http), ask(http)
    assert (first.status_code, second.status_code) == (502, 504)
    assert first.headers["content-type"] == "text/html"
    assert first.text.startswith("<html>")


@pytest.mark.parametrize("stream", [False, True])
def test_the_content_filter_ends_a_reply(
    upstream: ScriptedUpstream, openai_client: openai.OpenAI, stream: bool
) -> None:
    """The finish reason names the filter."""
    upstream.script(Fault(FaultKind.CONTENT_FILTER))
    answer = openai_client.chat.completions.create(**HELLO, stream=stream)
    last = list(answer)[-1] if stream else answer
    assert last.choices[0].finish_reason == "content_filter"


@pytest.mark.parametrize("stream", [False, True])
def test_a_slow_first_byte(upstream: ScriptedUpstream, http: httpx.Client, stream: bool) -> None:
    """A client with a short timeout gives up before the status line; a patient one is served."""
    upstream.script(Fault(FaultKind.SLOW_FIRST_BYTE, delay_s=30))
    body = {**HELLO, "stream": stream}
    with pytest.raises(httpx.ReadTimeout):
        http.post("/chat/completions", json=body, timeout=httpx.Timeout(10, read=0.05))
    upstream.wait_for_requests()
    upstream.last.wait_disconnected()
    upstream.script(Fault(FaultKind.SLOW_FIRST_BYTE, delay_s=0.01))
    assert ask(http, stream=stream).status_code == 200


@pytest.mark.parametrize("stream", [False, True])
def test_a_stall_without_end(upstream: ScriptedUpstream, http: httpx.Client, stream: bool) -> None:
    """After some bytes nothing more comes, until the client has gone."""
    upstream.script(Fault(FaultKind.STALL))
    received, error = read_until_it_breaks(http, stream=stream, timeout_s=1)
    assert isinstance(error, httpx.ReadTimeout)
    assert received
    assert b"[DONE]" not in received
    upstream.last.wait_disconnected()


@pytest.mark.parametrize("stream", [False, True])
def test_a_stall_that_ends(
    upstream: ScriptedUpstream, openai_client: openai.OpenAI, stream: bool
) -> None:
    """A stall of given length is followed by the rest of the answer."""
    upstream.script(Fault(FaultKind.STALL, delay_s=0.01))
    answer = openai_client.chat.completions.create(**HELLO, stream=stream)
    last = list(answer)[-1] if stream else answer
    assert last.choices[0].finish_reason == "stop"


@pytest.mark.parametrize("reset", [False, True])
def test_a_connection_dropped_before_the_response(
    upstream: ScriptedUpstream, http: httpx.Client, reset: bool
) -> None:
    """The connection ends without a status line, in order or by a reset."""
    upstream.script(Fault(FaultKind.DROP_BEFORE_RESPONSE, reset=reset))
    with pytest.raises(httpx.ReadError if reset else httpx.RemoteProtocolError):
        ask(http)
    assert ask(http).status_code == 200


@pytest.mark.parametrize("reset", [False, True])
def test_a_connection_dropped_in_mid_stream(
    upstream: ScriptedUpstream, http: httpx.Client, reset: bool
) -> None:
    """So many whole events come, then the connection ends."""
    upstream.script(Fault(FaultKind.DROP_MID_BODY, after=4, reset=reset))
    received, error = read_until_it_breaks(http)
    assert len(events(received)) == 4
    assert isinstance(error, httpx.ReadError if reset else httpx.RemoteProtocolError)


def test_a_connection_dropped_in_mid_body(upstream: ScriptedUpstream, http: httpx.Client) -> None:
    """Half of the promised body comes, then the connection ends."""
    upstream.script(Fault(FaultKind.DROP_MID_BODY))
    with pytest.raises(httpx.RemoteProtocolError, match="without sending complete"):
        ask(http)


def test_a_stream_cut_cleanly(upstream: ScriptedUpstream, http: httpx.Client) -> None:
    """HTTP says the stream is complete, but there is no finish reason and no `[DONE]`."""
    upstream.script(Fault(FaultKind.CLEAN_CUT, after=99))
    received, error = read_until_it_breaks(http)
    assert error is None
    assert b"[DONE]" not in received
    assert {event["choices"][0]["finish_reason"] for event in events(received)} == {None}
    texts = [event["choices"][0]["delta"].get("content") or "" for event in events(received)]
    assert "".join(texts) == TEXT


def test_an_error_event_in_mid_stream(upstream: ScriptedUpstream, http: httpx.Client) -> None:
    """After so many events an error event ends the stream, without `[DONE]`."""
    upstream.script(Fault(FaultKind.ERROR_EVENT, after=2, message="broken"))
    received, error = read_until_it_breaks(http)
    *before, last = events(received)
    assert error is None
    assert len(before) == 2
    assert last["error"]["message"] == "broken"


def test_an_error_body_under_status_200(upstream: ScriptedUpstream, http: httpx.Client) -> None:
    """Not streamed, the error comes as a body, under the status of a success."""
    upstream.script(Fault(FaultKind.ERROR_EVENT))
    answer = ask(http)
    assert answer.status_code == 200
    assert answer.json()["error"]["type"] == "server_error"


@pytest.mark.parametrize("kind", [FaultKind.MALFORMED_JSON, FaultKind.CLEAN_CUT])
def test_a_body_that_is_no_json(
    upstream: ScriptedUpstream, http: httpx.Client, kind: FaultKind
) -> None:
    """Half of a JSON text comes with a matching length and a JSON content type."""
    upstream.script(Fault(kind))
    answer = ask(http)
    assert answer.status_code == 200
    with pytest.raises(json.JSONDecodeError):
        answer.json()


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


@pytest.mark.parametrize("stream", [False, True])
def test_a_wrong_content_length(
    upstream: ScriptedUpstream, http: httpx.Client, stream: bool
) -> None:
    """More is promised than comes before the connection ends."""
    upstream.script(Fault(FaultKind.WRONG_CONTENT_LENGTH))
    with pytest.raises(httpx.RemoteProtocolError):
        ask(http, stream=stream)


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


def test_an_empty_body(upstream: ScriptedUpstream, http: httpx.Client) -> None:
    """Status 200 and not one byte."""
    upstream.script(Fault(FaultKind.EMPTY_BODY))
    answer = ask(http)
    assert (answer.status_code, answer.content) == (200, b"")


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("path", ["/chat/completions", "/messages", "/responses", "/embeddings"])
@pytest.mark.parametrize("kind", list(FaultKind))
def test_the_server_survives_every_fault(
    upstream: ScriptedUpstream, http: httpx.Client, kind: FaultKind, path: str, stream: bool
) -> None:
    """After any fault, in any dialect, the next request is served."""
    upstream.script(Fault(kind, delay_s=0.01, size_mb=0.1))
    body = {**HELLO, "input": "x", "stream": stream}
    try:
        first = http.post(path, json=body)
    except httpx.TransportError:
        first = None
    assert first is None or first.headers["x-request-id"] == "req_00000001"
    assert http.post(path, json=body).status_code == 200
    assert len(upstream.requests) == 2


def test_a_fault_can_be_the_default(http: httpx.Client, upstream: ScriptedUpstream) -> None:
    """As the default, a fault strikes every request that the script leaves over."""
    upstream.default = Fault(FaultKind.SERVER_ERROR)
    assert [ask(http).status_code for _ in range(3)] == [500, 500, 500]


def test_a_closed_port_refuses() -> None:
    """Connecting to a closed port fails at once."""
    with closed_port() as port, pytest.raises(httpx.ConnectError):
        httpx.get(f"http://127.0.0.1:{port}/v1/models")


@pytest.mark.parametrize("wrong", [{"times": 0}, {"after": -1}])
def test_impossible_faults_are_refused(wrong: dict[str, int]) -> None:
    """A fault that never happens, or strikes before the beginning, is an error of the script."""
    with pytest.raises(ValueError, match=next(iter(wrong))):
        Fault(FaultKind.STALL, **wrong)
