"""Capabilities and costs, read from the list that LiteLLM ships."""

from __future__ import annotations

import importlib
import inspect
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.features.prices.price_list import LIST_NAME, PriceList
from gateway.upstream import model_costs as models
from gateway.upstream.model_costs import RATE_KEYS, ModelInfo, ModelList, charge, lost_usd
from gateway.upstream.token_estimates import estimated_usage
from gateway.wire.usage import tokens_of

MODELS: dict[str, dict[str, Any]] = {
    "sample_spec": {"mode": "one of: chat", "litellm_provider": "see the docs"},
    "smart-1": {
        "litellm_provider": "anthropic",
        "mode": "chat",
        "input_cost_per_token": 3e-06,
        "output_cost_per_token": 1.5e-05,
        "cache_read_input_token_cost": 3e-07,
        "cache_creation_input_token_cost": 3.75e-06,
        "cache_creation_input_token_cost_above_1hr": 6e-06,
        "max_input_tokens": 200000,
        "max_output_tokens": 64000,
        "search_context_cost_per_query": {"search_context_size_low": 0.01},
        "supports_function_calling": True,
        "supports_parallel_function_calling": False,
        "supports_response_schema": True,
        "supports_vision": True,
    },
    "plain": {
        "litellm_provider": "openai",
        "mode": "chat",
        "input_cost_per_token": 1e-06,
        "output_cost_per_token": 2e-06,
        "max_tokens": 4096,
    },
    "gemini/long": {
        "litellm_provider": "gemini",
        "mode": "chat",
        "input_cost_per_token": 1e-06,
        "input_cost_per_token_above_200k_tokens": 2e-06,
        "output_cost_per_token": 1e-05,
        "output_cost_per_token_above_200k_tokens": 1.5e-05,
        "cache_read_input_token_cost": 1e-07,
    },
    "served": {
        "litellm_provider": "openai",
        "mode": "chat",
        "input_cost_per_token": 1e-06,
        "input_cost_per_token_above_200k_tokens": 2e-06,
        "input_cost_per_token_priority": 2e-06,
        "input_cost_per_token_flex": 5e-07,
        "output_cost_per_token": 5e-06,
        "output_cost_per_token_priority": 1e-05,
        "output_cost_per_token_flex": 2.5e-06,
        "cache_read_input_token_cost": 1e-07,
        "cache_read_input_token_cost_priority": 2.5e-07,
        "provider_specific_entry": {"fast": 6.0, "us": 1.1, "other": "text"},
    },
    "vertex-one": {"litellm_provider": "vertex_ai-language-models", "mode": "chat"},
    "free": {
        "litellm_provider": "openai",
        "mode": "chat",
        "input_cost_per_token": 0.0,
        "output_cost_per_token": 0.0,
    },
    "drawing": {"litellm_provider": "openai", "mode": "image_generation"},
}


@pytest.fixture(scope="module")
def some(tmp_path_factory: pytest.TempPathFactory) -> PriceList:
    """A small list in the form of the real one."""
    path = tmp_path_factory.mktemp("prices") / LIST_NAME
    path.write_text(json.dumps(MODELS, indent=4))
    return PriceList(path)


def cost(listed: ModelList, model: str, usage: dict[str, Any]) -> float | None:
    """The cost of a call by a list; None for a model that it lacks."""
    info = listed.capabilities(model)
    return None if info is None else info.cost(usage)


def listed_cost(model: str, usage: dict[str, Any]) -> float | None:
    """What a call of `model` costs by the list in the installed LiteLLM."""
    listed = models.default_list()
    return None if listed is None else cost(listed, model, usage)


def test_capabilities_are_read_as_they_stand(some: PriceList) -> None:
    """Limits and flags of an entry; a flag the list lacks is None, not False."""
    info = some.capabilities("smart-1")
    assert info is not None
    assert (info.provider, info.max_input_tokens) == ("anthropic", 200000)
    assert (info.tools, info.vision) == (True, True)
    assert (info.response_schema, info.reasoning) == (True, None)


