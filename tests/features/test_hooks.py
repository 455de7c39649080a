"""The table of hooks, and what is left without a feature."""

from __future__ import annotations

import dataclasses
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

import gateway.features
from gateway.hooks import ORDER, Feature, features, given, named
from tests.test_architecture import imported, modules

ROOT = Path(__file__).parents[2]
FOLDER = Path(gateway.features.__file__).parent
KIT = "packages/steering-gateway-testing/steering_gateway_testing"
LEFT = ("tests/api", "tests/stores/test_database.py", "tests/commands/test_runs.py")
"""Tests of the rest that ask every hook, and end soon."""
ABOUT = {
    "prices": ("while_it_runs", "costs_are_counted", "shows_the_run", "cost_nothing"),
    "learning": ("every_verdict_kept",),
}
"""Of these, by feature, the ones that ask for what it gives: a price of the list, all verdicts."""


def test_the_list_has_every_folder() -> None:
    """In no other place is the name of a feature written."""
    folders = {path.parent.name for path in FOLDER.glob("*/feature.py")}
    assert folders == set(ORDER)
    assert list(features()) == list(ORDER)


def test_nothing_else_imports_a_feature() -> None:
    """Wherever in a module the import stands; what is needed of a feature is asked of the table."""
    found = {
        (str(path.relative_to(ROOT)), name)
        for path in modules("")
        for name in imported(path)
        if name.startswith("gateway.features") and FOLDER not in path.parents
    }
    assert not found


@pytest.mark.parametrize("hook", Feature._fields)
def test_every_hook_is_used_and_gives_what_it_names(hook: str) -> None:
    """A hook that no feature fills is one too many, and each name is that of an object."""
    rows = [getattr(feature, hook) for feature in features().values()]
    assert any(rows)
    if hook == "parts":
        assert all(all(given(part)) for row in rows for part in row)
    elif hook == "needs":
        assert {need for row in rows for need in row} <= set(ORDER)
    else:
        assert all(named(hook).values())


def test_the_version_is_shown_without_a_feature() -> None:
    """A command loads what it needs: the version none, and a command of one feature no other."""
    program = (
        "import sys; from gateway.cli import build_parser; build_parser('--version')\n"
        "print([name for name in sys.modules if name.startswith('gateway.features')])"
    )
    ended = subprocess.run(
        [sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, check=True
    )
    assert ended.stdout.strip() == "[]"


def without(name: str, root: Path) -> Path:
    """A copy of the project in which the folder of a feature, its tests and its sections of
    `config.yaml` are deleted."""
    for part in ("gateway", "tests", "packages", "docs", "scripts", "bench", "examples"):
        shutil.copytree(ROOT / part, root / part, ignore=shutil.ignore_patterns("__pycache__"))
    for file in ("pyproject.toml", "CONTRIBUTING.md", "README.md", "CHANGELOG.md"):
        shutil.copy2(ROOT / file, root)
    shutil.rmtree(root / "gateway/features" / name)
    shutil.rmtree(root / "tests/features" / name, ignore_errors=True)
    if "store" in features()[name].parts:
        (root / KIT / "store_conformance" / f"{name}.py").unlink()
    values = (ROOT / "config.yaml").read_text()
    sections = values.split("\n\n")
    gone = tuple(f"{key}:" for each in lost(name) for key in features()[each].settings)
    kept = [
        each for each in sections if not any(line.startswith(gone) for line in each.split("\n"))
    ]
    own = tuple(f"  {key}:" for _, key in added(name))
    lines = [line for line in "\n\n".join(kept).split("\n") if not own or not line.startswith(own)]
    (root / "config.yaml").write_text("\n".join(lines))
    return root


def lost(name: str) -> list[str]:
    """A feature, and those that cannot do without it."""
    found = [name]
    for other, feature in features().items():  # a feature comes after those that it needs
        if not set(found).isdisjoint(feature.needs):
            found.append(other)
    return found


def added(name: str) -> list[tuple[str, str]]:
    """(section, key) of the keys that a feature adds to sections of the rest."""
    kinds = {section: named("adds")[section] for section in features()[name].adds}
    known = {section: set(dir(kind.__base__)) for section, kind in kinds.items()}
    fields = [
        (section, each.name) for section in kinds for each in dataclasses.fields(kinds[section])
    ]
    return [(section, key) for section, key in fields if key not in known[section]]


def run(root: Path, *words: str) -> subprocess.CompletedProcess[str]:
    """`python WORDS` with the copy's packages."""
    path = f"{root}:{root / KIT}/.."
    return subprocess.run(
        [sys.executable, *words],
        cwd=root,
        env={"PATH": "/usr/bin:/bin", "PYTHONPATH": path, "PYTHONDONTWRITEBYTECODE": "1"},
        capture_output=True,
        text=True,
        check=False,
    )


@pytest.mark.nightly
@pytest.mark.parametrize("name", ORDER)
def test_the_rest_works_without_a_feature(name: str, tmp_path: Path) -> None:
    """Its commands and its sections of the config are unknown, and the tests of the rest pass."""
    root = without(name, tmp_path / "copy")
    for command in [each for gone in lost(name) for each in features()[gone].commands]:
        refused = run(root, "-m", "gateway", command, "--help")
        assert refused.returncode == 2
        assert f"invalid choice: '{command}'" in refused.stderr
    sections: dict[str, object] = {key: {key: {}} for key in features()[name].settings}
    sections |= {f"{section}.{key}": {section: {key: {}}} for section, key in added(name)}
    for key, values in sections.items():
        (root / "own.yaml").write_text(yaml.safe_dump(values))
        refused = run(root, "-m", "gateway", "check-config", "--config", "own.yaml")
        assert refused.returncode != 0
        assert f"{key}: unknown key" in refused.stdout + refused.stderr
    about = [each for gone in lost(name) for each in ABOUT.get(gone, ())]
    others = " and ".join([f"not {each}" for each in ("there_are", *about)])
    fast = ("-m", "not slow and not nightly", "-k", others)  # docs name every metric
    ended = run(root, "-m", "pytest", "-p", "no:cacheprovider", *fast, *LEFT)
    assert ended.returncode == 0, ended.stdout[-8000:]
