"""Session logs on this machine, and the format of each: found in the home directory, or named."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path

from msgspec import Struct

from gateway.errors import ConfigError
from gateway.history.log_file import LogFile
from gateway.history.readers import LogFormat, formats
from gateway.history.session import Session

_NOT_LOGS = frozenset({".git", "node_modules", ".venv", "__pycache__"})


class Found(Struct, frozen=True, kw_only=True):
    """A file of a known format; or with `format` None and a `problem`, one that has none."""

    path: Path
    format: LogFormat | None = None
    problem: str = ""

    def sessions(self, log: LogFile) -> Iterator[Session]:
        """The sessions of the file; the first has its lines and what was not read of them.

        Raises ConfigError: the file cannot be read.
        """
        assert self.format is not None, "only a file of a known format has sessions"
        sessions = list(self.format.read(log))
        if sessions:
            first = sessions[0]
            first.lines, first.unread, first.reasons = log.seen, log.unread, dict(log.reasons)
        yield from sessions


def at_home(home: Path) -> list[Found]:
    """The session logs of all known agents below a home directory, the newest first."""
    found: dict[Path, Found] = {}
    for each in formats():
        for pattern in each.homes:
            for path in home.glob(pattern):
                if path.is_file():
                    found.setdefault(path, Found(path=path, format=each))
    return sorted(found.values(), key=lambda f: f.path.stat().st_mtime, reverse=True)


def named(paths: Iterable[Path]) -> list[Found]:
    """The session logs among these files and folders. A file that was named and has no known format
    has a `problem`; in a folder such files are left out.

    Raises ConfigError: a path does not exist.
    """
    found: list[Found] = []
    for path in paths:
        if path.is_dir():
            found += (each for each in map(identify, _files(path)) if each.format is not None)
        elif path.exists():
            found.append(identify(path))
        else:
            raise ConfigError(f"{path}: no such file or directory")
    return found


def identify(path: Path) -> Found:
    """The format of one file, by its beginning and its name."""
    log = LogFile(path)
    try:
        head = log.head()
    except ConfigError as exc:
        return Found(path=path, problem=str(exc))
    if not head.strip():
        return Found(path=path, problem=f"{path}: empty")
    for each in formats():
        if each.matches(head, log.name):
            return Found(path=path, format=each)
    known = ", ".join(each.name for each in formats())
    return Found(path=path, problem=f"{path}: not a session log of {known}")


def _files(folder: Path) -> Iterator[Path]:
    for path in sorted(folder.iterdir()):
        if path.is_dir() and not path.is_symlink():
            if path.name not in _NOT_LOGS:
                yield from _files(path)
        elif path.is_file():
            yield path
