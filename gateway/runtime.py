"""Composition root: the objects that live as long as the process, and reloading of the config."""

from __future__ import annotations

import asyncio
import os
import secrets
import time
from collections.abc import Callable
from functools import partial

from gateway import __version__
from gateway.alerts.outbox import AlertOutbox
from gateway.alerts.watch import open_alerts
from gateway.auth.keyring import KeyRing
from gateway.backends import Stores, open_stores
from gateway.budgets.accounting import Accounting
from gateway.budgets.holds import Holds
from gateway.config import Settings
from gateway.config.restart import as_started, changes_at_restart, removals
from gateway.conversations.index import ConversationIndex
from gateway.conversations.loading import ConversationLoader
from gateway.conversations.logged_steps import LoggedSteps
from gateway.conversations.merge import merged_call
from gateway.conversations.refused_places import RefusedPlaces
from gateway.conversations.stored_responses import StoredAnswers
from gateway.conversations.workloads import Workloads
from gateway.embedding import open_embedder
from gateway.errors import ConfigError
from gateway.learning.book import LessonBook
from gateway.learning.worker import Learner, Learning, open_learning
from gateway.library import PatternLibrary, PatternTally
from gateway.lifecycle.replicas import Refresh, Replicas
from gateway.lifecycle.retention import Retention
from gateway.lifecycle.start_wait import StartWait, warm_up
from gateway.observability.live_events import EventHub
from gateway.observability.logging import get_logger
from gateway.observability.metrics import Metrics, SharedMetrics
from gateway.observability.otel import open_telemetry
from gateway.observability.tagged_calls import TaggedCalls
from gateway.observability.unsteered import UnsteeredCalls
from gateway.services import Services
from gateway.steering.guidance.pattern import Tier
from gateway.stores.alerts import AlertStore
from gateway.stores.exchanges import RawKeeper, RawStore, open_keeper
from gateway.stores.guard.guarded import GuardedStateStore, StoreHealth
from gateway.stores.learning import LearningStore
from gateway.stores.protocols import CONTROLS, KEYS, PATTERNS, RunStore, StoreError
from gateway.stores.usage import AttributionStore
from gateway.tasks import Unfinished, spawn
from gateway.upstream.rests import DeploymentRests
from gateway.upstream.stream_usage import UsageRefusals

STOP_S = 5.0
"""Longest wait for background work that gives back what it holds when the gateway stops."""
_LOOKUP_LOG_S = 60.0
"""A tier's failing look-ups are logged once in this time; the metric counts all."""


