"""A login at its limit: a key is asked instead until the limit is over, and both are told."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any

import httpx
import pytest

from gateway.features.alerts.rules import Observations, findings
from gateway.features.alerts.settings import AlertRuleSettings
from gateway.text.formatting import money
from gateway.upstream.dry_seats import DrySeat, DrySeats, limit_ends
from steering_gateway_testing import AppServer, Reply, ScriptedUpstream, Usage
from steering_gateway_testing.control_plane import CONTROL
from steering_gateway_testing.values import Fault, FaultKind

Start = Callable[..., AppServer]
HOUR = "3600"
KEY = "sk-operators-own-key"
USAGE = Usage(prompt_tokens=1_000_000, completion_tokens=0)


@dataclass(frozen=True, slots=True, kw_only=True)
class Seat:
    """A client's login: what it sends, and the deployment that is asked with a key instead."""

    path: str
    headers: Mapping[str, str]
    model: str
    body: Mapping[str, Any]
    fallback: str
    token: str
    upstream: str = "api_base"
    usd: float = field(default=0.0)


SEATS = {
    "claude login": Seat(
        path="/v1/messages?beta=true",
        headers={
            "authorization": "Bearer sk-ant-oat01-login",
            "anthropic-beta": "oauth-2025-04-20",
            "anthropic-version": "2023-06-01",
        },
        model="claude-haiku-4-5",
        body={"max_tokens": 100, "messages": [{"role": "user", "content": "hello"}]},
        fallback="anthropic/claude-haiku-4-5",
        token="sk-ant-oat01-login",
        upstream="messages_api_base",
        usd=1.0,
    ),
    "chatgpt login": Seat(
        path="/backend-api/codex/responses",
        headers={"authorization": "Bearer login-token", "chatgpt-account-id": "acc-1"},
        model="gpt-4o-mini",
        body={"input": [{"role": "user", "content": "hello"}], "store": False},
        fallback="openai/gpt-4o-mini",
        token="login-token",
        upstream="chatgpt_api_base",
        usd=0.15,
    ),
    "google login": Seat(
        path="/v1internal:generateContent",
        headers={"authorization": "Bearer ya29.login", "accept-encoding": "gzip"},
        model="gemini-2.5-flash",
        body={"request": {"contents": [{"role": "user", "parts": [{"text": "hello"}]}]}},
        fallback="gemini/gemini-2.5-flash",
        token="ya29.login",
        upstream="code_assist_api_base",
        usd=0.3,
    ),
    "openai key": Seat(
        path="/v1/chat/completions",
        headers={"authorization": "Bearer sk-clients-key"},
        model="gpt-4o-mini",
        body={"messages": [{"role": "user", "content": "hello"}]},
        fallback="openai/gpt-4o-mini",
        token="sk-clients-key",
        usd=0.15,
    ),
}


@pytest.fixture
def other() -> Iterator[ScriptedUpstream]:
    """The host that is asked with the operator's key."""
    with ScriptedUpstream(default=Reply("by key", usage=USAGE)) as upstream:
        yield upstream


@dataclass(slots=True)
class Relay:
    """A gateway before the two hosts."""

    server: AppServer
    seat: Seat

    def ask(self) -> httpx.Response:
        """One call of a client with its login."""
        body = {"model": self.seat.model, **self.seat.body}
        url = f"{self.server.url}{self.seat.path}"
        return httpx.post(url, json=body, headers=dict(self.seat.headers), timeout=120)

    @property
    def noted(self) -> DrySeat:
        """The only login that is known to be, or to have been, at its limit."""
        (seat,) = self.server.app.runtime.services.dispatcher.dry.shown(time.time())
        return seat


