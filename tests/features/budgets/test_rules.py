"""Which budgets apply to a call, what the config refuses, and what a call is expected to use."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any
from unittest import mock

import httpx
import hypothesis.strategies as st
import pytest
from hypothesis import given
from msgspec import structs

from gateway.budget_interface import Amounts, CallSubject
from gateway.config import settings_from_dict
from gateway.errors import ConfigError
from gateway.features.budgets.expected_use import Estimator
from gateway.features.budgets.settings import all_budgets
from gateway.features.budgets.which_apply import applying, window
from gateway.upstream.token_estimates import body_tokens
from steering_gateway_testing import AppServer, Reply, ScriptedUpstream

Start = Callable[..., AppServer]
NOON = 1_700_049_600.0  # 2023-11-15, 12:00 UTC
CALL = CallSubject(
    tenant="acme", key="laptop", client="claude-cli/2.0", model="gpt-4o", run="c-1.0", root="c-0"
)


def subjects(*budgets: dict[str, Any], call: CallSubject = CALL) -> list[str]:
    """The accounts of a call in these budgets."""
    named = [{"name": f"b{n}", "limits": {"calls": 1}, **b} for n, b in enumerate(budgets)]
    settings = settings_from_dict({"budgets": named}, {})
    return [each.wanted.key.subject for each in applying(all_budgets(settings), call, NOON)]


def test_each_scope_has_its_subject() -> None:
    """Run, tree, key within its tenant, tenant, day; a period adds the day."""
    scopes = [{"scope": name} for name in ("run", "tree", "key", "tenant", "day")]
    assert subjects(*scopes) == ["c-1.0", "c-0", "acme/laptop", "acme", "2023-11-15"]
    assert subjects({"scope": "tenant", "period": "day"}) == ["acme@2023-11-15"]
    side = CallSubject(tenant="acme")
    assert subjects(*scopes, call=side) == ["acme/(no key)", "acme", "2023-11-15"]


LABELED = structs.replace(CALL, labels={"team": "web", "tag:env": "ci"})


def test_scopes_of_keys_tags_and_combinations() -> None:
    """Each below its tenant; a call without one of them does not count; a day is of all tenants."""
    scopes: list[Any] = ["team", "tag:env", "model", "client", ["team", "model"], ["tree", "model"]]
    scopes += [["day", "model"], "owner", ["team", "owner"]]
    names = ["acme/web", "acme/ci", "acme/gpt-4o", "acme/claude-cli/2.0", "acme/web/gpt-4o"]
    names += ["c-0/gpt-4o", "gpt-4o@2023-11-15"]
    assert subjects(*[{"scope": scope} for scope in scopes], call=LABELED) == names
    assert subjects({"scope": "team"}, {"scope": ["model"]}) == ["acme/gpt-4o"]


@pytest.mark.parametrize(
    ("per", "name"),
    [
        ("total", "acme"),
        ("day", "acme@2023-11-15"),
        ("week", "acme@2023-W46"),
        ("month", "acme@2023-11"),
        ("1m", "acme@2023-11-15T12:00"),
        ("6h", "acme@2023-11-15T12:00"),
        ("14d", "acme@2023-11-09T00:00"),
    ],
)
def test_each_window_has_an_account(per: str, name: str) -> None:
    """Its name is behind the subject's; `period` is the older name of `per`."""
    assert subjects({"scope": "tenant", "per": per}) == [name]
    assert subjects({"scope": "day", "per": per})[0] == (name[5:] or "2023-11-15")


WINDOWS = st.sampled_from(["day", "week", "month", "1m", "7m", "1h", "6h", "14d"])


@given(WINDOWS, st.integers(0, 4_000_000_000), st.floats(0, 1, exclude_max=True))
def test_every_second_is_in_exactly_one_window(per: str, second: int, part: float) -> None:
    """A window has one name, and the next begins where it ends."""
    name, end = window(per, second + part)
    assert end > second + part
    assert window(per, end - 1)[0] == name
    following, later = window(per, end)
    assert following != name
    assert later > end


