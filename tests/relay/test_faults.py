"""Every way an upstream can go wrong: what the client sees, what was asked, what comes after."""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import httpx
import pytest

from steering_gateway_testing import AppServer, ScriptedUpstream, closed_port
from steering_gateway_testing.gateways import a_gateway, relaying, replace_settings
from steering_gateway_testing.hearing import HELLO, STREAMED, Heard, hear
from steering_gateway_testing.official import openai
from steering_gateway_testing.text import echo
from steering_gateway_testing.values import Fault, FaultKind, Reply
from tests.examples import by_day

K = FaultKind
RETRIES: dict[str, Any] = {"router": {"num_retries": 2}}
LIMITS = {K.SLOW_FIRST_BYTE: {"first_byte_s": 0.3}, K.STALL: {"idle_s": 1.0}}
"""Only what never comes meets a limit: on a busy machine a short one would hit other faults too."""


class Outcome(NamedTuple):
    """What a client sees: status, `code` of the error, its class in `openai`, and how often was
    asked."""

    status: int
    code: str | None = None
    raised: str = ""
    calls: int = 1


ERRORS = {
    K.RATE_LIMIT: Outcome(429, "rate_limit_exceeded", "RateLimitError", 3),
    K.SERVER_ERROR: Outcome(500, None, "InternalServerError", 3),
    K.UNAVAILABLE: Outcome(503, None, "InternalServerError", 3),
    K.OVERLOADED: Outcome(529, None, "InternalServerError", 3),
    K.UNAUTHORIZED: Outcome(401, "invalid_api_key", "AuthenticationError"),
    K.FORBIDDEN: Outcome(403, "forbidden", "PermissionDeniedError"),
    K.NOT_FOUND: Outcome(404, "model_not_found", "NotFoundError"),
    K.BAD_REQUEST: Outcome(400, "invalid_value", "BadRequestError"),
    K.CONTEXT_LENGTH: Outcome(400, "context_length_exceeded", "BadRequestError"),
    K.CONTENT_FILTER_ERROR: Outcome(400, "content_filter", "BadRequestError"),
    K.SLOW_FIRST_BYTE: Outcome(504, "upstream_timeout", "InternalServerError"),
    K.DROP_BEFORE_RESPONSE: Outcome(502, "upstream_unreachable", "InternalServerError", 3),
}
"""The same whether a stream was asked for or not."""

UNSTREAMED_ERRORS = {
    K.STALL: Outcome(504, "upstream_timeout", "InternalServerError"),
    K.DROP_MID_BODY: Outcome(502, "upstream_malformed", "InternalServerError"),
    K.WRONG_CONTENT_LENGTH: Outcome(502, "upstream_malformed", "InternalServerError"),
}
BROKEN_STREAMS = {
    K.STALL: "upstream_timeout",
    K.DROP_MID_BODY: "upstream_malformed",
    K.CLEAN_CUT: "upstream_malformed",
}
HARMLESS = (K.CONTENT_FILTER, K.WRONG_CONTENT_TYPE, K.INVALID_UTF8, K.HUGE_BODY)
UNREAD = (K.EMPTY_BODY, K.CLEAN_CUT, K.MALFORMED_JSON, K.MALFORMED_SSE)
"""Not streamed, these end well as far as HTTP goes; what they contain is the client's to judge."""
ODD_STREAMS = (
    K.EMPTY_BODY,
    K.MALFORMED_JSON,
    K.MALFORMED_SSE,
    K.ERROR_EVENT,
    K.WRONG_CONTENT_LENGTH,
)


def a_fault(kind: FaultKind, **more: Any) -> Fault:
    """A fault of this kind for ever: slow ones longer than the limits, rate limits without wait."""
    slow = 30 if kind in (K.SLOW_FIRST_BYTE, K.STALL) else None
    spoilt = Reply("one two three four")
    return Fault(kind, retry_after="0", delay_s=slow, size_mb=0.2, reply=spoilt, **more)


