"""A copy of the package, in which a test follows a documented change recipe."""

from __future__ import annotations

import filecmp
import importlib.util
import os
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


@dataclass(frozen=True)
class ScratchCopy:
    """The package, `config.yaml` and `docs/` in a directory that a test may change.

    Paths are relative to `root`, for example `gateway/backends.py`.
    """

    root: Path

    def read(self, path: str) -> str:
        """The text of a file of the copy."""
        return (self.root / path).read_text()

    def write(self, path: str, text: str) -> None:
        """Make or overwrite a file, and the directories above it."""
        target = self.root / path
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(text)
        # The copy brings its byte code along, which must not outlive the source.
        Path(importlib.util.cache_from_source(str(target))).unlink(missing_ok=True)

    def replace(self, path: str, old: str, new: str) -> None:
        """Replace the one occurrence of `old`; no occurrence, or a second one, fails the test."""
        text = self.read(path)
        assert text.count(old) == 1, f"{path} has {text.count(old)} times {old!r}"
        self.write(path, text.replace(old, new))

    def run(
        self, *arguments: str, stdin: str | None = None, status: int = 0
    ) -> subprocess.CompletedProcess[str]:
        """`python ARGUMENTS` in the copy, with the copy's package; checks the exit status."""
        own = {"PYTHONPATH": str(self.root), "PYTHONDONTWRITEBYTECODE": "1"}
        ended = subprocess.run(
            [sys.executable, *arguments],
            cwd=self.root,
            env={**os.environ, **own},
            input=stdin,
            capture_output=True,
            text=True,
            timeout=300,
            check=False,
        )
        said = ended.stdout + ended.stderr
        assert ended.returncode == status, f"exit status {ended.returncode}\n{said}"
        return ended

    def changed(self) -> set[str]:
        """The files of the package that were added, changed or removed, relative to `root`."""
        ours, theirs = _sources(self.root), _sources(ROOT)
        differing = {
            path
            for path in ours & theirs
            if not filecmp.cmp(self.root / path, ROOT / path, shallow=False)
        }
        return differing | (ours ^ theirs)


@pytest.fixture
def scratch(tmp_path: Path) -> ScratchCopy:
    """A fresh copy of the package for this test."""
    root = tmp_path / "scratch"
    for name in ("gateway", "docs"):
        shutil.copytree(ROOT / name, root / name)
    shutil.copy2(ROOT / "config.yaml", root)
    return ScratchCopy(root)


def _sources(root: Path) -> set[str]:
    files = (path for path in (root / "gateway").rglob("*") if path.is_file())
    return {str(path.relative_to(root)) for path in files if path.suffix != ".pyc"}