@pytest.mark.parametrize(
    ("per", "interval"),  # from a moment in the window to the window's end
    [
        ("month", "2024-02-29T23:59:59/2024-03-01"),
        ("month", "2023-02-28T00:00:00/2023-03-01"),
        ("month", "2023-12-31T12:00:00/2024-01-01"),
        ("day", "2024-02-28T12:00:00/2024-02-29"),
        ("week", "2024-12-31T12:00:00/2025-01-06"),  # a Tuesday
        ("week", "2024-01-01T00:00:00/2024-01-08"),  # a Monday
        ("week", "2024-01-07T23:59:59/2024-01-08"),
        ("1m", "2024-02-29T23:59:59/2024-03-01"),
    ],
)
def test_windows_end_with_the_calendar(per: str, interval: str) -> None:
    """Months of all lengths, weeks from Monday, over the end of a year; UTC."""
    moments = [datetime.fromisoformat(text) for text in interval.split("/")]
    at, end = [moment.replace(tzinfo=UTC).timestamp() for moment in moments]
    assert window(per, at)[1] == end


def test_a_match_names_clients_models_tenants_and_keys() -> None:
    """All patterns must fit; capitals count."""
    for match, fits in (
        ({"client": "claude-cli*", "model": "gpt-*"}, True),
        ({"client": "Claude*"}, False),
        ({"client": "claude-cli*", "model": "claude-*"}, False),
        ({"tenant": "acme", "key": "lap???"}, True),
        ({"key": "lap??"}, False),
    ):
        assert bool(subjects({"scope": "run", "match": match})) is fits


@pytest.mark.parametrize(
    ("budget", "reason"),
    [
        (
            {"limits": {"usd": 1}, "scope": "run", "name": "a b"},
            r"budgets\[0\]\.name: 1 to 64 letters",
        ),
        ({"name": "a", "scope": "run", "limits": {}}, r"budgets\[0\]\.limits: at least one"),
        ({"name": "a", "scope": "run", "limits": {"usd": 0}}, r"limits\.usd: must be above 0"),
        (
            {"name": "a", "scope": "teams", "limits": {"usd": 1}},
            r"scope: 'teams' is not one of run",
        ),
        ({"name": "a", "scope": [], "limits": {"usd": 1}}, r"scope: '' is not one of run"),
        ({"name": "a", "scope": "run", "per": "0m", "limits": {"usd": 1}}, r"per: expected day"),
        ({"name": "a", "scope": "run", "per": "soon", "limits": {"usd": 1}}, r"per: expected day"),
        ({"name": "token_budget", "scope": "run", "limits": {"usd": 1}}, r"name: .* is taken"),
    ],
)
def test_the_config_says_what_is_wrong(budget: dict[str, Any], reason: str) -> None:
    """With the key's path."""
    with pytest.raises(ConfigError, match=reason):
        settings_from_dict({"budgets": [budget]}, {})


@pytest.mark.parametrize(
    "ladder",
    [
        [{"at": 1.0, "do": "stop"}, {"at": 0.5, "do": "warn"}],
        [{"at": 0.5}],
        [{"at": 0.5, "do": "warn", "cheaper": "m"}],
        [{"at": 0, "do": "warn"}],
    ],
)
def test_a_ladder_rises_and_each_step_does_one_thing(ladder: list[dict[str, Any]]) -> None:
    """Anything else is refused."""
    budget = {"name": "a", "scope": "run", "limits": {"usd": 1}, "ladder": ladder}
    with pytest.raises(ConfigError, match=r"budgets\[0\]\.ladder"):
        settings_from_dict({"budgets": [budget]}, {})


