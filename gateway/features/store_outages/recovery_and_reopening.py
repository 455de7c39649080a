"""Recovery of a store: records wait while it is unavailable, and it is tried until it works. One
whose file was deleted, replaced or damaged is opened again."""

import asyncio
import time
from collections.abc import Awaitable, Callable

from msgspec.structs import replace

from gateway.config.storage import StorageSettings
from gateway.errors import in_words
from gateway.features.store_outages.breaker import SLOW, Breaker
from gateway.features.store_outages.disk_spool import DiskSpool
from gateway.features.store_outages.spool import Spool, Waiting, with_version
from gateway.observability.logging import get_logger
from gateway.stores.protocols import (
    SchemaMismatch,
    StateStore,
    StoreCorrupt,
    StoreError,
    StoreOverloaded,
    StoreReplaced,
    StoreUnavailable,
    VersionConflict,
)
from gateway.stores.records import CallRecord, ConversationRecord
from gateway.tasks import on_disk, spawn

# Errors of the store; any other error is about the one record.
TROUBLE = (StoreUnavailable, StoreCorrupt, SchemaMismatch)
_BATCH = 64  # records written at once, which SQLite commits together
_CONFLICTS = 5  # attempts of one write, against other gateways that save the same conversation
_CLOSE_S = 5.0  # longest wait for the spool when the store is closed


# A call made from an older version of its conversation, over what is stored of it now.
Merge = Callable[[CallRecord, ConversationRecord], CallRecord]


def replacing(call: CallRecord, stored: ConversationRecord) -> CallRecord:
    """The call with its own state, over the stored version."""
    return with_version(call, stored.version)


