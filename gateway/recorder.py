"""What became of a call, committed: at once, or when an answer made in the background is there."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol

from gateway.conversations.announcing import call_event
from gateway.conversations.asked import Asked
from gateway.conversations.recording import CallFacts, call_record
from gateway.conversations.settling import settle
from gateway.conversations.steered import Steered
from gateway.exchange import Exchange
from gateway.observability.logging import get_logger
from gateway.runtime import Runtime
from gateway.services import Services
from gateway.steering.fold import StepOutcome
from gateway.stores.base import StoreError, VersionConflict
from gateway.stores.patterns import Event
from gateway.stores.records import CallRecord
from gateway.wire.usage import token_usage

RECORD_TIMEOUT_S = 10.0
"""Longest wait of a client's last byte for the store; twice the default wait for a locked file."""


class Recordable(Protocol):
    """What is known of a call when it is committed."""

    exchange: Exchange
    asked: Asked
    steered: Steered | None

    @property
    def model(self) -> str: ...


@dataclass(slots=True, kw_only=True)
class PutOff:
    """A call whose answer is still being made; it holds on to nothing of the request's size."""

    exchange: Exchange
    asked: Asked
    steered: Steered | None
    model: str


class Recorder:
    """Takes calls into their conversations and into the store."""

    def __init__(self, runtime: Runtime) -> None:
        self._runtime = runtime
        self._log = get_logger("gateway.steering")

    async def put_off(self, services: Services, prepared: Recordable, name: str) -> None:
        """Commit what is known, and the rest when somebody asks for the answer `name`."""
        steered = prepared.steered
        if steered is None:
            return
        conversation, begun = steered.conversation, asyncio.Event()
        call = PutOff(
            exchange=prepared.exchange,
            asked=prepared.asked,
            steered=steered,
            model=prepared.model,
        )

        async def settle(
            completion: Mapping[str, Any] | None, usage: dict[str, Any] | None
        ) -> None:
            await begun.wait()
            call.exchange.usage = usage
            # It may have left memory and come back since.
            steered.conversation = services.index.get(conversation.id) or conversation
            await self.record(services, call, completion)

        self._runtime.under_way.put(prepared.exchange.tenant, name, settle)
        try:
            await self.record(services, prepared, None, under_way=name)
        finally:
            steered.recorded = True
            steered.recalled.incoming = replace(steered.recalled.incoming, messages=())
            begun.set()

    async def record(
        self,
        services: Services,
        prepared: Recordable,
        completion: Mapping[str, Any] | None,
        *,
        under_way: str | None = None,
    ) -> None:
        """Commit the call; a store that fails costs the record, not the answer.

        `under_way`: the id of an answer that is still being made; what it is and costs comes later.
        """
        steered = prepared.steered
        if steered is None:
            return
        try:
            async with asyncio.timeout(RECORD_TIMEOUT_S), steered.conversation.lock:
                await self._commit(services, prepared, steered, completion, under_way)
        except (StoreError, TimeoutError) as exc:
            kind = exc.label if isinstance(exc, StoreError) else "timeout"
            self._runtime.metrics.store_failures.labels(kind).inc()
            self._log.error("call not recorded", reason=str(exc) or kind)
        except Exception as exc:
            self._runtime.metrics.store_failures.labels("internal").inc()
            self._log.exception("call not recorded", reason=str(exc))

    async def _commit(
        self,
        services: Services,
        prepared: Recordable,
        steered: Steered,
        completion: Mapping[str, Any] | None,
        under_way: str | None,
    ) -> None:
        exchange = prepared.exchange
        keep = services.settings.storage.store_content
        heads = settle(steered, completion, services.index, keep=keep, under_way=under_way)
        tokens = token_usage(exchange.usage)
        steered.conversation.run_tokens += (tokens.input or 0) + (tokens.output or 0)
        facts = _facts(services, prepared, answered=under_way is None)
        conversation = steered.conversation
        outcomes, stands = list(conversation.unrecorded.values()), conversation.stands()
        record = call_record(steered, exchange, completion, facts, heads, time.time())
        try:
            version = await self._runtime.store.commit(record)
        except VersionConflict as conflict:
            # Another gateway has moved it on: its rows stay, ours are added, the newer state wins.
            conversation.version = conflict.actual
            record = call_record(steered, exchange, completion, facts, heads, time.time())
            version = await self._runtime.store.commit(record)
        conversation.recorded(version, stands)
        self._count(outcomes)
        if not steered.recorded:
            self._count_injections(record)
            self._tell_patterns(prepared.asked, steered)
            if prepared.model != exchange.model:
                self._runtime.metrics.reroutes.labels(steered.state.value).inc()
        if under_way is None:
            self._count_cost(record)
        events = self._runtime.events
        if events.active and (event := call_event(record)) is not None:
            events.publish(event)

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

    def _tell_patterns(self, asked: Asked, steered: Steered) -> None:
        """Count what became of patterns: injected now, or helped or hurt by the run's outcome."""
        tally = self._runtime.tally
        if tally is None or not steered.applies:
            return
        tenant = steered.conversation.tenant
        if steered.decided is not None:
            new = [i.match.pattern.pattern_id for i in steered.decided.items if i.match]
            tally.note(tenant, new, Event.INJECTED)
        if asked.outcome:
            # A client may say so on every call, and the run was given more since the last.
            credited = steered.conversation.credited
            for given in steered.conversation.guidance.pattern_ids:
                tally.verdict(tenant, (given,), asked.outcome, credited.get(given))
                credited[given] = asked.outcome


def _facts(services: Services, prepared: Recordable, *, answered: bool) -> CallFacts:
    exchange, asked = prepared.exchange, prepared.asked
    cost = unsteered = services.catalogue.cost(prepared.model, exchange.usage)
    if prepared.model != exchange.model:
        unsteered = services.catalogue.cost(exchange.model, exchange.usage)
    return CallFacts(
        agent=asked.agent,
        profile=services.settings.monitors.profile,
        policy_digest=services.policy_digest,
        experiment=asked.experiment,
        arm=asked.arm,
        unit=asked.unit if asked.experiment else None,
        outcome=asked.outcome,
        cost_usd=cost,
        cost_unsteered_usd=unsteered,
        answered=answered,
    )