@pytest.mark.parametrize(
    ("name", "known"),
    [
        ("anthropic/smart-1", True),
        ("anthropic:smart-1", True),
        ("smart-1-20260101", True),
        ("anthropic/smart-1-2026-01-01", True),
        ("anthropic/smart-1-latest", True),
        ("vertex_ai/vertex-one", True),
        ("gemini/long", True),
        ("long", False),
        ("azure/plain", True),
        ("hosted_vllm/plain", False),
        ("groq/smart-1", False),
        ("smart-2", False),
        ("", False),
        ("sample_spec", False),
        ("search_context_cost_per_query", False),
        ('quo"te\\', False),
    ],
)
def test_a_name_finds_its_own_model_only(some: PriceList, name: str, known: bool) -> None:
    """A provider prefix and a date are seen through; another provider's model is never taken."""
    assert (some.capabilities(name) is not None) is known


@pytest.mark.parametrize(
    ("usage", "dollars"),
    [
        ({"prompt_tokens": 1000, "completion_tokens": 100}, 0.003 + 0.0015),
        (
            {
                "prompt_tokens": 1000,
                "completion_tokens": 0,
                "prompt_tokens_details": {"cached_tokens": 900},
            },
            100 * 3e-06 + 900 * 3e-07,
        ),
        (
            {
                "prompt_tokens": 1000,
                "completion_tokens": 0,
                "cache_creation_input_tokens": 600,
                "cache_read_input_tokens": 300,
                "prompt_tokens_details": {"cached_tokens": 300, "cache_creation_tokens": 600},
            },
            100 * 3e-06 + 300 * 3e-07 + 600 * 3.75e-06,
        ),
        (
            {
                "prompt_tokens": 600,
                "completion_tokens": 0,
                "cache_creation_input_tokens": 600,
                "prompt_tokens_details": {
                    "cache_creation_token_details": {
                        "ephemeral_5m_input_tokens": 500,
                        "ephemeral_1h_input_tokens": 100,
                    }
                },
            },
            500 * 3.75e-06 + 100 * 6e-06,
        ),
        (
            {
                "input_tokens": 100,
                "output_tokens": 10,
                "cache_read_input_tokens": 300,
                "cache_creation_input_tokens": 600,
            },
            100 * 3e-06 + 300 * 3e-07 + 600 * 3.75e-06 + 10 * 1.5e-05,
        ),
        (
            {
                "input_tokens": 1000,
                "output_tokens": 10,
                "input_tokens_details": {"cached_tokens": 900},
            },
            100 * 3e-06 + 900 * 3e-07 + 10 * 1.5e-05,
        ),
        ({}, 0.0),
        ({"prompt_tokens": None, "completion_tokens": "many"}, 0.0),
    ],
)
def test_each_token_is_charged_once_at_its_own_rate(
    some: PriceList, usage: dict[str, Any], dollars: float
) -> None:
    """Cached and written tokens are part of the prompt for OpenAI, beside it for Anthropic."""
    assert cost(some, "smart-1", usage) == pytest.approx(dollars)


def test_long_prompts_have_their_own_rates(some: PriceList) -> None:
    """Above the threshold the higher rates apply to the whole call; others stay as they are."""
    cached = {"cached_tokens": 100_000}
    below = {"prompt_tokens": 200_000, "completion_tokens": 10, "prompt_tokens_details": cached}
    above = {**below, "prompt_tokens": 200_001}
    assert cost(some, "gemini/long", below) == pytest.approx(100_000 * (1e-06 + 1e-07) + 10 * 1e-05)
    assert cost(some, "gemini/long", above) == pytest.approx(
        100_001 * 2e-06 + 100_000 * 1e-07 + 10 * 1.5e-05
    )


@pytest.mark.parametrize(
    ("named", "times"),
    [
        ({"service_tier": "priority"}, (2.0, 2.0, 2.5)),
        ({"service_tier": "flex"}, (0.5, 0.5, 1.0)),
        ({"service_tier": "default"}, (1.0, 1.0, 1.0)),
        ({"service_tier": None, "speed": ["fast"]}, (1.0, 1.0, 1.0)),
        ({"service_tier": "standard", "speed": "fast"}, (6.0, 6.0, 6.0)),
        ({"speed": "fast", "inference_geo": "us"}, (6.6, 6.6, 6.6)),
    ],
)
@pytest.mark.parametrize("prompt", [1000, 300_000])
def test_a_class_of_service_has_its_own_rates(
    some: PriceList, named: dict[str, Any], times: tuple[float, ...], prompt: int
) -> None:
    """The one that the answer names, by the list's rates or its factor, also for long prompts; one
    that the list does not know costs what is usual."""
    long = 2.0 if prompt > 200_000 else 1.0
    details = {"prompt_tokens_details": {"cached_tokens": 100}}
    usage = {"prompt_tokens": prompt, "completion_tokens": 10, **details, **named}
    plain, output, cached = times
    dollars = (prompt - 100) * 1e-06 * long * plain + 10 * 5e-06 * output + 100 * 1e-07 * cached
    assert cost(some, "served", usage) == pytest.approx(dollars)


