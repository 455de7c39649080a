"""The guard around a store: order, repetition, limits, reopening - with real SQLite files."""

from __future__ import annotations

import asyncio
import dataclasses
import os
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import apsw
import pytest
from msgspec.structs import replace

from gateway.backends import Stores, open_stores
from gateway.config.storage import StorageSettings
from gateway.features.store_outages.breaker import SLOW, Breaker
from gateway.features.store_outages.guarded import CommitLimit, GuardedStateStore
from gateway.features.store_outages.spool import Spool, with_version
from gateway.stores.protocols import (
    StoreBusy,
    StoreCorrupt,
    StoreOverloaded,
    StoreReplaced,
    StoreUnavailable,
    VersionConflict,
)
from gateway.stores.records import CallRecord, StepContent
from steering_gateway_testing.patience import ANSWER_S, DEADLINE_MS, until_async
from steering_gateway_testing.store_conformance import records
from steering_gateway_testing.store_conformance.histories import HISTORY_CHECKS
from steering_gateway_testing.store_conformance.states import STATE_CHECKS


class Guarded:
    """A guard, what it stands around, and the kinds of failure it has counted."""

    def __init__(self, stores: Stores, settings: StorageSettings) -> None:
        self.stores = stores
        self.kinds: list[str] = []
        self.store = GuardedStateStore(stores.states, settings, self.kinds.append)
        self._watch = asyncio.ensure_future(self.store.follow())

    async def works_again(self) -> None:
        """Wait until there is no incident and nothing waits."""
        for _ in range(6000):
            if self.store.health.incident is None and not self.store.health.waiting:
                return
            await asyncio.sleep(0.01)
        raise AssertionError("the store never worked again")

    async def close(self) -> None:
        self._watch.cancel()
        await self.store.close()


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "gateway.db"


@pytest.fixture
async def guarded(path: Path) -> AsyncIterator[Guarded]:
    settings = StorageSettings(
        path=str(path), busy_timeout_ms=20, probe_interval_s=0.02, spool_records=8
    )
    found = Guarded(await open_stores(settings), settings)
    yield found
    await found.close()


def lock(path: Path) -> apsw.Connection:
    """Another connection that holds the write lock until it is closed."""
    other = apsw.Connection(str(path))
    other.set_busy_timeout(120_000)
    other.execute("BEGIN EXCLUSIVE")
    return other


def call(step: int) -> CallRecord:
    """The call of one conversation at `step`, saved over the version before it."""
    made = records.a_chat(f"request-{step}", latency_s=1.0 + step)
    return records.a_call(
        conversation=records.a_conversation(version=step, state=b"%d" % step, external_key="key"),
        heads=(records.a_head("c1", records.history("a", step + 1)),),
        runs=(records.a_run(updated_at=records.START + step),),
        steps=(records.a_step(step, call=made),),
    )


async def test_what_waits_is_found_and_written_in_order(guarded: Guarded, path: Path) -> None:
    """Versions go on while the file is locked, and every look-up sees the newest state."""
    store, other = guarded.store, lock(path)
    assert [await store.commit(call(step)) for step in range(4)] == [1, 2, 3, 4]
    assert store.health.waiting == 4
    loaded = await store.load(records.TENANT, "c1")
    assert loaded is not None
    assert (loaded.version, loaded.state) == (4, b"3")
    assert await store.branches(records.TENANT, "key") == [loaded]
    assert await store.branches("other", "key") == []
    assert await store.load("other", "c1") is None
    found = await store.find_prefix_hashes(records.TENANT, records.history("a", 9))
    assert [row.position for row in found] == [4, 3, 2, 1]
    assert await guarded.stores.states.load(records.TENANT, "c1") is None
    other.close()
    await guarded.works_again()
    assert await guarded.stores.states.load(records.TENANT, "c1") == loaded
    assert await store.find_prefix_hashes(records.TENANT, records.history("a", 9)) == found
    trace = await guarded.stores.runs.get_run("r1", tenant=None)
    assert trace is not None
    assert [row.step_index for row in trace.steps] == [0, 1, 2, 3]
    assert (trace.run.totals.calls, trace.run.totals.retries) == (4, 0)


async def test_another_gateway_saved_the_conversation_meanwhile(
    guarded: Guarded, path: Path
) -> None:
    """Its rows stay, those that waited are added, and the newer state replaces its state."""
    store, other = guarded.store, lock(path)
    for step in (0, 1):
        await store.commit(call(step))
    other.close()
    # The first to write after the lock is free, before or after the records that wait.
    theirs = replace(call(5), conversation=records.a_conversation(version=0))
    while True:
        try:
            await guarded.stores.states.commit(theirs)
            break
        except (VersionConflict, StoreBusy) as error:
            version = getattr(error, "actual", 0)
            theirs = replace(theirs, conversation=replace(theirs.conversation, version=version))
    await guarded.works_again()
    trace = await guarded.stores.runs.get_run("r1", tenant=None)
    assert trace is not None
    assert [row.step_index for row in trace.steps] == [0, 1, 5]
    assert trace.run.totals.calls == 3


