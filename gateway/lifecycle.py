"""Work that a gateway does by itself between start and end; no request calls anything here.

It waits for its database, loads what the first request needs, removes old runs and listens to the
other gateways on its store. Signals between gateways only save time: keys, holds and patterns are
read again in intervals, too. The age of a run is the difference of two readings of the wall clock:
after a jump it is wrong, and a clock set 400 days ahead makes every run old."""

import asyncio
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import TypeVar

from gateway.config import Settings
from gateway.config.storage import StorageSettings
from gateway.core.step import Action, Step
from gateway.observability.live_events import Event, EventHub
from gateway.observability.logging import get_logger
from gateway.steering.runs_of_transcript import ConversationFold
from gateway.stores.filters import RunFilter
from gateway.stores.lists import PageRequest
from gateway.stores.protocols import (
    RESYNC,
    STEP,
    WATCHING,
    RunStore,
    Signals,
    StoreError,
    StoreUnreachable,
)
from gateway.stores.records import CallRecord, InjectionRow, RunUpdate, StepRow
from gateway.tasks import spawn
from gateway.text.secrets import mask_secrets
from gateway.upstream.litellm_package import WITHOUT_LITELLM
from gateway.upstream.model_costs import default_list
from gateway.values import Texts

T = TypeVar("T")

_SAID_EVERY_S = 10.0
_DAY_S = 86_400.0
_NEWEST = PageRequest(limit=1, sort="updated_at")
_WATCH_S = 5.0  # how often the others are notified while somebody reads live events here
_WATCHED_S = 3 * _WATCH_S  # for this long after that they send theirs

Refresh = Callable[[], Awaitable[None]]


class StartWait:
    """Repeats what the start needs of a database until it answers, for `storage.start_wait_s` in
    all; every other fault ends the start at once. `stopping`: whether the process was asked to end.
    """

    def __init__(self, settings: StorageSettings, stopping: Callable[[], bool]) -> None:
        self._pause_s = min(settings.probe_interval_s, 1.0)
        self._limit_s = settings.start_wait_s
        self._stopping = stopping
        self._waited_since: float | None = None
        self._said_at = float("-inf")
        self._log = get_logger("gateway.store")

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
                    self._log.warning(
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


def steady_clock() -> float:
    """Seconds since the machine's start, its sleep included where the system counts that."""
    if hasattr(time, "CLOCK_BOOTTIME"):
        return time.clock_gettime(time.CLOCK_BOOTTIME)
    return time.monotonic()


class Retention:
    """Removes runs beyond the configured age or size, except those active in this process.
    `active_within`: ids of the conversations with a commit in the last so many seconds. The clock
    `wall` is not believed for a while after it has jumped; nobody sets the clock `steady`."""

    def __init__(
        self,
        runs: RunStore,
        active_within: Callable[[float], list[str]],
        settings: StorageSettings,
        *,
        wall: Callable[[], float] | None = None,
        steady: Callable[[], float] = steady_clock,
    ) -> None:
        self._runs = runs
        self._active_within = active_within
        self._settings = settings
        self._clocks = wall or (lambda: time.time()), steady
        self._last: tuple[float, float] | None = None
        self._trusted_from = float("-inf")
        self._failing = False
        self._log = get_logger("gateway.lifecycle.retention")

    async def follow(self) -> None:
        """Make a pass every `retention_interval_s`, without end; an error is logged once."""
        while True:
            try:
                await self.run()
                self._failing = False
            except StoreError as exc:
                if not self._failing:
                    self._log.error("retention failed", reason=str(exc))
                self._failing = True
            await asyncio.sleep(self._settings.retention_interval_s)

    async def run(self) -> int:
        """Make one pass; the number of runs removed. Raises: StoreError."""
        settings = self._settings
        now, steady = (clock() for clock in self._clocks)
        await self._check_clock(now, steady)
        removed = 0
        if settings.retention_days and steady >= self._trusted_from:
            kept_s = settings.retention_days * _DAY_S
            active = self._active_within(kept_s)
            removed += (await self._runs.prune(older_than=now - kept_s, keep=active)).runs
        interval_s = settings.retention_interval_s
        report = await self._runs.prune(
            max_bytes=int(settings.max_size_mb * 2**20) or None,
            active_since=now - interval_s,
            keep=self._active_within(interval_s),
        )
        removed += report.runs
        if removed:
            self._log.info("old runs removed", runs=removed)
        return removed

    async def _check_clock(self, now: float, steady: float) -> None:
        """Note a jump of the wall clock since the last pass."""
        settings = self._settings
        last = self._last
        if last is None:
            # At the start there is nothing to compare the clock with but the newest run.
            newest = await self._runs.list_runs(RunFilter(), _NEWEST)
            idle_s = 0.0
            if newest.runs:
                idle_s = now - newest.runs[0].updated_at
            jumped = 0 < settings.retention_days * _DAY_S < idle_s
            why = "every run is old by the clock"
            facts = {"idle_days": round(idle_s / _DAY_S)}
        else:
            jump_s = (now - last[0]) - (steady - last[1])
            jumped = abs(jump_s) > settings.clock_jump_s
            why = "the clock jumped"
            facts = {"by_s": round(jump_s)}
        if jumped:
            self._trusted_from = steady + settings.clock_settle_s
            self._log.warning(
                f"{why}: for now no run is removed for its age",
                resumes_in_s=round(settings.clock_settle_s),
                **facts,
            )
        self._last = now, steady


class Replicas:
    """The other gateways on the store, once it is `open`; until then there are none."""

    def __init__(self, events: EventHub) -> None:
        self._events = events
        self._signals: Signals | None = None
        self._runs: RunStore | None = None
        self._refresh: Mapping[str, Refresh] = {}
        self._watched_until = float("-inf")
        self._log = get_logger("gateway.lifecycle.replicas")

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
            self._log.debug(failed, **facts, reason=str(error))
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