@pytest.fixture(scope="module")
def faulty(
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[tuple[ScriptedUpstream, AppServer]]:
    """An upstream and a gateway that repeats calls, with the limits that it has where nothing is
    configured."""
    with relaying(tmp_path_factory.mktemp("faults"), RETRIES) as both:
        yield both


@pytest.fixture
def gateway(faulty: tuple[ScriptedUpstream, AppServer]) -> AppServer:
    return faulty[1]


@pytest.fixture
def upstream(faulty: tuple[ScriptedUpstream, AppServer]) -> Iterator[ScriptedUpstream]:
    """The upstream behind the gateway, healthy again after the test."""
    faulty[0].reset()
    yield faulty[0]
    faulty[0].default = echo


@pytest.fixture
def client(gateway: AppServer, upstream: ScriptedUpstream) -> Iterator[httpx.Client]:
    """A client whose next request, after the test, must be served."""
    with httpx.Client(base_url=gateway.base_url, timeout=120) as made:
        yield made
        upstream.default = echo
        assert hear(made, json=HELLO).status == 200
        assert hear(made, json=STREAMED).events[-1] == "[DONE]"


@pytest.fixture
def strike(
    gateway: AppServer, client: httpx.Client, upstream: ScriptedUpstream
) -> Iterator[Callable[..., None]]:
    """Lets the upstream fail in one way for ever, and the gateway wait for silence only so long."""
    known = {**RETRIES, "default_upstream": {"api_base": upstream.base_url}}

    def begin(kind: FaultKind, **more: Any) -> None:
        upstream.default = a_fault(kind, **more)
        if kind in LIMITS:
            replace_settings(gateway, {**known, "timeouts": LIMITS[kind]})

    yield begin
    replace_settings(gateway, known)


@pytest.fixture
def official(gateway: AppServer, client: httpx.Client) -> Iterator[openai.OpenAI]:
    """The official client, without retries of its own."""
    with openai.OpenAI(base_url=gateway.base_url, api_key="k", max_retries=0) as made:
        yield made


def assert_cut(heard: Heard, code: str) -> None:
    """The stream broke off visibly: an error event last, no end marker, no invented finish."""
    assert heard.status == 200
    assert isinstance(heard.broken, httpx.RemoteProtocolError)
    *before, last = heard.events
    assert last["error"]["code"] == code
    assert last["error"]["type"] == "upstream_error"
    assert "[DONE]" not in before
    choices = [c for event in before for c in event["choices"]]
    assert choices
    assert not any(choice["finish_reason"] for choice in choices)


@pytest.mark.parametrize("body", [HELLO, STREAMED], ids=["whole", "stream"])
@pytest.mark.parametrize("kind", by_day(list(ERRORS), 4))
def test_errors_before_the_first_byte(
    upstream: ScriptedUpstream,
    client: httpx.Client,
    official: openai.OpenAI,
    strike: Callable[..., None],
    kind: FaultKind,
    body: dict[str, Any],
) -> None:
    """Status, code, message and exception class are right, and only what may help is repeated."""
    expected = ERRORS[kind]
    strike(kind)
    heard = hear(client, json=body)
    assert (heard.status, heard.json["error"]["code"]) == (expected.status, expected.code)
    assert len(upstream.requests) == expected.calls
    with pytest.raises(getattr(openai, expected.raised)) as raised:
        official.chat.completions.create(**body)
    assert getattr(raised.value, "code", None) == expected.code
    assert heard.json["error"]["message"] in str(raised.value)


@pytest.mark.parametrize("kind", list(UNSTREAMED_ERRORS))
def test_an_answer_that_is_not_whole(
    upstream: ScriptedUpstream,
    client: httpx.Client,
    official: openai.OpenAI,
    strike: Callable[..., None],
    kind: FaultKind,
) -> None:
    """Not streamed, a body that breaks off is no answer: 502 or 504, never half of it."""
    expected = UNSTREAMED_ERRORS[kind]
    strike(kind)
    heard = hear(client, json=HELLO)
    assert (heard.status, heard.error["code"]) == (expected.status, expected.code)
    assert len(upstream.requests) == expected.calls
    with pytest.raises(getattr(openai, expected.raised)):
        official.chat.completions.create(**HELLO)


@pytest.mark.parametrize("reset", [False, True])
@pytest.mark.parametrize("kind", list(BROKEN_STREAMS))
def test_a_stream_that_breaks_off(
    upstream: ScriptedUpstream,
    client: httpx.Client,
    official: openai.OpenAI,
    strike: Callable[..., None],
    kind: FaultKind,
    reset: bool,
) -> None:
    """The client gets all that came, then an error event, then the end of the connection."""
    strike(kind, reset=reset)
    heard = hear(client, json=STREAMED)
    assert_cut(heard, BROKEN_STREAMS[kind])
    assert len(heard.events) == 4
    assert len(upstream.requests) == 1
    with pytest.raises(openai.APIError, match=r"broke off|stalled|without a finish"):
        list(official.chat.completions.create(**STREAMED))


@pytest.mark.parametrize("after", [1, 2, 99])
def test_a_stream_cut_at_any_place(
    upstream: ScriptedUpstream, client: httpx.Client, after: int
) -> None:
    """After the first event or after the last content: without finish reason it is cut."""
    upstream.default = Fault(K.CLEAN_CUT, after=after)
    heard = hear(client, json=STREAMED)
    assert heard.broken is not None
    assert heard.events[-1]["error"]["code"] == "upstream_malformed"
    assert "[DONE]" not in heard.events


def test_a_stream_cut_in_the_middle_of_an_event(
    upstream: ScriptedUpstream, client: httpx.Client
) -> None:
    """The error event stands alone, also when half an event came before it."""
    half = (b'data: {"choices": [{"index": 0, "delta": {"content": "a"}}]}\n\n', b'data: {"choi')
    upstream.default = Reply(raw=half)
    heard = hear(client, json=STREAMED)
    assert heard.body.startswith(b"".join(half) + b"\n\ndata: ")
    assert heard.events[-1]["error"]["code"] == "upstream_malformed"
    assert heard.broken is not None


def test_a_finished_stream_without_its_marker_is_whole(
    upstream: ScriptedUpstream, client: httpx.Client
) -> None:
    """Some upstreams never send `[DONE]`; with every finish reason there, nothing is missing."""
    finish = b'data: {"choices": [{"index": 0, "delta": {}, "finish_reason": "stop"}]}\n\n'
    upstream.default = Reply(raw=(finish,))
    heard = hear(client, json=STREAMED)
    assert (heard.body, heard.broken) == (finish, None)


def test_the_upstreams_own_error_event_is_the_last_word(
    upstream: ScriptedUpstream, client: httpx.Client, official: openai.OpenAI
) -> None:
    """An error told by the upstream in mid-stream arrives as it is, and no other is added."""
    upstream.default = Fault(K.ERROR_EVENT, after=2, message="so it is")
    heard = hear(client, json=STREAMED)
    assert heard.broken is None
    assert [("error" in event) for event in heard.events] == [False, False, True]
    assert "[DONE]" not in heard.events
    with pytest.raises(openai.APIError, match="so it is"):
        list(official.chat.completions.create(**STREAMED))


def test_an_error_under_status_200(upstream: ScriptedUpstream, client: httpx.Client) -> None:
    """An error body labelled as a success is the upstream's business."""
    upstream.default = Fault(K.ERROR_EVENT, message="so it is")
    heard = hear(client, json=HELLO)
    assert (heard.status, heard.json["error"]["message"]) == (200, "so it is")


@pytest.mark.parametrize("body", [HELLO, STREAMED], ids=["whole", "stream"])
@pytest.mark.parametrize("kind", by_day(sorted({*HARMLESS, *ODD_STREAMS, *UNREAD}), 4))
def test_what_can_be_relayed_is_relayed_byte_for_byte(
    upstream: ScriptedUpstream, client: httpx.Client, kind: FaultKind, body: dict[str, Any]
) -> None:
    """Odd, large, mislabelled and partly broken answers are the client's to make sense of."""
    if (kind in UNSTREAMED_ERRORS) if body is HELLO else (kind in BROKEN_STREAMS):
        return
    upstream.default = a_fault(kind)
    with httpx.Client(base_url=upstream.base_url, timeout=120) as direct:
        straight = hear(direct, json=body)
        first = b"%08d" % upstream.last.sequence
        through = hear(client, json=body)
    second = b"%08d" % upstream.last.sequence  # an error in the answer is repeated
    assert through.body.replace(second, b"N") == straight.body.replace(first, b"N")
    assert through.status == straight.status
    assert through.headers["content-type"] == straight.headers["content-type"]
    assert through.broken is None


def test_an_error_page_of_a_proxy_goes_through(
    upstream: ScriptedUpstream, client: httpx.Client, official: openai.OpenAI
) -> None:
    """HTML under 502 is repeated like any 502, and arrives as it is."""
    upstream.default = Fault(K.HTML_ERROR)
    heard = hear(client, json=HELLO)
    assert (heard.status, heard.headers["content-type"]) == (502, "text/html")
    assert heard.body.startswith(b"<html>")
    assert len(upstream.requests) == 3
    with pytest.raises(openai.InternalServerError):
        official.chat.completions.create(**HELLO)


def test_a_page_instead_of_a_stream(upstream: ScriptedUpstream, client: httpx.Client) -> None:
    """A captive portal's page under 200 is no completion, and it is for the client to see that."""
    page = b"<html>log in</html>"
    upstream.default = Reply(raw=page, content_type="text/html")
    for body in (HELLO, STREAMED):
        heard = hear(client, json=body)
        assert (heard.status, heard.body, heard.broken) == (200, page, None)


def test_retry_after_survives(upstream: ScriptedUpstream, official: openai.OpenAI) -> None:
    """The official client finds the seconds to wait where it looks for them."""
    upstream.default = Fault(K.RATE_LIMIT, retry_after="17")
    with pytest.raises(openai.RateLimitError) as raised:
        official.chat.completions.create(**HELLO)
    assert raised.value.response.headers["retry-after"] == "17"
    assert len(upstream.requests) == 1


@pytest.mark.parametrize("status", [101, 199])
def test_a_status_that_is_none(
    upstream: ScriptedUpstream, client: httpx.Client, strike: Callable[..., None], status: int
) -> None:
    """Another protocol is a malformed answer, a status that announces another answer a silence."""
    strike(K.SLOW_FIRST_BYTE)
    upstream.default = Reply(raw=b"{}", status=status)
    heard = hear(client, json=HELLO)
    assert (heard.status, heard.error["code"][:9]) in [(502, "upstream_"), (504, "upstream_")]


def test_a_refused_connection(tmp_path: Path) -> None:
    """Nobody listens: 502, naming the address, for either kind of answer."""
    with (
        closed_port() as port,
        a_gateway(f"http://127.0.0.1:{port}/v1", tmp_path) as server,
        httpx.Client(base_url=server.base_url) as client,
    ):
        calls = [("/chat/completions", HELLO), ("/chat/completions", STREAMED), ("/files", HELLO)]
        for path, body in calls:
            heard = hear(client, path, json=body)
            assert (heard.status, heard.error["code"]) == (502, "upstream_unreachable")
            assert f"127.0.0.1:{port}" in heard.error["message"]
            assert heard.headers["content-type"] == "application/json"


def test_an_upstream_that_does_not_speak_tls(tmp_path: Path) -> None:
    """`https` where `http` is meant: 502 with the reason, and the variable that may help."""
    with socket.create_server(("127.0.0.1", 0)) as listener, ExitStack() as stack:

        def answer() -> None:
            connection, _ = listener.accept()
            stack.enter_context(connection)
            connection.recv(4096)
            connection.sendall(b"HTTP/1.1 400 Bad Request\r\n\r\n")

        threading.Thread(target=answer, daemon=True).start()
        base = f"https://127.0.0.1:{listener.getsockname()[1]}/v1"
        with (
            a_gateway(base, tmp_path, {"router": {"num_retries": 0}}) as server,
            httpx.Client(base_url=server.base_url, timeout=120) as client,
        ):
            heard = hear(client, json=HELLO)
    assert (heard.status, heard.error["code"]) == (502, "upstream_unreachable")
    assert "over TLS: " in heard.error["message"]
    assert "SSL_CERT_FILE" in heard.error["message"]


@pytest.mark.parametrize("kind", [K.SLOW_FIRST_BYTE, K.DROP_BEFORE_RESPONSE, K.SERVER_ERROR])
def test_other_routes_are_asked_once(
    upstream: ScriptedUpstream, tmp_path: Path, kind: FaultKind
) -> None:
    """What is only passed through is not repeated: the gateway cannot know that it may be."""
    upstream.default = a_fault(kind)
    settings = {**RETRIES, "timeouts": LIMITS.get(kind, {})}
    with (
        a_gateway(upstream.base_url, tmp_path, settings) as server,
        httpx.Client(base_url=server.base_url, timeout=120) as client,
    ):
        heard = hear(client, "/embeddings", json={"model": "m", "input": "x"})
    assert heard.status == ERRORS[kind].status
    assert len(upstream.requests) == 1


@pytest.mark.parametrize("kind", [K.STALL, K.DROP_MID_BODY, K.WRONG_CONTENT_LENGTH])
@pytest.mark.parametrize("path", ["/embeddings", "/completions"])
def test_a_broken_answer_on_other_routes_is_broken_for_the_client(
    client: httpx.Client, strike: Callable[..., None], kind: FaultKind, path: str
) -> None:
    """The connection ends without the end of the body, so that nobody takes it for whole."""
    strike(kind)
    heard = hear(client, path, json={"model": "m", "input": "x", "stream": path == "/completions"})
    assert heard.status == 200
    assert heard.broken is not None


@pytest.fixture
def alone(tmp_path: Path) -> Iterator[Callable[..., tuple[ScriptedUpstream, httpx.Client]]]:
    """An upstream and a gateway of the test's own; gives the upstream and a client."""
    with ExitStack() as stack:

        def start(
            default: Reply | Fault, settings: dict[str, Any]
        ) -> tuple[ScriptedUpstream, httpx.Client]:
            server = stack.enter_context(ScriptedUpstream(default))
            gateway = stack.enter_context(a_gateway(server.base_url, tmp_path, settings))
            made = httpx.Client(base_url=gateway.base_url, timeout=120)
            return server, stack.enter_context(made)

        yield start


Alone = Callable[..., tuple[ScriptedUpstream, httpx.Client]]


def test_the_longest_a_call_may_take(alone: Alone) -> None:
    """`timeouts.total_s` ends a call that is busy all the time, streaming or not."""
    slow = Reply("word " * 200, chunk_delay_s=0.05)
    upstream, client = alone(slow, {"timeouts": {"total_s": 1}})
    heard = hear(client, json=STREAMED)
    assert_cut(heard, "upstream_timeout")
    assert "timeouts.total_s" in heard.events[-1]["error"]["message"]
    upstream.last.wait_disconnected()
    upstream.default = replace(slow, first_byte_delay_s=30)
    heard = hear(client, json=HELLO)
    assert (heard.status, heard.error["code"]) == (504, "upstream_timeout")
    assert "timeouts.total_s" in heard.error["message"]


def test_an_answer_larger_than_is_kept(alone: Alone) -> None:
    """Above `server.max_buffered_response_mb` an answer is relayed without being held."""
    huge = Fault(K.HUGE_BODY, size_mb=1)
    _, client = alone(huge, {"server": {"max_buffered_response_mb": 0.1}})
    assert len(hear(client, json=HELLO).json["choices"][0]["message"]["content"]) == 2**20
    heard = hear(client, json=STREAMED)
    assert heard.events[-1] == "[DONE]"
    assert heard.broken is None


def test_a_connection_that_is_never_taken(tmp_path: Path) -> None:
    """Nobody answers the knock: 504 after `timeouts.connect_s`, and it is tried again."""
    with ExitStack() as stack:
        deaf = stack.enter_context(socket.socket())
        deaf.bind(("127.0.0.1", 0))
        deaf.listen(0)
        for _ in range(4):  # fills its queue, so that the next one has to wait
            waiting = stack.enter_context(socket.socket())
            waiting.setblocking(False)
            waiting.connect_ex(deaf.getsockname())
        url = f"http://127.0.0.1:{deaf.getsockname()[1]}/v1"
        settings = {"timeouts": {"connect_s": 0.2}, "router": {"num_retries": 1}}
        gateway = stack.enter_context(a_gateway(url, tmp_path, settings))
        client = stack.enter_context(httpx.Client(base_url=gateway.base_url, timeout=120))
        heard = hear(client, json=HELLO)
        assert (heard.status, heard.error["code"]) == (504, "upstream_timeout")
        assert "timeouts.connect_s" in heard.error["message"]
        exposition = gateway.app.runtime.metrics.render().decode()
        tries = 'gateway_upstream_attempts_total{deployment="default",outcome="timeout"} 2.0'
        assert tries in exposition
