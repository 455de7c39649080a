"""Commits a finished call: its answer is applied to the conversation, and its record is stored."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import Any

from msgspec.structs import replace

from gateway.calls.background import BackgroundAnswers, Recordable
from gateway.conversations.apply_reply import apply_reply
from gateway.conversations.codec import from_record
from gateway.conversations.conversation import Conversation
from gateway.conversations.loading import merge
from gateway.conversations.records import CallFacts, call_record
from gateway.conversations.steering_result import SteeringResult
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
        prepared: Recordable,
        completion: Mapping[str, Any] | None,
        *,
        pending_id: str | None = None,
    ) -> None:
        """Commit the call. If the store fails or is slow, its record waits in memory
        (`gateway/stores/guard/guarded.py`), and the client gets its answer.

        `pending_id`: the id of an answer that is still being made; its content and cost are
        recorded later.
        """
        result = prepared.result
        if result is None:
            return
        try:
            async with result.conversation.lock:
                await self._commit(services, prepared, result, completion, pending_id)
        except StoreOverloaded:
            # Logged once in an incident. The scored steps stay in memory for a later commit.
            self._runtime.metrics.store_dropped.inc()
        except StoreError as exc:
            self._runtime.metrics.store_failures.labels(exc.label).inc()
            self._log.error("call not recorded", reason=str(exc))
        except Exception as exc:
            self._runtime.metrics.store_failures.labels("internal").inc()
            self._log.exception("call not recorded", reason=str(exc))

    async def _commit(
        self,
        services: Services,
        prepared: Recordable,
        result: SteeringResult,
        completion: Mapping[str, Any] | None,
        pending_id: str | None,
    ) -> None:
        exchange = prepared.exchange
        keep = services.settings.storage.store_content
        index, hashes = services.index, tuple[PrefixHashRecord, ...]()
        if not result.unread:
            try:
                hashes = apply_reply(result, completion, index, keep=keep, pending_id=pending_id)
            except Exception as exc:  # its next call finds no history, but it was answered
                self._log.exception("answer not applied to its history", reason=str(exc))
        tokens = exchange.upstream.tokens
        used = (tokens.input or 0) + (tokens.output or 0)
        _add_tokens(result.conversation, used)
        facts = _facts(services, prepared, answered=pending_id is None)
        conversation = result.conversation
        outcomes = list(conversation.unsaved.steps.values())
        for attempt in range(1, _ATTEMPTS + 1):
            snapshot = conversation.snapshot()
            record = call_record(result, exchange, completion, facts, hashes, time.time())
            try:
                version = await self._runtime.store.commit(record)
                break
            except VersionConflict as conflict:
                # An answered call is on record, whatever happens: it waits to be joined later.
                if attempt == _ATTEMPTS:
                    version = await self._runtime.store.keep(record)
                    break
                try:
                    await self._merge(conversation, conflict, used)
                except Exception as exc:
                    if not isinstance(exc, StoreError):
                        self._log.exception("call not joined with what is stored")
                    version = await self._runtime.store.keep(record)
                    break
        conversation.stored(version, snapshot)
        self._touch(record)
        self._note_workload(prepared, result)
        self._count(outcomes)
        if not result.stored:
            self._count_injections(record)
            self._count_patterns(result)
            if prepared.model != exchange.request.model:
                self._runtime.metrics.reroutes.labels(result.position.state.value).inc()
        if pending_id is None:
            self._count_cost(record)
            self._runtime.tagged.count(prepared.control.tags, used, facts.cost_usd)
        self._runtime.replicas.publish(record)

    def _touch(self, record: CallRecord) -> None:
        """Tell learning which runs had a call, and which are over."""
        learner = self._runtime.opened.learning.learner
        if learner is None:
            return
        for run in record.runs:
            step = max((s.step_index for s in record.steps if s.run_id == run.id), default=0)
            decided = any(each.run_id == run.id for each in record.decisions)
            ended, tenant = run.ended_at is not None, record.conversation.tenant
            if ended and not (step or run.sequence or run.outcome or decided):
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

    def _note_workload(self, prepared: Recordable, result: SteeringResult) -> None:
        """Say once where a run began: on the model that its first recorded call went to."""
        run, workloads = result.conversation.run, self._runtime.opened.workloads
        if workloads is None or run.workload is None or run.workload_noted:
            return
        if run.index != result.position.run:
            return
        run.workload_noted = True
        choice = run.memory.choice if result.applies else None
        name = result.run_id
        workloads.note(run.workload, name, prepared.model, choice)

    def _count(self, outcomes: Sequence[StepOutcome]) -> None:
        metrics = self._runtime.metrics
        for outcome in outcomes:
            metrics.steps.labels(outcome.state.value).inc()
            metrics.difficulty.observe(outcome.difficulty)
            metrics.composite.observe(outcome.readings.composite)
            for name in outcome.readings.fired:
                metrics.monitor_fires.labels(name).inc()

    def _count_injections(self, record: CallRecord) -> None:
        for row in record.injections:
            if row.applied:
                self._runtime.metrics.injections.labels(row.source).inc()

    def _count_cost(self, record: CallRecord) -> None:
        metrics = self._runtime.metrics
        for call in filter(None, [step.call for step in record.steps]):
            if call.cost_usd is not None:
                metrics.charge(call.cost_usd, call.cost_unsteered_usd)
            elif call.unpriced:
                metrics.unpriced.inc()

    def _count_patterns(self, result: SteeringResult) -> None:
        """Count this call's injections. The run's outcome is no evidence about a pattern: patterns
        are given to runs in trouble, and those fail more often anyway."""
        patterns = self._runtime.opened.patterns
        if patterns is None or not result.applies or result.decided is None:
            return
        new = [i.match.pattern.pattern_id for i in result.decided.items if i.match]
        patterns.tally.note(result.conversation.tenant, new, Event.INJECTED)


def _add_tokens(conversation: Conversation, tokens: int) -> None:
    memory = conversation.run.memory
    conversation.run.memory = replace(memory, tokens=memory.tokens + tokens)


def _facts(services: Services, prepared: Recordable, *, answered: bool) -> CallFacts:
    exchange, control = prepared.exchange, prepared.control
    cost = unsteered = services.catalogue.cost(prepared.billed_model, exchange.upstream.usage)
    if prepared.model != exchange.request.model:
        unsteered = services.catalogue.cost(exchange.request.model, exchange.upstream.usage)
    return CallFacts(
        agent=control.agent,
        profile=services.settings.monitors.profile,
        policy_digest=services.policy_digest,
        experiment=control.experiment,
        arm=control.arm,
        unit=control.unit if control.experiment else None,
        outcome=control.outcome,
        cost_usd=cost,
        cost_unsteered_usd=unsteered,
        key_name=exchange.request.key,
        tags=control.tags,
        answered=answered,
        masks_secrets=services.settings.storage.mask_secrets,
    )
