"""The recipe for a key of the config, followed in a copy of the package."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.recipes.conftest import ROOT, ScratchCopy

CHECK = Path("tests/config/test_documented.py")
PYTEST = ("-m", "pytest", "-q", "-p", "no:cacheprovider", "--disable-plugin-autoload")
FIELD = "    drain_s: float = 30"
LINE = "  port: 8080 # 0 = any free port\n"

LOAD = """
from gateway.config import load_settings
from gateway.cli import main
print(load_settings("config.yaml", {}).server.motto, end=" ")
print(load_settings("config.yaml", {"GATEWAY_SERVER__MOTTO": "later"}).server.motto, flush=True)
raise SystemExit(main(["check-config", "--config", "wrong.yaml"]))
"""


@pytest.mark.slow
def test_a_config_key_is_a_field_and_a_line(scratch: ScratchCopy) -> None:
    """The file and the environment set it; a wrong value is refused with the path of the key."""
    scratch.replace("gateway/config/settings.py", FIELD, '    motto: str = "now"\n' + FIELD)
    scratch.write(str(CHECK), (ROOT / CHECK).read_text())
    missing = scratch.run(*PYTEST, str(CHECK), status=1)
    assert "not in config.yaml: ['server.motto']" in missing.stdout

    scratch.replace("config.yaml", LINE, LINE + "  motto: now # shown to nobody\n")
    scratch.run(*PYTEST, str(CHECK))
    scratch.write("wrong.yaml", "server: {motto: [1]}\n")
    loaded = scratch.run("-c", LOAD, status=2)
    assert loaded.stdout.startswith("now later\n")
    assert "server.motto: expected text, got the list" in loaded.stdout + loaded.stderr
    assert scratch.changed() == {"gateway/config/settings.py"}
