"""Any records, any outage, any order: then the store is ready, nothing is lost, nothing spins."""

from __future__ import annotations

import asyncio
import tempfile
from collections import Counter
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.backends import open_stores
from gateway.config.storage import StorageSettings
from gateway.conversations.loading import merged_call
from gateway.features.store_outages.guarded import GuardedStateStore
from gateway.stores.protocols import (
    StateStore,
    StoreBusy,
    StoreError,
    StoreUnreachable,
    VersionConflict,
)
from gateway.stores.records import CallRecord
from steering_gateway_testing.store_conformance import records
from tests.examples import examples
from tests.postgres import empty_database

Fault = Literal["works", "slow", "locked", "refused", "gone", "answer lost"]
_ERRORS: dict[str, Exception] = {
    "locked": StoreBusy("locked"),
    "refused": StoreUnreachable("refused"),
}
_ROUNDS_MORE = 40
"""Rounds of the recovery besides those of events and probes."""


class Faulty:
    """A real store whose writes and reads fail, hang or come late, each in their own way."""

    def __init__(self, store: StateStore) -> None:
        self._store = store
        self.writes: Fault = "works"
        self.reads: Fault = "works"
        self.changed = asyncio.Event()

    def set(self, kind: str, fault: Fault) -> None:
        setattr(self, kind, fault)
        self.changed.set()  # what hangs goes on
        self.changed = asyncio.Event()

    async def _meet(self, fault: Fault) -> None:
        if fault in _ERRORS:
            raise _ERRORS[fault]
        if fault == "slow":
            await asyncio.sleep(0.01)  # longer than the limit
        if fault == "gone":
            await self.changed.wait()

    async def commit(self, call: CallRecord) -> int:
        fault = self.writes
        await self._meet(fault)
        version = await self._store.commit(call)
        if fault == "answer lost":
            raise StoreUnreachable("the connection was lost")
        return version

    async def ping(self) -> None:
        await self._meet(self.writes)
        await self._store.ping()

    def __getattr__(self, name: str) -> Any:
        work = getattr(self._store, name)
        if name in ("reopen", "close"):
            return work

        async def read(*given: Any) -> Any:
            await self._meet(self.reads)
            return await work(*given)

        return read


@dataclass
class Calls:
    """The calls of some conversations, as a gateway commits them: `versions` as it knows them."""

    made: list[tuple[str, int]] = field(default_factory=list)
    retries: Counter[tuple[str, int]] = field(default_factory=Counter)
    versions: dict[str, int] = field(default_factory=dict)
    steps: Counter[str] = field(default_factory=Counter)

    def make(self, name: str, kind: str) -> CallRecord:
        """The next call of a conversation, another attempt at its last one, or what belongs to an
        earlier step and comes late."""
        again = kind in ("retry", "late score") and self.steps[name] > 0
        step = self.steps[name] - again
        if not again:
            self.steps[name] += 1
            self.made.append((name, step))
        self.retries[name, step] += kind == "retry" and again
        chat = records.a_chat(f"{name}-{step}-{len(self.made)}", retries=self.retries[name, step])
        head = records.a_head(name, records.history(name, step + 1))
        others = (
            [records.a_head(name, records.history(f"{name}-fork", step + 2))]
            if kind == "fork"
            else []
        )
        scored = kind != "late score" or not again
        conversation = records.a_conversation(
            name, version=self.versions.get(name, 0), updated_at=records.START + len(self.made)
        )
        return records.a_call(
            conversation=conversation,
            heads=(head, *([head] if kind == "n: 2" else others)),
            runs=(records.a_run(f"{name}.0", updated_at=records.START + step),),
            steps=(records.a_step(step, f"{name}.0", call=chat if scored else None),),
        )


_NAMES = st.sampled_from(["a", "b", "c"])
_CALLS = st.tuples(
    _NAMES,
    st.sampled_from(["call", "n: 2", "retry", "fork", "late score", "read", "other gateway"]),
)
_FAULTS = st.tuples(
    st.sampled_from(["writes", "reads"]),
    st.sampled_from(["works", "slow", "locked", "refused", "gone", "answer lost"]),
)
_EVENTS = st.lists(_CALLS | _FAULTS | st.just(("pause", "")), min_size=1, max_size=25)


