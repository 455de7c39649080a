"""Session logs on this machine, and the format of each: found in the home directory, or named."""

import io
import os
import re
import subprocess
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import IO, NamedTuple

from msgspec import Struct
from msgspec.structs import replace

from gateway.errors import ConfigError
from gateway.history.log_file import HEAD_BYTES, LogFile
from gateway.history.readers import LogFormat, formats
from gateway.history.session import Session

_NOT_LOGS = frozenset({".git", "node_modules", ".venv", "__pycache__"})


class Found(Struct, frozen=True, kw_only=True):
    """A file of a known format; or with `format` None and a `problem`, one that has none. `blob`:
    the file is in a git repository."""

    path: Path
    format: LogFormat | None = None
    problem: str = ""
    blob: "Blob | None" = None

    def open(self) -> LogFile:
        """The file, for one reading."""
        return CheckpointFile(self.path, self.blob) if self.blob else LogFile(self.path)

    @property
    def size(self) -> int:
        """Its size in bytes, 0 if it has gone."""
        return self.blob.size if self.blob else _stat(self.path)[0]

    def sessions(self, log: LogFile) -> Iterator[Session]:
        """The sessions of the file; the first has its lines and what was not read of them. Raises
        ConfigError: the file cannot be read."""
        assert self.format is not None, "only a file of a known format has sessions"
        sessions = list(self.format.read(log))
        for first in sessions[:1]:
            first.lines, first.unread, first.reasons = log.seen, log.unread, dict(log.reasons)
        yield from sessions


def at_home(home: Path) -> list[Found]:
    """The session logs of all known agents below a home directory, the newest first."""
    patterns = [(each, pattern) for each in formats() for pattern in each.homes]
    found: dict[Path, Found] = {}
    for each, pattern in patterns:
        for path in filter(Path.is_file, home.glob(pattern)):
            found.setdefault(path, Found(path=path, format=each))
    return sorted(found.values(), key=lambda each: _stat(each.path)[1], reverse=True)


def named(paths: Iterable[Path]) -> list[Found]:
    """The session logs among these files and folders, and on the checkpoint branches of a
    repository. What was named and has none has a `problem`; inside of a folder such files are left
    out. Raises ConfigError: a path does not exist."""
    found: list[Found] = []
    for path in paths:
        try:
            path.stat()
        except OSError as exc:  # not there, a name that is too long, a circle of links
            raise ConfigError(f"{path}: cannot be read: {exc.strerror}") from exc
        found += _in_folder(path) if path.is_dir() else [identify(path)]
    return found


def identify(path: Path, blob: "Blob | None" = None) -> Found:
    """The format of one file, by its beginning and its name."""
    found = Found(path=path, blob=blob)
    if not (blob or path.is_file()):
        return replace(found, problem=f"{path}: neither a file nor a folder")
    try:
        log = found.open()
        head, name = log.head(), log.name
    except ConfigError as exc:
        return replace(found, problem=str(exc))
    if not head.strip():
        return replace(found, problem=f"{path}: empty")
    fitting = (each for each in formats() if each.matches(head, name))
    if known := next(fitting, None):
        return replace(found, format=known)
    return replace(found, problem=f"{path}: not a session log of {_known()}")


def _in_folder(folder: Path) -> list[Found]:
    problems: list[Found] = []
    files: list[tuple[Path, Blob | None]] = [(path, None) for path in _files(folder, problems)]
    if is_repository(folder):
        try:
            files = [*transcripts(folder), *files]
        except ConfigError as exc:
            problems.insert(0, Found(path=folder, problem=str(exc)))
    logs = [each for each in (identify(*file) for file in files) if each.format is not None]
    if not logs and not problems:
        fault = f"{folder}: no session log of {_known()} in this folder"
        problems.append(Found(path=folder, problem=fault))
    return logs + problems


def _known() -> str:
    return ", ".join(each.name for each in formats())


def _stat(path: Path) -> tuple[int, float]:
    """Size and time of the last change of a file, 0 if it has gone since it was found."""
    try:
        values = path.stat()
    except OSError:
        return 0, 0.0
    return values.st_size, values.st_mtime


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


# Each checkpoint has a copy of its session's whole transcript so far, in the form of the
# session's agent, beside a `metadata.json`. Only the longest copy of a session is read. They are
# taken from the object store: nothing is checked out, and nothing is fetched.
_REFS = ("refs/heads/entire/**", "refs/remotes/*/entire/**")
_NOT_ASKED = {"GIT_ALLOW_PROTOCOL": "none", "GIT_TERMINAL_PROMPT": "0", "GIT_OPTIONAL_LOCKS": "0"}
"""A clone without all objects would fetch them; there is no protocol of the name `none`."""
_LONGEST_S = 60
_SESSION = re.compile(rb'"(?:sessionId|session_id)"\s*:\s*"([^"]{1,200})"')
_OTHERS = ("metadata.json", "package.json", "package-lock.json")


