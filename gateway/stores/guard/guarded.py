"""A store that never makes an answer wait for long: any StateStore behind a breaker and a spool.

While the store works, a commit is awaited. When it fails, or none is finished for
`storage.commit_limit_ms`, its record waits in memory, and so do those that follow; they are written
in order when the store works again (`gateway/stores/guard/recovery.py`). The look-ups find what
waits, so that a conversation continues whether its newest state is stored or not.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import TypeVar

import structlog
from cachetools import FIFOCache

from gateway.config.storage import StorageSettings
from gateway.stores.guard.breaker import SLOW, CommitLimit, Incident
from gateway.stores.guard.recovery import TROUBLE, Merge, Recovery, replacing
from gateway.stores.protocols import (
    MAX_HEADS,
    StateStore,
    StoreClosed,
    StoreError,
    StoreReplaced,
    StoreUnavailable,
)
from gateway.stores.reads import TimeLimits
from gateway.stores.records import CallRecord, ConversationRecord, PrefixHashRecord

T = TypeVar("T")

_SLOW_READ_S = 0.025  # a read that was given up after this long counts as failed
_DEGRADED_READ_S = 0.02  # longest read of another store while this one is degraded: it may hang
_ACTIVE = 10_000  # conversations whose last commit is remembered


@dataclass(frozen=True, slots=True, kw_only=True)
class StoreHealth:
    """The state of the store; `incident` is None while it works. `waiting_on_disk`: those of the
    records that wait which a killed gateway does not lose."""

    incident: Incident | None
    waiting: int
    waiting_bytes: int
    waiting_on_disk: int = 0


class GuardedStateStore:
    """`StateStore` over another one. Made on the event loop that uses it; `follow` must run.

    `count` is called with the kind of failure of each call that could not be stored at once,
    `merge` with a call that waited and what another gateway has stored of its conversation since,
    `in_memory_only` for each answer that went out while its record was nowhere else.
    """

    def __init__(
        self,
        store: StateStore,
        settings: StorageSettings,
        count: Callable[[str], None],
        merge: Merge = replacing,
        in_memory_only: Callable[[], None] = lambda: None,
    ) -> None:
        self._store = store
        self._settings = settings
        self._limit_s = settings.commit_limit_ms / 1000
        self._limit = CommitLimit(self._limit_s, self._pass_limit)
        self._limits = TimeLimits()
        self._recovery = Recovery(
            store,
            settings,
            count=count,
            opened=self._release,
            merge=merge,
            in_memory_only=in_memory_only,
        )
        self._breaker, self._spool = self._recovery.breaker, self._recovery.spool
        self._loop = asyncio.get_running_loop()
        self._waiters: set[asyncio.Future[None]] = set()
        self._read_failures = 0
        self._read_incident: Incident | None = None
        self._log = structlog.get_logger("gateway.store")
        self._read_again_at = 0.0
        self._active: FIFOCache[str, float] = FIFOCache(_ACTIVE)
        self._closed = False

    @property
    def health(self) -> StoreHealth:
        """The state of the store now."""
        return StoreHealth(
            incident=self._breaker.incident or self._read_incident,
            waiting=self._spool.records,
            waiting_bytes=self._spool.bytes,
            waiting_on_disk=self._recovery.on_disk,
        )

    @property
    def reopened(self) -> list[Callable[[], Awaitable[None]]]:
        """Called after the store was opened again, which may be an empty one."""
        return self._recovery.reopened

    def active_within(self, seconds: float) -> list[str]:
        """The conversations committed by this process in the last `seconds`, by the monotonic
        clock; at most the newest 10,000."""
        since = time.monotonic() - seconds
        return [name for name, at in self._active.items() if at >= since]

    async def take_over(self) -> None:
        """Keep what a gateway that ended has left on disk, until it is stored. Returns when the
        look-ups find it."""
        await self._recovery.start()

    async def follow(self) -> None:
        """Check the store every `storage.probe_interval_s`, without end."""
        await asyncio.gather(self._recovery.follow(), self._probe_reads())

    async def _probe_reads(self) -> None:
        """Find out whether the store can be read again, also when nobody reads."""
        while True:
            await asyncio.sleep(self._settings.probe_interval_s)
            if self._read_incident is not None:
                with contextlib.suppress(StoreError):
                    await self._read_within(self._limit_s, lambda: self._store.version("", ""))

    async def commit(self, call: CallRecord) -> int:
        """See StateStore. While the store is unavailable the record waits, and the version is the
        one it will probably get.

        Raises: StoreOverloaded when there is no room for it to wait.
        """
        if self._closed:
            raise StoreClosed("the store is closed")
        call.check()
        name = call.conversation.id
        self._active[name] = time.monotonic()
        if name in self._spool and not self._breaker.is_open:
            # Behind an earlier record of its conversation, which could not be stored.
            self._recovery.note_again()
        if name in self._spool or self._breaker.is_open:
            return await self._recovery.kept(call)
        return await self._commit_now(call)

    async def keep(self, call: CallRecord) -> int:
        """Let a record wait whose commit could not be finished here, because the conversation has
        changed in the store and cannot be read: it is joined with that later.

        Raises: StoreOverloaded when there is no room for it to wait.
        """
        if self._closed:
            raise StoreClosed("the store is closed")
        return await self._recovery.kept(call)

    async def _commit_now(self, call: CallRecord) -> int:
        """Commit, and wait for it: at most until the limit, or until the breaker opens."""
        write = self._loop.create_task(self._store.commit(call))
        waiter = self._loop.create_future()
        write.add_done_callback(lambda _: _release(waiter))
        unwatch = self._limit.watch(write)
        self._waiters.add(waiter)
        try:
            await waiter
        except asyncio.CancelledError:
            self._recovery.keep(call, write)
            raise
        finally:
            unwatch()
            self._waiters.discard(waiter)
        if not write.done():
            return await self._recovery.kept(call, write)
        error = write.exception()
        if isinstance(error, TROUBLE):
            self._recovery.note(error)
            return await self._recovery.kept(call)
        self._limit.finished()
        self._breaker.succeeded()
        return write.result()

    def _pass_limit(self) -> None:
        limit_ms = self._settings.commit_limit_ms
        self._recovery.open(SLOW, f"a commit takes longer than {limit_ms:g} ms")

    def _release(self) -> None:
        for waiter in self._waiters:
            _release(waiter)

    async def find_prefix_hashes(
        self, tenant: str, digests: Sequence[bytes]
    ) -> list[PrefixHashRecord]:
        """See StateStore. Raises: StoreError when the store cannot be read and nothing that waits
        matches."""
        waiting = list(self._spool.prefix_hashes(tenant, digests))
        try:
            stored = await self.read(lambda: self._store.find_prefix_hashes(tenant, digests))
        except StoreError:
            if not waiting:
                raise
            stored = []
        if not waiting:
            return stored
        known = {(row.digest, row.conversation_id, row.kind) for row in waiting}
        others = [r for r in stored if (r.digest, r.conversation_id, r.kind) not in known]
        return sorted([*reversed(waiting), *others], key=lambda row: -row.position)[:MAX_HEADS]

    async def load(self, tenant: str, conversation_id: str) -> ConversationRecord | None:
        """See StateStore."""
        waiting = self._spool.load(tenant, conversation_id)
        return waiting or await self.read(lambda: self._store.load(tenant, conversation_id))

    async def version(self, tenant: str, conversation_id: str) -> int:
        """See StateStore."""
        waiting = self._spool.load(tenant, conversation_id)
        if waiting is not None:
            return waiting.version
        return await self.read(lambda: self._store.version(tenant, conversation_id))

    async def branches(self, tenant: str, external_key: str) -> list[ConversationRecord]:
        """See StateStore. Raises: like `find_prefix_hashes`."""
        waiting = {row.id: row for row in self._spool.branches(tenant, external_key)}
        try:
            stored = await self.read(lambda: self._store.branches(tenant, external_key))
        except StoreError:
            if not waiting:
                raise
            stored = []
        if not waiting:
            return stored
        found = [*waiting.values(), *(row for row in stored if row.id not in waiting)]
        return sorted(found, key=lambda row: -row.updated_at)

    async def find_items(self, tenant: str, ids: Sequence[str]) -> dict[str, bytes]:
        """See StateStore."""
        waiting = self._spool.items(tenant, ids)
        if len(waiting) == len(ids):
            return waiting
        return await self.read(lambda: self._store.find_items(tenant, ids)) | waiting

    async def read(self, work: Callable[[], Awaitable[T]]) -> T:
        """The result of a read. After some that failed in a row, or were given up after 25 ms,
        reads are refused, except for one in every `storage.probe_interval_s`.

        Raises: StoreError.
        """
        started = self._begin_read()
        try:
            return await self._read_within(self._limit_s, work)
        except StoreError as error:
            self._note_read(error)
            raise
        except asyncio.CancelledError:
            if time.monotonic() - started > _SLOW_READ_S:
                self._note_read(StoreUnavailable("reads take too long"))
            raise

    async def read_beside(self, work: Callable[[], Awaitable[T]]) -> T:
        """The result of a read of another store in the same database, which is refused like the
        reads of this one, and is not waited for while this one is degraded. Only a database that
        cannot be reached counts: what else fails there is its own fault.

        Raises: StoreError.
        """
        self._begin_read()
        degraded = self._breaker.is_open
        try:
            return await self._read_within(_DEGRADED_READ_S if degraded else self._limit_s, work)
        except StoreUnavailable as error:
            self._note_read(error)
            raise

    def _begin_read(self) -> float:
        """The time now. Raises: StoreUnavailable, when reads are refused."""
        now = time.monotonic()
        if self._read_failures >= self._settings.breaker_failures:
            if now < self._read_again_at:
                raise StoreUnavailable("the store cannot be read at the moment")
            self._read_again_at = now + self._settings.probe_interval_s
        return now

    async def _read_within(self, limit_s: float, work: Callable[[], Awaitable[T]]) -> T:
        """Raises: StoreUnavailable after `limit_s`, and whatever else `work` raises."""
        try:
            with self._limits.within(limit_s):
                found = await work()
        except TimeoutError:
            raise StoreUnavailable("a read takes too long") from None
        self._read_failures = 0
        if self._read_incident is not None:
            self._read_incident = None
            self._log.warning("the store can be read again")
        return found

    def _note_read(self, error: StoreError) -> None:
        self._read_failures += 1
        if self._read_failures < self._settings.breaker_failures:
            return
        self._read_again_at = time.monotonic() + self._settings.probe_interval_s
        if isinstance(error, StoreReplaced):  # writes would go into a file that nobody reads
            self._recovery.note(error)
        elif self._read_incident is None:
            # Writes go on: a store that reads slowly mostly writes, and what waits can be lost.
            self._read_incident = Incident(
                kind=error.label, reason=f"reads: {error}", since=time.time()
            )
            self._log.error("the store cannot be read, calls go on", reason=str(error))

    async def ping(self) -> None:
        """See StateStore."""
        await self._store.ping()

    async def reopen(self) -> None:
        """See StateStore."""
        await self._store.reopen()

    async def close(self) -> None:
        """Write what waits if that is possible within 5 s, then close the store."""
        self._closed = True
        await self._recovery.close()
        await self._store.close()


def _release(waiter: asyncio.Future[None]) -> None:
    if not waiter.done():
        waiter.set_result(None)