@pytest.fixture(params=SEATS)
def relay(
    request: pytest.FixtureRequest,
    gateway_server: Start,
    upstream: ScriptedUpstream,
    other: ScriptedUpstream,
) -> Relay:
    """A gateway whose fallback for every name is a deployment with a key."""
    seat = SEATS[request.param]
    base = other.base_url if seat.fallback.startswith("openai") else other.url
    params = {"model": seat.fallback, "api_base": base, "api_key": KEY}
    mine = upstream.base_url if seat.upstream == "api_base" else upstream.url
    if seat.upstream == "chatgpt_api_base":
        mine = f"{upstream.url}/backend-api"
    settings = {
        "default_upstream": {"api_base": upstream.base_url, seat.upstream: mine},
        "model_list": [{"model_name": "by-key", "litellm_params": params}],
        "router": {"fallbacks": [{"*": ["by-key"]}]},
    }
    return Relay(gateway_server(settings), seat)


def test_no_call_is_wasted_on_a_login_at_its_limit(
    relay: Relay, upstream: ScriptedUpstream, other: ScriptedUpstream
) -> None:
    """One call learns of the limit and is answered by the key, as the next ones are at once; the
    login's token does not go there, nor the key to the login's host."""
    upstream.default = Fault(FaultKind.RATE_LIMIT, retry_after=HOUR)
    for _ in range(4):
        answer = relay.ask()
        assert answer.status_code == 200
        assert "by key" in answer.text
    assert len(upstream.requests) == 1
    assert len(other.requests) == 4
    assert all(relay.seat.token not in str(request.headers) for request in other.requests)
    assert all(KEY not in str(request.headers) for request in upstream.requests)
    assert relay.noted.calls == 4
    assert relay.noted.usd == pytest.approx(4 * relay.seat.usd)
    shown = httpx.get(f"{relay.server.url}/dashboard", headers=CONTROL).text
    assert "is at its limit" in shown
    assert f"by-key answered 4 calls, {money(4 * relay.seat.usd)}" in shown


def test_one_call_tries_when_the_limit_is_over(
    relay: Relay, upstream: ScriptedUpstream, other: ScriptedUpstream
) -> None:
    """While it is on its way the others are answered by the key; afterwards the login is back."""
    upstream.default = Fault(FaultKind.RATE_LIMIT, retry_after=HOUR)
    relay.ask()
    relay.noted.until = 0.0
    upstream.requests.clear()
    with ThreadPoolExecutor(8) as pool:
        answers = [each.result() for each in [pool.submit(relay.ask) for _ in range(8)]]
    assert all(answer.status_code == 200 for answer in answers)
    assert len(upstream.requests) == 1
    assert relay.noted.until > time.time() + 3000
    relay.noted.until = 0.0
    upstream.default = Reply("by login", usage=USAGE)
    other.requests.clear()
    assert all("by login" in relay.ask().text for _ in range(3))
    assert not other.requests
    (found,) = findings(Observations(seats=[relay.noted]), AlertRuleSettings())
    assert "was at its limit" in found.title
    assert "by-key answered 9 calls" in found.title
    assert found.path == "/dashboard", "the page that shows it"


def test_the_last_call_of_a_budget_is_answered_by_the_key(
    gateway_server: Start, upstream: ScriptedUpstream, other: ScriptedUpstream
) -> None:
    """The call has its place in the budget already: that the key's model costs more is no further
    call. It was sent to the resting login, whose hour of `retry-after` the client then waited."""
    upstream.default = Fault(FaultKind.RATE_LIMIT, retry_after=HOUR)
    params = {"model": "anthropic/claude-opus-4-5", "api_base": other.url, "api_key": KEY}
    settings = {
        "default_upstream": {"api_base": upstream.base_url, "messages_api_base": upstream.url},
        "model_list": [{"model_name": "by-key", "litellm_params": params}],
        "router": {"fallbacks": [{"*": ["by-key"]}]},
        "budgets": [{"name": "few", "scope": "tenant", "limits": {"calls": 2}}],
    }
    relay = Relay(gateway_server(settings), SEATS["claude login"])
    assert [relay.ask().status_code for _ in range(2)] == [200, 200]
    assert len(upstream.requests) == 1
    assert len(other.requests) == 2
    assert "budget_exceeded" in relay.ask().text


