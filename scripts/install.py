"""Set up a virtual environment from requirements.lock, and say what is happening meanwhile.

    python3 scripts/install.py .venv demo       # what `gateway demo` needs
    python3 scripts/install.py .venv gateway    # the gateway with LiteLLM, and the command for it
    python3 scripts/install.py .venv all        # and what tests and checks need
    python3 scripts/install.py .venv --link     # puts the command `gateway` on the path

Each adds to the one before; a package that is there at its version is left alone. Needs the
standard library only. pip's own output is kept back, and printed when pip fails.
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
LOCK = ROOT / "requirements.lock"
CORE = ROOT / "packages" / "steering-gateway-core"
KIT = ROOT / "packages" / "steering-gateway-testing"
KEPT_LINES = 30
OLDEST = (3, 11, 5)
"""As `requires-python` of pyproject.toml: pip would refuse an older one after all downloads."""
BUILDERS = ("hatchling", "editables")
"""What an editable install of the gateway is made with."""

OWN: dict[str, dict[str, Path]] = {
    "demo": {},  # `python -m gateway` runs the checkout's own
    "gateway": {"steering-gateway": ROOT},
    "all": {"steering-gateway": ROOT, "steering-gateway-testing": KIT},
}
"""The distributions of this repository that a stage installs, by name."""
SIZES = {
    "demo": "34 MB to download, 175 MB on disk",
    "gateway": "115 MB to download, 520 MB on disk",
    "all": "200 MB to download, 1,050 MB on disk",
}
"""Rounded up, with byte code. Source: the lock file of 2026-11-30, Linux, Python 3.11."""

# What pip says of each package, once: while it looks for it, and while it installs all of them.
_FOUND = re.compile(r"^(?:Collecting|Requirement already satisfied:) ([\w.-]+)")
_INSTALLING = "Installing collected packages"
_ENTRY = re.compile(r"^([\w.-]+)(?:\[[^]]*\])?==(\S+)")


def locked(text: str) -> dict[str, str]:
    """The entries of a lock file by name, with their hashes and the packages they are there for."""
    entries = re.split(r"^(?=[\w.-]+(?:\[[^]]*\])?==)", text, flags=re.MULTILINE)
    return {_key(found[1]): entry for entry in entries if (found := _ENTRY.match(entry))}


def needed(entries: dict[str, str], roots: list[str]) -> dict[str, str]:
    """The entries of `roots`, and of all that the lock file says is there for one of them."""
    wanted = {_key(name) for name in roots}
    while True:
        added = {
            name
            for name, entry in entries.items()
            if name not in wanted
            and wanted & set(map(_key, re.findall(r"#\s+(?:via )?(\S+)", entry)))
        }
        if not added:
            return {name: entry for name, entry in entries.items() if name in wanted}
        wanted |= added


def asked_by(project: Path) -> list[str]:
    """The names of the packages that a project asks for, its extras left out."""
    import tomllib  # an older Python has to come as far as main()

    text = (project / "pyproject.toml").read_text("utf-8")
    asked: list[str] = tomllib.loads(text)["project"]["dependencies"]
    return [re.split(r"[^\w.-]", line, maxsplit=1)[0] for line in asked]


def packages(stage: str) -> dict[str, str]:
    """The entries of the lock file that a stage installs."""
    entries = locked(LOCK.read_text("utf-8"))
    if stage == "demo":
        return needed(entries, asked_by(CORE))
    if stage == "gateway":
        return needed(entries, [*asked_by(ROOT), *BUILDERS])
    return entries


def main(folder: Path, stage: str) -> int:
    """Create `folder` if needed and install what the stage lacks. Returns the exit status."""
    if sys.version_info < OLDEST:
        own = ".".join(map(str, sys.version_info[:3]))
        oldest = ".".join(map(str, OLDEST))
        print(f"this is Python {own}; {oldest} or newer is needed.", file=sys.stderr)
        print(
            "With another: add PYTHON=python3.13, as in make demo PYTHON=python3.13",
            file=sys.stderr,
        )
        return 1
    began = time.monotonic()
    python = folder / "bin" / "python"
    if not python.exists():
        try:
            venv.create(folder, with_pip=True)
        except subprocess.CalledProcessError:
            print("this Python cannot make an environment with pip:", file=sys.stderr)
            print("on Debian and Ubuntu, apt install python3-venv", file=sys.stderr)
            return 1
    there = present(folder)
    entries = packages(stage)
    missing = [
        text for name, text in entries.items() if f"=={there.get(name)}" not in text.split()[0]
    ]
    status = 0
    pip = [str(python), "-m", "pip", "install", "--disable-pip-version-check", "--no-input"]
    if missing:
        print(
            f"installing {len(missing)} packages into {folder}, only this once:\n{SIZES[stage]}",
            flush=True,
        )
        file = folder / "missing.txt"
        file.write_text("".join(missing), "utf-8")
        # The lock names every package, so nothing is left for pip to find out.
        status = _watched([*pip, "--no-deps", "--require-hashes", "-r", str(file)], len(missing))
    lacking = [project for name, project in OWN[stage].items() if name not in there]
    if lacking and status == 0:
        editable = [argument for project in lacking for argument in ("-e", str(project))]
        status = _watched([*pip, "--no-deps", "--no-build-isolation", *editable], 0)
    if status == 0 and (missing or lacking):
        print(f"installed in {time.monotonic() - began:.0f} s\n", flush=True)
    return status


def present(folder: Path) -> dict[str, str]:
    """The versions of the packages of an environment, by name."""
    metadata = folder.glob("lib/python*/site-packages/*.dist-info")
    pairs = (path.name.removesuffix(".dist-info").rpartition("-")[::2] for path in metadata)
    return {_key(name): version for name, version in pairs}


def _key(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


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
    """Run pip; on a terminal one line counts the packages, elsewhere every twentieth is shown."""
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
            if found and count and found[1] not in done:
                done.add(found[1])
                text = f"  {min(len(done), count)} of {count}: {found[1]}"
                if shown:
                    print(f"\r{text[:78]:78}", end="", flush=True)
                elif len(done) % 20 == 0:
                    print(text, flush=True)
            elif line.startswith(_INSTALLING) and count:
                print(f"{chr(13) if shown else ''}{'  all there, unpacking':78}", flush=True)
    if process.returncode != 0:
        print("\npip failed; its last lines:\n" + "".join(last), file=sys.stderr)
    return process.returncode


if __name__ == "__main__":
    environment, wanted = Path(sys.argv[1]), sys.argv[2]
    ended = link(environment, Path.home()) if wanted == "--link" else main(environment, wanted)
    raise SystemExit(ended)
