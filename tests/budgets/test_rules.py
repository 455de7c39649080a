"""Which budgets apply to a call, what the config refuses, and what a call is expected to use."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import httpx
import pytest

from gateway.budgets.estimate import Estimator, tokens_of_body
from gateway.budgets.rules import CallSubject, applying, seconds_to_midnight
from gateway.config import settings_from_dict
from gateway.errors import ConfigError
from gateway.stores.budgets import Amounts
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
    return [each.wanted.key.subject for each in applying(settings.all_budgets(), call, NOON)]


def test_each_scope_has_its_subject() -> None:
    """Run, tree, key within its tenant, tenant, day; a period adds the day."""
    scopes = [{"scope": name} for name in ("run", "tree", "key", "tenant", "day")]
    assert subjects(*scopes) == ["c-1.0", "c-0", "acme/laptop", "acme", "2023-11-15"]
    assert subjects({"scope": "tenant", "period": "day"}) == ["acme@2023-11-15"]
    side = CallSubject(tenant="acme")
    assert subjects(*scopes, call=side) == ["acme/(no key)", "acme", "2023-11-15"]
    assert seconds_to_midnight(NOON) == 12 * 3600 + 1


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
        ({"name": "a", "scope": "team", "limits": {"usd": 1}}, r"scope: 'team' is not one of run"),
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
    assert tokens_of_body(raw) == 1000
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


def test_a_demanded_form_gets_the_error(gateway_server: Start, upstream: ScriptedUpstream) -> None:
    """A text would not fit a JSON schema; without one the same budget answers."""
    upstream.default = Reply("ok")
    budget = {"name": "b", "scope": "tenant", "limits": {"calls": 1}, "stop_with": "answer"}
    url = f"{gateway_server({'budgets': [budget]}).base_url}/chat/completions"
    body: dict[str, Any] = {"model": "m", "messages": [{"role": "user", "content": "hello"}]}
    assert httpx.post(url, json=body).json()["choices"][0]["message"]["content"] == "ok"
    answer = httpx.post(url, json={**body, "n": 2})
    assert answer.headers["x-gateway-stopped"] == "budget_exceeded"
    assert [c["finish_reason"] for c in answer.json()["choices"]] == ["stop", "stop"]
    form = {"type": "json_schema", "json_schema": {"name": "x", "schema": {}}}
    assert httpx.post(url, json={**body, "response_format": form}).status_code == 429
