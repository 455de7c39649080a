"""Signals to the other gateways on the store, and what is done when one of theirs arrives.

Signals only save time: keys, holds and patterns are read again in intervals, too.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Mapping

from gateway.conversations.records import call_event, step_event
from gateway.observability.live_events import EventHub
from gateway.observability.logging import get_logger
from gateway.stores.protocols import RESYNC, STEP, WATCHING, RunStore, Signals, StoreError
from gateway.stores.records import CallRecord
from gateway.tasks import spawn

_WATCH_S = 5.0  # how often the others are notified while somebody reads live events here
_WATCHED_S = 3 * _WATCH_S  # for this long after that they send theirs

Refresh = Callable[[], Awaitable[None]]


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
        self._signals, self._runs, self._refresh = signals, runs, refresh

    def publish(self, record: CallRecord) -> None:
        """Give the event of a call to those who read live events, here or at another gateway."""
        if self._events.active and (event := call_event(record)) is not None:
            self._events.publish(event)
        called = [step for step in record.steps if step.call is not None]
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
        if self._signals is None:
            return
        try:
            await self._signals.send(kind, **ids)
        except StoreError as error:
            self._log.debug("other gateways not notified", kind=kind, reason=str(error))

    def _received(self, kind: str, ids: Mapping[str, str]) -> None:
        if kind == WATCHING:
            self._watched_until = time.monotonic() + _WATCHED_S
        elif kind == STEP and self._events.active:
            spawn(self._pass_on(ids), name="pass an event on")
        for name, refresh in self._refresh.items():
            if kind in (RESYNC, name):
                spawn(self._read_again(refresh), name="read again")

    async def _read_again(self, refresh: Refresh) -> None:
        try:
            await refresh()
        except StoreError as error:
            self._log.debug("changes of other gateways not read", reason=str(error))

    async def _pass_on(self, ids: Mapping[str, str]) -> None:
        """Publish the event of a call that another gateway has recorded."""
        index = int(ids["step"])
        if self._runs is None:
            return
        try:
            trace = await self._runs.get_run(
                ids["run"], tenant=None, content=False, after_step=index - 1, limit=1
            )
        except StoreError as error:
            self._log.debug("a call of another gateway cannot be read", reason=str(error))
            return
        if trace is not None and trace.steps:
            run, step = trace.run, trace.steps[0]
            event = step_event(run.tenant, run.conversation_id, run, step, trace.injections)
            if event is not None:
                self._events.publish(event)
