"""Records that wait for a database, on disk as well: a gateway that is killed does not lose them.

Everything is written in one thread at a time, off the event loop; what comes meanwhile shares the
next transaction. An answer waits for its record to be written for `storage.spool_limit_ms` at most;
when the disk is slow, full or gone, records wait in memory only until it works again. Files that
gateways left behind are taken over, at the start and while others live."""

import asyncio
import os
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gateway.config.storage import StorageSettings
from gateway.errors import in_words
from gateway.features.store_outages.spool import Waiting
from gateway.observability.logging import get_logger
from gateway.stores.redact import redaction
from gateway.tasks import on_disk, spawn

if TYPE_CHECKING:
    # SQLite's library is loaded when the first record waits, or was left behind.
    from gateway.features.store_outages.spool_file import SpoolFolder

_CLOSE_S = 5.0


@dataclass(slots=True)
class _Trouble:
    """The state of the disk."""

    folder: Path  # where the records wait
    fails: bool = False  # nothing is written while it does
    late: bool = False  # answers do not wait for the disk while it is
    warned: bool = False  # this time of trouble was logged
    # one entry for each time of trouble
    log: Any = field(default_factory=lambda: get_logger("gateway.store"))

    def warn(self, reason: str) -> None:
        if not self.warned:
            self.log.warning(
                "records that wait for the database are in memory only: storage.spool_path "
                "cannot be used",
                path=str(self.folder),
                reason=reason,
            )
        self.warned = True

    def over(self) -> None:
        if self.warned:
            self.log.warning("storage.spool_path can be used again", path=str(self.folder))
        self.late = self.warned = False


class DiskSpool:
    """The files of one process. `failed` is called for every answer whose record was not written
    before it went out."""

    def __init__(self, settings: StorageSettings, failed: Callable[[], None]):
        self._settings = settings
        self._failed = failed
        self._changes: dict[Waiting, None] = {}
        self._tried = asyncio.Event()  # when `_changes`, as they are now, were tried
        self._task: asyncio.Task[None] | None = None
        self._disk = asyncio.Lock()
        self._files: SpoolFolder | None = None
        self._trouble = _Trouble(self.folder)

    @property
    def folder(self) -> Path:
        """The folder of the files."""
        return Path(self._settings.spool_folder)

    @property
    def records(self) -> int:
        """Number of records that wait on disk."""
        if self._files:
            return sum([len(file.entries) for file in self._files.files])
        return 0

    def add(self, waiting: Waiting) -> None:
        """Begin to write a record, if there is a folder; `written` waits for it."""
        if self._settings.spool_folder:
            waiting.settled = self._tried
            self._changes[waiting] = None
            self._start()

    async def written(self, waiting: Waiting) -> None:
        """Wait until a record is on disk, if it is to be; not for long, and not at all while the
        disk is slow or fails."""
        if waiting.settled is None:
            return
        await self._wait(waiting.settled)
        if not waiting.safe:
            self._failed()

    async def _wait(self, settled: asyncio.Event) -> None:
        if self._trouble.fails or self._trouble.late:
            return
        limit_ms = self._settings.spool_limit_ms
        try:
            await asyncio.wait_for(settled.wait(), limit_ms / 1000)
        except TimeoutError:
            self._trouble.late = True
            self._trouble.warn(f"a write takes longer than {limit_ms:g} ms")

    async def remove(self, entries: Iterable[Waiting]) -> None:
        """Remove records, which are stored: before others of their conversations are, so that at
        most the newest stored one of a conversation is found again after a crash. Those that a full
        disk cannot remove are marked as stored."""
        removed = list(entries)
        for entry in removed:
            entry.gone = True
            self._changes[entry] = None
        tried = self._tried
        self._start()
        await self._wait(tried)
        if self._trouble.fails and self._files is not None:
            async with self._disk:
                with suppress(OSError):
                    for file in self._files.files:
                        await on_disk(file.mark, removed)

    def try_again(self) -> None:
        """Write what could not be written."""
        self._trouble.fails = False
        self._start()

    def _start(self) -> None:
        if self._task is None and self._changes and not self._trouble.fails:
            self._task = spawn(self._write_changes(), name="spool on disk")

    async def _write_changes(self) -> None:
        try:
            while self._changes and not self._trouble.fails:
                changes = self._changes
                self._changes = {}
                tried = self._tried
                self._tried = asyncio.Event()
                try:
                    async with self._disk:
                        await on_disk(self._perform, changes)
                except Exception as error:
                    self._trouble.fails = True
                    needed = [each for each in changes if each.file is not None or not each.gone]
                    self._changes = dict.fromkeys(needed) | self._changes
                    self._trouble.warn(in_words(error))
                else:
                    self._trouble.over()
                tried.set()
        finally:
            self._task = None

    def _perform(self, changes: dict[Waiting, None]) -> None:
        """Write changes, in a thread. The same changes may be written again."""
        self._opened().write(changes, redaction(self._settings))

    def _opened(self) -> "SpoolFolder":
        if self._files is None:
            from gateway.features.store_outages.spool_file import SpoolFolder

            self._files = SpoolFolder(self.folder, self._settings.synchronous)
        return self._files

    async def tidy(self) -> None:
        """Remove the files in which nothing waits."""
        async with self._disk:
            if self._files is not None and not self._changes:
                try:
                    await on_disk(self._files.delete_empty)
                except Exception as error:
                    self._trouble.warn(in_words(error))

    async def take_over(self, room: tuple[int, int]) -> list[Waiting]:
        """The records of the files that other processes left behind, in order; files for which
        there is no room stay, unless nothing waits here."""
        return await on_disk(self._take, room)

    def _take(self, room: tuple[int, int]) -> list[Waiting]:
        known = self._files.known() if self._files is not None else ()
        if not self.folder.is_dir() or not {*self.folder.glob("*.db")}.difference(known):
            return []
        return list(self._opened().take(room, any_size=not (self._changes or self.records)))

    def check_folder(self) -> None:
        """Say at the start, before anything has to wait, that nothing can be written."""
        if not self._settings.spool_folder:
            return
        folder = self.folder.absolute()
        there = next(each for each in (folder, *folder.parents) if each.exists())
        if not there.is_dir() or not os.access(there, os.W_OK | os.X_OK):
            self._trouble.warn(f"{str(there)!r} cannot be written")

    async def close(self) -> None:
        """Write what is to be written, if that is possible within 5 s, and unlock the files."""
        self.try_again()
        if self._task is not None:
            await asyncio.wait([self._task], timeout=_CLOSE_S)
        self._trouble.fails = True  # nothing is written from here on
        with suppress(TimeoutError):
            async with asyncio.timeout(_CLOSE_S), self._disk:
                if self._files is not None:
                    await on_disk(self._files.close)
