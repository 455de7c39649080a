"""A store that never makes an answer wait for long: any StateStore behind a breaker and a spool.

While the store works, a commit is awaited. When it fails, or none is finished for
`storage.commit_limit_ms`, its record waits in memory, and so do those that follow; they are written
in order when the store works again (`recovery_and_reopening.py`). The look-ups find what
waits, so that a conversation continues whether its newest state is stored or not."""

import asyncio
import time
from collections.abc import Awaitable, Callable, Sequence, Sized

from cachetools import FIFOCache

from gateway.config.storage import StorageSettings
from gateway.features.store_outages.breaker import SLOW
from gateway.features.store_outages.recovery_and_reopening import (
    TROUBLE,
    Merge,
    Recovery,
    replacing,
)
from gateway.observability.logging import get_logger
from gateway.stores.protocols import (
    MAX_HEADS,
    StateStore,
    StoreClosed,
    StoreError,
    StoreReplaced,
    StoreUnavailable,
)
from gateway.stores.records import CallRecord, ConversationRecord, PrefixHashRecord
from gateway.stores.time_limits import TimeLimits
from gateway.stores.watched import Incident, StoreHealth, WatchedStates
from gateway.values import T

_SLOW_READ_S = 0.025  # a read that was given up after this long counts as failed
_DEGRADED_READ_S = 0.02  # longest read of another store while this one is degraded: it may hang
_ACTIVE = 10_000  # conversations whose last commit is remembered


class _ReadGuard:
    """Limits reads, and refuses them after failures, until `follow` has read again: no call is the
    probe. `replaced` gets the error of a store that was replaced: writes would go into a file that
    nobody reads."""

    def __init__(self, settings: StorageSettings, replaced: Callable[[StoreError], None]):
        self.limit_s = settings.commit_limit_ms / 1000
        self.incident: Incident | None = None
        self._settings = settings
        self._replaced = replaced
        self._limits = TimeLimits()
        self._failures = 0
        self._log = get_logger("gateway.store")

    async def follow(
        self, probe: Callable[[], Awaitable[object]], degraded: Callable[[], bool]
    ) -> None:
        """Find out whether the store can be read again or, while it is `degraded`, whether it still
        can be; also when nobody reads. Without end."""
        while True:
            await asyncio.sleep(self._settings.probe_interval_s)
            if not (self._refuses or degraded()):
                continue
            if self._refuses:
                others = 0
            else:
                others = self._failures
            try:
                await self.within(self.limit_s, probe)
                self._failures = others  # those of reads that are slower than this one
            except StoreError as error:
                self._failures = self._settings.breaker_failures  # no call has to find it out
                self.failed(error)

    @property
    def _refuses(self) -> bool:
        return self._failures >= self._settings.breaker_failures

    def begin(self) -> float:
        """The time now. Raises: StoreUnavailable, when reads are refused."""
        if self._refuses:
            raise StoreUnavailable("the store cannot be read at the moment")
        return time.monotonic()

    async def within(self, limit_s: float, work: Callable[[], Awaitable[T]]) -> T:
        """Raises: StoreUnavailable after `limit_s`, and whatever else `work` raises."""
        try:
            with self._limits.within(limit_s):
                found = await work()
        except TimeoutError:
            raise StoreUnavailable("a read takes too long") from None
        self._failures = 0
        if self.incident is not None:
            self.incident = None
            self._log.warning("the store can be read again")
        return found

    def failed(self, error: StoreError) -> None:
        """Count a failure; as many as `storage.breaker_failures` in a row begin an incident."""
        self._failures += 1
        if not self._refuses:
            return
        if isinstance(error, StoreReplaced):
            self._replaced(error)
        elif self.incident is None:
            # Writes go on: a store that reads slowly mostly writes, and what waits can be lost.
            reason = f"reads: {error}"
            self.incident = Incident(kind=error.label, reason=reason, since=time.time())
            self._log.error("the store cannot be read, calls go on", reason=str(error))


# A timer this late: the process had no processor meanwhile, and a commit may be done unnoticed.
_LATE_S = 0.02
_EXTENSIONS = 8  # longest wait of all, in limits, for a store that goes on finishing other commits


