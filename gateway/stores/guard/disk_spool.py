"""Records that wait for a database, on disk as well: a gateway that is killed does not lose them.

Everything is written in one thread at a time, off the event loop; what comes meanwhile shares the
next transaction. An answer waits for its record to be written for `storage.spool_limit_ms` at most;
when the disk is slow, full or gone, records wait in memory only until it works again. Files that
gateways left behind are taken over, at the start and while others live.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import os
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import structlog

from gateway.config.storage import StorageSettings
from gateway.stores.records import CallRecord
from gateway.stores.redact import redaction
from gateway.tasks import spawn

if TYPE_CHECKING:
    # SQLite's library is loaded when the first record waits, or was left behind.
    from gateway.stores.guard.spool_file import LeftBehind, SpoolFile

_CLOSE_S = 5.0


@dataclass(slots=True, eq=False)
class Entry:
    """A record that is to be in a file. `settled`: when it was tried. `file` None: it is not there
    yet. `gone`: no longer needed there."""

    record: CallRecord
    number: int
    settled: asyncio.Event
    file: SpoolFile | None = None
    gone: bool = False

    @property
    def safe(self) -> bool:
        """True if the record is on disk, or stored by now."""
        return self.gone or self.file is not None


class DiskSpool:
    """The files of one process. `failed` is called for every answer whose record was not written
    before it went out."""

    def __init__(self, settings: StorageSettings, failed: Callable[[], None]) -> None:
        self.folder = Path(settings.spool_folder)
        self._synchronous = settings.synchronous
        self._limit_s = settings.spool_limit_ms / 1000
        self._redact = redaction(settings)
        self._failed = failed
        self._numbers = itertools.count(1)
        self._changes: list[Entry] = []
        self._tried = asyncio.Event()  # when `_changes`, as they are now, were tried
        self._entries: set[Entry] = set()
        self._task: asyncio.Task[None] | None = None
        self._disk = asyncio.Lock()
        self._own: SpoolFile | None = None
        self._taken: list[SpoolFile] = []
        self._left_behind: LeftBehind | None = None
        self._fails = self._late = self._warned = self._closed = False
        self._incomplete = False  # entries that are not among the changes are to be written, too
        self._log = structlog.get_logger("gateway.store")

    @property
    def records(self) -> int:
        """Number of records that wait on disk."""
        return sum([entry.file is not None for entry in self._entries])

    def add(self, record: CallRecord) -> Entry:
        """Begin to write a record; `written` waits for it."""
        entry = Entry(record, next(self._numbers), self._tried)
        self._entries.add(entry)
        self._changes.append(entry)
        self._start()
        return entry

    async def written(self, entry: Entry) -> None:
        """Wait until a record is on disk; not for long, and not at all while the disk is slow or
        fails."""
        await self._wait(entry.settled)
        if not entry.safe:
            self._failed()

    async def _wait(self, settled: asyncio.Event) -> None:
        if self._fails or self._late:
            return
        try:
            await asyncio.wait_for(settled.wait(), self._limit_s)
        except TimeoutError:
            self._late = True
            self._warn(f"a write takes longer than {self._limit_s * 1000:g} ms")

    async def remove(self, entries: Iterable[Entry]) -> None:
        """Remove records, which are stored: before others of their conversations are, so that at
        most the newest stored one of a conversation is found again after a crash."""
        for entry in entries:
            entry.gone = True
            self._entries.discard(entry)
            self._changes.append(entry)
        tried = self._tried
        self._start()
        await self._wait(tried)

    def try_again(self) -> None:
        """Write what could not be written."""
        self._fails = False
        self._start()

    def _start(self) -> None:
        if self._task is None and self._is_due and not self._closed:
            self._task = spawn(self._write_changes(), name="spool on disk")

    @property
    def _is_due(self) -> bool:
        return bool(self._changes or self._incomplete) and not self._fails

    async def _write_changes(self) -> None:
        try:
            while self._is_due:
                changes, self._changes = self._changes, []
                tried, self._tried = self._tried, asyncio.Event()
                try:
                    async with self._disk:
                        await asyncio.to_thread(self._perform, changes)
                except Exception as error:
                    self._fails = self._incomplete = True
                    # What is still to be written is found among the entries.
                    self._changes = [e for e in changes if e.file is not None] + self._changes
                    self._warn(str(error))
                else:
                    self._works_again()
                tried.set()
        finally:
            self._task = None

    def _perform(self, changes: Sequence[Entry]) -> None:
        """In a thread. May be done again with the same changes."""
        self._let_go_of_lost_files()
        new = self._entries.copy() if self._incomplete else changes
        added = [entry for entry in new if entry.file is None and not entry.gone]
        removed: dict[SpoolFile, list[int]] = {}
        for entry in changes:
            if entry.gone and entry.file in self._files:
                removed.setdefault(entry.file, []).append(entry.number)
        if added:
            if self._own is None:
                from gateway.stores.guard.spool_file import SpoolFile

                self._own = SpoolFile.create(self.folder, self._synchronous)
            added.sort(key=lambda entry: entry.number)
            rows = [(entry.number, self._redact(entry.record)) for entry in added]
            self._own.write(rows, removed.pop(self._own, []))
            for entry in added:
                entry.file = self._own
        for file, numbers in removed.items():
            file.write([], numbers)
        self._incomplete = False

    def _let_go_of_lost_files(self) -> None:
        """Records of files that somebody has deleted are written again."""
        for file in [each for each in self._files if not each.is_current()]:
            for entry in self._entries.copy():
                if entry.file is file:
                    entry.file, entry.number = None, next(self._numbers)
            self._incomplete = True
            self._drop(file)
            file.close()

    @property
    def _files(self) -> list[SpoolFile]:
        return [*self._taken, *([self._own] if self._own is not None else [])]

    def _drop(self, file: SpoolFile) -> None:
        if file is self._own:
            self._own = None
        else:
            self._taken.remove(file)

    async def tidy(self) -> None:
        """Remove the files in which nothing waits."""
        async with self._disk:
            if not self._changes:
                try:
                    await asyncio.to_thread(self._delete_empty)
                except Exception as error:
                    self._warn(str(error))

    def _delete_empty(self) -> None:
        for file in self._files:
            if not file.records:
                self._drop(file)
                file.delete()

    async def take_over(self, room: tuple[int, int]) -> list[Entry]:
        """The records of the files that other processes left behind, in order; files for which
        there is no room stay, unless nothing waits here."""
        if not await asyncio.to_thread(self._may_find):
            return []
        entries = await asyncio.to_thread(self._take, room)
        self._entries.update(entries)
        return entries

    def _may_find(self) -> bool:
        """True if there are files of other processes in the folder."""
        own = {file.path for file in self._files}
        own |= self._left_behind.named if self._left_behind is not None else set()
        return self.folder.is_dir() and any(path not in own for path in self.folder.glob("*.db"))

    def _take(self, room: tuple[int, int]) -> list[Entry]:
        if self._left_behind is None:
            from gateway.stores.guard.spool_file import LeftBehind

            self._left_behind = LeftBehind(self.folder, self._synchronous)
        tried = asyncio.Event()
        tried.set()
        found = []
        own = {file.path for file in self._files}
        for file, rows in self._left_behind.take(own, room, any_size=not self._entries):
            self._taken.append(file)
            found += [Entry(record, number, tried, file) for number, record in rows]
        return found

    def check_folder(self) -> None:
        """Say at the start, before anything has to wait, that nothing can be written."""
        folder = self.folder.absolute()
        there = next(each for each in (folder, *folder.parents) if each.exists())
        if not there.is_dir() or not os.access(there, os.W_OK | os.X_OK):
            self._warn(f"{str(there)!r} cannot be written")

    def _warn(self, reason: str) -> None:
        if not self._warned:
            self._log.warning(
                "records that wait for the database are in memory only: storage.spool_path "
                "cannot be used",
                path=str(self.folder),
                reason=reason,
            )
        self._warned = True

    def _works_again(self) -> None:
        self._late = False
        if self._warned:
            self._log.warning("storage.spool_path can be used again", path=str(self.folder))
        self._warned = False

    async def close(self) -> None:
        """Write what is to be written, if that is possible within 5 s, and unlock the files."""
        self.try_again()
        if self._task is not None:
            await asyncio.wait([self._task], timeout=_CLOSE_S)
        self._closed = True
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self._close_files(), _CLOSE_S)

    async def _close_files(self) -> None:
        async with self._disk:
            await asyncio.to_thread(self._delete_empty)
            for file in self._files:
                await asyncio.to_thread(file.close)
