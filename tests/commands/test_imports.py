"""Short commands load only what they need: most of their time goes into imports."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import time
from pathlib import Path

import pytest

from steering_gateway_testing.many_runs import write_runs

# What takes longest to import, and belongs to the server, its API or its pages.
PACKAGES = {
    *("numpy", "pydantic", "httpx", "aiohttp", "litellm", "starlette", "jinja2", "apprise"),
    *("prometheus_client", "gateway.api", "gateway.features.pages.pages"),
}
HEAVY = PACKAGES | {"gateway.features.reports.results", "gateway.upstream", "gateway.dialects"}
SETTINGS = {"gateway.config", "gateway.stores", "rich", "structlog", "asyncio", "msgspec"}
CONFIG = """
default_upstream: {api_base: "http://127.0.0.1:8000/v1"}
model_list:
  - {model_name: a, litellm_params: {model: openai/gpt-4o, api_key: a-key-of-the-operator}}
  - {model_name: b, dialects: [messages], litellm_params: {model: anthropic/c, api_key: another}}
"""
# What a list needs only where there is a file to read, a terminal or a plug-in.
AT_NEED = {"yaml", "rich.console", "importlib.metadata", "importlib.resources", "structlog"}


@pytest.mark.parametrize(
    ("words", "config", "absent"),
    [
        (["--version"], "", HEAVY | SETTINGS),
        (["--help"], "", HEAVY | SETTINGS),
        (["runs", "list", "--help"], "", HEAVY | AT_NEED),
        (["runs", "list"], "", HEAVY | AT_NEED | {"gateway.core.trouble", "gateway.core.steer"}),
        (["runs", "list"], CONFIG, HEAVY | (AT_NEED - {"yaml"})),
        (
            ["check-config"],
            "",
            PACKAGES | {"yaml", "gateway.backends", "gateway.stores", "rich.console"},
        ),
        (
            ["check-config"],
            CONFIG,
            PACKAGES | {"gateway.backends", "gateway.stores", "rich.console"},
        ),
    ],
)
def test_modules_that_a_short_command_does_not_load(
    words: list[str], config: str, absent: set[str], tmp_path: Path
) -> None:
    """Nothing of the server for a list of runs, almost nothing for the version and the help."""
    script = (
        "import sys\nfrom gateway.cli import main\n"
        f"try:\n    main({words!r})\nexcept SystemExit:\n    pass\n"
        "sys.stderr.write('\\n' + ' '.join(sys.modules))"
    )
    if config:
        (tmp_path / "config.yaml").write_text(config)
    env = {"GATEWAY_STORAGE__PATH": f"{tmp_path}/log.db", "PATH": ""}
    asyncio.run(write_runs(f"{tmp_path}/log.db", runs=2, steps=1, now=time.time()))
    words = [sys.executable, "-c", script]
    done = subprocess.run(words, capture_output=True, text=True, env=env, cwd=tmp_path, check=True)
    loaded = set(done.stderr.rpartition("\n")[2].split())
    assert "gateway.cli" in loaded
    assert loaded & absent == set()
