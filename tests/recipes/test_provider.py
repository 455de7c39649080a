"""The documented change: a provider compatible with OpenAI's API is one row of `providers.toml`."""

from __future__ import annotations

import json

import pytest

from tests.recipes.conftest import ScratchCopy

ROW = 'acme = { api_base = "https://api.acme.example/v1", key_variables = ["ACME_API_KEY"] }\n'

PROGRAM = """
import json

from gateway.config import settings_from_dict
from gateway.upstream.deployments import DeploymentTable

listed = {"model_name": "fast", "litellm_params": {"model": "acme/fast-1"}}
table = DeploymentTable(settings_from_dict({"model_list": [listed]}), {"ACME_API_KEY": "its-key"})
print(json.dumps([
    [target.lane, target.model, target.api_base.text, target.api_key, target.provider]
    for name in ("fast", "acme/large-2", "acme:large-2")
    for target in table.resolve(name)
]))
"""


@pytest.mark.slow
def test_a_provider_is_one_row(scratch: ScratchCopy) -> None:
    """Its models are asked natively at its base URL, with the key from its own variable."""
    before = scratch.run("-c", PROGRAM, status=1).stderr
    assert "model_list[0].litellm_params.model: 'acme' in 'acme/fast-1'" in before
    path = "gateway/upstream/providers.toml"
    scratch.replace(path, "deepseek = {", f"{ROW}deepseek = {{")
    assert scratch.changed() == {path}
    found = json.loads(scratch.run("-c", PROGRAM).stdout)
    base, key = "https://api.acme.example/v1", "its-key"
    assert found == [
        ["native", "fast-1", base, key, "acme"],
        ["native", "large-2", base, key, "acme"],
        ["native", "large-2", base, key, "acme"],
    ]
