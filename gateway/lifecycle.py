"""Work that a gateway does by itself between start and end; no request calls anything here.

It waits for its database, loads what the first request needs and listens to the other gateways on
its store. Signals between gateways only save time: keys, holds and patterns are read again in
intervals, too. What removes old runs: `retention_schedule.py`."""

import asyncio
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import suppress

from gateway.config import Settings
from gateway.config.storage import StorageSettings
from gateway.core.step import Action, Step
from gateway.observability.live_events import Event, EventHub
from gateway.observability.logging import get_logger
from gateway.steering.runs_of_transcript import ConversationFold
from gateway.stores.protocols import RESYNC, STEP, WATCHING, Signals, StoreError, StoreUnreachable
from gateway.stores.records import CallRecord, InjectionRow, RunUpdate, StepRow
from gateway.stores.sql.runs import RunStore
from gateway.tasks import spawn
from gateway.text.secrets import mask_secrets
from gateway.upstream.litellm_package import WITHOUT_LITELLM
from gateway.upstream.model_costs import default_list
from gateway.values import T, Texts

_SAID_EVERY_S = 10.0
_INDEX_S = 60.0  # between two looks for results that are not searched yet
_BATCH_PAUSE_S = 0.05
_WATCH_S = 5.0  # how often the others are notified while somebody reads live events here
_WATCHED_S = 3 * _WATCH_S  # for this long after that they send theirs

Refresh = Callable[[], Awaitable[None]]


async def index_results(runs: RunStore) -> None:
    """Bring the results of new steps into the search, without end; after an upgrade those of old
    steps, with a pause between two batches for the commits of requests."""
    while True:
        more = False
        with suppress(StoreError):
            more = await runs.index_results()
        await asyncio.sleep(_BATCH_PAUSE_S if more else _INDEX_S)


class StartWait:
    """Repeats what the start needs of a database until it answers, for `storage.start_wait_s` in
    all; every other fault ends the start at once. `stopping`: whether the process was asked to end.
    """

    def __init__(self, settings: StorageSettings, stopping: Callable[[], bool]):
        self._pause_s = min(settings.probe_interval_s, 1.0)
        self._limit_s = settings.start_wait_s
        self._stopping = stopping
        self._waited_since: float | None = None
        self._said_at = float("-inf")

    async def __call__(self, work: Callable[[], Awaitable[T]]) -> T:
        """The result of `work`. Raises: StoreUnreachable after the limit, and whatever else `work`
        raises."""
        while True:
            try:
                return await work()
            except StoreUnreachable as error:
                now = time.monotonic()
                self._waited_since = self._waited_since or now
                left_s = self._waited_since + self._limit_s - now
                if left_s <= 0 or self._stopping():
                    raise
                if now - self._said_at >= _SAID_EVERY_S:
                    self._said_at = now
                    get_logger("gateway.store").warning(
                        "the database does not answer: the start waits for it",
                        reason=str(error),
                        gives_up_in_s=round(left_s),
                    )
            await asyncio.sleep(self._pause_s)


def warm_up(settings: Settings) -> None:
    """Import and load what steering needs: the first request has a deadline, the start has none."""
    fold = ConversationFold(settings.policy())
    fold.extend([{"role": "user", "content": "-"}, {"role": "assistant", "content": "-"}])
    action = Action(name="-", arguments="{}", observation="at 10:15")
    fold.current.push(Step(index=0, thought="-", actions=(action,)))
    mask_secrets("-")
    if default_list() is None:
        get_logger("gateway").warning("calls have no list price", reason=WITHOUT_LITELLM)


