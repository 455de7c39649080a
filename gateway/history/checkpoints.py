"""Transcripts that Entire keeps on branches of a git repository, such as `entire/checkpoints/v1`.

Each checkpoint has a copy of its session's whole transcript so far, in the form of the session's
agent, beside a `metadata.json`. Only the longest copy of a session is read. They are taken from
the object store: nothing is checked out, and nothing is fetched."""

from __future__ import annotations

import io
import os
import re
import subprocess
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import IO, NamedTuple

from gateway.errors import ConfigError
from gateway.history.log_file import HEAD_BYTES, LogFile

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
