"""What a requested model name maps to."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any

import httpx
import pytest

from gateway.config import settings_from_dict
from gateway.upstream.deployments import DeploymentRests, DeploymentTable, Target
from steering_gateway_testing import ScriptedUpstream
from steering_gateway_testing.hearing import HELLO, STREAMED, hear

Relay = Callable[..., httpx.Client]


def a_table(*deployments: dict[str, Any], env: dict[str, str] | None = None, **raw: Any) -> Any:
    entries = [{"model_name": d.pop("name"), "litellm_params": d} for d in deployments]
    return DeploymentTable(settings_from_dict({"model_list": entries, **raw}, env), env or {})


def only(table: DeploymentTable, model: str) -> Target:
    (target,) = table.resolve(model)
    return target


@pytest.mark.parametrize(
    ("asked", "lane", "model"),
    [
        ("gpt-4.1", "native", None),
        ("ft:gpt-4.1:acme::x", "native", None),
        ("meta-llama/Llama-3", "native", None),
        ("anthropic/claude-x", "litellm", "claude-x"),
        ("anthropic:claude-x", "litellm", "claude-x"),
        ("bedrock/anthropic.claude:0", "litellm", "anthropic.claude:0"),
        ("openai/gpt-4.1", "native", "gpt-4.1"),
        ("groq/llama", "native", "llama"),
    ],
)
def test_names_without_an_entry(asked: str, lane: str, model: str | None) -> None:
    """Plain names go to the default upstream as they are, a provider's prefix to that provider."""
    target = only(a_table(), asked)
    assert (target.lane, target.model) == (lane, model)
    assert target.name in ("default", "prefixed")


def test_prefixes_may_belong_to_the_upstream_itself() -> None:
    """Some upstreams use such names; then they are theirs to read."""
    raw: dict[str, Any] = {"default_upstream": {"provider_prefixes": False}}
    assert only(a_table(**raw), "anthropic/claude-x").name == "default"


def test_providers_keys_come_from_their_variables() -> None:
    """A known provider at its own address gets its own key, at another address none."""
    env = {"OPENAI_API_KEY": "sk-o", "GROQ_API_KEY": "sk-g"}
    table = a_table(
        {"name": "o", "model": "openai/x"},
        {"name": "g", "model": "groq/x"},
        {"name": "own", "model": "openai/x", "api_base": "http://vllm.internal/v1"},
        env=env,
    )
    assert [only(table, name).api_key for name in ("o", "g", "own")] == ["sk-o", "sk-g", None]


@pytest.mark.parametrize(
    ("asked", "model"),
    [
        ("openai/gpt-x", "gpt-x"),
        ("openai/a/b", "a/b"),
        ("exact", "really"),
        ("team-7-chat", "7"),
        ("anything else", "anything else"),
    ],
)
def test_names_with_a_star(asked: str, model: str) -> None:
    """An exact name wins, then the longest pattern; the star is carried over."""
    base = {"api_base": "http://x/v1"}
    table = a_table(
        {"name": "*", "model": "openai/*", **base},
        {"name": "openai/*", "model": "openai/*", **base},
        {"name": "team-*-chat", "model": "openai/*", **base},
        {"name": "exact", "model": "openai/really", **base},
    )
    assert only(table, asked).model == model
    assert only(table, asked) is only(table, asked)


def test_a_starred_name_for_another_provider() -> None:
    """The lane that translates is told the whole model."""
    target = only(a_table({"name": "claude-*", "model": "anthropic/claude-*"}), "claude-opus")
    assert (target.lane, target.litellm_params["model"]) == ("litellm", "anthropic/claude-opus")


def test_patterns_do_not_grow_without_end() -> None:
    """Names are the clients' to choose: what is kept of them is bounded."""
    table = a_table({"name": "*", "model": "openai/*", "api_base": "http://x/v1"})
    for number in range(3000):
        table.resolve(f"made-up-{number}")
    assert table._by_pattern.cache_info().currsize <= 1000


def test_a_starred_name_is_served_and_counted_once(
    upstream: ScriptedUpstream, relay: Relay
) -> None:
    """The metric's label is the pattern, whatever the client asks for."""
    params = {"model": "openai/*", "api_base": upstream.base_url}
    client = relay({"model_list": [{"model_name": "mine/*", "litellm_params": params}]})
    for name in ("mine/a", "mine/b"):
        assert hear(client, json={**HELLO, "model": name}).status == 200
        assert upstream.last.model == name.removeprefix("mine/")
    text = client.get(str(client.base_url).replace("/v1/", "/metrics")).text
    assert 'gateway_upstream_attempts_total{deployment="mine/*",outcome="200"} 2.0' in text


@pytest.mark.parametrize("body", [HELLO, STREAMED], ids=["whole", "stream"])
def test_further_params_are_sent_unless_the_client_has_them(
    upstream: ScriptedUpstream, relay: Relay, body: dict[str, Any]
) -> None:
    """What else stands in `litellm_params` is a default; how to reach the place is not sent."""
    params = {
        "model": "openai/real",
        "api_base": upstream.base_url,
        "api_key": "k",
        "temperature": 0.2,
        "max_tokens": 99,
        "timeout": 5,
        "rpm": 10,
        "organization": "org-1",
    }
    client = relay({"model_list": [{"model_name": "m", "litellm_params": params}]})
    hear(client, json={**body, "max_tokens": 7})
    assert upstream.last.json == {**body, "model": "real", "max_tokens": 7, "temperature": 0.2}
    assert upstream.last.header("openai-organization") == "org-1"


