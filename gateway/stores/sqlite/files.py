"""The files of a database on disk: which they are, and what a deleted one leaves behind."""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Iterator
from pathlib import Path

from gateway.config.storage import StorageSettings

if sys.platform != "win32":
    import fcntl

_LOG = "-wal"
_LOG_SUFFIXES = (_LOG, "-shm")

_FileId = tuple[int, int] | None
"""Device and inode; None when there is no file."""


class FileIdentity:
    """The files of an open database at `settings.path`: itself, and its write-ahead log."""

    def __init__(self, settings: StorageSettings) -> None:
        self._path, self._in_memory = settings.path, settings.in_memory
        self._database, self._log = _id(self._path), _id(self._path + _LOG)

    def is_current(self) -> bool:
        """Whether these files are still those at the path, and have not been emptied."""
        return self._in_memory or (
            self._database is not None
            and _id(self._path) == self._database
            and _id(self._path + _LOG) == self._log
        )

    def remove_log(self) -> None:
        """Remove the log if the file was replaced: it does not belong to the new one."""
        if self._log is None or _id(self._path) in (None, self._database):
            return
        with locked(Path(self._path).parent):
            if _id(self._path + _LOG) == self._log:
                _remove_log(self._path)


def create_private(path: str) -> None:
    """Create the file, readable by its owner only, and its directory, if they are missing.

    SQLite would give a new file the process's default mode; this one holds what agents wrote. A
    log that a deleted file left behind is removed: it belongs to no file any more, and another
    process may still have it open. Raises: OSError.
    """
    directory = Path(path).parent
    directory.mkdir(parents=True, exist_ok=True)
    with locked(directory):
        if os.path.exists(path):
            return
        _remove_log(path)
        os.close(os.open(path, os.O_CREAT | os.O_RDWR, 0o600))


def _remove_log(path: str) -> None:
    for suffix in _LOG_SUFFIXES:
        Path(path + suffix).unlink(missing_ok=True)


def _id(path: str) -> _FileId:
    try:
        stat = os.stat(path)
    except OSError:
        return None
    # An empty file is none of ours: somebody cut it off.
    return (stat.st_dev, stat.st_ino) if stat.st_size or path.endswith(_LOG_SUFFIXES) else None


@contextlib.contextmanager
def locked(directory: Path) -> Iterator[None]:
    """Let one process at a time create or remove files in a directory. Raises: OSError."""
    if sys.platform == "win32":  # an open file cannot be deleted there
        yield
        return
    handle = os.open(directory, os.O_RDONLY)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX)
        yield
    finally:
        os.close(handle)
