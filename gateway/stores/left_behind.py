"""Files of records that wait for a database, left behind by gateways that ended. Blocks."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from pathlib import Path

import structlog

from gateway.stores.records import CallRecord
from gateway.stores.spool_file import (
    Damaged,
    Lock,
    SpoolFile,
    UnknownVersion,
    free_files,
    set_aside,
)


class LeftBehind:
    """Takes files over. What cannot be read stays where it is, or under another name, and is named
    in the log once."""

    def __init__(self, folder: Path, synchronous: str) -> None:
        self._folder = folder
        self._synchronous = synchronous
        self._log = structlog.get_logger("gateway.store")
        self.named: set[Path] = set()
        """Files that are of no use to this process."""

    def take(
        self, own: Collection[Path], room: tuple[float, float], *, any_size: bool
    ) -> Iterator[tuple[SpoolFile, list[tuple[int, CallRecord]]]]:
        """Files that no process has, the oldest first, and their records: as many as there is room
        for, in records and bytes; with `any_size` one, whatever its size. Raises: OSError."""
        locks = free_files(self._folder, {*own, *self.named})
        try:
            records, size = room
            while locks:
                file = self._opened(locks.pop(0))
                if file is None:
                    continue
                records, size = records - file.records, size - file.size()
                if min(records, size) < 0 and not any_size:
                    file.close()
                    return
                rows = self._rows(file)
                if rows is not None:
                    any_size = False
                    yield file, rows
        finally:
            for lock in locks:
                lock.release()

    def _opened(self, lock: Lock) -> SpoolFile | None:
        try:
            return SpoolFile.open(lock, self._synchronous)
        except UnknownVersion as error:
            self.named.add(lock.path)
            lock.release()
            self._log.error(
                "records that wait are left to a gateway of another version",
                path=str(lock.path),
                reason=str(error),
            )
        except Damaged as error:
            self._set_aside(lock, error)
        except OSError:
            lock.release()
            raise
        return None

    def _rows(self, file: SpoolFile) -> list[tuple[int, CallRecord]] | None:
        try:
            return file.read()
        except Damaged as error:
            self._set_aside(file.leave(), error)
            return None

    def _set_aside(self, lock: Lock, error: Exception) -> None:
        self.named.add(lock.path)
        self._log.error(
            "a file of records that wait cannot be read, and is kept",
            path=str(set_aside(lock)),
            reason=str(error),
        )
