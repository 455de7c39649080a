"""LiteLLM's own config files load as they are."""

from __future__ import annotations

from typing import Any

import yaml

from gateway.config import ignored_keys, settings_from_dict
from gateway.upstream.deployments import DeploymentTable

PROXY_FILE = """
model_list:
  - model_name: gpt-4o
    litellm_params:
      model: azure/gpt-4o-eu
      api_base: os.environ/AZURE_API_BASE
      api_key: "os.environ/AZURE_API_KEY"
      api_version: "2024-10-21"
      rpm: 6
    model_info:
      base_model: azure/gpt-4o
  - model_name: gpt-4o
    litellm_params: {model: gpt-4o, api_key: os.environ/OPENAI_API_KEY}
  - model_name: claude
    litellm_params: {model: anthropic/claude-sonnet-4-5, max_tokens: 4096}
  - model_name: local
    litellm_params: {model: hosted_vllm/llama, api_base: "http://127.0.0.1:8000/v1"}
litellm_settings:
  num_retries: 1
  request_timeout: 30
  drop_params: true
  fallbacks: [{"gpt-4o": ["claude"]}]
  default_fallbacks: ["local"]
  success_callback: ["langfuse"]
router_settings:
  num_retries: 4
  allowed_fails: 7
  cooldown_time: 12
  routing_strategy: usage-based-routing-v2
general_settings:
  master_key: sk-1234
  database_url: "postgresql://x"
environment_variables:
  AZURE_API_KEY: from-the-file
  OPENAI_API_KEY: hidden-by-the-environment
"""
ENV = {"AZURE_API_BASE": "https://eu.example.com", "OPENAI_API_KEY": "sk-env"}


def test_a_proxy_config_loads() -> None:
    """Deployments, retries, fallbacks, timeouts and keys mean here what they mean there."""
    settings = settings_from_dict(yaml.safe_load(PROXY_FILE), ENV)
    azure, openai, claude, local = settings.model_list
    assert azure.litellm_params["api_base"] == "https://eu.example.com"
    assert azure.litellm_params["api_key"] == "from-the-file"
    assert azure.model_info == {"base_model": "azure/gpt-4o"}
    assert openai.litellm_params["api_key"] == "sk-env"
    assert (claude.model_name, local.model_name) == ("claude", "local")
    assert (settings.router.num_retries, settings.router.allowed_fails) == (4, 7)
    assert settings.router.cooldown_s == 12
    assert settings.router.fallbacks == ({"gpt-4o": ("claude",)}, {"*": ("local",)})
    assert settings.timeouts.first_byte_s == 30
    assert settings.auth.admin_key == "sk-1234"
    assert settings.auth.gateway_keys == {"default": "sk-1234"}


def test_what_has_no_meaning_here_is_listed() -> None:
    """Keys of the proxy's own features are not errors; `check-config` names them."""
    assert ignored_keys(yaml.safe_load(PROXY_FILE)) == [
        "router_settings.routing_strategy",
        "litellm_settings.drop_params",
        "litellm_settings.success_callback",
        "general_settings.database_url",
    ]


def test_each_deployment_takes_the_lane_that_is_right() -> None:
    """OpenAI's wire goes native, every other through LiteLLM."""
    settings = settings_from_dict(yaml.safe_load(PROXY_FILE), ENV)
    table = DeploymentTable(settings, ENV)
    targets = [t for name in [*table.names, "unlisted"] for t in table.resolve(name)]
    lanes = {(t.name, t.provider): t.lane for t in targets}
    assert lanes == {
        ("gpt-4o", "azure"): "litellm",
        ("gpt-4o", "openai"): "native",
        ("claude", "anthropic"): "litellm",
        ("local", "hosted_vllm"): "native",
        ("default", "openai"): "native",
    }


def test_our_own_sections_win() -> None:
    """Where a file has both, what is written for the gateway counts."""
    raw = {
        "router": {"num_retries": 0, "fallbacks": []},
        "timeouts": {"first_byte_s": 1},
        "auth": {"admin_key": "own", "gateway_keys": {"t": "own"}},
        "router_settings": {"num_retries": 9, "timeout": 9, "fallbacks": [{"a": ["b"]}]},
        "general_settings": {"master_key": "theirs"},
    }
    settings = settings_from_dict(raw)
    assert (settings.router.num_retries, settings.router.fallbacks) == (0, ())
    assert settings.timeouts.first_byte_s == 1
    assert settings.auth.gateway_keys == {"t": "own"}
    assert settings.auth.admin_key == "own"


def test_empty_sections_of_theirs() -> None:
    """A section that is null, or a list, says nothing."""
    raw: dict[str, Any] = {
        "router_settings": None,
        "litellm_settings": None,
        "general_settings": [],
    }
    assert settings_from_dict(raw) == settings_from_dict({})
    assert ignored_keys(raw) == []


def test_aliases_of_model_groups() -> None:
    """An alias has the deployments of its target; a configured name is not an alias."""
    raw = yaml.safe_load(PROXY_FILE)
    aliases = {"gpt-4": "gpt-4o", "old": {"model": "claude", "hidden": True}, "local": "claude"}
    raw["router_settings"]["model_group_alias"] = aliases
    named = settings_from_dict(raw, ENV).model_list
    models = {n: [d.litellm_params["model"] for d in named if d.model_name == n] for n in aliases}
    assert models["gpt-4"] == ["azure/gpt-4o-eu", "gpt-4o"]
    assert models["old"] == ["anthropic/claude-sonnet-4-5"]
    assert models["local"] == ["hosted_vllm/llama"]
    assert "router_settings.model_group_alias" not in ignored_keys(raw)