def test_a_base_url_with_a_path_and_a_slash(upstream: ScriptedUpstream, relay: Relay) -> None:
    """However the base is written, the path below it is right."""
    for base in (f"{upstream.url}/deep/v1/", f"{upstream.url}/deep/v1"):
        client = relay({"default_upstream": {"api_base": base}})
        hear(client, "/chat/completions?a=b", json=HELLO)
        assert upstream.last.target == "/deep/v1/chat/completions?a=b"
        hear(client, "/files", json=HELLO)
        assert upstream.last.target == "/deep/v1/files"


CONVERSATIONS = [f"c-{number}" for number in range(300)]


def _two(*weights: float) -> DeploymentTable:
    return a_table(
        *(
            {"name": "m", "model": "openai/x", "api_base": "http://h/v1", "weight": w, "api_key": k}
            for w, k in zip(weights, "abcdef", strict=False)
        )
    )


def test_a_conversation_keeps_its_deployment() -> None:
    """At every call, and on another gateway with the same config: the prompt cache is there."""
    table, other = _two(1, 1, 1), _two(1, 1, 1)
    first = {c: table.candidates("m", 0.0, c)[0].key for c in CONVERSATIONS}
    assert {c: table.candidates("m", 9.0, c)[0].key for c in CONVERSATIONS} == first
    assert {c: other.candidates("m", 0.0, c)[0].key for c in CONVERSATIONS} == first
    assert set(Counter(first.values()).values()) != {300}
    assert min(Counter(first.values()).values()) > 60


def test_conversations_are_spread_by_weight() -> None:
    """A deployment of three times the weight gets about three times the conversations."""
    table = _two(3, 1)
    counts = Counter(table.candidates("m", 0.0, c)[0].key for c in CONVERSATIONS)
    heavy, light = (counts[target.key] for target in table.resolve("m"))
    assert 2.0 < heavy / light < 4.5


def test_only_the_conversations_of_a_resting_deployment_move() -> None:
    """They come back when it is awake again."""
    table = _two(1, 1, 1)
    first = {c: table.candidates("m", 0.0, c)[0] for c in CONVERSATIONS}
    resting = first["c-0"]
    for _ in range(20):
        table.failed(resting, 0.0)
    during = {c: table.candidates("m", 1.0, c)[0] for c in CONVERSATIONS}
    moved = {c for c in CONVERSATIONS if during[c].key != first[c].key}
    assert moved == {c for c in CONVERSATIONS if first[c].key == resting.key}
    after = {c: table.candidates("m", 1e9, c)[0].key for c in CONVERSATIONS}
    assert after == {c: target.key for c, target in first.items()}


def _reloaded(rests: DeploymentRests, *entries: dict[str, Any]) -> DeploymentTable:
    """A table of the next config, as a reload makes it."""
    made = [{"model_name": e.pop("name", "m"), "litellm_params": e} for e in map(dict, entries)]
    return DeploymentTable(settings_from_dict({"model_list": made}), {"GROQ_API_KEY": "g"}, rests)


def test_a_reload_wakes_no_deployment() -> None:
    """What is the same by address, model and key goes on resting, wherever it is in the list.

    Failures in a row go on, too: one before the reload and two after it are three.
    """
    one = {"model": "openai/x", "api_base": "http://one/v1", "api_key": "k"}
    two = {"model": "groq/x"}
    rests = DeploymentRests()
    before = _reloaded(rests, one, two)
    first, second = before.resolve("m")
    for _ in range(3):
        before.failed(first, 0.0)
    before.failed(second, 0.0)
    after = _reloaded(rests, {**two, "temperature": 0}, {**one, "weight": 1})
    assert [t.api_base.host for t in after.candidates("m", 1.0, "c")][-1] == "one"
    for _ in range(2):
        after.failed(after.resolve("m")[0], 1.0)
    both = after.candidates("m", 2.0, "c")
    assert {t.key for t in both} == {1, 2}
    third = {"model": "openai/x", "api_base": "http://three/v1", "api_key": "k"}
    widened = _reloaded(rests, one, two, third)
    assert widened.candidates("m", 2.0, "c")[0].api_base.host == "three"


@pytest.mark.parametrize("change", [{"api_base": "http://b/v1"}, {"model": "y"}, {"api_key": "l"}])
def test_a_changed_deployment_is_asked_at_once(change: dict[str, str]) -> None:
    """With another address, model or key it is another place: what failed there says nothing."""
    one = {"model": "x", "api_base": "http://a/v1", "api_key": "k"}
    other = {"model": "x", "api_base": "http://z/v1"}
    rests = DeploymentRests()
    for table in (_reloaded(rests, one, other),):
        for target in table.resolve("m"):
            for _ in range(3):
                table.failed(target, 0.0)
    table = _reloaded(rests, {**one, **change}, other)
    assert table.candidates("m", 1.0, "c")[0].key == 1
