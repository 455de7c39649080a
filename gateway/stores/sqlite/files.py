"""The files of a database on disk: which they are, and what a deleted one leaves behind."""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from gateway.config.storage import StorageSettings

if sys.platform != "win32":
    import fcntl

_LOG = "-wal"
_LOG_SUFFIXES = (_LOG, "-shm")

_FileId = tuple[int, int] | None
"""Device and inode; None when there is no file."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FileIdentity:
    """The files that were opened: the database, and its write-ahead log."""

    path: str
    in_memory: bool
    database: _FileId
    log: _FileId

    def is_current(self) -> bool:
        """Whether these files are still those at the path, and have not been emptied."""
        return self.in_memory or (
            self.database is not None
            and _id(self.path) == self.database
            and _id(self.path + _LOG) == self.log
        )


def file_identity(settings: StorageSettings) -> FileIdentity:
    """The files at `settings.path`, of a database that is open."""
    path = settings.path
    return FileIdentity(
        path=path, in_memory=settings.in_memory, database=_id(path), log=_id(path + _LOG)
    )


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


def remove_log_of(identity: FileIdentity) -> None:
    """Remove the log of a database whose file was replaced: it does not belong to the new file."""
    path = identity.path
    if identity.log is None or _id(path) in (None, identity.database):
        return
    with locked(Path(path).parent):
        if _id(path + _LOG) == identity.log:
            _remove_log(path)


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
