"""Which provider a model's name means: a key goes to its own provider, or nowhere."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import httpx
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.commands.check_config import config_warnings
from gateway.config import Settings, settings_from_dict
from gateway.errors import ConfigError, UnknownProvider
from gateway.process.start_checks import check
from gateway.upstream.deployments import DeploymentTable, Target
from gateway.upstream.providers import (
    BASELESS,
    OPENAI_COMPATIBLE,
    TRANSLATED_PROVIDERS,
    is_known,
    litellm_names,
)
from steering_gateway_testing import AppServer
from steering_gateway_testing.gateways import a_gateway
from steering_gateway_testing.hearing import HELLO, hear

NAMES = sorted({*OPENAI_COMPATIBLE, *TRANSLATED_PROVIDERS, *litellm_names()})
LETTERS = "abcdefghijklmnopqrstuvwxyz_-"


def settings(*params: dict[str, Any], **raw: Any) -> Settings:
    entries = [{"model_name": f"m{n}", "litellm_params": p} for n, p in enumerate(params)]
    return settings_from_dict({"model_list": entries, **raw})


def only(table: DeploymentTable, name: str = "m0") -> Target:
    (target,) = table.resolve(name)
    return target


def assert_own_host(target: Target, provider: str) -> None:
    """The target is the provider's own host, or LiteLLM is asked for that provider."""
    assert target.provider == provider
    if target.lane == "litellm":
        assert str(target.litellm_params["model"]).startswith(f"{provider}/")
        own = "generativelanguage.googleapis.com" if provider == "gemini" else "litellm.invalid"
        assert target.api_base.host == own or provider in OPENAI_COMPATIBLE
        return
    assert target.api_base.text == OPENAI_COMPATIBLE[provider].api_base


@st.composite
def misspelt(draw: st.DrawFn) -> str:
    """A provider's name with a letter left out, added, replaced or moved."""
    name = draw(st.sampled_from(NAMES))
    at = draw(st.integers(0, len(name) - 1))
    letter = draw(st.sampled_from(LETTERS))
    swapped = name[:at] + name[at + 1 : at + 2] + name[at] + name[at + 2 :]
    made = (
        name[:at] + name[at + 1 :],
        name[:at] + letter + name[at:],
        name[:at] + letter + name[at + 1 :],
        swapped,
        name.capitalize(),
    )
    return draw(st.sampled_from(made))


@pytest.mark.slow
def test_the_names_are_those_that_litellm_reads() -> None:
    """The list read from LiteLLM's files is the one it works with, without importing it here."""
    assert {"moonshot", "deepinfra", "dashscope", "zai", "veniceai"} <= litellm_names()
    from litellm import provider_list
    from litellm.llms.openai_like.json_loader import JSONProviderRegistry

    theirs = {str(getattr(name, "value", name)) for name in provider_list}
    assert litellm_names() == theirs | set(JSONProviderRegistry.list_providers())
    assert theirs >= TRANSLATED_PROVIDERS


@pytest.mark.parametrize("provider", NAMES)
def test_every_known_provider_gets_its_own_key_only(provider: str) -> None:
    """Deployments and unlisted names: the provider's own host, or LiteLLM's lane; a provider
    without a host needs an address."""
    if provider in BASELESS:
        with pytest.raises(ConfigError, match="has no address of its own"):
            check(settings({"model": f"{provider}/x", "api_key": "its-key"}))
        with pytest.raises(UnknownProvider, match="has no address of its own"):
            DeploymentTable(settings(), {}).resolve(f"{provider}/x")
        return
    table = DeploymentTable(settings({"model": f"{provider}/x", "api_key": "its-key"}), {})
    assert_own_host(only(table), provider)
    unlisted = only(DeploymentTable(settings(), {"OPENAI_API_KEY": "sk-o"}), f"{provider}/x")
    assert_own_host(unlisted, provider)
    assert unlisted.api_key == ("sk-o" if provider == "openai" else None)