class Replicas:
    """The other gateways on the store, once it is `open`; until then there are none."""

    def __init__(self, events: EventHub):
        self._events = events
        self._signals: Signals | None = None
        self._runs: RunStore | None = None
        self._refresh: Mapping[str, Refresh] = {}
        self._watched_until = float("-inf")

    def open(self, signals: Signals | None, runs: RunStore, refresh: Mapping[str, Refresh]) -> None:
        """Begin; `signals` None: there are no others, or none that send signals. `refresh`: what to
        read again, by the kind of signal."""
        self._signals = signals
        self._runs = runs
        self._refresh = refresh

    def publish(self, record: CallRecord) -> None:
        """Give the event of a call to those who read live events, here or at another gateway."""
        called = [step for step in record.steps if step.call is not None]
        if self._events.active and (event := call_event(record)) is not None:
            self._events.publish(event)
        if called and self._signals is not None and time.monotonic() < self._watched_until:
            ids = {"run": called[-1].run_id, "step": str(called[-1].step_index)}
            spawn(self._send(STEP, **ids), name="announce a call")

    async def follow(self) -> None:
        """Listen to the others, without end."""

        async def announce_watching() -> None:
            while True:
                if self._events.active:
                    await self._send(WATCHING)
                await asyncio.sleep(_WATCH_S)

        if self._signals is not None:
            await asyncio.gather(self._signals.follow(self._received), announce_watching())

    async def _send(self, kind: str, **ids: str) -> None:
        if self._signals is not None:
            sending = self._signals.send(kind, **ids)
            await self._tried(sending, "other gateways not notified", kind=kind)

    def _received(self, kind: str, ids: Texts) -> None:
        if kind == WATCHING:
            self._watched_until = time.monotonic() + _WATCHED_S
        elif kind == STEP and self._events.active:
            spawn(self._pass_on(ids), name="pass an event on")
        for name, refresh in self._refresh.items():
            if kind in (RESYNC, name):
                reading = self._tried(refresh(), "changes of other gateways not read")
                spawn(reading, name="read again")

    async def _tried(self, work: Awaitable[T], failed: str, **facts: str) -> T | None:
        try:
            return await work
        except StoreError as error:
            get_logger("gateway.lifecycle.replicas").debug(failed, **facts, reason=str(error))
            return None

    async def _pass_on(self, ids: Texts) -> None:
        """Publish the event of a call that another gateway has recorded."""
        after = int(ids["step"]) - 1
        if self._runs is None:
            return
        reading = self._runs.get_run(
            ids["run"], tenant=None, content=False, after_step=after, limit=1
        )
        trace = await self._tried(reading, "a call of another gateway cannot be read")
        if trace is not None and trace.steps:
            run = trace.run
            step = trace.steps[0]
            event = step_event(
                run.tenant, run.conversation_id, run, step=step, injections=trace.injections
            )
            if event is not None:
                self._events.publish(event)


def call_event(record: CallRecord) -> Event | None:
    """The event for the newest step of `record`; None when it has no call."""
    steps = [step for step in record.steps if step.call is not None]
    if not steps:
        return None
    step = steps[-1]
    conversation = record.conversation
    run = next(run for run in record.runs if run.id == step.run_id)
    return step_event(
        conversation.tenant, conversation.id, run, step=step, injections=record.injections
    )


def step_event(
    tenant: str,
    conversation_id: str,
    run: RunUpdate,
    step: StepRow,
    injections: Sequence[InjectionRow],
) -> Event | None:
    """The event of one step; None when no call was made at it. `injections`: those at the step."""
    call = step.call
    if call is None:
        return None
    return {
        "type": "step",
        "tenant": tenant,
        "conversation_id": conversation_id,
        "run_id": step.run_id,
        "step": step.step_index,
        "at": step.at,
        "state": run.state,
        "ended": run.ended_at is not None,
        "outcome": run.outcome,
        "difficulty": step.difficulty,
        "composite": step.composite,
        "fired": step.fired,
        "failure_type": step.failure_type,
        "guidance": [
            f"{row.source}:{row.pattern_id or row.failure_type or 'directive'}"
            for row in injections
            if row.applied
        ],
        "model_requested": call.model_requested,
        "model_asked": call.model_asked,
        "status": call.status,
        "error": call.error,
        "input_tokens": call.input_tokens,
        "output_tokens": call.output_tokens,
        "cost_usd": call.cost_usd,
        "usage_estimated": call.usage_estimated,
        "unsteered": call.unsteered,
        "latency_s": call.latency_s,
    }
