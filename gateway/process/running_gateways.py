"""The gateways of this user that run on this machine, and the default places of their files.

Each writes a small file while it serves, so that commands find its database; what cannot be written
is left out, for nothing here may keep a gateway from serving."""

import json
import os
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from gateway.values import frozen


@frozen
class RunningGateway:
    """One gateway on this machine."""

    pid: int  # of the process, or of the parent of several workers
    url: str  # without `/v1`
    database: str  # its file; "" when it has none
    started_at: float  # epoch seconds
    key: str = ""  # with which it is controlled; "" if the operator has set one, or it is hidden


@contextmanager
def announced(url: str, database: str, key: str = "") -> Iterator[None]:
    """List this process among the running gateways while the block runs. `key`: the admin key of
    this process; only this user can read the file."""
    facts = {"url": url, "database": database, "started_at": time.time(), "key": key}
    file = None
    with suppress(OSError):
        folder = _folder()
        for entry, known in _entries(folder):
            if known is None:
                entry.unlink(missing_ok=True)
        # One process may run several gateways.
        file = folder / f"{os.getpid()}-{url.rpartition(':')[2]}.json"
        file.touch(mode=0o600)
        file.write_text(json.dumps({"pid": os.getpid(), **facts}), encoding="utf-8")
    try:
        yield
    finally:
        with suppress(OSError):
            if file is not None:
                file.unlink(missing_ok=True)


def running_gateways() -> list[RunningGateway]:
    """The gateways whose process is alive, newest first."""
    try:
        found = [gateway for _, gateway in _entries(_folder()) if gateway is not None]
    except OSError:
        return []
    return sorted(found, key=lambda gateway: -gateway.started_at)


def state_folder() -> Path:
    """Directory of `gateway wrap`'s database and log: `$XDG_STATE_HOME`, or `~/.local/state`."""
    home = os.environ.get("XDG_STATE_HOME")
    return (Path(home) if home else Path.home() / ".local" / "state") / "steering-gateway"


def state_database() -> Path:
    """The database of gateways that were started for one command, in any folder."""
    return state_folder() / "gateway.db"


def _folder() -> Path:
    """A folder that only this user can write. Raises: OSError when it is another's."""
    runtime = os.environ.get("XDG_RUNTIME_DIR")
    user = 0
    if hasattr(os, "getuid"):
        user = os.getuid()
    folder = Path(tempfile.gettempdir()) / f"steering-gateway-{user}"
    if runtime:
        folder = Path(runtime) / "steering-gateway"
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    stat = folder.lstat()
    if folder.is_symlink() or (hasattr(os, "getuid") and (stat.st_uid != user or stat.st_mode & 2)):
        raise PermissionError(f"{folder} is not this user's")
    return folder


def _entries(folder: Path) -> Iterator[tuple[Path, RunningGateway | None]]:
    """Each file with its gateway; None when that has ended or the file is no entry."""
    for file in folder.glob("*.json"):
        try:
            gateway = RunningGateway(**json.loads(file.read_text(encoding="utf-8")))
        except (OSError, ValueError, TypeError):
            yield file, None
            continue
        yield file, gateway if is_alive(gateway.pid) else None


def is_alive(pid: int) -> bool:
    """Whether a process runs; False where that cannot be seen."""
    if os.name == "nt":  # signal 0 is not a question there
        return False
    with suppress(PermissionError):
        try:
            os.kill(pid, 0)
        except ProcessLookupError:
            return False
    return True
