"""Composition root: the objects that live as long as the process, and reloading of the config."""

import asyncio
import os
import time
from collections.abc import Callable, Coroutine
from contextlib import AsyncExitStack
from functools import partial
from secrets import token_hex
from typing import Any

from gateway import __version__
from gateway.auth.keys import Keys
from gateway.backends import Stores, keep_damaged, open_stores
from gateway.budget_interface import Accounting
from gateway.config import Settings
from gateway.config.reload import as_started, changes_at_restart, differences, removals
from gateway.conversations.in_memory import ConversationIndex, StoredAnswers
from gateway.conversations.loading import merged_call
from gateway.conversations.workloads import Workloads
from gateway.core.trouble import Act
from gateway.embedding import open_embedder
from gateway.errors import ConfigError
from gateway.holds import Holds
from gateway.hooks import given
from gateway.library import PatternLibrary, PatternTally
from gateway.lifecycle import Refresh, Replicas, StartWait, index_results, warm_up
from gateway.observability.live_events import EventHub
from gateway.observability.logging import get_logger
from gateway.observability.metrics import Metrics, SharedMetrics, UnsteeredCalls
from gateway.observability.otel import open_telemetry
from gateway.retention_schedule import Retention
from gateway.services import KnownRefusals, Learning, Opened, Patterns, Services
from gateway.stores.protocols import CONTROLS, KEYS, PATTERNS
from gateway.stores.raw_calls_and_answers import RawKeeper, open_keeper
from gateway.stores.sql.learning import LearningStore
from gateway.stores.sql.runs import RunStore
from gateway.stores.watched import StoreHealth, WatchedStates
from gateway.tasks import Unfinished, loading, off_loop, spawn
from gateway.values import FieldDict

STOP_S = 5.0  # longest wait for background work that gives back what it holds, at the end
_LOOKUP_LOG_S = 60.0  # in which a tier's failing look-ups are logged once; the metric counts all