def test_without_another_to_ask_nothing_changes(
    gateway_server: Start, upstream: ScriptedUpstream
) -> None:
    """Every call goes to the login's host, and the client gets its answer with its retry-after."""
    upstream.default = Fault(FaultKind.RATE_LIMIT, retry_after=HOUR)
    relay = Relay(gateway_server(), SEATS["openai key"])
    for _ in range(2):
        answer = relay.ask()
        assert (answer.status_code, answer.headers["retry-after"]) == (429, HOUR)
    assert len(upstream.requests) == 2


def test_logins_and_models_are_told_apart(
    relay: Relay, upstream: ScriptedUpstream, other: ScriptedUpstream
) -> None:
    """Another login is asked, and the same one for another model, which has limits of its own."""
    upstream.script(Fault(FaultKind.RATE_LIMIT, retry_after=HOUR))
    upstream.default = Reply("by login")
    relay.ask()
    assert "by key" in relay.ask().text
    headers = dict.fromkeys(relay.seat.headers, "another login") | {
        "anthropic-version": "2023-06-01",
        "authorization": f"Bearer {relay.seat.token}2",
    }
    account = {"chatgpt-account-id": "acc-2"} if "chatgpt" in str(relay.seat.headers) else {}
    mine = relay.seat
    relay.seat = Seat(
        path=mine.path,
        headers={**headers, **account},
        model=mine.model,
        body=mine.body,
        fallback=mine.fallback,
        token=mine.token,
    )
    assert "by login" in relay.ask().text


def test_a_key_is_asked_when_a_retry_meets_the_limit(
    relay: Relay, upstream: ScriptedUpstream
) -> None:
    """The login's host failed at first, for another reason."""
    upstream.script(Fault(FaultKind.SERVER_ERROR))
    upstream.default = Fault(FaultKind.RATE_LIMIT, retry_after=HOUR)
    answer = relay.ask()
    assert answer.status_code == 200
    assert "by key" in answer.text


def test_a_login_that_nobody_uses_any_more_is_not_shown_for_ever() -> None:
    """A day after the end of its limit, whether or not it was asked again."""
    seats = DrySeats()
    seats.note(b"a", "at a.example for a model", now=1000.0, until=5000.0)
    assert [len(seats.shown(at)) for at in (2000.0, 5001.0, 91_399.0, 91_401.0)] == [1, 1, 1, 0]


ENDS: list[tuple[dict[str, str], bytes, float]] = [
    ({"retry-after": "90"}, b"", 90),
    ({"anthropic-ratelimit-unified-reset": "4600"}, b"", 3600),
    ({"retry-after": "10", "anthropic-ratelimit-unified-reset": "4600"}, b"", 3600),
    ({}, b'{"error": {"type": "usage_limit_reached", "resets_in_seconds": 7200}}', 7200),
    ({}, b'[{"error": {"details": [{"retryDelay": "33740.5s"}]}}]', 33740.5),
    ({}, b'{"error": {"details": [{"metadata": {"quotaResetDelay": "90s"}}]}}', 90),
    ({"retry-after": "10"}, b'{"error": {"details": [{"retryDelay":"0.5s"}]}}', 10),
    ({}, b'{"error": {"details": [{"metadata": {"quotaResetDelay": "754.4ms"}}]}}', 60),
    ({}, b'{"error": "later"}', 60),
    ({}, b"not JSON", 60),
    ({}, b"[429]", 60),
    ({"retry-after": "99999999"}, b"", 8 * 86_400),
]


@pytest.mark.parametrize(("headers", "content", "wait"), ENDS)
def test_the_end_of_a_limit_is_read(headers: dict[str, str], content: bytes, wait: float) -> None:
    """From the headers that a provider sends, or from ChatGPT's error or Google's; a minute where
    none says."""
    raw = [(name.encode(), value.encode()) for name, value in headers.items()]
    assert limit_ends(raw, content, 1000.0) == 1000 + wait