async def test_the_spool_is_bounded(guarded: Guarded, path: Path) -> None:
    """A record that does not fit is refused, and those that wait are written."""
    other = lock(path)
    for number in range(8):
        await guarded.store.commit(records.one_run(number))
    with pytest.raises(StoreOverloaded, match="spool_records"):
        await guarded.store.commit(records.one_run(8))
    health = guarded.store.health
    assert (health.waiting, health.incident and health.incident.dropped) == (8, 1)
    other.close()
    await guarded.works_again()
    assert await guarded.stores.states.load(records.TENANT, "c0007") is not None
    assert await guarded.stores.states.load(records.TENANT, "c0008") is None


def test_the_spool_is_bounded_in_bytes() -> None:
    """Texts count with their length, and what is removed makes room."""
    large = records.a_step(0, content=StepContent(thought="x" * 100_000))
    record = records.one_run(1, steps=(large,))
    assert 100_000 < record.memory_bytes < 110_000
    spool = Spool(max_records=100, max_bytes=150_000)
    assert spool.add(record)
    assert not spool.add(records.one_run(2, steps=(large,)))
    (waiting,) = spool.batch(9)
    spool.remove(waiting)
    assert (spool.records, spool.bytes, spool.batch(9)) == (0, 0, [])
    assert spool.add(records.one_run(2, steps=(large,)))


