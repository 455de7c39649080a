"""Conversations in memory."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from gateway.stores.base import MAX_BRANCHES, MAX_HEADS, StoreClosed, StoreError, VersionConflict
from gateway.stores.memory.tables import StoredRun, Tables
from gateway.stores.records import (
    CallRecord,
    ConversationRecord,
    HeadRecord,
    InjectionRow,
    RunUpdate,
    StepRow,
)
from gateway.stores.redact import without_content
from gateway.stores.totals import RunRecord, RunTotals, repeated_call, settled_outcome


class MemoryStateStore:
    """`StateStore` over Tables."""

    def __init__(self, tables: Tables) -> None:
        self._tables = tables
        self._closed = False

    async def find_heads(self, tenant: str, digests: Sequence[bytes]) -> list[HeadRecord]:
        """See StateStore."""
        found: list[HeadRecord] = []
        for digest in reversed(digests):
            newest_first = reversed(
                self._tables.heads.get((tenant, digests[0], digest), {}).values()
            )
            found.extend(newest_first)
            if len(found) >= MAX_HEADS:
                break
        return found[:MAX_HEADS]

    async def load(self, tenant: str, conversation_id: str) -> ConversationRecord | None:
        """See StateStore."""
        record = self._tables.conversations.get(conversation_id)
        return record if record is not None and record.tenant == tenant else None

    async def branches(self, tenant: str, external_key: str) -> list[ConversationRecord]:
        """See StateStore."""
        found = [
            record
            for record in self._tables.conversations.values()
            if (record.tenant, record.external_key) == (tenant, external_key)
        ]
        found.sort(key=lambda record: record.updated_at, reverse=True)
        return found[:MAX_BRANCHES]

    async def find_items(self, tenant: str, ids: Sequence[str]) -> dict[str, bytes]:
        """See StateStore."""
        items = self._tables.items
        return {name: items[tenant, name][1] for name in ids if (tenant, name) in items}

    async def commit(self, call: CallRecord) -> int:
        """See StateStore."""
        call.check()
        if self._closed:
            raise StoreClosed("the store is closed")
        stored = self._tables.conversations.get(call.conversation.id)
        self._refuse_foreign_ids(call)
        actual = 0 if stored is None else stored.version
        if actual != call.conversation.version:
            expected = call.conversation.version
            raise VersionConflict(call.conversation.id, expected=expected, actual=actual)
        if not self._tables.store_content:
            call = without_content(call)
        self._tables.conversations[call.conversation.id] = _next_version(stored, call.conversation)
        for head in call.heads:
            at = self._tables.heads.setdefault((head.tenant, head.root, head.digest), {})
            at.setdefault((head.conversation_id, head.kind), head)
        for item in call.items:
            key = (call.conversation.tenant, item.id)
            self._tables.items[key] = (call.conversation.id, item.content)
        for run in call.runs:
            self._save_run(call, run)
        return actual + 1

    async def ping(self) -> None:
        """See StateStore."""
        if self._closed:
            raise StoreClosed("the store is closed")

    async def close(self) -> None:
        """See StateStore."""
        self._closed = True

    def _refuse_foreign_ids(self, call: CallRecord) -> None:
        tenant = call.conversation.tenant
        conversation = self._tables.conversations.get(call.conversation.id)
        runs = [self._tables.runs[run.id] for run in call.runs if run.id in self._tables.runs]
        owners = [run.record.tenant for run in runs]
        if conversation is not None:
            owners.append(conversation.tenant)
        if any(owner != tenant for owner in owners):
            raise StoreError("an id of this call is another tenant's")

    def _save_run(self, call: CallRecord, update: RunUpdate) -> None:
        run = self._tables.runs.get(update.id)
        if run is None:
            run = self._tables.runs[update.id] = StoredRun(_new_run(call.conversation, update))
        steps = [step for step in call.steps if step.run_id == update.id]
        kept = [_keep_step(run, step) for step in steps]
        injected = [row for row in call.injections if row.run_id == update.id]
        totals = run.record.totals.including(
            fresh=[step for step, (fresh, _) in zip(steps, kept, strict=True) if fresh],
            calls=[step.call for step in steps if step.call is not None],
            retries=sum(repeated for _, repeated in kept),
            injections=sum([_keep_injection(run, row) for row in injected]),
        )
        run.record = _updated_run(run.record, update, totals)


def _next_version(
    stored: ConversationRecord | None, record: ConversationRecord
) -> ConversationRecord:
    if stored is None:
        return replace(record, version=1)
    return replace(
        stored,
        version=stored.version + 1,
        updated_at=record.updated_at,
        served_head=record.served_head,
        message_count=record.message_count,
        signature=record.signature,
        has_tools=record.has_tools,
        state=record.state,
    )


def _new_run(conversation: ConversationRecord, update: RunUpdate) -> RunRecord:
    described = {name: getattr(update, name) for name in RunUpdate.__slots__}
    return RunRecord(
        **described,
        conversation_id=conversation.id,
        tenant=conversation.tenant,
        totals=RunTotals(),
    )


def _updated_run(run: RunRecord, update: RunUpdate, totals: RunTotals) -> RunRecord:
    outcome, source = settled_outcome((run.outcome, run.outcome_source), update)
    return replace(
        run,
        updated_at=update.updated_at,
        ended_at=run.ended_at if update.ended_at is None else update.ended_at,
        state=update.state,
        outcome=outcome,
        outcome_source=source,
        mode=update.mode,
        policy_digest=update.policy_digest,
        model_requested=update.model_requested,
        totals=totals,
    )


def _keep_step(run: StoredRun, step: StepRow) -> tuple[bool, bool]:
    """(whether the step is new, whether its call repeats one already made there)."""
    stored = run.steps.get(step.step_index)
    if stored is None:
        run.steps[step.step_index] = step
        return True, False
    if step.call is None:
        return False, False
    call = step.call if stored.call is None else repeated_call(stored.call, step.call)
    content = stored.content if step.content is None else step.content
    run.steps[step.step_index] = replace(stored, call=call, content=content)
    return False, stored.call is not None


def _keep_injection(run: StoredRun, row: InjectionRow) -> bool:
    """Whether guidance that reached the model was recorded for the first time."""
    at = (row.step_index, row.ordinal)
    new = at not in run.injections
    run.injections.setdefault(at, row)
    return new and row.applied
