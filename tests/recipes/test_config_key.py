"""The recipe for a key of the config, followed in a copy of the package."""

from __future__ import annotations

from pathlib import Path

from tests.recipes.conftest import ROOT, ScratchCopy

CHECK = Path("tests/config/test_documented.py")
FIELD = "    drain_s: float = 30\n"
LINE = "  port: 8080 # 0 = any free port\n"

LOAD = """
from gateway.config import load_settings
print(load_settings("config.yaml", {}).server.motto, end=" ")
print(load_settings("config.yaml", {"GATEWAY_SERVER__MOTTO": "later"}).server.motto)
"""


def test_a_config_key_is_a_field_and_a_line(scratch: ScratchCopy) -> None:
    """The file and the environment set it; a wrong value is refused with the path of the key."""
    scratch.replace("gateway/config/settings.py", FIELD, FIELD + '    motto: str = "now"\n')
    scratch.write(str(CHECK), (ROOT / CHECK).read_text())
    missing = scratch.run("-m", "pytest", "-q", "-p", "no:cacheprovider", str(CHECK), status=1)
    assert "not in config.yaml: ['server.motto']" in missing.stdout

    scratch.replace("config.yaml", LINE, LINE + "  motto: now # shown to nobody\n")
    scratch.run("-m", "pytest", "-q", "-p", "no:cacheprovider", str(CHECK))
    assert scratch.run("-c", LOAD).stdout == "now later\n"

    scratch.write("wrong.yaml", "server: {motto: [1]}\n")
    refused = scratch.run("-m", "gateway", "check-config", "--config", "wrong.yaml", status=2)
    assert "server.motto: expected text, got list" in refused.stdout + refused.stderr
    assert scratch.changed() == {"gateway/config/settings.py"}
