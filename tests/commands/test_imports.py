"""Short commands load only what they need: most of their time goes into imports."""

from __future__ import annotations

import subprocess
import sys

import pytest

# What takes longest to import, and belongs to the server, its API or its pages.
HEAVY = {
    *("numpy", "pydantic", "httpx", "aiohttp", "litellm", "starlette", "jinja2", "apprise"),
    *(
        "prometheus_client",
        "gateway.api",
        "gateway.features.pages.pages",
        "gateway.features.reports.results",
        "gateway.upstream",
    ),
}
SETTINGS = {"gateway.config", "gateway.stores", "rich", "structlog", "asyncio", "msgspec"}


@pytest.mark.parametrize(
    ("words", "absent"),
    [
        (["--version"], HEAVY | SETTINGS),
        (["--help"], HEAVY | SETTINGS),
        (["runs", "list", "--help"], HEAVY | {"structlog"}),
        (["runs", "list"], HEAVY | {"structlog"}),
    ],
)
def test_modules_that_a_short_command_does_not_load(
    words: list[str], absent: set[str], tmp_path: object
) -> None:
    """Nothing of the server for a list of runs, almost nothing for the version and the help."""
    script = (
        "import sys\nfrom gateway.cli import main\n"
        f"try:\n    main({words!r})\nexcept SystemExit:\n    pass\n"
        "sys.stderr.write('\\n' + ' '.join(sys.modules))"
    )
    config = {"GATEWAY_STORAGE__PATH": f"{tmp_path}/none.db", "PATH": ""}
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, env=config, check=True
    )
    loaded = set(done.stderr.rpartition("\n")[2].split())
    assert "gateway.cli" in loaded
    assert loaded & absent == set()
