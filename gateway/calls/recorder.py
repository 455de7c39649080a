"""Commits a finished call: its answer is applied to the conversation, and its record is stored."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import Any

from msgspec.structs import replace

from gateway.calls.background import BackgroundAnswers
from gateway.conversations.apply_reply import apply_reply, replies_in
from gateway.conversations.codec import from_record
from gateway.conversations.conversation import Conversation
from gateway.conversations.loading import merge
from gateway.conversations.records import Recorded, call_record
from gateway.conversations.steering_result import Call, SteeringResult
from gateway.observability.logging import get_logger
from gateway.runtime import Runtime
from gateway.services import Services
from gateway.steering.fold import StepOutcome
from gateway.stores.patterns import Event
from gateway.stores.protocols import StoreError, StoreOverloaded, VersionConflict
from gateway.stores.records import CallRecord, PrefixHashRecord

_ATTEMPTS = 5
"""Attempts to save a call, when other gateways save the same conversation at the same time."""


class Recorder:
    """Applies finished calls to their conversations and commits them to the store."""

    def __init__(self, runtime: Runtime) -> None:
        self._runtime = runtime
        self.answers = BackgroundAnswers(runtime, self.record)
        self._log = get_logger("gateway.steering")

    async def record(
        self,
        services: Services,
        call: Call,
        completion: Mapping[str, Any] | None,
        *,
        pending_id: str | None = None,
    ) -> None:
        """Commit the call. If the store fails or is slow, its record waits in memory
        (`gateway/stores/guard/guarded.py`), and the client gets its answer. Content and cost of an
        answer that is still being made, `pending_id`, are recorded later."""
        result, metrics = call.result, self._runtime.metrics
        if result is None:
            return
        try:
            async with result.conversation.lock:
                await self._commit(services, call, result, completion, pending_id)
        except StoreOverloaded:
            # Logged once in an incident. The scored steps stay in memory for a later commit.
            metrics.store_dropped.inc()
        except StoreError as exc:
            metrics.store_failures.labels(exc.label).inc()
            self._log.error("call not recorded", reason=str(exc))
        except Exception as exc:
            metrics.store_failures.labels("internal").inc()
            self._log.exception("call not recorded", reason=str(exc))

    async def _commit(
        self,
        services: Services,
        call: Call,
        result: SteeringResult,
        completion: Mapping[str, Any] | None,
        pending_id: str | None,
    ) -> None:
        exchange, settings = call.exchange, services.settings
        conversation, hashes = result.conversation, tuple[PrefixHashRecord, ...]()
        choices = replies_in(completion)
        if not result.unread:
            keep, index = settings.storage.store_content, services.index
            try:
                hashes = apply_reply(
                    result, completion, choices, index, keep=keep, pending_id=pending_id
                )
            except Exception as exc:  # its next call finds no history, but it was answered
                self._log.exception("answer not applied to its history", reason=str(exc))
        used = (exchange.upstream.tokens.input or 0) + (exchange.upstream.tokens.output or 0)
        memory = conversation.run.memory
        conversation.run.memory = replace(memory, tokens=memory.tokens + used)
        cost = unsteered = services.catalogue.cost(call.billed_model, exchange.upstream.usage)
        if call.model != exchange.request.model:
            unsteered = services.catalogue.cost(exchange.request.model, exchange.upstream.usage)
        recorded = Recorded(
            completion=completion,
            choices=choices,
            cost_usd=cost,
            cost_unsteered_usd=unsteered,
            profile=settings.monitors.profile,
            policy_digest=services.policy_digest,
            answered=pending_id is None,
            masks_secrets=settings.storage.mask_secrets,
        )
        outcomes = list(conversation.unsaved.steps.values())
        record = await self._save(call, result, recorded, hashes, used)
        self._note_workload(call, result)
        self._touch(record)
        if pending_id is None:
            self._runtime.tagged.count(call.control.tags, used, cost)
        self._count(record, call, result, outcomes)
        self._runtime.replicas.publish(record)

    async def _save(
        self,
        call: Call,
        result: SteeringResult,
        recorded: Recorded,
        hashes: Sequence[PrefixHashRecord],
        tokens: int,
    ) -> CallRecord:
        """Commit a call, joined with what other gateways have stored of its conversation. It is on
        record, whatever happens: what cannot be joined now waits to be joined later."""
        conversation, store = result.conversation, self._runtime.store
        for attempt in range(1, _ATTEMPTS + 1):
            snapshot = conversation.snapshot()
            record = call_record(call, result, recorded, snapshot, hashes, time.time())
            try:
                version = await store.commit(record)
                break
            except VersionConflict as conflict:
                try:
                    if attempt < _ATTEMPTS:
                        await self._merge(conversation, conflict, tokens)
                        continue
                except Exception as exc:
                    if not isinstance(exc, StoreError):
                        self._log.exception("call not joined with what is stored")
                version = await store.keep(record)
                break
        conversation.stored(version, snapshot)
        return record

    def _touch(self, record: CallRecord) -> None:
        """Tell learning which runs had a call, and which are over."""
        learner = self._runtime.opened.learning.learner
        if learner is None:
            return
        for run in record.runs:
            step = max((s.step_index for s in record.steps if s.run_id == run.id), default=0)
            decided = any(each.run_id == run.id for each in record.decisions)
            ended, tenant = run.ended_at is not None, record.conversation.tenant
            if not run.updated_at:
                ended = True  # a person has judged its answer since
            elif ended and not (step or run.sequence or run.outcome or decided):
                continue  # answered at once: there is no call to learn from
            learner.touch(run.id, tenant, step=step, ended=ended, decided=decided)

    async def _merge(
        self, conversation: Conversation, conflict: VersionConflict, tokens: int
    ) -> None:
        """Another gateway has stored a newer version: its rows stay, the rows of this call are
        added, and the states are joined."""
        stored = await self._runtime.store.load(conversation.tenant, conversation.id)
        try:
            found = from_record(stored) if stored is not None else None
        except ValueError as exc:
            self._log.warning("stored conversation cannot be read", reason=str(exc))
            found = None
        if found is None:
            conversation.unsaved.version = conflict.actual
        else:
            merge(conversation, found, tokens=tokens)

    def _note_workload(self, call: Call, result: SteeringResult) -> None:
        """Say once where a run began: on the model that its first recorded call went to."""
        run, workloads = result.conversation.run, self._runtime.opened.workloads
        if workloads is None or run.workload is None or run.workload_noted:
            return
        if run.index == result.position.run:
            run.workload_noted = True
            choice = run.memory.choice if result.applies else None
            workloads.note(run.workload, result.run_id, call.model, choice)

    def _count(
        self,
        record: CallRecord,
        call: Call,
        result: SteeringResult,
        outcomes: Sequence[StepOutcome],
    ) -> None:
        """Count a call that was recorded, in metrics and for the patterns that were given."""
        metrics = self._runtime.metrics
        for outcome in outcomes:
            metrics.steps.labels(outcome.state.value).inc()
            metrics.difficulty.observe(outcome.difficulty)
            metrics.composite.observe(outcome.readings.composite)
            for name in outcome.readings.fired:
                metrics.monitor_fires.labels(name).inc()
        for step in record.steps:
            if (made := step.call) is not None and made.cost_usd is not None:
                metrics.charge(made.cost_usd, made.cost_unsteered_usd)
            elif made is not None and made.unpriced:
                metrics.unpriced.inc()
        if result.stored:
            return  # the rest was counted when its answer was being made
        for row in record.injections:
            if row.applied:
                metrics.injections.labels(row.source).inc()
        patterns = self._runtime.opened.patterns
        decision = result.decision if result.placed is not None else None
        if patterns is not None and result.applies and decision is not None:
            # The run's outcome is no evidence about a pattern: patterns are given to runs in
            # trouble, and those fail more often anyway.
            new = [i.match.pattern.pattern_id for i in decision.decided.items if i.match]
            patterns.tally.note(result.conversation.tenant, new, Event.INJECTED)
        if call.model != call.exchange.request.model:
            metrics.reroutes.labels(result.position.state.value).inc()