@given(prefix=misspelt())
def test_a_misspelt_provider_is_refused_or_is_another_known_one(prefix: str) -> None:
    """A typo never sends the deployment's key to OpenAI; the error names where it is. So is a known
    provider refused that has no address."""
    made = settings({"model": "openai/x"}, {"model": f"{prefix}/x", "api_key": "its-key"})
    if prefix == "" or (is_known(prefix) and prefix not in BASELESS):
        assert_own_host(only(DeploymentTable(made, {}), "m1"), prefix or "openai")
        return
    with pytest.raises(ConfigError, match=r"^model_list\[1\]\.litellm_params\.model: "):
        check(made)


@pytest.mark.parametrize("model", ["antropic:claude-x", "opnai:gpt-x", "anthropic/"])
def test_a_typo_before_a_colon_and_a_missing_name_are_refused(model: str) -> None:
    """Neither goes to OpenAI with the deployment's key."""
    with pytest.raises(ConfigError, match=r"^model_list\[0\]\.litellm_params\.model: "):
        check(settings({"model": model, "api_key": "its-key"}))


@pytest.mark.parametrize(
    ("model", "provider"),
    [
        ("command-r-08-2024", "cohere_chat"),
        ("deepseek-chat", "deepseek"),
        ("us.writer.palmyra-x4-v1:0", "bedrock"),
        ("gpt-4o", "openai"),
        ("ft:gpt-4.1:acme", "openai"),
        ("llama3:8b", "openai"),
        ("of-nobody", "openai"),
    ],
)
def test_a_name_without_a_prefix_belongs_to_whoever_lists_it(model: str, provider: str) -> None:
    """As LiteLLM reads it: its key goes to no other provider."""
    table = DeploymentTable(settings({"model": model, "api_key": "its-key"}), {})
    target = only(table)
    assert target.provider == provider
    assert (target.api_base.host == "api.openai.com") == (provider == "openai")


@pytest.mark.parametrize(
    ("params", "raw", "path"),
    [
        ({"model": "antropic/claude-x"}, {}, "model_list[0].litellm_params.model"),
        (
            {"model": "claude-x", "custom_llm_provider": "antropic"},
            {},
            "model_list[0].litellm_params.custom_llm_provider",
        ),
        ({"model": "antropic/c", "lane": "litellm"}, {}, "model_list[0].litellm_params.model"),
        (
            {"model": "gpt-x"},
            {"model_routing": {"FAST": "antropic/c"}, "default_upstream": {"api_key": "sk-d"}},
            "model_routing.FAST",
        ),
        (
            {"model": "gpt-x"},
            {
                "router": {"fallbacks": [{"m0": ["gpt-y", "antropic/c"]}]},
                "default_upstream": {"api_key": "sk-d"},
            },
            "router.fallbacks[0].m0",
        ),
    ],
)
def test_the_error_names_the_key_and_the_nearest_name(
    params: dict[str, Any], raw: dict[str, Any], path: str
) -> None:
    """What to correct, and to what."""
    with pytest.raises(ConfigError) as caught:
        check(settings(params, **raw))
    assert str(caught.value).startswith(f"{path}: 'antropic' in ")
    assert "did you mean 'anthropic'?" in str(caught.value)


@pytest.mark.parametrize(
    "model", ["meta-llama/Llama-3", "meta/llama-3", "moonshot/x", "antropic/x"]
)
def test_a_server_with_an_address_has_names_of_its_own(model: str) -> None:
    """With an `api_base` the host is given, and the name is sent there as it is."""
    base = "http://vllm.internal/v1"
    target = only(DeploymentTable(settings({"model": model, "api_base": base}), {}))
    assert (target.lane, target.model, target.api_base.text) == ("native", model, base)
    named = settings({"model": f"hosted_vllm/{model}", "api_base": base})
    assert only(DeploymentTable(named, {})).model == model


@pytest.mark.parametrize("model", ["meta-llama/Llama-3", "meta/llama-3", "antropic/claude"])
@pytest.mark.parametrize("key", [None, "sk-d"])
def test_an_upstream_that_is_not_openais_reads_its_own_names(model: str, key: str | None) -> None:
    """Routers and servers of open models list names with an organisation."""
    raw = {"default_upstream": {"api_base": "https://models.internal/v1", "api_key": key}}
    table = DeploymentTable(settings(**raw), {})
    assert only(table, model) is table.default