class Runtime:
    """The process: stores, keys, metrics, background tasks, the current services. `start` sets
    the attributes that are declared here."""

    opened: Opened  # everything that the start has opened
    services: Services  # of the newest config; a request keeps those that it began with
    store: WatchedStates  # of conversations; never makes an answer wait for long
    runs: RunStore  # the run log
    accounting: Accounting  # of budgets
    holds: Holds  # stops and pauses
    raw_calls: RawKeeper | None  # keeps calls as they were sent; None when that is off
    lessons: LearningStore  # lessons, outcomes and jobs

    def __init__(self, settings: Settings):
        self.own_key = ""  # of `gateway wrap`, whose agent may be able to read the config
        self.metrics = Metrics()
        self.settings = settings
        self.log = get_logger("gateway")
        self.draining = False
        self.failed = "did not start"  # with the reason, once that is known
        # Sent upstream, to detect a request to itself: random, or the shared store's identity.
        self.instance = token_hex(8)
        self.shared_metrics: SharedMetrics | None = None  # of all workers, if there are several
        self.events = EventHub()
        self.metrics.subscribers.set_function(lambda: self.events.subscribers)
        self.unsteered = UnsteeredCalls(self.metrics.unsteered)
        self.telemetry = open_telemetry(os.environ, __version__)
        self.keys: Keys = next(given("keys"), Keys)()  # gateway keys
        self.replicas = Replicas(self.events)
        self.reloaded: list[Callable[[Settings], None]] = []  # called with the new settings
        # Address at which an operator who has logged in saw the dashboard last; "" for never.
        self.visited_at = ""
        # Facts about clients that change their prompt's beginning at every call, by tenant and
        # client; whoever reports them removes them.
        self.unsteady: dict[tuple[str, str], FieldDict] = {}
        self.port = 0  # that the server listens on; 0 until it does
        # Called with the run, its tenant and the act on trouble that goes on in spite of advice.
        self.acted: list[Callable[[str, str, Act], None]] = []
        self.stored_answers = StoredAnswers()
        self.unfinished = Unfinished()
        self._refusals = KnownRefusals()
        self.started = False
        self.learning: Learning | None = None  # None: nothing is learned
        self._background_tasks: list[asyncio.Task[None]] = []
        self._closing = AsyncExitStack()
        self._lookup_logged: dict[str, float] = {}
        # Why deployments of the config cannot be served yet; empty once they can.
        self._lacking = ""

    def waiting_bytes(self) -> int:
        """Bytes of the records in memory that wait for the database."""
        if self.started:
            return self.store.health.waiting_bytes
        return 0

    async def start(self) -> Opened:
        """Open everything, on the event loop that will serve the requests. Raises StoreError: the
        store cannot be used."""
        wait = StartWait(self.settings.storage, lambda: self.draining)
        opened = self.opened = await self._open(wait)
        self.store = opened.states
        self.raw_calls = opened.raw_calls
        self.runs = opened.stores.runs
        self.lessons = opened.stores.learning
        self.accounting = opened.accounting
        self.holds = opened.holds
        for start in given("start"):
            await start(self)
        services = self.services = self._build(opened, self.settings)
        self.started = True
        self._closing.push_async_callback(lambda: self.services.aclose())
        await loading(warm_up, self.settings)
        if services.table.needs_litellm:
            self._lacking = "LiteLLM is being loaded"
            spawn(self._load_litellm(services), name="import litellm")
        return opened

    async def _load_litellm(self, services: Services) -> None:
        """Import LiteLLM ahead of the calls that need it. After a failure each of them tries again;
        a gateway that starts stays unready, and `/readyz` has the reason."""
        problem = ""
        try:
            await services.translating.start()
        except Exception as exc:
            problem = f"LiteLLM cannot be loaded: {type(exc).__name__}: {exc}"
            self.log.error(problem)
        if self._lacking:
            self._lacking = problem
        else:
            self._lacking = ""

    async def _open(self, wait: StartWait) -> Opened:
        """Open the stores and what works on them; what is open is closed with `aclose`."""
        storage = self.settings.storage
        closing = self._closing
        searched = self.settings.etraces.enabled
        damaged = await wait(lambda: keep_damaged(storage))
        stores = await wait(lambda: open_stores(storage, vectors=searched))
        closing.push_async_callback(stores.close)
        self.instance = stores.identity or self.instance
        await wait(lambda: self._show_admin_key(stores))
        states = await self._open_states(stores, damaged)
        await wait(lambda: self.keys.refresh(stores))
        self.follow(states.follow(), "watch store")
        kind = next(given("accounting"), Accounting)
        accounting: Accounting = kind(
            stores=stores,
            settings=lambda: self.settings,
            events=self.events,
            metrics=self.metrics,
            of_keys=self.keys.budgets,
        )
        closing.push_async_callback(accounting.close)
        holds = Holds(stores.controls, lambda: self.settings.control)
        await wait(holds.refresh)
        self.follow(accounting.follow(), "budgets")
        self.follow(holds.follow(), "holds")
        self.follow(index_results(stores.runs), "index results")
        self.follow(Retention(stores.runs, states.active_within, storage).follow(), "retention")
        workloads = None
        if stores.workloads is not None:
            known = stores.workloads

            def refresh_s() -> float:
                return self.settings.routing.refresh_s

            workloads = await wait(lambda: Workloads.open(known, refresh_s, stores.changes))
            closing.push_async_callback(workloads.close)
        patterns = await wait(lambda: self._open_patterns(stores, states, accounting))
        opened = Opened(
            stores=stores,
            states=states,
            accounting=accounting,
            holds=holds,
            index=ConversationIndex(self.settings.steering),
            patterns=patterns,
            workloads=workloads,
            raw_calls=open_keeper(stores.raw, storage, self.metrics.raw_dropped.inc),
        )
        self._listen(opened)
        return opened

    async def _show_admin_key(self, stores: Stores) -> None:
        key = self.own_key or self.settings.auth.admin_key
        if key and stores.controls is not None:
            await stores.controls.show_key(key, os.getpid() if self.own_key else 0)

    def follow(self, loop: Coroutine[Any, Any, None], name: str) -> None:
        """Run a loop in the background until the gateway stops."""
        self._background_tasks.append(spawn(loop, name=name))

    def _listen(self, opened: Opened) -> None:
        """Read again what another gateway on the store says it has changed."""
        stores = opened.stores

        async def forget_patterns() -> None:
            if opened.patterns is not None:
                opened.patterns.library.memory.forget()
            if self.learning is not None:
                self.learning.forget()

        changed: dict[str, Refresh] = {KEYS: partial(self.keys.refresh, stores)}
        changed |= {CONTROLS: opened.holds.refresh, PATTERNS: forget_patterns}
        self.replicas.open(stores.signals, stores.runs, changed)
        self.follow(self.replicas.follow(), "other gateways")

    async def _open_patterns(
        self, stores: Stores, states: WatchedStates, accounting: Accounting
    ) -> Patterns | None:
        """Open the pattern library; an empty pattern store is filled with the starter library."""
        if not self.settings.etraces.enabled:
            return None
        embedder = await open_embedder(self.settings.embedding, accounting.own_calls)
        library = await PatternLibrary(
            stores.patterns,
            embedder,
            self.settings.etraces,
            failed=lambda tier, error: self.note_failed_lookup(tier.value, error),
            read=states.read_beside,
            masks_secrets=self.settings.storage.mask_secrets,
        ).prepare()
        self._closing.push_async_callback(library.embedder.close)
        await library.memory.refresh()
        self.follow(library.memory.follow(), "patterns in memory")
        missing = await stores.patterns.without_vector(1)
        tally = PatternTally(
            stores.patterns,
            lambda exc: self.log.warning("pattern statistics not stored", reason=str(exc)),
        )
        self._closing.push_async_callback(tally.flush)
        self.follow(tally.follow(), "pattern statistics")
        if missing:
            self.log.warning(
                "some patterns have no vector of the embedder and are not found: "
                "run `gateway patterns reindex`",
                embedder=embedder.embedder_id,
            )
        return Patterns(library, tally)

    async def _open_states(self, stores: Stores, damaged: str) -> WatchedStates:
        """`damaged`: the name under which a file is kept that was found at the start, if any."""
        metrics = self.metrics

        async def reopened() -> None:
            """The store was opened again: its file may be another one, or a new and empty one."""
            metrics.store_reopened.inc()
            await self._show_admin_key(stores)
            await self.keys.refresh(stores)
            if self.started and self.opened.patterns is not None:
                await self.opened.patterns.library.prepare()

        kind: Any = next(given("states"), WatchedStates)
        states: WatchedStates = kind(
            stores.states,
            self.settings.storage,
            lambda kind: metrics.store_failures.labels(kind).inc(),
            merged_call,
            metrics.store_memory_only.inc,
        )
        self._closing.push_async_callback(states.close)
        states.reopened.append(reopened)
        states.damaged.extend([damaged] if damaged else [])
        metrics.store_damaged.set_function(lambda: len(states.damaged))
        metrics.store_degraded.set_function(lambda: states.health.incident is not None)
        metrics.store_waiting.set_function(lambda: states.health.waiting)
        metrics.store_waiting_bytes.set_function(self.waiting_bytes)
        metrics.store_on_disk.set_function(lambda: states.health.waiting_on_disk)
        await states.take_over()
        return states

    def note_failed_lookup(self, tier: str, error: Exception) -> None:
        """Count a look-up of a tier of guidance, or of lessons, that failed."""
        self.metrics.lookup_failures.labels(tier).inc()
        now = time.monotonic()
        if now - self._lookup_logged.get(tier, float("-inf")) < _LOOKUP_LOG_S:
            return
        self._lookup_logged[tier] = now
        self.log.warning("pattern look-up failed", tier=tier, reason=str(error))

    def problems(self) -> list[str]:
        """Why the gateway cannot serve requests now; empty when it can."""
        found = {
            "the gateway is shutting down": self.draining,
            "the gateway is starting": not self.started,
            self._lacking: bool(self._lacking),
        }
        return [problem for problem, is_so in found.items() if is_so]

    def degraded(self) -> StoreHealth | None:
        """The state of a store that is unavailable; None while it works. Requests are served."""
        if not self.started:
            return None
        health = self.store.health
        if health.incident is not None:
            return health
        return None

    @property
    def lost(self) -> int:
        """The number of records that the end of the gateway has lost."""
        if self.started:
            return self.store.lost
        return 0

    def store_health(self) -> StoreHealth | None:
        """The state of the store, working or not; None before the start."""
        if self.started:
            return self.store.health
        return None

    def replace(self, load: Callable[[], Settings]) -> bool:
        """Apply new settings; on any error the old ones stay. True when they were replaced."""
        try:
            settings = load()
            started = as_started(self.settings, settings)
            if gone := removals(self.settings, settings, os.environ):
                raise ConfigError(
                    f"a reload may not remove {', '.join(gone)}: restart the gateway to do that"
                )
            opened = self.opened
            fresh = self._build(opened, started)
        except Exception as exc:  # whatever is in a file: it may not end who watches it
            self.metrics.config_reloads.labels("refused").inc()
            self.log.error("config not reloaded, the old one stays in use", reason=str(exc))
            return False
        waiting = changes_at_restart(self.settings, settings)
        settings = started
        if settings.etraces.enabled and opened.patterns is None:
            waiting.append("etraces.enabled")
        changed: FieldDict = {**differences(self.settings, settings)}
        changed |= {"at the next start": waiting} if waiting else {}
        if changed and opened.stores.changes is not None:
            spawn(opened.stores.changes.note_config(changed))
        if waiting:
            self.log.warning("some changes take effect at the next start", keys=waiting)
        old = self.services
        self.services = fresh
        self.settings = settings
        for listener in self.reloaded:
            listener(settings)
        spawn(self._show_admin_key(opened.stores))
        old.retire()
        if fresh.table.needs_litellm:
            spawn(self._load_litellm(fresh), name="import litellm")
        self.metrics.config_reloads.labels("done").inc()
        self.log.info("config reloaded")
        return True

    def _build(self, opened: Opened, settings: Settings) -> Services:
        return Services(
            settings,
            opened,
            self.metrics,
            refusals=self._refusals,
            lessons=self.learning,
            keys_required=lambda: self.keys.required,
            instance=self.instance,
        )

    async def aclose(self) -> None:
        """Close everything that was opened, in reverse order."""
        await self.unfinished.wait(STOP_S)
        for task in self._background_tasks:
            task.cancel()
        if self._background_tasks:  # some give back what they hold, for which the stores are needed
            await asyncio.wait(self._background_tasks, timeout=STOP_S)
        await self._closing.aclose()
        if self.telemetry is not None:
            await off_loop(self.telemetry.close)
