"""Configs of the gateways."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from steering_gateway_testing import ScriptedUpstream
from steering_gateway_testing.patience import DEADLINE_MS
from tests.replicas.drives import PATIENT


def one(upstream: ScriptedUpstream, directory: Path) -> dict[str, Any]:
    """Of a gateway that is alone, with a file in this directory."""
    return _config(upstream, path=str(directory / "alone.db"))


def shared(upstream: ScriptedUpstream, url: str, **storage: Any) -> dict[str, Any]:
    """Of a gateway on a database, that gives up no commit: what waits in the memory of one gateway
    is not known to another."""
    return _config(upstream, url=url, **storage)


PLACES = ("east", "west")
"""Two deployments of the one model of these tests, each with a prompt cache of its own."""


def _config(upstream: ScriptedUpstream, **storage: Any) -> dict[str, Any]:
    host = upstream.base_url.removesuffix("/v1")
    return {
        **PATIENT,
        "default_upstream": {"api_base": upstream.base_url},
        "model_list": [
            {
                "model_name": "scripted",
                "litellm_params": {
                    "model": "openai/scripted",
                    "api_base": f"{host}/{place}/v1",
                    "api_key": f"sk-of-{place}",
                },
            }
            for place in PLACES
        ],
        "storage": {"commit_limit_ms": DEADLINE_MS, **storage},
    }