class Runtime:
    """What the process has: stores, keys, metrics, background tasks, the current services."""

    def __init__(self, settings: Settings) -> None:
        self.metrics = Metrics()
        self.tagged = TaggedCalls(self.metrics.registry, settings.observability)
        self.settings = settings
        self.log = get_logger("gateway")
        self.draining = False
        self.instance = secrets.token_hex(8)
        """Sent upstream, to detect a request to itself: random, or the shared store's identity."""

        self.shared_metrics: SharedMetrics | None = None
        """The metrics of all workers; None for a gateway of one process."""

        self.events = EventHub()
        self.metrics.subscribers.set_function(lambda: self.events.subscribers)
        self.unsteered = UnsteeredCalls(self.metrics.unsteered)
        self.telemetry = open_telemetry(os.environ, __version__)
        self.keys = KeyRing()
        self.reloaded: list[Callable[[Settings], None]] = []
        """Called with the new settings after each reload."""

        self._rests = DeploymentRests()
        self._usage_refusals = UsageRefusals()
        self._refused_places = RefusedPlaces()
        self._services: Services | None = None
        self._stores: Stores | None = None
        self._states: GuardedStateStore | None = None
        self._background_tasks: list[asyncio.Task[None]] = []
        self.unfinished = Unfinished()
        self._outbox: AlertOutbox | None = None
        self.raw_calls: RawKeeper | None = None
        """Keeps calls as they were sent and received; None if that is switched off."""

        self._index: ConversationIndex | None = None
        self.library: PatternLibrary | None = None
        """The guidance patterns; None when `etraces.enabled` is false."""

        self.book: LessonBook | None = None
        """The lessons that runs may be given."""

        self.learner: Learner | None = None
        """Reads runs that are over; None before the start."""

        self._accounting: Accounting | None = None
        self.replicas = Replicas(self.events)
        """The other gateways on the store."""

        self._lookup_logged: dict[str, float] = {}
        self.workloads: Workloads | None = None
        self.tally: PatternTally | None = None
        self.stored_answers = StoredAnswers()

    @property
    def services(self) -> Services:
        """The services of the current config."""
        if self._services is None:
            raise RuntimeError("the gateway has not been started")
        return self._services

    @property
    def _opened(self) -> Stores:
        if self._stores is None:
            raise RuntimeError("the gateway has not been started")
        return self._stores

    @property
    def store(self) -> GuardedStateStore:
        """The store of conversations, which never makes an answer wait for long."""
        if self._states is None:
            raise RuntimeError("the gateway has not been started")
        return self._states

    @property
    def runs(self) -> RunStore:
        """The queries over runs and conversations."""
        return self._opened.runs

    @property
    def accounting(self) -> Accounting:
        """The accounts of budgets."""
        if self._accounting is None:
            raise RuntimeError("the gateway has not been started")
        return self._accounting

    @property
    def holds(self) -> Holds:
        """The runs that an operator has stopped or paused."""
        return self.accounting.holds

    @property
    def alerts(self) -> AlertStore:
        """The queue of alerts."""
        return self._opened.alerts

    @property
    def attribution(self) -> AttributionStore | None:
        """Sums over trees and groups of runs; None for a store without."""
        return self._opened.attribution

    @property
    def raw(self) -> RawStore | None:
        """The store of calls as they were sent and received; None if it keeps none."""
        return self._opened.raw

    async def start(self) -> None:
        """Open everything, on the event loop that will serve the requests.

        Raises:
            StoreError: the store cannot be used.
        """
        searched = self.settings.etraces.enabled
        storage, steering = self.settings.storage, self.settings.steering
        wait = StartWait(storage, lambda: self.draining).until_reachable
        self._stores = stores = await wait(lambda: open_stores(storage, vectors=searched))
        self.stored_answers.pending.store = stores.answers
        self.instance = stores.identity or self.instance
        self._states = states = GuardedStateStore(
            stores.states, storage, self._store_failed, merged_call, self._in_memory_only
        )
        self._watch(states)
        await states.take_over()
        await wait(lambda: self.keys.refresh(stores.keys))
        follow_keys = self.keys.follow(stores.keys, lambda: self.settings.auth)
        self._background_tasks.append(spawn(follow_keys, name="watch gateway keys"))
        self._background_tasks.append(spawn(states.follow(), name="watch store"))
        self._accounting = accounting = Accounting(
            (stores.budgets, stores.controls), lambda: self.settings, self.events, self.metrics
        )
        await wait(accounting.holds.refresh)
        self._background_tasks.append(spawn(accounting.follow(), name="budgets and holds"))
        retention = Retention(stores.runs, states, storage)
        self._background_tasks.append(spawn(retention.follow(), name="retention"))
        self.raw_calls = open_keeper(stores.raw, storage, self.metrics.raw_dropped.inc)
        self._watch_for_alerts(stores)
        self._index = ConversationIndex(
            max_conversations=steering.max_conversations_in_memory,
            max_transcripts=steering.max_transcripts_in_memory,
            max_transcript_bytes=int(steering.max_transcript_memory_mb * 2**20),
            max_prefix_bytes=int(steering.max_prefix_memory_mb * 2**20),
        )
        if stores.workloads is not None:
            known, refresh_s = stores.workloads, lambda: self.settings.routing.refresh_s
            self.workloads = await wait(lambda: Workloads.open(known, refresh_s))
        await wait(self._open_patterns)
        learning = self._open_learning()
        changed: dict[str, Refresh] = {KEYS: partial(self.keys.refresh, stores.keys)}
        changed |= {CONTROLS: self.holds.refresh, PATTERNS: self._forget_patterns}
        self.replicas.open(stores.signals, stores.runs, changed)
        self._background_tasks.append(spawn(self.replicas.follow(), name="other gateways"))
        self._services = self._build(self.settings)
        # Who learns may ask a model, which takes services.
        self._background_tasks += [spawn(loop, name=name) for loop, name in learning.loops()]
        await asyncio.to_thread(warm_up, self.settings)
        if self._services.table.needs_litellm:
            spawn(self._services.litellm_lane.start(), name="import litellm")

    async def _forget_patterns(self) -> None:
        for cache in (self.library, self.book):
            if cache is not None:
                cache.forget()

    async def _open_patterns(self) -> None:
        """Open the pattern library; an empty pattern store is filled with the starter library."""
        if not self.settings.etraces.enabled:
            return
        embedder = await open_embedder(self.settings.embedding, self.accounting.own_calls)
        patterns = self._opened.patterns
        self.library = await PatternLibrary.open(
            patterns,
            embedder,
            self.settings.etraces,
            failed=self._lookup_failed,
            read=self.store.read_beside,
            masks_secrets=self.settings.storage.mask_secrets,
        )
        missing = await patterns.without_vector(1)
        self.tally = PatternTally(patterns, self._tally_failed)
        self._background_tasks.append(spawn(self.tally.follow(), name="pattern statistics"))
        if missing:
            self.log.warning(
                "some patterns have no vector of the embedder and are not found: "
                "run `gateway patterns reindex`",
                embedder=embedder.embedder_id,
            )

    def _open_learning(self) -> Learning:
        embedder = self.library.embedder if self.library else None
        note_failed = partial(self._note_failed_lookup, "lessons")
        learning = open_learning(self, self._opened, embedder, note_failed)
        self.book, self.learner = learning.book, learning.learner
        return learning

    @property
    def learning(self) -> LearningStore:
        """The store of outcomes, lessons and their trials."""
        return self._opened.learning

    def _watch_for_alerts(self, stores: Stores) -> None:
        self._outbox, watch = open_alerts(
            lambda: self.settings,
            stores.alerts,
            stores.runs,
            self.accounting.ledger,
            metrics=self.metrics,
            events=self.events,
            degraded=self.degraded,
        )
        for loop, name in ((watch.follow_rules(), "rules"), (watch.follow_queue(), "queue")):
            self._background_tasks.append(spawn(loop, name=f"{name} of alerts"))

    def _watch(self, states: GuardedStateStore) -> None:
        states.reopened.append(self._reopened)
        metrics = self.metrics
        metrics.store_degraded.set_function(lambda: states.health.incident is not None)
        metrics.store_waiting.set_function(lambda: states.health.waiting)
        metrics.store_waiting_bytes.set_function(lambda: states.health.waiting_bytes)
        metrics.store_on_disk.set_function(lambda: states.health.waiting_on_disk)

    async def _reopened(self) -> None:
        """The store was opened again: its file may be another one, or a new and empty one."""
        self.metrics.store_reopened.inc()
        await self.keys.refresh(self._opened.keys)
        if self.library is not None:
            await self.library.prepare()

    def _store_failed(self, kind: str) -> None:
        self.metrics.store_failures.labels(kind).inc()

    def _in_memory_only(self) -> None:
        self.metrics.store_memory_only.inc()

    def _tally_failed(self, error: StoreError) -> None:
        self.log.warning("pattern statistics not stored", reason=str(error))

    def _lookup_failed(self, tier: Tier, error: Exception) -> None:
        self._note_failed_lookup(tier.value, error)

    def _note_failed_lookup(self, tier: str, error: Exception) -> None:
        self.metrics.lookup_failures.labels(tier).inc()
        now = time.monotonic()
        if now - self._lookup_logged.get(tier, float("-inf")) < _LOOKUP_LOG_S:
            return
        self._lookup_logged[tier] = now
        self.log.warning("pattern look-up failed", tier=tier, reason=str(error))

    def problems(self) -> list[str]:
        """Why the gateway cannot serve requests now; empty when it can."""
        found = []
        if self.draining:
            found.append("the gateway is shutting down")
        if self._services is None:
            found.append("the gateway is starting")
        return found

    def degraded(self) -> StoreHealth | None:
        """The state of a store that is unavailable; None while it works. Requests are served."""
        health = self._states.health if self._states is not None else None
        return health if health is not None and health.incident is not None else None

    def replace(self, load: Callable[[], Settings]) -> bool:
        """Apply new settings; on any error the old ones stay. True when they were replaced."""
        try:
            settings = load()
            started = as_started(self.settings, settings)
            if gone := removals(self.settings, settings):
                raise ConfigError(
                    f"a reload may not remove {', '.join(gone)}: restart the gateway to do that"
                )
            fresh = self._build(started)
        except Exception as exc:  # whatever is in a file: it may not end who watches it
            self.metrics.config_reloads.labels("refused").inc()
            self.log.error("config not reloaded, the old one stays in use", reason=str(exc))
            return False
        waiting, settings = changes_at_restart(self.settings, settings), started
        if settings.etraces.enabled and self.library is None:
            waiting.append("etraces.enabled")
        if waiting:
            self.log.warning("some changes take effect at the next start", keys=waiting)
        old, self._services, self.settings = self.services, fresh, settings
        for listener in self.reloaded:
            listener(settings)
        old.retire()
        if fresh.table.needs_litellm:
            spawn(self._services.litellm_lane.start(), name="import litellm")
        self.metrics.config_reloads.labels("done").inc()
        self.log.info("config reloaded")
        return True

    def _build(self, settings: Settings) -> Services:
        if self._index is None:
            raise RuntimeError("the gateway has not been started")
        library = self.library
        if library is not None:
            library = library.with_settings(settings.etraces)
        stores = self._opened
        loader = ConversationLoader(self._index, self.store)
        # Without content the run log has no texts that monitors could read.
        kept = self.settings.storage.store_content
        history = LoggedSteps(stores.runs, self.store, self.store.read_beside) if kept else None
        return Services(
            settings,
            self.metrics,
            self._index,
            loader,
            lookup=library,
            history=history,
            rests=self._rests,
            usage_refusals=self._usage_refusals,
            refused_places=self._refused_places,
            keys_required=lambda: self.keys.required,
            instance=self.instance,
            lessons=self.book,
            accounting=self.accounting,
            workloads=self.workloads,
        )

    async def aclose(self) -> None:
        """Close everything that was opened, in reverse order."""
        await self.unfinished.wait(STOP_S)
        for task in self._background_tasks:
            task.cancel()
        if self._background_tasks:  # some give back what they hold, for which the stores are needed
            await asyncio.wait(self._background_tasks, timeout=STOP_S)
        if self._outbox is not None:
            await self._outbox.aclose()
        if self._services is not None:
            await self._services.aclose()
        if self.tally is not None:
            await self.tally.flush()
        if self._accounting is not None:
            await self._accounting.ledger.flush()
        if self.workloads is not None:
            await self.workloads.close()
        if self.library is not None:
            await self.library.embedder.close()
        if self._states is not None:
            await self._states.close()
        if self._stores is not None:
            await self._stores.close()
        if self.telemetry is not None:
            await asyncio.to_thread(self.telemetry.close)
