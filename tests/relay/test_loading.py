"""LiteLLM is loaded at the start where the config has deployments of its lane, and only there."""

from __future__ import annotations

import json
import re
import time
from pathlib import Path
from typing import Any

import httpx
import pytest

from gateway.config import settings_from_dict
from gateway.config.reload import removals
from steering_gateway_testing import ScriptedUpstream
from steering_gateway_testing.hearing import HELLO
from steering_gateway_testing.patience import ANSWER_S
from steering_gateway_testing.processes import TRUSTS_NOBODY, GatewayProcess


def _config(upstream: ScriptedUpstream, lane: str) -> str:
    params = {"model": "openai/x", "api_base": upstream.base_url, "api_key": "sk-of-a-deployment"}
    entry = {"model_name": "m", "litellm_params": params, "lane": lane}
    return json.dumps({"model_list": [entry]})


@pytest.mark.slow
def test_readiness_waits_for_litellm(upstream: ScriptedUpstream, tmp_path: Path) -> None:
    """Until it is loaded `/readyz` is 503 and says so, while the gateway lives; the first call
    after that loads nothing."""
    trusting = dict.fromkeys(TRUSTS_NOBODY, "")
    with GatewayProcess(tmp_path, _config(upstream, "litellm"), env=trusting) as gateway:
        problems: list[Any] = []
        limit = time.monotonic() + ANSWER_S
        while (ready := httpx.get(f"{gateway.url}/readyz")).status_code != 200:
            assert time.monotonic() < limit
            problems += ready.json()["problems"]
            assert httpx.get(f"{gateway.url}/healthz").status_code == 200
            time.sleep(0.05)
        assert set(problems) == {"LiteLLM is being loaded"}
        gateway.wait_for("LiteLLM loaded")
        body = {**HELLO, "model": "m"}
        assert httpx.post(f"{gateway.base_url}/chat/completions", json=body).status_code == 200
    assert len(gateway.events("LiteLLM loaded")) == 1


@pytest.mark.slow
def test_a_litellm_that_cannot_be_loaded_is_named(
    upstream: ScriptedUpstream, tmp_path: Path
) -> None:
    """Without any authority to trust its import fails: in the log and in `/readyz`."""
    with GatewayProcess(tmp_path, _config(upstream, "litellm")) as gateway:
        limit = time.monotonic() + ANSWER_S
        while True:
            (problem,) = httpx.get(f"{gateway.url}/readyz").json()["problems"]
            if problem != "LiteLLM is being loaded":
                break
            assert time.monotonic() < limit
            time.sleep(0.05)
        assert problem.startswith("LiteLLM cannot be loaded: SSLError: ")
        assert gateway.events(problem)


@pytest.mark.slow
def test_without_its_lane_litellm_stays_away(upstream: ScriptedUpstream, tmp_path: Path) -> None:
    """A native deployment needs none of it: ready at once, and no file of the package is mapped."""
    with GatewayProcess(tmp_path, _config(upstream, "native")) as gateway:
        assert httpx.get(f"{gateway.url}/readyz").json() == {"status": "ready", "problems": []}
        body = {**HELLO, "model": "m"}
        assert httpx.post(f"{gateway.base_url}/chat/completions", json=body).status_code == 200
    assert not [line for line in gateway.lines if re.search("(?i)litellm", line)]


def test_an_address_that_a_config_loses_is_missed_beside_the_variable() -> None:
    """`OPENAI_BASE_URL` takes its place, and must not take the conversations silently."""
    env = {"OPENAI_BASE_URL": "http://of-the-agents.example/v1"}
    named = {"default_upstream": {"api_base": "http://of-the-operator.example/v1"}}
    old, cut = settings_from_dict(named, env), settings_from_dict({}, env)
    assert removals(old, cut, env) == ["default_upstream.api_base"]
    assert removals(old, cut, {}) == []
    assert removals(cut, cut, env) == []
    other = settings_from_dict({"default_upstream": {"api_base": "http://new.example/v1"}}, env)
    assert removals(old, other, env) == []
