"""The image: what its build does with the files of this repository."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

ROOT = Path(__file__).parents[1]
LINES = (ROOT / "Dockerfile").read_text().replace("\\\n", " ").splitlines()


def test_constraints_are_what_pip_takes(tmp_path: Path) -> None:
    """Every package of the lock is pinned, by its bare name: pip refuses extras in constraints."""
    shutil.copy(ROOT / "requirements.lock", tmp_path)
    (command,) = (line.removeprefix("RUN ") for line in LINES if "> constraints.txt" in line)
    subprocess.run(["sh", "-c", command], cwd=tmp_path, check=True)
    made = (tmp_path / "constraints.txt").read_text().splitlines()
    assert all(re.fullmatch(r"[A-Za-z0-9._-]+==[A-Za-z0-9.+!]+", line) for line in made)
    lock = (ROOT / "requirements.lock").read_text().splitlines()
    locked = [re.match(r"[A-Za-z0-9._-]+", line) for line in lock if not line.startswith("#")]
    assert [line.partition("==")[0] for line in made] == [name[0] for name in locked if name]


def test_what_is_copied_is_there() -> None:
    """Each file the build copies exists, and .dockerignore lets it through."""
    allowed = (ROOT / ".dockerignore").read_text().splitlines()
    copied = [line.split()[1:-1] for line in LINES if line.startswith("COPY ")]
    names = [name for words in copied for name in words if not words[0].startswith("--from")]
    assert names
    for name in names:
        assert (ROOT / name).exists()
        assert f"!{name}" in allowed
