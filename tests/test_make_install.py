"""`make install` puts the command on the path, and takes no other program's place."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

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