async def test_one_failure_is_no_incident(
    guarded: Guarded, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A single failure is repeated at once, without a word."""
    states, failures = guarded.stores.states, [StoreBusy("locked")]
    commit = states.commit

    async def once(record: CallRecord) -> int:
        if failures:
            raise failures.pop()
        return await commit(record)

    monkeypatch.setattr(states, "commit", once)
    assert await guarded.store.commit(call(0)) == 1
    assert guarded.store.health.incident is None
    await guarded.works_again()
    assert guarded.kinds == ["busy"]
    assert await states.load(records.TENANT, "c1") is not None


async def test_a_record_that_comes_during_a_probe_keeps_the_incident_open(
    guarded: Guarded, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A probe that succeeds says nothing about the record that waits since: its write does."""
    states, commit = guarded.stores.states, guarded.stores.states.commit
    probing, answers, writing, returns = (asyncio.Event() for _ in range(4))

    async def ping() -> None:
        probing.set()
        await answers.wait()

    async def hangs(record: CallRecord) -> int:
        writing.set()
        await returns.wait()
        return await commit(record)

    monkeypatch.setattr(states, "ping", ping)
    monkeypatch.setattr(states, "commit", hangs)
    guarded.store._recovery.open(SLOW, "a commit takes long")
    await probing.wait()
    assert await guarded.store.commit(call(0)) == 1
    answers.set()
    await writing.wait()
    assert guarded.store.health.incident is not None
    assert guarded.store.health.waiting == 1
    returns.set()
    await guarded.works_again()
    assert await states.load(records.TENANT, "c1") is not None


async def test_a_caller_that_leaves_loses_nothing(guarded: Guarded, path: Path) -> None:
    """The record of a request that was cancelled during its commit is stored all the same."""
    other = lock(path)
    task = asyncio.ensure_future(guarded.store.commit(call(0)))
    await asyncio.sleep(0.005)
    task.cancel()
    await asyncio.wait([task])
    other.close()
    await guarded.works_again()
    assert await guarded.stores.states.load(records.TENANT, "c1") is not None


@pytest.mark.parametrize("lost", ["", "-wal"], ids=["the file", "its log"])
async def test_a_lost_file_keeps_what_is_committed_after(
    guarded: Guarded, path: Path, lost: str
) -> None:
    """A commit that went into a file, or a log, that nobody will find is made again."""
    await guarded.store.commit(call(0))
    os.unlink(f"{path}{lost}")
    with pytest.raises(StoreReplaced, match="deleted or replaced"):
        await guarded.stores.states.commit(records.one_run(7))
    assert await guarded.store.commit(call(1)) == 2
    await guarded.works_again()
    stored = await guarded.store.load(records.TENANT, "c1")
    assert stored is not None
    await guarded.store.commit(with_version(call(2), stored.version))
    trace = await guarded.stores.runs.get_run("r1", tenant=None)
    assert trace is not None
    assert [row.step_index for row in trace.steps] == ([1, 2] if not lost else [0, 1, 2])
    assert trace.run.totals.calls == len(trace.steps)
    with apsw.Connection(str(path)) as found:
        assert found.pragma("integrity_check") == "ok"


async def test_two_gateways_meet_in_the_new_file(path: Path) -> None:
    """Both notice that their file was deleted, and neither takes the other's log for a leftover."""
    settings = StorageSettings(path=str(path), probe_interval_s=0.02)
    both = [Guarded(await open_stores(settings), settings) for _ in range(2)]
    await both[0].store.commit(records.one_run(1))
    os.unlink(path)
    for number in range(2, 60):
        await both[number % 2].store.commit(records.one_run(number))
        if number == 40:
            for each in both:
                await each.works_again()
    for each in both:
        await each.works_again()
        await each.close()
    with apsw.Connection(str(path)) as found:
        assert found.pragma("integrity_check") == "ok"
        ids = {row[0] for row in found.execute("SELECT id FROM conversations")}
    assert ids == {f"c{number:04}" for number in range(2, 60)}


async def test_a_place_without_permission_is_tried_again(
    guarded: Guarded, path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """While the file cannot be made again the records wait; look-ups fail instead of waiting."""
    refuse = [True]
    make = os.open

    def guarded_open(name: Any, flags: int, *more: Any, **named: Any) -> int:
        if refuse[0] and str(name) == str(path):
            raise PermissionError(13, "Permission denied", str(path))
        return make(name, flags, *more, **named)

    monkeypatch.setattr(os, "open", guarded_open)
    os.unlink(path)
    for step in range(3):
        await guarded.store.commit(call(step))
    await asyncio.sleep(0.1)
    assert guarded.store.health.waiting == 3
    refuse[0] = False
    await guarded.works_again()
    found = await guarded.stores.states.load(records.TENANT, "c1")
    assert found is not None
    assert found.state == b"2"


@pytest.mark.parametrize(
    "check", [*STATE_CHECKS, *HISTORY_CHECKS], ids=lambda check: str(check.__name__)
)
async def test_a_guarded_store_is_a_store(check: Any, path: Path) -> None:
    """It keeps the promises of StateStore."""
    settings = StorageSettings(path=str(path), commit_limit_ms=DEADLINE_MS)
    stores = await open_stores(settings)
    guard = GuardedStateStore(stores.states, settings, lambda _: None)
    await check(dataclasses.replace(stores, states=guard))
    await stores.close()


def test_trouble_that_repeats_is_logged_less_and_less() -> None:
    """Each incident that follows closely on another lasts longer: 0, 1, 2, 4 ... at most 60 s."""
    now = [0.0]
    breaker = Breaker(failures=3, clock=lambda: now[0])
    held = []
    for _ in range(9):
        breaker.open("slow", "slow")
        began = now[0]
        while not breaker.may_close:
            now[0] += 0.5
        held.append(now[0] - began)
        breaker.close()
        now[0] += 1
    assert held == [0, 1, 2, 4, 8, 16, 32, 60, 60]
    now[0] += 100
    breaker.open("slow", "slow")
    assert breaker.may_close


async def test_a_store_that_goes_on_finishing_is_not_slow() -> None:
    """A commit that waits for its turn is given up only when none was finished for the limit: what
    is given up is in memory alone."""
    loop, quiet_s, ended = asyncio.get_running_loop(), list[float](), asyncio.Event()

    def passed() -> None:
        quiet_s.append(loop.time() - last)
        ended.set()

    limit = CommitLimit(0.3, passed)
    never: asyncio.Task[int] = asyncio.ensure_future(asyncio.Event().wait())
    begun = last = loop.time()
    unwatch = limit.watch(never)
    while loop.time() < begun + 0.5 and not quiet_s:
        last = loop.time()
        limit.finished()
        await asyncio.sleep(0.01)
    await asyncio.wait_for(ended.wait(), ANSWER_S)
    assert quiet_s[0] >= 0.29
    unwatch()
    never.cancel()


async def test_no_commit_is_waited_for_without_end() -> None:
    """A queue that moves, but never comes to a commit, is slow all the same."""
    loop, passed = asyncio.get_running_loop(), asyncio.Event()
    limit = CommitLimit(0.01, passed.set)
    never: asyncio.Task[int] = asyncio.ensure_future(asyncio.Event().wait())
    unwatch = limit.watch(never)
    ends = loop.time() + ANSWER_S
    while not passed.is_set():
        limit.finished()
        assert loop.time() < ends
        await asyncio.sleep(0.001)
    unwatch()
    never.cancel()


async def never() -> None:
    """A read of a database that hangs."""
    await asyncio.Event().wait()


async def test_reads_beside_a_degraded_store_are_not_waited_for(
    guarded: Guarded, path: Path
) -> None:
    """One that hangs is given up, and soon refused; one that works is answered meanwhile."""
    store, other = guarded.store, lock(path)
    await store.commit(call(0))
    await store.commit(call(1))
    await store.commit(call(2))
    assert store.health.incident is not None

    async def works() -> int:
        return 7

    assert await store.read_beside(works) == 7
    said: list[str] = []
    async with asyncio.timeout(DEADLINE_MS / 1000):
        while "cannot be read at the moment" not in said[-1:]:
            with pytest.raises(StoreUnavailable) as caught:
                await store.read_beside(never)
            said.append(str(caught.value).removeprefix("the store "))
    assert "a read takes too long" in said
    other.close()
    await guarded.works_again()


async def test_what_fails_beside_the_store_is_its_own_fault(guarded: Guarded) -> None:
    """Damaged patterns do not make the store degraded."""

    async def damaged() -> None:
        raise StoreCorrupt("the index of patterns is damaged")

    for _ in range(10):
        with pytest.raises(StoreCorrupt):
            await guarded.store.read_beside(damaged)
    assert guarded.store.health.incident is None


async def test_equal_choices_of_one_answer_wait_once(guarded: Guarded, path: Path) -> None:
    """An answer with `n: 2` and equal texts has the same hash twice."""
    head = records.a_head("c1", records.history("a", 1))
    twice = replace(call(0), heads=(head, head), items=())
    other = lock(path)
    await guarded.store.commit(twice)
    assert guarded.store.health.waiting == 1
    other.close()
    await guarded.works_again()
    assert await guarded.stores.states.load(records.TENANT, "c1") is not None
    assert await guarded.store.commit(call(1)) == 2


async def test_slow_reads_do_not_hold_up_writes(
    guarded: Guarded, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They are refused for a while, which the health says; calls are stored at once."""

    async def fails(*_: Any) -> Any:
        raise StoreUnavailable("a read takes too long")

    with monkeypatch.context() as patched:
        patched.setattr(guarded.stores.states, "load", fails)
        for _ in range(4):
            with pytest.raises(StoreUnavailable):
                await guarded.store.load(records.TENANT, "c9")
        incident = guarded.store.health.incident
        assert incident is not None
        assert incident.reason.startswith("reads: ")
        assert await guarded.store.commit(call(0)) == 1
        assert guarded.store.health.waiting == 0
        assert guarded.kinds == []
    for _ in range(1000):
        try:
            assert await guarded.store.load(records.TENANT, "c1") is not None
            break
        except StoreUnavailable:
            await asyncio.sleep(0.01)
    assert guarded.store.health.incident is None


async def test_no_call_is_the_probe_of_a_store_that_is_away(
    guarded: Guarded, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Reads that hang are waited for three times; then calls are refused at once, however long the
    store is away, until a probe without a client has read."""
    store, works = guarded.store, asyncio.Event()
    store._reads.limit_s = 0.01
    asked: list[str] = []

    async def hangs(*_: Any) -> Any:
        asked.append("call")
        await never()

    async def probe(*_: Any) -> int:
        asked.append("probe")
        if not works.is_set():
            raise StoreUnavailable("away")
        return 0

    monkeypatch.setattr(guarded.stores.states, "load", hangs)
    monkeypatch.setattr(guarded.stores.states, "version", probe)
    said: set[str] = set()
    async with asyncio.timeout(DEADLINE_MS / 1000):
        while asked.count("probe") < 5:
            with pytest.raises(StoreUnavailable) as caught:
                await store.load(records.TENANT, "c9")
            said.add(str(caught.value))
            await asyncio.sleep(0)
        assert asked.count("call") == 3
        assert said == {"a read takes too long", "the store cannot be read at the moment"}
        works.set()
        while asked.count("call") == 3:
            with pytest.raises(StoreUnavailable):
                await store.load(records.TENANT, "c9")
            await asyncio.sleep(0)


async def test_a_store_that_cannot_be_written_is_read_before_a_call_needs_it(
    guarded: Guarded, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first call that would read a store that is known to be away is refused at once."""
    asked: list[str] = []

    async def away(*given: Any) -> Any:
        asked.append("call" if any(given) else "probe")
        raise StoreUnavailable("away")

    for name in ("ping", "version", "load"):
        monkeypatch.setattr(guarded.stores.states, name, away)
    await until_async(lambda: guarded.store._reads._refuses)
    assert guarded.store.health.incident is not None
    with pytest.raises(StoreUnavailable, match="at the moment"):
        await guarded.store.load(records.TENANT, "c9")
    assert "call" not in asked


async def test_a_record_that_cannot_be_joined_waits(guarded: Guarded) -> None:
    """`keep`: the conversation has changed in the store, and could not be read just then."""
    await guarded.stores.states.commit(call(0))
    other = records.a_conversation(version=0, state=b"another", external_key="key")
    heads = (records.a_head("c1", records.history("b", 2)),)
    await guarded.store.keep(replace(call(0), conversation=other, heads=heads))
    await guarded.works_again()
    assert await guarded.store.find_prefix_hashes(records.TENANT, records.history("b", 2))