class Recovery:
    """The breaker, the spool, and the task that empties it. `count` gets the kind of failure for
    each record that has to wait; `opened` is called when the breaker opens, `in_memory_only` for
    each answer that goes out before its record is on disk."""

    def __init__(
        self,
        store: StateStore,
        settings: StorageSettings,
        count: Callable[[str], None],
        opened: Callable[[], None],
        merge: Merge,
        in_memory_only: Callable[[], None],
    ):
        self._store = store
        self._settings = settings
        self._merge = merge
        self._count = count
        self._opened = opened
        max_bytes = int(settings.spool_mb * 2**20)
        self.breaker = Breaker(failures=settings.breaker_failures)
        self.spool = Spool(max_records=settings.spool_records, max_bytes=max_bytes)
        self._disk = DiskSpool(settings, in_memory_only)
        self._taking: asyncio.Task[None] | None = None
        self._task: asyncio.Task[None] | None = None
        self._works = True
        self._replaced = self._failing = False
        self._trouble = (SLOW, "a commit takes long")
        self._log = get_logger("gateway.store")
        self.reopened: list[Callable[[], Awaitable[None]]] = []
        self.lost = 0  # records that were nowhere when the store was closed
        self.damaged: list[str] = []  # names under which damaged databases are kept

    async def follow(self) -> None:
        """Check the store every `storage.probe_interval_s`, without end."""
        while True:
            await asyncio.sleep(self._settings.probe_interval_s)
            self._look_on_disk()
            if self.breaker.is_open or len(self.spool):
                self._start()
                continue
            try:
                await self._store.ping()
            except StoreError as error:
                self.note(error)
            else:
                self.breaker.failures = 0

    @property
    def on_disk(self) -> int:
        """Number of waiting records that are on disk, too."""
        return self._disk.records

    async def start(self) -> None:
        """Keep what processes that ended have left on disk. Waits for a slow disk, for
        `storage.start_wait_s` at most: then that continues in the background."""
        await on_disk(self._disk.check_folder)
        self._look_on_disk()
        if self._taking is not None:
            await asyncio.wait([self._taking], timeout=self._settings.start_wait_s)

    def _look_on_disk(self) -> None:
        self._disk.try_again()
        if self._taking is None and self._settings.spool_folder:
            self._taking = spawn(self._take_over(), name="take over records")

    async def _take_over(self) -> None:
        try:
            entries = await self._disk.take_over(self.spool.room)
        except Exception as error:
            self._log.error(
                "records that wait on disk cannot be taken over", reason=in_words(error)
            )
            return
        finally:
            self._taking = None
        if not entries:
            if not len(self.spool):
                await self._disk.tidy()
            return
        self.spool.adopt(entries)
        self._log.warning(
            "records of a gateway that ended are stored now",
            records=len(entries),
            path=str(self._disk.folder),
        )
        self._start()

    def note(self, error: StoreError) -> None:
        """The store failed."""
        self._works = False
        self._replaced |= isinstance(error, StoreReplaced)
        self._trouble = trouble = (error.label, str(error))
        if self._replaced:
            self.open(*trouble)
        elif self.breaker.failed(*trouble):
            self._start_incident()
        self.breaker.explain(*trouble)

    def note_again(self) -> None:
        """A call cannot be stored before an earlier one of its conversation, which waits: another
        failure, unless those that wait are being stored."""
        if not self._works and self.breaker.failed(*self._trouble):
            self._start_incident()

    def open(self, kind: str, reason: str) -> None:
        """Begin an incident, if there is none."""
        self._trouble = (kind, reason)
        if self.breaker.open(kind, reason):
            self._start_incident()

    def _start_incident(self) -> None:
        self._opened()
        self._start()

    async def kept(self, call: CallRecord, write: asyncio.Task[int] | None = None) -> int:
        """`keep`, on disk where that is possible; the version that the record will probably get."""
        await self._disk.written(self.keep(call, write))
        return call.conversation.version + 1

    def keep(self, call: CallRecord, write: asyncio.Task[int] | None = None) -> Waiting:
        """Keep a record, whose commit may be in progress, until it is stored. Raises:
        StoreOverloaded when there is no room; then the record is dropped."""
        self._count(self._trouble[0])
        if write is not None:
            write.add_done_callback(_take_error)
        waiting = self.spool.add(call, write)
        if waiting is None:
            reason = "the spool is full (storage.spool_records, storage.spool_mb)"
            self.breaker.dropped(reason)
            raise StoreOverloaded(reason)
        self._disk.add(waiting)
        self._start()
        return waiting

    def _start(self) -> None:
        if self._task is None:
            self._task = spawn(self._until_it_works(), name="store recovery")

    async def _until_it_works(self) -> None:
        """Try until nothing waits and the breaker is closed."""
        try:
            while len(self.spool) or self.breaker.is_open:
                try:
                    goes_on = await self._try()
                except Exception as error:  # nothing ends the recovery: it is tried again later
                    if not self._failing:
                        self._log.exception(
                            "records that wait are not stored now", reason=str(error)
                        )
                    self._failing = True
                    goes_on = False
                if not goes_on:
                    await asyncio.sleep(self._settings.probe_interval_s)
        finally:
            self._task = None
        await self._disk.tidy()

    async def _try(self) -> bool:
        """Write some of what waits, or probe; False when the next attempt should wait."""
        if self._replaced and not await self._reopen():
            return False
        waiting = self.spool.batch(_BATCH if self._works else 1)
        if not waiting:
            return await self._probe()
        writes = [self._begun(each) for each in waiting]
        await asyncio.wait(writes)
        settled = [self._settle(*each) for each in zip(waiting, writes, strict=True)]
        done = [each for each, is_done in zip(waiting, settled, strict=True) if is_done]
        # On disk first: a newer call of the same conversation waits until then, so that a crash
        # cannot replay the older one.
        if on_disk := [each for each in done if each.settled is not None]:
            await self._disk.remove(on_disk)
        for each in done:
            self.spool.remove(each)
        self._works = None not in settled
        self._failing = False
        return self._works

    def _begun(self, waiting: Waiting) -> asyncio.Task[int]:
        if waiting.write is None:
            waiting.write = spawn(self._write(waiting.record))
            waiting.write.add_done_callback(_take_error)
        return waiting.write

    async def _write(self, call: CallRecord) -> int:
        """Commit a record that waited. Rows that another gateway has stored stay, the rows of this
        call are added, and the states are joined."""
        for _ in range(_CONFLICTS):
            try:
                return await self._store.commit(call)
            except VersionConflict as conflict:
                own = call.conversation
                stored = await self._store.load(own.tenant, own.id)
                if stored == replace(own, version=own.version + 1):
                    return stored.version  # by an earlier attempt, whose answer did not arrive
                if stored is None:
                    call = with_version(call, conflict.actual)
                    continue
                try:
                    call = self._merge(call, stored)
                except Exception as error:
                    self._log.exception(
                        "a call is not joined with what is stored", reason=str(error)
                    )
                    call = replacing(call, stored)
        raise StoreUnavailable("other gateways save the same conversation all the time")

    def _settle(self, waiting: Waiting, write: asyncio.Task[int]) -> bool | None:
        """True if the record need not be kept: it is stored, or refused. None when the store
        failed."""
        waiting.write = None
        error = StoreUnavailable("cancelled") if write.cancelled() else write.exception()
        if isinstance(error, TROUBLE):
            self.note(error)
            return None
        self.breaker.failures = 0
        if isinstance(error, VersionConflict):
            return False  # the next attempt joins it with what is stored
        if error is not None:
            self.breaker.dropped(str(error))
        elif self.breaker.incident is not None:
            self.breaker.incident.written += 1
        return True

    async def _probe(self) -> bool:
        """True if the store works; then, if nothing is left to write, the breaker closes."""
        started = time.monotonic()
        try:
            await self._store.ping()
        except StoreError as error:
            self._works = False
            self.note(error)
            return False
        self._works = True
        if len(self.spool):
            return True  # a record came meanwhile: whether the store works, its write shows
        quick = time.monotonic() - started < self._settings.commit_limit_ms / 1000
        if not quick or not self.breaker.may_close:
            return False
        self.breaker.close()
        return True

    async def _reopen(self) -> bool:
        try:
            kept = await self._store.reopen()
        except StoreError as error:
            self.note(error)
            return False
        self._replaced = False
        if kept:
            self.damaged.append(kept)
        if self.breaker.incident is not None:
            self.breaker.incident.reopened = True
        for listener in self.reopened:
            try:
                await listener()
            except Exception as error:
                self._log.error("not everything is ready after reopening", reason=str(error))
        return True

    async def close(self) -> None:
        """Write what waits if that is possible within 5 s."""
        task = self._task
        if task is not None:
            if len(self.spool):
                await asyncio.wait([task], timeout=_CLOSE_S)
            task.cancel()
        await self._disk.close()
        self.lost = sum([not each.safe for each in self.spool])
        if self.on_disk:
            self._log.warning(
                "records wait on disk: the next gateway with this storage.spool_path stores them",
                records=self.on_disk,
                path=str(self._disk.folder.absolute()),
            )
        if self.lost:
            self._log.error("records are lost: the store cannot be written", records=self.lost)


def _take_error(write: asyncio.Task[int]) -> None:
    """Take note of a write's error: after `close` nothing else does."""
    if not write.cancelled():
        write.exception()