async def _endure(events: list[tuple[str, str]], storage: dict[str, Any]) -> None:
    settings = StorageSettings(
        **storage, commit_limit_ms=5, probe_interval_s=0.005, busy_timeout_ms=500
    )
    stores = await open_stores(settings)
    store = Faulty(stores.states)
    rounds: Counter[str] = Counter()
    guarded = GuardedStateStore(store, settings, lambda _: None, merged_call)
    tried = guarded._recovery._try

    async def counted() -> bool:
        rounds["all"] += 1
        return await tried()

    guarded._recovery._try = counted  # type: ignore[method-assign]
    follow = asyncio.ensure_future(guarded.follow())
    calls, began = Calls(), asyncio.get_running_loop().time()
    try:
        for what, how in events:
            await _happens(what, how, store, guarded, calls)
        for kind in ("writes", "reads"):
            store.set(kind, "works")
        for _ in range(12_000):
            health = guarded.health
            if health.incident is None and not health.waiting:
                break
            await asyncio.sleep(0.005)
        assert (guarded.health.incident, guarded.health.waiting) == (None, 0)
        # Without progress a round waits for the next probe: more rounds than that are a busy loop.
        waited = (asyncio.get_running_loop().time() - began) / settings.probe_interval_s
        assert rounds["all"] <= waited + 2 * len(events) + _ROUNDS_MORE
        rounds.clear()
        await asyncio.sleep(0.05)
        assert rounds["all"] == 0  # nothing goes on in a store that works
        await _all_stored(stores, calls)
    finally:
        follow.cancel()
        await guarded.close()
        await stores.close()


async def _happens(
    what: str, how: str, store: Faulty, guarded: GuardedStateStore, calls: Calls
) -> None:
    if what in ("writes", "reads"):
        store.set(what, how)  # type: ignore[arg-type]
    elif what == "pause":
        await asyncio.sleep(0.05)
    elif how == "read":
        with suppress(StoreError):
            await guarded.load(records.TENANT, what)
    elif how == "other gateway":
        await _saved_elsewhere(store, what)
    else:
        record = calls.make(what, how)
        try:
            calls.versions[what] = await guarded.commit(record)
        except StoreError:
            calls.versions[what] = await guarded.keep(record)


async def _saved_elsewhere(store: Faulty, name: str) -> None:
    """Another gateway has saved the conversation, over whatever version there is."""
    own = store._store
    while True:  # a commit that was given up here may end between the two
        version = await own.version(records.TENANT, name)
        with suppress(VersionConflict):
            await own.commit(CallRecord(conversation=records.a_conversation(name, version=version)))
            return


async def _all_stored(stores: Any, calls: Calls) -> None:
    for name in calls.steps:
        trace = await stores.runs.get_run(f"{name}.0", tenant=None)
        assert trace is not None
        assert [row.step_index for row in trace.steps] == list(range(calls.steps[name]))
        assert all(row.call is not None for row in trace.steps)
        assert trace.run.totals.calls >= calls.steps[name]
        rows = await stores.states.find_prefix_hashes(
            records.TENANT, records.history(name, calls.steps[name])
        )
        assert {row.position for row in rows} == set(range(1, calls.steps[name] + 1))


@pytest.mark.slow
@examples(200)
@given(_EVENTS)
def test_any_outage_of_a_file(events: list[tuple[str, str]]) -> None:
    """Writes and reads that are slow, locked, refused, without an end, or whose answer is lost."""
    with tempfile.TemporaryDirectory() as folder:
        asyncio.run(_endure(events, {"path": str(Path(folder) / "gateway.db")}))


@pytest.mark.slow
@examples(100)
@given(_EVENTS)
def test_any_outage_of_a_database(events: list[tuple[str, str]]) -> None:
    """The same with PostgreSQL."""
    with empty_database() as url, tempfile.TemporaryDirectory() as folder:
        asyncio.run(_endure(events, {"url": url, "spool_path": folder}))
