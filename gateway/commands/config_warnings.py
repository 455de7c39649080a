"""What `gateway check-config` warns of: settings that work, and seldom as they were meant."""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterator, Mapping

from gateway.config import OPENAI_API_BASE, Settings, misspelt_variables
from gateway.config.named_models import named_models
from gateway.upstream.deployments import DeploymentTable
from gateway.upstream.prices import capabilities
from gateway.upstream.providers import provider_of

_SHORTEST_KEY = 16
"""Characters; half as many as 128 random bits have in hexadecimal."""

_OWN_NAMES = re.compile(r"ft:|gpt-|chatgpt-|o\d|\*")
"""How names of OpenAI's models begin, those that are newer than the list too; and a pattern."""

_FEWEST_DISTINCT = 8
"""Distinct characters; 16 random decimal digits have 8 or more in 9 of 10 cases."""


def config_warnings(settings: Settings, env: Mapping[str, str]) -> Iterator[str]:
    """One line for each doubtful setting, beginning with its path or variable. Shows no key."""
    for name, meant in misspelt_variables(env):
        yield f"{name}: sets nothing, because keys are joined by two underscores: {meant}"
    yield from _undeployed_models(settings, env)
    yield from _unknown_models(settings)
    yield from _weak_keys(settings)


def _undeployed_models(settings: Settings, env: Mapping[str, str]) -> Iterator[str]:
    table = DeploymentTable(settings, env)
    upstream = settings.default_upstream
    key = "default_upstream.api_key" if upstream.api_key else "the client's own key"
    for path, model in dict.fromkeys(named_models(settings)):
        if table.resolve(model) != [table.default]:
            continue
        near = difflib.get_close_matches(model, table.names, n=1)
        hint = f"; did you mean {near[0]!r}?" if near else ""
        yield (
            f"{path}: no deployment of model_list serves {model!r}: it is asked of "
            f"{upstream.api_base} with {key}{hint}"
        )


def _unknown_models(settings: Settings) -> Iterator[str]:
    """Deployments whose key goes to OpenAI only because nothing says whose their model is."""
    for number, deployment in enumerate(settings.model_list):
        params = deployment.litellm_params
        model = str(params["model"])
        named = [params.get(key) for key in ("api_base", "base_url", "custom_llm_provider")]
        if any(named) or provider_of(params) != ("openai", model) or _OWN_NAMES.match(model):
            continue
        if capabilities(model) is None:
            yield (
                f"model_list[{number}].litellm_params.model: {model!r} names no provider, and no "
                f"list has it: it is asked of {OPENAI_API_BASE} with the deployment's key"
            )


def _weak_keys(settings: Settings) -> Iterator[str]:
    keys = {f"auth.gateway_keys.{name}": k for name, k in settings.auth.gateway_keys.items()}
    if settings.auth.admin_key:
        keys["auth.admin_key"] = settings.auth.admin_key
    for path, key in keys.items():
        if len(key) < _SHORTEST_KEY:
            yield f"{path}: {len(key)} characters can be guessed; use {_SHORTEST_KEY} or more"
        elif len(set(key)) < _FEWEST_DISTINCT:
            yield f"{path}: few different characters can be guessed; use a random key"
