"""A monitor and a scorer of another package, which is found by its entry points."""

from __future__ import annotations

import shutil
import tomllib

import pytest

from tests.recipes.conftest import ROOT, ScratchCopy
from tests.recipes.test_monitor import replayed, sources

PLUGIN = ROOT / "examples" / "plugin"
SCORER = '''"""Scorer `short`: every step is easy."""


class Short:
    def __init__(self, settings):
        pass

    def push(self, step):
        return 0.125
'''


@pytest.fixture
def installed(scratch: ScratchCopy) -> ScratchCopy:
    """The copy, next to which the package lies as an installer leaves it."""
    shutil.copytree(PLUGIN / "politeness", scratch.root / "politeness")
    scratch.write("short.py", SCORER)
    project = tomllib.loads((PLUGIN / "pyproject.toml").read_text())["project"]
    entries(
        scratch, project["entry-points"] | {"steering_gateway.scorers": {"short": "short:Short"}}
    )
    return scratch


def entries(scratch: ScratchCopy, groups: dict[str, dict[str, str]]) -> None:
    """The metadata with these entry points."""
    folder = "steering_gateway_politeness-1.0.0.dist-info"
    lines = ["Metadata-Version: 2.1", "Name: steering-gateway-politeness", "Version: 1.0.0", ""]
    scratch.write(f"{folder}/METADATA", "\n".join(lines))
    text = ""
    for group, points in groups.items():
        text += f"[{group}]\n" + "".join(f"{name} = {to}\n" for name, to in points.items())
    scratch.write(f"{folder}/entry_points.txt", text)


def test_a_monitor_of_another_package_is_scored_and_guides(installed: ScratchCopy) -> None:
    """It is weighed under its configured weight, fires, and its text is given; no file changes."""
    steps = replayed(installed)
    assert steps[-1]["fired"] == ["politeness"]
    assert steps[-1]["composite"] >= 0.9
    assert "monitor" in sources(steps)
    assert installed.changed() == set()


def test_a_scorer_of_another_package_can_be_configured(installed: ScratchCopy) -> None:
    """Its name is valid in the configuration; an unknown one is refused with all that are known."""
    installed.write("own.yaml", "difficulty: {scorer: short}\n")
    installed.write("run.jsonl", '{"id": "r", "steps": [{"action": "read", "thought": "a"}]}\n')
    command = ("-m", "gateway", "replay", "--json", "--config", "own.yaml", "run.jsonl")
    assert '"difficulty":0.125' in installed.run(*command).stdout.replace(" ", "")
    installed.write("own.yaml", "difficulty: {scorer: long}\n")
    refused = installed.run(*command, status=2)
    assert "short" in refused.stdout + refused.stderr


@pytest.mark.parametrize(
    ("points", "reason"),
    [
        ({"streak": "politeness.row:ROW"}, "streak (politeness.row:ROW) is already taken"),
        ({"politeness": "politeness.row:GONE"}, "politeness: module 'politeness.row' has no"),
        ({"politeness": "politeness.broken:ROW"}, "politeness: Object missing required field"),
    ],
)
def test_a_damaged_entry_point_is_named(
    installed: ScratchCopy, points: dict[str, str], reason: str
) -> None:
    """Nothing starts without the monitor that its operator relies on."""
    installed.write("politeness/broken.py", "ROW = {}\n")
    entries(installed, {"steering_gateway.monitors": points})
    ended = installed.run("-c", "import gateway.steering.monitors", status=1)
    assert reason in ended.stderr
