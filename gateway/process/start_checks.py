"""Checks before the start and at a reload: settings that fit together. Each value was accepted by
its own section; here several of them, or the machine, say no."""

import os
from collections.abc import Callable, Mapping, Set
from pathlib import Path
from tempfile import TemporaryDirectory

from gateway.config import Settings
from gateway.config.own_address import refuse_self_upstream
from gateway.config.values import Faults
from gateway.errors import ConfigError
from gateway.upstream.deployments import DeploymentTable


def check(settings: Settings, refused: Set[str] = frozenset()) -> None:
    """Refuse settings that are well formed but cannot work; what would read one of the sections
    `refused` is not checked. Raises ConfigError: everything that is wrong."""
    faults = Faults()
    for refuse, sections in _CHECKS.items():
        if refused.isdisjoint(sections):
            with faults.collected():
                refuse(settings)
    faults.raise_any()


def refuse_unwritable_storage(settings: Settings) -> None:
    """Refuse a database that cannot be written or created. Raises: ConfigError."""
    if settings.storage.file and (problem := unwritable(Path(settings.storage.path))):
        raise ConfigError(f"storage.path: {problem}")


def unwritable(path: Path, *, is_file: bool = True) -> str:
    """The reason for which a file or a folder cannot be written, empty when there is none. Missing
    folders are created. SQLite makes its journal in the folder of an existing file, too."""
    if path.exists() and path.is_dir() == is_file:
        return f"{str(path)!r} is a " + ("folder, not a file" if is_file else "file, not a folder")
    folder = next(parent for parent in path.absolute().parents if parent.exists())
    if not folder.is_dir():
        return f"{str(folder)!r} is a file, not a folder"
    needed = [each for each in (folder, path) if each.exists() and not os.access(each, os.W_OK)]
    if needed:
        return f"{str(needed[0])!r} cannot be written"
    if not path.exists():  # a file system that refuses folders, as /proc does, says so only then
        try:
            TemporaryDirectory(dir=folder).cleanup()
        except OSError as exc:
            return f"nothing can be made in {str(folder)!r}: {exc.strerror}"
    return ""


def refuse_workers(settings: Settings) -> None:
    """Refuse several workers that cannot be forked, or not share the store. Raises: ConfigError."""
    several = settings.server.workers > 1
    if several and not hasattr(os, "fork"):
        raise ConfigError("server.workers: only 1 on this system, which cannot fork processes")
    if several and settings.storage.in_memory:
        raise ConfigError(
            "server.workers: several cannot share storage.path ':memory:'; name a file"
        )


_UPSTREAMS = ("default_upstream", "model_list")
# The checks, each with the sections that it needs; the others may be at their defaults.
_CHECKS: Mapping[Callable[[Settings], object], tuple[str, ...]] = {
    refuse_self_upstream: (*_UPSTREAMS, "server"),
    refuse_unwritable_storage: ("storage",),
    refuse_workers: ("server", "storage"),
    # Deployments without provider or address are refused by their table.
    lambda settings: DeploymentTable(settings, os.environ): _UPSTREAMS,
}