class Blob(NamedTuple):
    """A file in a git repository: the branch and its path there, its object and size."""

    repository: Path
    branch: str
    path: str
    object: str
    size: int

    def read(self) -> bytes:
        """Its content. Raises ConfigError: git does not give it."""
        return _git(self.repository, "cat-file", "blob", self.object)

    @property
    def folder(self) -> str:
        """The folder of the file, on its branch."""
        return self.path.rpartition("/")[0]


class CheckpointFile(LogFile):
    """A transcript of a checkpoint; each is called `full.jsonl`, also where it is one document."""

    def __init__(self, path: Path, blob: Blob) -> None:
        super().__init__(path)
        self._blob = blob

    @property
    def name(self) -> str:
        """The name by which its format is recognised."""
        first = self.head().lstrip().partition(b"\n")[0].strip()
        return self.path.stem + ".json" if first in (b"{", b"[") else self.path.name

    def _open(self) -> IO[bytes]:
        return io.BytesIO(self._blob.read())


def is_repository(folder: Path) -> bool:
    """True for a folder that git works in, and for a bare repository."""
    bare = (folder / "HEAD").is_file() and (folder / "objects").is_dir()
    return bare or (folder / ".git").exists()


def transcripts(folder: Path) -> list[tuple[Path, Blob]]:
    """The longest transcript of each session on the branches of a repository, under a path that
    names it. Raises ConfigError: git is missing, or does not read the repository."""
    found: dict[str, Blob] = {}
    for branch in _git(folder, "for-each-ref", "--format=%(refname)", *_REFS).decode().split():
        blobs = list(_blobs(folder, branch))
        sessions = _sessions(folder, blobs)
        for blob in filter(_is_transcript, blobs):
            match = None if blob.folder in sessions else _SESSION.search(blob.read(), 0, HEAD_BYTES)
            named = match[1].decode("utf-8", "replace") if match else blob.object
            name = sessions.get(blob.folder) or named
            if name not in found or found[name].size < blob.size:
                found[name] = blob
    return [(folder / blob.branch / blob.path, blob) for blob in found.values()]


def _is_transcript(blob: Blob) -> bool:
    """Other branches than those of checkpoints hold whole work trees."""
    name = blob.path.rpartition("/")[2]
    fits = name.endswith((".jsonl", ".json")) and name not in _OTHERS and blob.size > 0
    return fits and ("entire/checkpoints" in blob.branch or blob.path.startswith(".entire/"))


def _sessions(folder: Path, blobs: Sequence[Blob]) -> dict[str, str]:
    """The session's id by folder, from the `metadata.json` of the checkpoints."""
    asked = [b for b in blobs if b.path.endswith("metadata.json") and b.size < HEAD_BYTES]
    names = "".join(f"{blob.object}\n" for blob in asked).encode()
    answers, at, found = _git(folder, "cat-file", "--batch", given=names), 0, {}
    for blob in asked:  # each answer: a line with name, type and size, then the content
        start = answers.find(b"\n", at) + 1
        at = start + blob.size + 1
        if match := _SESSION.search(answers, start, at):
            found[blob.folder] = match[1].decode("utf-8", "replace")
    return found


def _blobs(folder: Path, branch: str) -> Iterator[Blob]:
    listing = _git(folder, "ls-tree", "-r", "-l", "-z", "--full-tree", branch)
    for entry in listing.decode("utf-8", "surrogateescape").split("\0"):
        head, _, path = entry.partition("\t")
        match head.split():
            case [_, "blob", name, size] if size.isdigit():
                yield Blob(folder, branch.removeprefix("refs/"), path, name, int(size))


def _git(folder: Path, *arguments: str, given: bytes = b"") -> bytes:
    fault = f"{folder}: git does not read this repository"
    command, env = ["git", "-C", str(folder), *arguments], {**os.environ, **_NOT_ASKED}
    try:
        return subprocess.run(  # noqa: S603 - no shell, and objects that git itself has named
            command, env=env, input=given, capture_output=True, check=True, timeout=_LONGEST_S
        ).stdout
    except subprocess.CalledProcessError as exc:
        reason = exc.stderr.decode("utf-8", "replace").strip().partition("\n")[0]
        raise ConfigError(f"{fault}: {reason}") from exc
    except (OSError, subprocess.TimeoutExpired) as exc:
        raise ConfigError(f"{fault}: {exc}") from exc