def test_without_a_cache_rate_cached_tokens_cost_the_normal_rate(some: PriceList) -> None:
    """A missing rate never makes tokens free."""
    usage = {"prompt_tokens": 10, "completion_tokens": 0, "cache_read_input_tokens": 5}
    assert cost(some, "plain", usage) == pytest.approx(10e-06)


def test_a_write_for_an_hour_costs_twice_the_input_where_the_list_has_no_rate_for_it() -> None:
    """Where it has a rate for shorter writes; else a write is input like any other."""
    usage = {
        "input_tokens": 0,
        "output_tokens": 0,
        "cache_read_input_tokens": 0,
        "cache_creation_input_tokens": 1000,
        "cache_creation": {"ephemeral_1h_input_tokens": 600},
    }
    rates = {"input": 4.0, "output": 20.0}
    assert charge(tokens_of(usage), rates) == 4000.0
    assert charge(tokens_of(usage), rates | {"cache_write": 5.0}) == 400 * 5.0 + 600 * 8.0
    listed = rates | {"cache_write": 5.0, "cache_write_1h": 7.0}
    assert charge(tokens_of(usage), listed) == 400 * 5.0 + 600 * 7.0


def test_what_was_lost_is_charged_as_it_was_paid_again() -> None:
    """Written for an hour, written for minutes, and not written, in this order; less a read."""
    rates = {"input": 4.0, "output": 20.0, "cache_read": 0.4, "cache_write": 5.0}
    assert lost_usd(100, rates, written=30, written_1h=50) == pytest.approx(
        50 * 8.0 + 30 * 5.0 + 20 * 4.0 - 100 * 0.4
    )
    assert lost_usd(40, rates, written=30, written_1h=50) == pytest.approx(40 * (8.0 - 0.4))
    assert lost_usd(40, {}, written=30, written_1h=50) == 0.0


@pytest.mark.parametrize("model", ["unknown", "drawing", "vertex-one"])
def test_what_has_no_price_costs_none(some: PriceList, model: str) -> None:
    """Unknown is told apart from free."""
    assert cost(some, model, {"prompt_tokens": 10, "completion_tokens": 10}) is None
    assert cost(some, "free", {"prompt_tokens": 10, "completion_tokens": 10}) == 0.0


counts = st.integers(0, 10**6)


@given(prompt=counts, completion=counts, read=counts, written=counts, hour=counts, thought=counts)
def test_a_cost_is_never_negative_and_grows_with_the_output(
    prompt: int, completion: int, read: int, written: int, hour: int, thought: int
) -> None:
    """Whatever a provider reports, also details larger than their total."""
    rates = {"input": 2.0, "output": 3.0, "cache_read": 0.5}
    rates |= {"cache_write": 2.5, "cache_write_1h": 4.0}
    usage = {
        "prompt_tokens": prompt,
        "completion_tokens": completion,
        "cache_read_input_tokens": read,
        "cache_creation_input_tokens": written,
        "cache_creation": {"ephemeral_1h_input_tokens": hour},
        "completion_tokens_details": {"reasoning_tokens": thought},
    }
    one = ModelInfo(tiers=((-1, rates),)).cost(usage)
    more = ModelInfo(tiers=((-1, rates),)).cost({**usage, "completion_tokens": completion + 1})
    assert one is not None
    assert more is not None
    assert 0 <= one <= more


def test_the_installed_list_knows_common_models() -> None:
    """Models that deployments name most are there, with prices and limits."""
    for model in ("anthropic/claude-sonnet-4-5", "openai/gpt-4o", "gemini/gemini-2.5-pro"):
        info = models.capabilities(model)
        assert info is not None
        assert info.tools
        assert info.max_input_tokens
        assert listed_cost(model, {"prompt_tokens": 1000, "completion_tokens": 10})