def test_estimates_follow_what_calls_used() -> None:
    """First by length and maximum; then as the tree's calls were, a cached prompt included."""

    def cost(_model: str, usage: Any) -> float:
        return float(usage["prompt_tokens"] + 10 * usage["completion_tokens"])

    estimator = Estimator(500)
    raw = b"x" * 4000
    assert body_tokens(raw) == 1000
    first = estimator.estimate("m", "tree", {}, 1000, cost)
    assert first.amounts == Amounts(usd=6000.0, input_tokens=1000, output_tokens=500, calls=1)
    assert first.guessed
    bounded = estimator.estimate("m", "tree", {"max_tokens": 2000, "n": 2}, 1000, cost)
    assert bounded.amounts.output_tokens == 4000  # two choices
    long = estimator.estimate("m", "tree", {"max_tokens": 64_000}, 1000, cost)
    assert long.amounts.output_tokens == 4096
    used = Amounts(usd=1100.0, input_tokens=1200, output_tokens=100, calls=1)
    estimator.learn(first, used, cost)
    again = estimator.estimate("m", "tree", {"max_tokens": 2000}, 2000, cost)
    assert not again.guessed
    # 200 tokens more than the body shows; half of the list price of 2,200 and 1,000 dollars.
    assert again.amounts == Amounts(usd=1600.0, input_tokens=2200, output_tokens=100, calls=1)
    assert estimator.estimate("m", "other", {}, 1000, cost).guessed
    most = estimator.estimate("m", "tree", {"max_tokens": 2000}, 2000, cost, most=True)
    assert most.amounts.output_tokens == 2000


def test_a_picture_is_no_text() -> None:
    """Its bytes are not divided by those of a token, in either way that clients send it."""
    data = "A" * 400_000
    url = {"type": "image_url", "image_url": {"url": f"data:image/png;base64,{data}"}}
    block = {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": data}}
    for part in (url, block):
        body = {"messages": [{"role": "user", "content": [part]}]}
        assert body_tokens(json.dumps(body).encode()) < 10_000


def test_a_rate_only_slows_a_run_down(gateway_server: Start, upstream: ScriptedUpstream) -> None:
    """A 429 that clients repeat, until the window is over; no run is stopped by it."""
    upstream.default = Reply("ok")
    budget = {"name": "rate", "scope": "tenant", "per": "1m", "limits": {"calls": 2}}
    server = gateway_server({"budgets": [budget | {"stop_with": "answer"}]})
    url, minute = f"{server.base_url}/chat/completions", time.time() // 60 * 60
    body: dict[str, Any] = {"model": "m", "messages": [{"role": "user", "content": "hello"}]}
    with mock.patch("gateway.features.budgets.guard.time.time", return_value=minute + 58):
        assert [httpx.post(url, json=body).status_code for _ in range(2)] == [200, 200]
        refused = httpx.post(url, json=body)
    assert (refused.status_code, refused.headers["retry-after"]) == (429, "3")
    assert "x-should-retry" not in refused.headers
    assert refused.json()["error"]["type"] == "rate_limit_error"
    assert refused.json()["error"]["code"] == "rate_limit_exceeded"
    assert "2 of the 2-call budget is used. The budget starts again at" in refused.text
    with mock.patch("gateway.features.budgets.guard.time.time", return_value=minute + 61):
        assert httpx.post(url, json=body).status_code == 200
    runs = httpx.get(f"{server.url}/api/runs").json()["runs"]
    assert runs
    assert not [run for run in runs if run["stopped"]]


def test_a_demanded_form_gets_the_error(gateway_server: Start, upstream: ScriptedUpstream) -> None:
    """A text would not fit a JSON schema; without one the same budget answers."""
    upstream.default = Reply("ok")
    budget = {"name": "b", "scope": "tenant", "limits": {"calls": 1}, "stop_with": "answer"}
    url = f"{gateway_server({'budgets': [budget]}).base_url}/chat/completions"
    body: dict[str, Any] = {"model": "m", "messages": [{"role": "user", "content": "hello"}]}
    assert httpx.post(url, json=body).json()["choices"][0]["message"]["content"] == "ok"
    answer = httpx.post(url, json={**body, "n": 2})
    assert answer.headers["x-gateway-stopped"] == "budget_exceeded"
    assert answer.headers["content-length"] == str(len(answer.content))
    streamed = httpx.post(url, json={**body, "stream": True})
    assert streamed.headers["content-type"].startswith("text/event-stream")
    assert "content-length" not in streamed.headers
    assert [c["finish_reason"] for c in answer.json()["choices"]] == ["stop", "stop"]
    form = {"type": "json_schema", "json_schema": {"name": "x", "schema": {}}}
    assert httpx.post(url, json={**body, "response_format": form}).status_code == 429
