"""Session logs on this machine, and the format of each: found in the home directory, or named."""

import os
from collections.abc import Iterable, Iterator
from itertools import chain
from pathlib import Path

from gateway.errors import ConfigError
from gateway.features.history.log_file import LogFile
from gateway.features.history.log_places import LogFormat, formats
from gateway.features.history.session import Session
from gateway.values import Value

_NOT_LOGS = frozenset({".git", "node_modules", ".venv", "__pycache__"})


class Found(Value):
    """A file that was looked at."""

    path: Path  # of the file
    format: LogFormat | None = None  # None: it has none that is known
    problem: str = ""  # why it has none; "" for a known format

    def open(self) -> LogFile:
        """The file, for one reading."""
        return LogFile(self.path)

    @property
    def stat(self) -> os.stat_result:
        """Size and time of the last change, zeros if it has gone since it was found."""
        try:
            return self.path.stat()
        except OSError:
            return os.stat_result([0] * 10)

    def sessions(self, log: LogFile) -> Iterator[Session]:
        """The sessions of the file; the first has its lines and what was not read of them. Raises
        ConfigError: the file cannot be read."""
        assert self.format is not None, "only a file of a known format has sessions"
        sessions = list(self.format.read(log))
        for each in sessions:
            each.name_calls()
            each.join_stops()
        for first in sessions[:1]:
            first.lines = log.seen
            first.unread = log.unread
            first.reasons = dict(log.reasons)
        yield from sessions


def at_home(home: Path) -> list[Found]:
    """The session logs of all known agents below a home directory, the newest first."""
    found: dict[Path, Found] = {}
    for each in formats():
        for path in chain(*map(home.glob, each.homes)):
            if path.is_file():
                found.setdefault(path.resolve(), Found(path=path, format=each))
    return sorted(found.values(), key=lambda each: each.stat.st_mtime, reverse=True)


def named(paths: Iterable[Path]) -> list[Found]:
    """Returns the session logs among these files and folders. A file that was named and holds no
    session has a `problem`; inside a folder such files are left out. Raises ConfigError: a path
    does not exist."""
    found: list[Found] = []
    for path in paths:
        try:
            path.stat()
        except OSError as exc:  # not there, a name that is too long, a circle of links
            raise ConfigError(f"{path}: cannot be read: {exc.strerror}") from exc
        found += _in_folder(path) if path.is_dir() else [identify(path)]
    return found


def identify(path: Path) -> Found:
    """The format of one file, by its beginning and its name."""
    if not path.is_file():
        return Found(path=path, problem=f"{path}: neither a file nor a folder")
    log = LogFile(path)
    try:
        head = log.head()
    except ConfigError as exc:
        return Found(path=path, problem=str(exc))
    if not head.strip():
        return Found(path=path, problem=f"{path}: empty")
    fitting = (each for each in formats() if each.matches(head, log.name))
    if known := next(fitting, None):
        return Found(path=path, format=known)
    return Found(path=path, problem=f"{path}: not a session log of {_known()}")


def agent_of(path: Path) -> str:
    """The agent whose session log a file is; "" for recorded runs and for what is no log."""
    found = identify(path).format
    if found is None or found.name == "recordings":
        return ""
    return found.name


def _in_folder(folder: Path) -> list[Found]:
    problems: list[Found] = []
    files = list(_files(folder, problems))
    logs = [each for each in map(identify, files) if each.format is not None]
    if not logs and not problems:
        fault = f"{folder}: no session log of {_known()} in this folder"
        problems.append(Found(path=folder, problem=fault))
    return logs + problems


def _known() -> str:
    return ", ".join(each.name for each in formats())


def _files(folder: Path, problems: list[Found]) -> Iterator[Path]:
    """The files below a folder; links to folders are not followed, for they may lead back."""
    try:
        inside = sorted(folder.iterdir())
    except OSError as exc:
        problems.append(Found(path=folder, problem=f"{folder}: cannot be read: {exc.strerror}"))
        return
    for path in inside:
        if path.is_dir() and not path.is_symlink():
            if path.name not in _NOT_LOGS:
                yield from _files(path, problems)
        elif path.is_file():
            yield path