def test_reading_prices_does_not_import_litellm() -> None:
    """Neither the seconds nor the memory of the import are paid for a price."""
    root = Path(__file__).parents[3]
    code = (
        "import sys; from gateway.upstream import model_costs as models;"
        "assert models.capabilities('gpt-4o').cost({'prompt_tokens': 1, 'completion_tokens': 1});"
        "assert 'litellm' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True, cwd=root)


def test_without_litellm_every_model_is_unknown(monkeypatch: pytest.MonkeyPatch) -> None:
    """The list is LiteLLM's: when it is not installed, nothing is known and nothing fails."""
    monkeypatch.setattr(models, "default_list", lambda: None)
    assert models.capabilities("gpt-4o") is None
    assert listed_cost("gpt-4o", {"prompt_tokens": 1}) is None


@pytest.mark.parametrize(
    ("name", "known"),
    [
        ("eu.anthropic.claude-haiku-4-5-20251001-v1:0", True),
        ("arn:aws:bedrock:eu-west-1:1:inference-profile/eu.anthropic.claude-opus-4-6-v1", True),
        ("arn:aws:bedrock:eu-west-1:1:application-inference-profile/a1b2c3", False),
        ("arn:aws:bedrock:eu-west-1:1:inference-profile/gpt-4o", False),
        ("claude-haiku-4-5@20251001", True),
        ("claude-opus-4-6@default", True),
    ],
)
def test_the_names_of_clouds(name: str, known: bool) -> None:
    """What a profile of a customer's own costs is not known, and not guessed."""
    assert (models.capabilities(name) is not None) == known


@pytest.mark.parametrize(
    ("model", "kind"),
    [
        ("claude-opus-99", "claude-opus"),
        ("gpt-5.99-codex", "-codex"),
        ("openrouter/x-ai/grok-99", "grok"),
        ("some-provider/kimi-k99", "kimi"),
        ("nobody-knows-it", None),
        ("m", None),
        ("", None),
    ],
)
def test_a_model_in_no_list_has_the_nearest_relative(model: str, kind: str | None) -> None:
    """By its name without the provider; its first word is the same, and it has a price."""
    listed = models.default_list()
    assert listed is not None
    assert listed.capabilities(model) is None
    found = listed.relative(model)
    assert (found is None) == (kind is None)
    if found is not None and kind is not None:
        assert kind in found[0]
        assert found[1].rates["input"] > 0


def test_a_relative_has_the_makers_own_price(tmp_path: Path) -> None:
    """Where several sellers have it, also if another one is listed first."""
    path = tmp_path / LIST_NAME
    sold = {"mode": "chat", "input_cost_per_token": 2.0, "output_cost_per_token": 4.0}
    listed = {
        "cloud/eu/smart-5.1": {**sold, "litellm_provider": "cloud", "input_cost_per_token": 3.0},
        "smart-5.1": {**sold, "litellm_provider": "maker"},
    }
    path.write_text(json.dumps(listed))
    found = PriceList(path).relative("smart-5.2")
    assert found is not None
    assert (found[0], found[1].rates["input"]) == ("smart-5.1", 2.0)


@pytest.mark.parametrize("key", ["content", "reasoning_content", "reasoning", "refusal"])
def test_every_text_of_an_answer_is_output(key: str) -> None:
    """Also what vLLM calls `reasoning`."""
    answer = {"choices": [{"message": {"role": "assistant", key: "word " * 80}}]}
    estimate = estimated_usage(b'{"messages": []}', answer)
    assert estimate is not None
    assert estimate["completion_tokens"] == 100


def test_list_of_prices_has_the_keys_that_are_read() -> None:
    """The file is in the package, under its name, and each key is in some entry."""
    where = "LiteLLM changed its list of prices: look at gateway/features/prices/price_list.py"
    package = Path(inspect.getfile(importlib.import_module("litellm"))).parent
    entries = json.loads((package / LIST_NAME).read_text())
    known = {key for name, entry in entries.items() if name != "sample_spec" for key in entry}
    read = {*RATE_KEYS.values(), "litellm_provider", "mode", "max_input_tokens"}
    read |= {"supports_function_calling", "supports_vision", "supports_response_schema"}
    assert read | {"supports_reasoning"} <= known, where
