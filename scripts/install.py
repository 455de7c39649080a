"""Set up a virtual environment from requirements.lock, and say what is happening meanwhile.

    python3 scripts/install.py .venv
    python3 scripts/install.py .venv --link     # puts the command `gateway` on the path

Needs the standard library only. pip's own output is kept back, and printed when pip fails.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import time
import venv
from collections import deque
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
OWN = (ROOT, ROOT / "packages" / "steering-gateway-testing")
"""The distributions of this repository: the gateway, and its test kit."""
LOCK = ROOT / "requirements.lock"
KEPT_LINES = 30

SIZE = "200 MB to download, 800 MB on disk"
"""Rounded up. Source: the lock file of 2026-11-26, Linux, Python 3.11."""

# What pip says of each package, once: while it looks for it, and while it installs all of them.
_FOUND = re.compile(r"^(?:Collecting|Requirement already satisfied:) ([\w.-]+)")
_INSTALLING = "Installing collected packages"


def main(folder: Path) -> int:
    """Create `folder` if needed and install the locked packages, and the own ones editable."""
    began = time.monotonic()
    python = folder / "bin" / "python"
    if not python.exists():
        venv.create(folder, with_pip=True)
    count = len(re.findall(r"^[\w.-]+(?:\[[^]]*\])?==", LOCK.read_text(), re.MULTILINE))
    print(
        f"installing {count} packages into {folder}: {SIZE};\none to four minutes, only this once",
        flush=True,
    )
    pip = [str(python), "-m", "pip", "install", "--disable-pip-version-check", "--no-input"]
    status = _watched([*pip, "--require-hashes", "-r", str(LOCK)], count)
    if status == 0:
        own = [argument for folder in OWN for argument in ("-e", str(folder))]
        status = _watched([*pip, "--no-deps", "--no-build-isolation", *own], len(OWN))
    if status == 0:
        print(f"installed in {time.monotonic() - began:.0f} s\n", flush=True)
    return status


def link(folder: Path, home: Path) -> int:
    """Put the command of the environment on the path, as a link in `~/.local/bin`.

    A file of that name that is no link of ours stays as it is. Returns the exit status.
    """
    command = (folder / "bin" / "gateway").resolve().absolute()
    place = home / ".local" / "bin"
    target = place / "gateway"
    if target.exists() and not target.is_symlink():
        print(f"{target} is another program: remove it, or call {command}", file=sys.stderr)
        return 1
    place.mkdir(parents=True, exist_ok=True)
    target.unlink(missing_ok=True)
    target.symlink_to(command)
    print(f"{target} -> {command}")
    if str(place) not in os.environ.get("PATH", "").split(os.pathsep):
        print(f'not on the path yet: export PATH="{place}:$PATH"')
    return 0


def _watched(command: list[str], count: int) -> int:
    """Run pip; on a terminal one line counts the packages, elsewhere every twentieth is told."""
    shown = sys.stdout.isatty()
    last: deque[str] = deque(maxlen=KEPT_LINES)
    done: set[str] = set()
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, cwd=ROOT
    ) as process:
        assert process.stdout is not None
        for line in process.stdout:
            last.append(line)
            found = _FOUND.match(line)
            if found and found[1] not in done:
                done.add(found[1])
                text = f"  {min(len(done), count)} of {count}: {found[1]}"
                if shown:
                    print(f"\r{text[:78]:78}", end="", flush=True)
                elif len(done) % 20 == 0:
                    print(text, flush=True)
            elif line.startswith(_INSTALLING) and count > len(OWN):
                print(f"{chr(13) if shown else ''}{'  all there, unpacking':78}", flush=True)
    if process.returncode != 0:
        print("\npip failed; its last lines:\n" + "".join(last), file=sys.stderr)
    return process.returncode


if __name__ == "__main__":
    named = [argument for argument in sys.argv[1:] if argument != "--link"]
    environment = Path(named[0] if named else ".venv")
    links = "--link" in sys.argv
    raise SystemExit(link(environment, Path.home()) if links else main(environment))
