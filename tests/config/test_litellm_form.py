"""LiteLLM's own config files load as they are."""

from __future__ import annotations

import json
import re
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
import yaml

from gateway.cli import main
from gateway.config import ignored_keys, settings_from_dict
from gateway.config.load import read_config_file
from gateway.errors import ConfigError
from gateway.process.start_checks import check
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
    assert settings.auth.secrets() == {"gateway_keys.default": "sk-1234", "admin_key": "sk-1234"}


def test_what_has_no_meaning_here_is_listed() -> None:
    """Keys of the proxy's own features are not errors; `check-config` names them."""
    assert list(ignored_keys(yaml.safe_load(PROXY_FILE))) == [
        "router_settings.routing_strategy",
        "litellm_settings.drop_params",
        "litellm_settings.success_callback",
        "general_settings.database_url",
        "model_list[0].litellm_params.rpm",
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
    assert settings.auth.secrets() == {"gateway_keys.t": "own", "admin_key": "own"}
    assert settings.auth.admin_key == "own"


def test_empty_sections_of_theirs() -> None:
    """A section that is null, or a list, says nothing."""
    raw: dict[str, Any] = {
        "router_settings": None,
        "litellm_settings": None,
        "general_settings": [],
    }
    assert settings_from_dict(raw) == settings_from_dict({})
    assert ignored_keys(raw) == {}


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


# Of LiteLLM's example configs: those that it cannot use itself, with what is wrong with them.
UNUSABLE = {
    "langfuse_config.yaml": "litellm_params: required",
    "load_balancer.yaml": "'mistralai/mistral-7b-instruct' is not a known provider",
}


def its_examples() -> list[Path]:
    """The configs in the installed package of LiteLLM."""
    found = find_spec("litellm")
    assert found is not None
    assert found.origin is not None
    proxy = Path(found.origin).parent / "proxy"
    hooks = proxy.glob("guardrails/guardrail_hooks/*/example_config.yaml")
    return sorted([*proxy.glob("example_config_yaml/*.yaml"), *proxy.glob("*.yaml"), *hooks])


def test_its_own_examples_load() -> None:
    """All but those that LiteLLM refuses, too; variables that they name are set."""
    refused = {}
    for file in its_examples():
        names = re.findall(r"os\.environ/(\w+)", file.read_text())
        env = dict.fromkeys(names, "https://provider.example.com/v1")
        try:
            check(settings_from_dict(read_config_file(file).values, env))
        except ConfigError as exc:
            refused[file.name] = str(exc)
    assert len(its_examples()) >= 30
    assert refused.keys() == UNUSABLE.keys()
    assert all(part in refused[name] for name, part in UNUSABLE.items())


ONE = "model_list: [{model_name: m, litellm_params: {model: openai/m, api_key: k%s}%s}]\n"
SECTION = ONE % ("", "")


CLOSING = {
    "general_settings.allowed_ips": ("general_settings: {allowed_ips: [10.0.0.1]}", "firewall"),
    "general_settings.custom_auth": ("general_settings: {custom_auth: a.b}", "gateway_keys"),
    "general_settings.enable_jwt_auth": (
        "general_settings: {enable_jwt_auth: true}",
        "auth.gateway_keys",
    ),
    "general_settings.enforce_user_param": (
        "general_settings: {enforce_user_param: true}",
        "nothing here does",
    ),
    "general_settings.max_parallel_requests": (
        "general_settings: {max_parallel_requests: 9}",
        "max_concurrent_requests",
    ),
    "general_settings.max_request_size_mb": (
        "general_settings: {max_request_size_mb: 9}",
        "server.max_body_mb",
    ),
    "general_settings.reject_clientside_metadata_tags": (
        "general_settings: {reject_clientside_metadata_tags: true}",
        "for their fields",
    ),
    "litellm_settings.max_budget": (
        "litellm_settings: {max_budget: 9, budget_duration: 1d}",
        "`budgets`",
    ),
    "litellm_settings.default_team_settings": (
        "litellm_settings: {default_team_settings: [{team_id: a}]}",
        "auth.rights",
    ),
    "litellm_settings.callbacks": (
        "litellm_settings: {callbacks: [otel, presidio]}",
        "neither checked nor changed",
    ),
    "router_settings.provider_budget_config": (
        "router_settings: {provider_budget_config: {openai: {}, a: b}}",
        "`budgets`",
    ),
    "router_settings.optional_pre_call_checks": (
        "router_settings: {optional_pre_call_checks: [router_budget_limiting]}",
        "`budgets`",
    ),
    "router_settings.enable_tag_filtering": (
        "router_settings: {enable_tag_filtering: true}",
        "auth.rights",
    ),
    "guardrails": ("guardrails: [{guardrail_name: g}]", "neither checked nor changed"),
    "policies": ("policies: {strict: {guardrails: {add: [g]}}}", "neither checked"),
    "model_list[0].litellm_params.tpm": (ONE % (", rpm: 3, tpm: 9", ""), "`budgets`"),
    "model_list[0].litellm_params.max_budget": (ONE % (", max_budget: 3", ""), "`budgets`"),
    "model_list[0].rpm": (ONE % ("", ", rpm: 3"), "`budgets`"),
    "model_list[0].model_info.access_groups": (
        ONE % ("", ", model_info: {access_groups: [a]}"),
        "auth.rights",
    ),
}
"""By the key that is warned of: a config with it, and what the warning names instead."""


@pytest.mark.parametrize("path", CLOSING)
def test_what_closes_something_there_is_warned_of(
    path: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Each key by its line, with what does it here, and not as a note."""
    text, instead = CLOSING[path]
    monkeypatch.chdir(tmp_path)
    Path("config.yaml").write_text(text if "model_list" in text else SECTION + text)
    assert main(["check-config", "--json"]) == 0
    report = json.loads(capsys.readouterr().out)
    warned = [each for each in report["warnings"] if "not honoured" in each]
    assert warned
    assert any(f": {path}" in each for each in warned)
    assert all(re.match(r"config\.yaml, line [12]: ", each) and instead in each for each in warned)
    assert report["ignored"] == []


@pytest.mark.parametrize(
    "text",
    [
        "general_settings: {allow_requests_on_db_unavailable: true, custom_auth: null}",
        "litellm_settings: {callbacks: [otel], require_auth_for_metrics_endpoint: false}",
        "search_tools: [{search_tool_name: s}]",
        "mcp_servers: {wiki: {url: https://a/b}}",
        "files_settings: [{custom_llm_provider: openai, api_key: os.environ/NOT_SET}]",
    ],
)
def test_other_features_are_notes(text: str) -> None:
    """Neither faults nor warnings; variables that they name need no value."""
    raw = yaml.safe_load(text)
    settings_from_dict(raw, {})
    found = ignored_keys(raw)
    assert found
    assert not any(found.values())


def test_a_limit_of_theirs_is_not_sent_to_the_provider() -> None:
    """Neither beside the parameters of a deployment nor among them."""
    raw = yaml.safe_load(
        ONE % (", max_budget: 3, budget_duration: 1d, rpm: 4, top_k: 7", ", tpm: 1")
    )
    (target,) = DeploymentTable(settings_from_dict(raw, {}), {}).resolve("m")
    assert target.params == {"top_k": 7}
