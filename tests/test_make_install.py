"""`make demo`, `make install` and `make test`: each installs its part of the lock file, and what is
there already is left alone. `make install` puts the command on the path, and takes no other
program's place."""

from __future__ import annotations

import os
import subprocess
import sys
import tomllib
from importlib import metadata
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from scripts import install

SCRIPT = Path(__file__).parents[1] / "scripts" / "install.py"


def link(home: Path, folder: Path) -> subprocess.CompletedProcess[str]:
    """`scripts/install.py FOLDER --link` for a home directory."""
    return subprocess.run(
        [sys.executable, SCRIPT, folder, "--link"],
        env={"HOME": str(home), "PATH": os.defpath},
        capture_output=True,
        text=True,
        check=False,
    )


def environment(folder: Path) -> Path:
    """A folder with a command `gateway` that says where it is."""
    command = folder / "bin" / "gateway"
    command.parent.mkdir(parents=True)
    command.write_text(f"#!/bin/sh\necho {folder.name}\n")
    command.chmod(0o755)
    return folder


def test_the_command_is_a_link_in_the_users_own_folder(tmp_path: Path) -> None:
    """It runs the environment's program, says what to add to PATH, and follows a second install."""
    home = tmp_path / "home"
    for name in ("first", "second"):
        ended = link(home, environment(tmp_path / name))
        assert ended.returncode == 0, ended.stderr
        assert f'export PATH="{home}/.local/bin:$PATH"' in ended.stdout
        said = subprocess.run([home / ".local/bin/gateway"], capture_output=True, text=True)
        assert said.stdout == f"{name}\n"


def test_another_program_of_that_name_stays(tmp_path: Path) -> None:
    """A file that is no link is left as it is, and the message names it."""
    other = tmp_path / ".local/bin/gateway"
    other.parent.mkdir(parents=True)
    other.write_text("another program")
    ended = link(tmp_path, environment(tmp_path / "made"))
    assert ended.returncode == 1
    assert f"{other} is another program" in ended.stderr
    assert other.read_text() == "another program"


@pytest.mark.parametrize(
    ("stage", "project", "most", "absent"),
    [
        ("demo", install.CORE, 45, {"litellm", "pytest", "hatchling", "openai"}),
        ("gateway", install.ROOT, 100, {"pytest", "mypy", "scikit-learn", "schemathesis"}),
    ],
)
def test_a_part_of_the_lock_is_whole_and_no_more(
    stage: str, project: Path, most: int, absent: set[str]
) -> None:
    """Everything that the project's packages ask for here is in its part, with hashes; pip is not
    asked to look for more (`--no-deps`). Test tools are not in it."""
    part = install.packages(stage)
    assert all("--hash=sha256:" in entry for entry in part.values())
    assert len(part) <= most
    assert not absent & set(part)
    text = (project / "pyproject.toml").read_text()
    asked = [Requirement(line) for line in tomllib.loads(text)["project"]["dependencies"]]
    seen: set[str] = set()
    while asked:
        requirement = asked.pop()
        name = canonicalize_name(requirement.name)
        if name in seen or (requirement.marker and not requirement.marker.evaluate()):
            continue
        seen.add(name)
        assert name in part
        asked += map(Requirement, metadata.requires(name) or [])


def test_each_command_adds_to_the_one_before() -> None:
    """The demo's part is within the gateway's, and that within the whole lock."""
    demo, gateway, everything = (set(install.packages(stage)) for stage in install.SIZES)
    assert demo < gateway < everything


def test_the_documents_count_the_packages() -> None:
    """Those of the demo, and those of the gateway without what an editable install needs."""
    demo = len(install.packages("demo"))
    assert (
        f"the {demo} packages that the demo needs"
        in (install.ROOT / "docs/quickstart.md").read_text()
    )
    whole = install.locked(install.LOCK.read_text())
    gateway = len(install.needed(whole, install.asked_by(install.ROOT)))
    cost = (install.ROOT / "docs/cost.md").read_text()
    assert f"its {gateway} packages are" in cost
    assert f"its {demo} packages and itself" in cost


def there(folder: Path, stage: str) -> Path:
    """An environment that has the packages of a stage, by their metadata."""
    packages = folder / "lib" / "python3.11" / "site-packages"
    packages.mkdir(parents=True)
    for entry in install.packages(stage).values():
        name, _, version = entry.split()[0].partition("==")
        (packages / f"{name.partition('[')[0].replace('-', '_')}-{version}.dist-info").mkdir()
    for name in install.OWN[stage]:
        (packages / f"{name.replace('-', '_')}-0.1.0.dist-info").mkdir()
    python = folder / "bin" / "python"
    python.parent.mkdir()
    python.write_text('#!/bin/sh\necho "$@" >> "$(dirname "$0")/called"\n')
    python.chmod(0o755)
    return folder


def test_what_is_there_is_not_installed_again(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """After `make test`, `make demo` calls no pip; after `make demo`, only the rest is fetched."""
    whole = there(tmp_path / "whole", "all")
    assert [install.main(whole, stage) for stage in install.SIZES] == [0, 0, 0]
    assert not (whole / "bin" / "called").exists()
    assert capsys.readouterr().out == ""
    demo = there(tmp_path / "demo", "demo")
    assert install.main(demo, "gateway") == 0
    asked = set(install.locked((demo / "missing.txt").read_text()))
    assert asked == set(install.packages("gateway")) - set(install.packages("demo"))
    assert "--require-hashes" in (demo / "bin" / "called").read_text()


def test_another_version_is_replaced(tmp_path: Path) -> None:
    """A package that the lock has at another version is installed, and nothing else."""
    folder = there(tmp_path / "old", "demo")
    [rich] = folder.glob("lib/*/*/rich-*.dist-info")
    rich.rename(rich.with_name("rich-1.0.dist-info"))
    assert install.main(folder, "demo") == 0
    assert list(install.locked((folder / "missing.txt").read_text())) == ["rich"]


def test_an_old_python_is_refused_before_anything_is_made(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The message says which one it is, which is needed, and how to name another."""
    monkeypatch.setattr(sys, "version_info", (3, 11, 2, "final", 0))
    assert install.main(tmp_path / "made", "demo") == 1
    said = capsys.readouterr().err
    assert "this is Python 3.11.2; 3.11.5 or newer is needed" in said
    assert "make demo PYTHON=" in said
    assert not (tmp_path / "made").exists()
