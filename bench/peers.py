"""Other gateways, installed once into a cache directory and left there for the next run."""

from __future__ import annotations

import importlib.metadata
import os
import shutil
import subprocess
import sys
from pathlib import Path

PORTKEY_VERSION = "1.15.2"
SWITCHYARD_VERSION = "0.3.0"
_INSTALL_S = 900.0


class Unavailable(Exception):
    """This peer cannot be measured here; the message says why."""


def cache_dir() -> Path:
    """Where peers are kept; `$XDG_CACHE_HOME` moves it."""
    base = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(base) / "steering-gateway-bench"


def litellm_proxy() -> Path:
    """The `litellm` command of a virtual environment of its own, at the version this gateway uses.

    Raises:
        Unavailable: it cannot be installed.
    """
    version = importlib.metadata.version("litellm")
    home = cache_dir() / f"litellm-{version}"
    command = home / "bin" / "litellm"
    if not (home / "installed").exists():
        shutil.rmtree(home, ignore_errors=True)
        _run("litellm[proxy]", sys.executable, "-m", "venv", str(home))
        pip = (str(home / "bin" / "python"), "-m", "pip", "install", "--quiet")
        _run("litellm[proxy]", *pip, f"litellm[proxy]=={version}")
        (home / "installed").touch()
    return command


def portkey() -> tuple[Path, Path]:
    """(node, the gateway's start script).

    Raises:
        Unavailable: there is no node, or no npm, or the package cannot be installed.
    """
    node, npm = shutil.which("node"), shutil.which("npm")
    if not node or not npm:
        raise Unavailable("node and npm are not installed")
    home = cache_dir() / f"portkey-{PORTKEY_VERSION}"
    script = home / "node_modules" / "@portkey-ai" / "gateway" / "build" / "start-server.js"
    if not script.exists():
        home.mkdir(parents=True, exist_ok=True)
        options = ("install", "--no-save", "--no-audit", "--no-fund", "--prefix", str(home))
        _run("@portkey-ai/gateway", npm, *options, f"@portkey-ai/gateway@{PORTKEY_VERSION}")
    return Path(node), script


def switchyard() -> Path:
    """The Python that has Switchyard's wheel, which holds its server.

    Raises:
        Unavailable: it cannot be installed.
    """
    home = cache_dir() / f"switchyard-{SWITCHYARD_VERSION}"
    python = home / "bin" / "python"
    if not (home / "installed").exists():
        shutil.rmtree(home, ignore_errors=True)
        _run("nemo-switchyard", sys.executable, "-m", "venv", str(home))
        pip = (str(python), "-m", "pip", "install", "--quiet")
        _run("nemo-switchyard", *pip, f"nemo-switchyard=={SWITCHYARD_VERSION}")
        (home / "installed").touch()
    return python


def _run(what: str, *command: str) -> None:
    print(f"installing {what} into {cache_dir()} ...", flush=True)
    cache_dir().mkdir(parents=True, exist_ok=True)
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=_INSTALL_S, check=False
        )
    except (OSError, subprocess.TimeoutExpired) as exc:
        raise Unavailable(f"{what} cannot be installed: {exc}") from exc
    if done.returncode:
        last = (done.stderr.strip() or done.stdout.strip()).splitlines()[-1:]
        raise Unavailable(f"{what} cannot be installed: {' '.join(last)[:200]}")
