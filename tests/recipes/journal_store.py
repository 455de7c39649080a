"""A store for the recipe test: one file of pickled changes, applied again when it is opened.

Follows `docs/architecture.md`: this module becomes the package `gateway/stores/journal`. It holds
what `gateway keys` and `gateway runs list` need, and no patterns (`etraces.enabled: false`).
"""

from __future__ import annotations

import dataclasses
import pickle
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, cast

from msgspec.structs import replace

from gateway.backends import Stores
from gateway.config.storage import StorageSettings
from gateway.features.keys.records import KeyRecord
from gateway.features.keys.store import KeyStore
from gateway.stores.filters import RunFilter
from gateway.stores.lists import PageRequest, RunPage
from gateway.stores.protocols import StateStore, StoreError, VersionConflict
from gateway.stores.records import (
    CallRecord,
    ConversationRecord,
    PrefixHashRecord,
    RunUpdate,
    StepRow,
)
from gateway.stores.sql.learning import LearningStore
from gateway.stores.sql.patterns import PatternStore
from gateway.stores.sql.runs import RunStore
from gateway.stores.totals import RunRecord, RunTotals
from gateway.stores.traces import RunTrace


async def open_journal(settings: StorageSettings, *, vectors: bool, existing: bool) -> Stores:
    """The stores in the file that `storage.url` names: `journal://here/FILE`."""
    journal = Journal(Path(str(settings.url).removeprefix("journal://here/")))
    return Stores(
        states=cast(StateStore, JournalStates(journal)),
        runs=cast(RunStore, JournalRuns(journal)),
        patterns=cast(PatternStore, None),
        of_features={KeyStore: JournalKeys(journal)},
        learning=cast(LearningStore, None),
        close=journal.close,
    )


@dataclass
class StoredRun:
    """One run and its steps by index."""

    record: RunRecord
    steps: dict[int, StepRow] = field(default_factory=dict)


class Journal:
    """Everything in memory, and the file with the changes that led there."""

    def __init__(self, path: Path) -> None:
        self.keys: dict[str, KeyRecord] = {}
        self.conversations: dict[str, ConversationRecord] = {}
        self.hashes: list[PrefixHashRecord] = []
        self.runs: dict[str, StoredRun] = {}
        self._file = path.open("a+b")
        self._file.seek(0)
        while self._file.peek(1):
            self._apply(*pickle.load(self._file))  # noqa: S301 - the file is our own

    def keep(self, kind: str, value: Any) -> None:
        """Write one change, then apply it."""
        self._file.write(pickle.dumps((kind, value)))
        self._file.flush()
        self._apply(kind, value)

    async def close(self) -> None:
        """Close the file."""
        self._file.close()

    def _apply(self, kind: str, value: Any) -> None:
        if kind == "key":
            self.keys[value.id] = value
        elif kind == "no keys":
            self.keys.clear()
        else:
            self._apply_call(value)

    def _apply_call(self, call: CallRecord) -> None:
        new = call.conversation
        old = self.conversations.get(new.id)
        if old is not None:
            new = replace(new, created_at=old.created_at, source=old.source)
        self.conversations[new.id] = replace(new, version=new.version + 1)
        self.hashes = [*call.heads, *self.hashes]
        for update in call.runs:
            steps = [step for step in call.steps if step.run_id == update.id]
            run = self.runs.setdefault(update.id, StoredRun(_new_run(new, update)))
            run.steps |= {step.step_index: step for step in steps}
            calls = [step.call for step in steps if step.call is not None]
            totals = run.record.totals.including(steps, calls, retries=0, injections=0)
            changed = (update.updated_at, update.ended_at, update.state, update.outcome)
            names = ("updated_at", "ended_at", "state", "outcome")
            news: dict[str, Any] = dict(zip(names, changed, strict=True))
            run.record = replace(run.record, totals=totals, **news)


def _new_run(conversation: ConversationRecord, update: RunUpdate) -> RunRecord:
    described = {name: getattr(update, name) for name in RunUpdate.__struct_fields__}
    return RunRecord(
        **described, conversation_id=conversation.id, tenant=conversation.tenant, totals=RunTotals()
    )


class JournalKeys:
    """KeyStore."""

    def __init__(self, journal: Journal) -> None:
        self._journal = journal

    async def add_key(self, key: KeyRecord) -> None:
        if any(key.id == k.id or key.digest == k.digest for k in self._journal.keys.values()):
            raise StoreError(f"key {key.id!r} exists")
        self._journal.keep("key", key)

    async def list_keys(self) -> Sequence[KeyRecord]:
        return tuple(self._journal.keys.values())

    async def revoke_key(self, key_id: str, at: float) -> bool:
        key = self._journal.keys.get(key_id)
        if key is None or key.revoked_at is not None:
            return False
        self._journal.keep("key", dataclasses.replace(key, revoked_at=at))
        return True

    async def change_key(self, key_id: str, changes: Mapping[str, Any]) -> KeyRecord | None:
        key = self._journal.keys.get(key_id)
        if key is None or key.revoked_at is not None:
            return None
        key = dataclasses.replace(key, terms=replace(key.terms, **changes))
        self._journal.keep("key", key)
        return key

    async def delete_keys(self) -> int:
        valid = sum(key.revoked_at is None for key in self._journal.keys.values())
        self._journal.keep("no keys", None)
        return valid


class JournalStates:
    """StateStore, without items of answers."""

    def __init__(self, journal: Journal) -> None:
        self._journal = journal

    async def find_prefix_hashes(
        self, tenant: str, digests: Sequence[bytes]
    ) -> list[PrefixHashRecord]:
        found = [h for h in self._journal.hashes if h.tenant == tenant and h.digest in digests]
        return sorted(found, key=lambda h: -h.position)

    async def load(self, tenant: str, conversation_id: str) -> ConversationRecord | None:
        record = self._journal.conversations.get(conversation_id)
        return record if record is not None and record.tenant == tenant else None

    async def version(self, tenant: str, conversation_id: str) -> int:
        record = await self.load(tenant, conversation_id)
        return 0 if record is None else record.version

    async def commit(self, call: CallRecord) -> int:
        call.check()
        wanted = call.conversation
        stored = self._journal.conversations.get(wanted.id)
        actual = 0 if stored is None else stored.version
        if actual != wanted.version:
            raise VersionConflict(wanted.id, expected=wanted.version, actual=actual)
        self._journal.keep("call", call)
        return actual + 1

    async def reopen(self) -> str | None:
        return None


class JournalRuns:
    """RunStore, as far as lists and single runs; the only filter is the tenant."""

    def __init__(self, journal: Journal) -> None:
        self._journal = journal

    async def list_runs(self, runs: RunFilter, page: PageRequest) -> RunPage:
        records = (run.record for run in self._journal.runs.values())
        found = [record for record in records if runs.tenant in (None, record.tenant)]
        found.sort(key=lambda run: run.started_at, reverse=page.descending)
        return RunPage(runs=tuple(found[: page.limit]), next_cursor=None)

    async def count_runs(self, runs: RunFilter) -> int:
        return len((await self.list_runs(runs, PageRequest(limit=1000))).runs)

    async def get_run(
        self,
        run_id: str,
        *,
        tenant: str | None,
        content: bool = True,
        after_step: int = -1,
        limit: int | None = None,
    ) -> RunTrace | None:
        run = self._journal.runs.get(run_id)
        if run is None or tenant not in (None, run.record.tenant):
            return None
        steps = tuple(step for index, step in sorted(run.steps.items()) if index > after_step)
        return RunTrace(run=run.record, steps=steps[:limit], injections=())
