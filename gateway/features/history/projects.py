"""The project of a session: its repository, as far as the logs say.

Sessions share one where their logs name the same repository, or the same folder. A worktree is
known by the usual forms of its path."""

import hashlib
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from itertools import accumulate, chain
from pathlib import Path, PurePath

from msgspec.structs import replace

from gateway.features.history.reading import SessionReading

# The usual forms of the paths of worktrees.
_WORKTREE = re.compile(
    # in a place of Codex or Vibe Kanban, above the repository's name; of Cursor or Conductor, below
    r".*[/\\](?:\.codex|vibe-kanban)[/\\]worktrees[/\\][^/\\]+[/\\]([^/\\]+).*"
    r"|.*[/\\](?:\.cursor[/\\]worktrees|conductor[/\\]workspaces)[/\\]([^/\\]+)[/\\].+"
    # in the repository, also in `.claude`; a home directory and one of opencode's are none
    r"|(?!(?:/home/[^/]+|(?:\w:)?/Users/[^/]+|/root)[/\\](?:\.\w+[/\\])?\.?worktrees?[/\\])"
    r"(?!/[^/]+/worktrees?/|.*[/\\]opencode[/\\]worktree[/\\])"
    r"(.+?)[/\\](?:\.\w+[/\\])?\.?worktrees?[/\\].+"
    # beside it
    r"|(.*[^/\\._-])(?:[._-]|__)worktrees?[/\\].+",
    re.DOTALL,
)
_WINDOWS = re.compile(r"[A-Za-z]:[/\\]|\\\\")
_UNKNOWN = ("unknown", "unknown (Gemini CLI keeps only a hash)")  # without, and with a hash
_NEAR = ("[!.]*/", "[!.]*/[!.]*/", "[!.]*/[!.]*/[!.]*/")  # folders below the home directory


def repository_of(folder: str) -> str:
    """The folder, or the name, of the repository whose worktree a folder is by its form; else the
    folder itself. Of Windows it has one form, whichever a client writes: `c:\\a` and `C:/a`."""
    if _WINDOWS.match(folder):
        folder = (folder[0].upper() + folder[1:]).replace("\\", "/")
    if found := _WORKTREE.fullmatch(folder):
        return found[found.lastindex or 0]
    return folder.rstrip("/\\") or folder


def with_projects(readings: Sequence[SessionReading]) -> list[SessionReading]:
    """Returns the readings with the names of their projects, and with the folders that are known by
    their hashes."""
    known: dict[str, str] = {}
    if any(reading.origin.digest for reading in readings):
        folders = [reading.project for reading in readings]
        known = _by_digest([*folders, *map(repository_of, folders)])
    readings = [replace(r, project=r.project or known.get(r.origin.digest, "")) for r in readings]
    roots = [repository_of(r.project or _UNKNOWN[bool(r.origin.digest)]) for r in readings]
    pairs = zip(readings, roots, strict=True)
    remotes = {root: r.origin.repository for r, root in pairs if r.project and r.origin.repository}
    keys = [remotes.get(root, root) for root in roots]
    often = Counter(chain.from_iterable(map(_ends, set(keys))))
    return [
        replace(r, place=next((end for end in _ends(key) if often[end] == 1), key))
        for r, key in zip(readings, keys, strict=True)
    ]


def _ends(path: str) -> Iterator[str]:
    """The last part of a path or of a repository's name, the last two, and so on."""
    return accumulate(reversed(PurePath(path).parts), lambda end, above: f"{above}/{end}")


def _by_digest(folders: Iterable[str]) -> dict[str, str]:
    """Folders by the SHA-256 of their paths: those of sessions, and those near the home directory,
    each with all above it."""
    near = chain.from_iterable(map(Path.home().glob, _NEAR))
    paths = chain(map(PurePath, folders), [Path.cwd()], near)
    known = {str(folder) for path in paths for folder in [path, *path.parents]}
    return {hashlib.sha256(f.encode(errors="surrogateescape")).hexdigest(): f for f in known}
