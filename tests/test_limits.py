"""The limits of the code's size and cost only fall, which their own history in git shows."""

from __future__ import annotations

import json
import subprocess
import tomllib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[1]
LIMITS = "pyproject.toml"
CALLS = "bench/calls.json"


def house_limits(text: str) -> dict[str, float]:
    """The tables that `scripts/house.py --guard` holds the package to.

    Empty for a text from before size was counted in AST nodes: those limits were raised at times.
    """
    house = tomllib.loads(text)["tool"].get("house", {})
    limits: dict[str, float] = house.get("limits", {}) | house.get("trace-limits", {})
    limits |= {f"allowance: {name}": nodes for name, nodes in house.get("allowances", {}).items()}
    return limits if "AST nodes" in limits else {}


def call_limits(text: str) -> dict[str, float]:
    """The function calls that `bench.calls` allows per request, by kind of request."""
    limits: dict[str, float] = json.loads(text)
    return limits


def earlier(path: str, root: Path) -> Iterator[str]:
    """The committed texts of a file, newest first."""
    git = ["git", "-C", str(root)]
    log = subprocess.run([*git, "log", "--format=%H", "--", path], capture_output=True, text=True)
    for commit in log.stdout.split():
        shown = subprocess.run([*git, "show", f"{commit}:{path}"], capture_output=True, text=True)
        if shown.returncode == 0:
            yield shown.stdout


def raised(now: Mapping[str, float], before: Mapping[str, float]) -> list[str]:
    """The limits that were lower before, as lines for people."""
    return [
        f"{name}: {now[name]:,}, was {limit:,}"
        for name, limit in before.items()
        if name in now and now[name] > limit
    ]


@pytest.mark.parametrize(("path", "read"), [(LIMITS, house_limits), (CALLS, call_limits)])
def test_a_limit_is_never_raised(path: str, read: Any) -> None:
    """No limit is above any value that a commit gave it."""
    if not (ROOT / ".git").exists():
        pytest.skip("not a git checkout: the limits' history is not here")
    now = read((ROOT / path).read_text(encoding="utf-8"))
    assert now
    for text in earlier(path, ROOT):
        assert raised(now, read(text)) == []


def test_a_raised_limit_is_noticed(tmp_path: Path) -> None:
    """The comparison names a limit that a later commit raised."""
    git = ["git", "-C", str(tmp_path), "-c", "user.name=n", "-c", "user.email=e@example.invalid"]
    subprocess.run([*git, "init", "-q"], check=True)
    file = tmp_path / "limits.json"
    for number in (5, 3, 4):
        file.write_text(json.dumps({"calls": number}))
        subprocess.run([*git, "add", "limits.json"], check=True)
        subprocess.run([*git, "commit", "-q", "-m", str(number)], check=True)
    now = call_limits(file.read_text())
    found = [raised(now, call_limits(text)) for text in earlier("limits.json", tmp_path)]
    assert found == [[], ["calls: 4, was 3"], []]