def test_a_name_of_no_provider_at_openai() -> None:
    """The client's own key may go with any name; the configured one is not spent on it."""
    zero = DeploymentTable(settings(), {})
    assert only(zero, "antropic/claude-x") is zero.default
    keyed = DeploymentTable(settings(default_upstream={"api_key": "sk-d"}), {})
    with pytest.raises(UnknownProvider, match="did you mean 'anthropic'") as caught:
        keyed.resolve("antropic/claude-x")
    assert (caught.value.status, caught.value.code) == (400, "unknown_provider")
    for plain in ("gpt-4.1", "ft:gpt-4.1:acme::x", "llama3:8b"):
        assert only(keyed, plain) is keyed.default


def test_a_pattern_gives_its_key_to_no_other_provider() -> None:
    """Where the client's name chooses the provider, it does not get the key of another."""
    pattern = {"model": "*", "api_key": "sk-o", "extra_headers": {"x-team": "t"}}
    made = settings_from_dict({"model_list": [{"model_name": "*", "litellm_params": pattern}]})
    table = DeploymentTable(made, {"GROQ_API_KEY": "sk-g"})
    assert only(table, "gpt-4.1").api_key == only(table, "openai/gpt-4.1").api_key == "sk-o"
    groq = only(table, "groq/llama")
    assert (groq.api_key, groq.headers) == ("sk-g", ())
    assert "api_key" not in only(table, "anthropic/claude-x").litellm_params
    with pytest.raises(UnknownProvider):
        table.resolve("antropic/claude-x")


@pytest.mark.parametrize("path", ["/chat/completions", "/responses", "/embeddings"])
def test_a_client_hears_which_name_is_unknown(tmp_path: Path, path: str) -> None:
    """400 in OpenAI's shape on every route, without a call to any provider."""
    keyed = {"default_upstream": {"api_key": "sk-d"}}
    server: AppServer = a_gateway("https://api.openai.com/v1", tmp_path, keyed)
    with server, httpx.Client(base_url=server.base_url, timeout=120) as client:
        body = {**HELLO, "input": "x", "model": "antropic/claude-x"}
        answer = hear(client, path, json=body)
    assert answer.status == 400
    assert (answer.error["code"], answer.error["param"]) == ("unknown_provider", "model")
    assert "'anthropic'" in answer.error["message"]


@pytest.mark.parametrize("model", ["/gpt-4o", ":gpt-4o", "/claude-x"])
def test_a_name_with_an_empty_provider_is_refused(model: str) -> None:
    """As `${PROVIDER}/gpt-4o` gives it without the variable: its key is nobody's."""
    with pytest.raises(ConfigError, match="names a model and no provider"):
        DeploymentTable(settings({"model": model, "api_key": "sk-x"}), {})
    own = settings({"model": model, "api_base": "http://127.0.0.1:1/v1"})
    assert only(DeploymentTable(own, {})).api_base.host == "127.0.0.1"


@pytest.mark.parametrize(
    ("params", "warned"),
    [
        ({"model": "mistral-lrge-latest"}, True),
        ({"model": "mistral/mistral-large-latest"}, False),
        ({"model": "openai/my-model"}, False),
        ({"model": "my-model", "api_base": "http://127.0.0.1:1/v1"}, False),
        ({"model": "gpt-99"}, False),
        ({"model": "text-embedding-3-small"}, False),
        ({"model": "claude-sonet-9"}, False),
        ({"model": "*"}, False),
    ],
)
def test_a_name_that_says_nothing_of_its_provider_is_warned_of(
    params: dict[str, Any], warned: bool
) -> None:
    """It is asked of OpenAI, with a key that may be another's."""
    lines = list(config_warnings(settings({"api_key": "sk-x", **params}), {}))
    said = "it is asked of https://api.openai.com/v1 with the deployment's key"
    assert [said in line for line in lines] == [True] * warned