class CommitLimit:
    """Calls `passed` when nothing has been finished for `limit_s`. On a busy machine commits wait
    for their turn: while others are finished, a commit in the queue will be done, too. One that is
    given up is in memory alone, where `kill -9` loses it."""

    def __init__(self, limit_s: float, passed: Callable[[], None]):
        self._limit_s = limit_s
        self._passed = passed
        self._loop = asyncio.get_running_loop()
        self._finished_at = float("-inf")

    def finished(self) -> None:
        """The store has finished something."""
        self._finished_at = self._loop.time()

    def watch(self, write: asyncio.Task[int]) -> Callable[[], None]:
        """Watch a commit that begins now; the result ends that."""
        begun = self._loop.time()
        timer: asyncio.TimerHandle

        def check(due: float) -> None:
            nonlocal timer
            now = self._loop.time()
            again = max(begun, self._finished_at) + self._limit_s
            if now - due > _LATE_S:
                again = now + self._limit_s / 4
            if write.done():
                return
            if again <= now or now - begun > _EXTENSIONS * self._limit_s:
                self._passed()
            else:
                timer = self._loop.call_at(again, check, again)

        timer = self._loop.call_at(begun + self._limit_s, check, begun + self._limit_s)
        return lambda: timer.cancel()


class GuardedStateStore(WatchedStates):
    """`WatchedStates` over another store. Made on the event loop that uses it; `follow` must run.
    `count` gets the kind of failure of each call that was not stored at once, `merge` a call that
    waited and what is stored of its conversation since; `in_memory_only` is called for each answer
    that went out while its record was nowhere else."""

    def __init__(
        self,
        store: StateStore,
        settings: StorageSettings,
        count: Callable[[str], None],
        merge: Merge = replacing,
        in_memory_only: Callable[[], None] = lambda: None,
    ):
        self._store = store
        self._recovery = Recovery(
            store, settings, count, opened=self._release, merge=merge, in_memory_only=in_memory_only
        )
        # Called after the store was opened again, which may be an empty one.
        self.reopened = self._recovery.reopened
        limit_ms = settings.commit_limit_ms
        slow = (SLOW, f"a commit takes longer than {limit_ms:g} ms")
        self._limit = CommitLimit(limit_ms / 1000, lambda: self._recovery.open(*slow))
        self._reads = _ReadGuard(settings, self._recovery.note)
        self._waiters: set[asyncio.Future[None]] = set()
        self._active: FIFOCache[str, float] = FIFOCache(_ACTIVE)
        self._closed = False

    @property
    def health(self) -> StoreHealth:
        """The state of the store now."""
        recovery = self._recovery
        return StoreHealth(
            incident=recovery.breaker.incident or self._reads.incident,
            waiting=recovery.spool.records,
            waiting_bytes=recovery.spool.bytes,
            waiting_on_disk=recovery.on_disk,
            lasts_s=recovery.spool.lasts_s,
            damaged=tuple(recovery.damaged),
        )

    @property
    def lost(self) -> int:
        """The number of records that could not be kept when the store was closed."""
        return self._recovery.lost

    @property
    def damaged(self) -> list[str]:
        """The names under which damaged databases are kept since the start."""
        return self._recovery.damaged

    def active_within(self, seconds: float) -> list[str]:
        """The conversations committed by this process in the last `seconds`, at most 10,000."""
        since = time.monotonic() - seconds
        return [name for name, at in self._active.items() if at >= since]

    async def take_over(self) -> None:
        """Keep what a gateway that ended has left on disk; returns when look-ups find it."""
        await self._recovery.start()

    async def follow(self) -> None:
        """Check the store every `storage.probe_interval_s`, without end."""
        probing = self._reads.follow(
            lambda: self._store.version("", ""), lambda: self._recovery.breaker.is_open
        )
        await asyncio.gather(self._recovery.follow(), probing)

    async def commit(self, call: CallRecord) -> int:
        """See StateStore. While the store is unavailable the record waits, and the version is the
        one it will probably get. Raises: StoreOverloaded when there is no room for it to wait."""
        if self._closed:
            raise StoreClosed("the store is closed")
        name = call.conversation.id
        recovery = self._recovery
        self._active[name] = time.monotonic()
        recovery.spool.pace.calls += 1
        waits = name in recovery.spool.by_conversation
        if waits and recovery.breaker.incident is None:
            # Behind an earlier record of its conversation, which could not be stored.
            recovery.note_again()
        if waits or recovery.breaker.incident is not None:
            call.check()  # as the store does
            return await recovery.kept(call)
        return await self._commit_now(call)

    async def keep(self, call: CallRecord) -> int:
        """Let a record wait whose conversation has changed in the store and cannot be read: it is
        joined with that later. Raises: StoreOverloaded when there is no room for it to wait."""
        if self._closed:
            raise StoreClosed("the store is closed")
        return await self._recovery.kept(call)

    async def _commit_now(self, call: CallRecord) -> int:
        """Commit, and wait for it: at most until the limit, or until the breaker opens."""
        loop = asyncio.get_running_loop()
        write = loop.create_task(self._store.commit(call))
        waiter = loop.create_future()
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
        self._recovery.breaker.failures = 0
        return write.result()

    def _release(self) -> None:
        for waiter in self._waiters:
            _release(waiter)

    async def find_prefix_hashes(
        self, tenant: str, digests: Sequence[bytes]
    ) -> list[PrefixHashRecord]:
        """See StateStore. Raises: StoreError when nothing that waits matches, and the store
        fails."""
        waiting = list(self._recovery.spool.prefix_hashes(tenant, digests))
        stored = await self._stored(
            waiting, lambda: self._store.find_prefix_hashes(tenant, digests)
        )
        if not waiting:
            return stored
        known = {(row.digest, row.conversation_id, row.kind) for row in waiting}
        others = [r for r in stored if (r.digest, r.conversation_id, r.kind) not in known]
        return sorted([*reversed(waiting), *others], key=lambda row: -row.position)[:MAX_HEADS]

    async def load(self, tenant: str, conversation_id: str) -> ConversationRecord | None:
        waiting = self._recovery.spool.load(tenant, conversation_id)
        return waiting or await self.read(lambda: self._store.load(tenant, conversation_id))

    async def version(self, tenant: str, conversation_id: str) -> int:
        waiting = self._recovery.spool.load(tenant, conversation_id)
        if waiting is not None:
            return waiting.version
        return await self.read(lambda: self._store.version(tenant, conversation_id))

    async def branches(self, tenant: str, external_key: str) -> list[ConversationRecord]:
        """See StateStore. Raises: like `find_prefix_hashes`."""
        waiting = {row.id: row for row in self._recovery.spool.branches(tenant, external_key)}
        stored = await self._stored(waiting, lambda: self._store.branches(tenant, external_key))
        if not waiting:
            return stored
        found = [*waiting.values(), *(row for row in stored if row.id not in waiting)]
        return sorted(found, key=lambda row: -row.updated_at)

    async def _stored(self, waiting: Sized, work: Callable[[], Awaitable[list[T]]]) -> list[T]:
        """The result of a read; nothing if it fails and something is `waiting`."""
        try:
            return await self.read(work)
        except StoreError:
            if not waiting:
                raise
            return []

    async def find_items(self, tenant: str, ids: Sequence[str]) -> dict[str, bytes]:
        waiting = self._recovery.spool.items(tenant, ids)
        if len(waiting) == len(ids):
            return waiting
        return await self.read(lambda: self._store.find_items(tenant, ids)) | waiting

    async def read(self, work: Callable[[], Awaitable[T]]) -> T:
        """The result of a read. After some that failed in a row, or were given up after 25 ms,
        reads are refused until the store can be read again. Raises: StoreError."""
        started = self._reads.begin()
        try:
            return await self._reads.within(self._reads.limit_s, work)
        except StoreError as error:
            self._reads.failed(error)
            raise
        except asyncio.CancelledError:
            if time.monotonic() - started > _SLOW_READ_S:
                self._reads.failed(StoreUnavailable("reads take too long"))
            raise

    async def read_beside(self, work: Callable[[], Awaitable[T]]) -> T:
        """The result of a read of another store in the same database: refused like the reads of
        this one, and hardly waited for while this one is degraded. Only a database that cannot be
        reached counts as a failure. Raises: StoreError."""
        self._reads.begin()
        degraded = self._recovery.breaker.is_open
        try:
            return await self._reads.within(
                _DEGRADED_READ_S if degraded else self._reads.limit_s, work
            )
        except StoreUnavailable as error:
            self._reads.failed(error)
            raise

    async def ping(self) -> None:
        await self._store.ping()

    async def reopen(self) -> str | None:
        return await self._store.reopen()

    async def close(self) -> None:
        """Write what waits if that is possible within 5 s, then close the store."""
        self._closed = True
        await self._recovery.close()
        await self._store.close()


def _release(waiter: asyncio.Future[None]) -> None:
    if not waiter.done():
        waiter.set_result(None)
