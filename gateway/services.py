"""Composition root: what lives as long as the process, and what lives as long as one config."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from gateway.config import Settings
from gateway.conversations.index import ConversationIndex
from gateway.conversations.recall import Recall
from gateway.conversations.session import Lookup, Steering, SteeringRules
from gateway.embedding import open_embedder
from gateway.errors import ConfigError
from gateway.events import EventHub
from gateway.keys import KeyRing
from gateway.library import PatternLibrary
from gateway.observability.logging import get_logger
from gateway.observability.metrics import Metrics
from gateway.steering.etrace.pattern import Tier
from gateway.steering.etrace.target import Target as GuidanceTarget
from gateway.steering.etrace.target import target_for
from gateway.stores.base import RunStore, StateStore, StoreError
from gateway.stores.sqlite.database import Database
from gateway.stores.sqlite.keys import SqliteKeyStore
from gateway.stores.sqlite.opening import open_gateway_file
from gateway.stores.sqlite.patterns import SQLitePatternStore
from gateway.stores.sqlite.runs import SqliteRunStore
from gateway.stores.sqlite.states import SqliteStateStore
from gateway.tasks import spawn
from gateway.upstream.catalogue import ModelCatalogue
from gateway.upstream.deployments import DeploymentTable
from gateway.upstream.dispatch import Dispatcher
from gateway.upstream.litellm import LiteLLMLane
from gateway.upstream.native import NativeLane


class Services:
    """What a request needs, built from one version of the settings; must be made on the loop."""

    def __init__(
        self,
        settings: Settings,
        metrics: Metrics,
        index: ConversationIndex,
        lookup: Lookup | None,
    ) -> None:
        self.settings = settings
        self.table = DeploymentTable(settings, os.environ)
        self.native = NativeLane(settings.timeouts, max_connections=settings.router.max_connections)
        self.foreign = LiteLLMLane(self.native, settings.timeouts)
        self.dispatcher = Dispatcher(
            self.table, self.native, self.foreign, settings.router, metrics
        )
        infos = {d.model_name: d.model_info for d in settings.model_list}
        self.catalogue = ModelCatalogue(self.table, infos)
        self.index = index
        self.recall = Recall(index, settings.conversations)
        policy = settings.policy()
        self.policy_digest = policy.digest()
        rules = SteeringRules(
            policy=policy,
            routes=settings.routes(),
            routing=settings.routing,
            etraces=settings.etraces,
            injection=settings.injection,
            target_of=self._guidance_target,
            serves=self.catalogue.refusal,
        )
        self.steering = Steering(rules, lookup, deadline_s=settings.steering.deadline_ms / 1000)
        self._users = 0
        self._retired = False

    def _guidance_target(self, model: str) -> GuidanceTarget:
        target = self.table.resolve(model)[0]
        return target_for(target.provider, target.model or model, target.api_base.host)

    @contextmanager
    def in_use(self) -> Iterator[Services]:
        """Keep these services open for one request, also when the config is replaced meanwhile."""
        self._users += 1
        try:
            yield self
        finally:
            self._users -= 1
            if self._retired and not self._users:
                spawn(self.aclose())

    def retire(self) -> None:
        """No new request will come: close as soon as the last one has left."""
        self._retired = True
        if not self._users:
            spawn(self.aclose())

    async def aclose(self) -> None:
        """Close the connections."""
        await self.native.aclose()


class Runtime:
    """The process's own: metrics, the LiteLLM lane, and the current services."""

    def __init__(self, settings: Settings) -> None:
        self.metrics = Metrics()
        self.settings = settings
        self.log = get_logger("gateway")
        self.draining = False
        self.events = EventHub()
        self.keys = KeyRing()
        self._services: Services | None = None
        self._database: Database | None = None
        self._index: ConversationIndex | None = None
        self.library: PatternLibrary | None = None
        """The patterns; None when E-traces are switched off."""

        self._store: StateStore | None = None
        self._runs: RunStore | None = None
        self._key_watch: asyncio.Task[None] | None = None

    @property
    def services(self) -> Services:
        """The services of the config in force."""
        if self._services is None:
            raise RuntimeError("the gateway has not been started")
        return self._services

    @property
    def store(self) -> StateStore:
        """Where conversations and runs are kept."""
        if self._store is None:
            raise RuntimeError("the gateway has not been started")
        return self._store

    @property
    def runs(self) -> RunStore:
        """What can be asked about runs and conversations."""
        if self._runs is None:
            raise RuntimeError("the gateway has not been started")
        return self._runs

    async def start(self) -> None:
        """Open everything; on the event loop that will serve.

        Raises:
            StoreError: the store cannot be used.
        """
        self._database = await open_gateway_file(self.settings.storage)
        self._store = SqliteStateStore(self._database)
        self._runs = SqliteRunStore(self._database)
        keys = SqliteKeyStore(self._database)
        await self.keys.refresh(keys)
        self._key_watch = spawn(self.keys.follow(keys), name="watch gateway keys")
        steering = self.settings.steering
        self._index = ConversationIndex(
            self._store,
            max_conversations=steering.max_conversations_in_memory,
            max_prefix_bytes=int(steering.max_prefix_memory_mb * 2**20),
        )
        await self._open_patterns()
        self._services = self._build(self.settings)
        if self._services.table.needs_litellm:
            spawn(self._services.foreign.start(), name="import litellm")

    async def _open_patterns(self) -> None:
        """The pattern store with the embedder's vectors; an empty one gets the starter library."""
        if not self.settings.etraces.enabled or self._database is None:
            return
        embedder = await open_embedder(self.settings.embedding)
        store = SQLitePatternStore(self._database)
        self.library = await PatternLibrary.open(
            store, embedder, self.settings.etraces, failed=self._lookup_failed
        )
        if await store.without_vector(1):
            self.log.warning(
                "some patterns have no vector of the embedder and are not found: "
                "run `gateway patterns reindex`",
                embedder=embedder.embedder_id,
            )

    def _lookup_failed(self, tier: Tier, error: Exception) -> None:
        self.metrics.lookup_failures.labels(tier.value).inc()
        self.log.warning("pattern look-up failed", tier=tier.value, reason=str(error))

    async def problems(self) -> list[str]:
        """Why requests should not be sent here now; empty when all is well."""
        found = []
        if self.draining:
            found.append("the gateway is shutting down")
        if self._services is None:
            found.append("the gateway is starting")
        elif self._store is not None:
            try:
                await self._store.ping()
            except StoreError as exc:
                found.append(f"store: {exc}")
        return found

    def replace(self, load: Callable[[], Settings]) -> bool:
        """Put new settings in force; on any error the old ones stay. True when replaced."""
        try:
            settings = load()
            fresh = self._build(settings)
        except (ConfigError, ValueError) as exc:
            self.metrics.config_reloads.labels("refused").inc()
            self.log.error("config not reloaded, the old one stays", reason=str(exc))
            return False
        if settings.server != self.settings.server:
            self.log.warning("changes of `server` take effect at the next start")
        old, self._services, self.settings = self.services, fresh, settings
        old.retire()
        if fresh.table.needs_litellm:
            spawn(self._services.foreign.start(), name="import litellm")
        self.metrics.config_reloads.labels("done").inc()
        self.log.info("config reloaded")
        return True

    def _build(self, settings: Settings) -> Services:
        if self._index is None:
            raise RuntimeError("the gateway has not been started")
        library = self.library
        if library is not None:
            library = PatternLibrary(
                library.store, library.embedder, settings.etraces, self._lookup_failed
            )
        return Services(settings, self.metrics, self._index, library)

    async def aclose(self) -> None:
        """Close what was opened, in reverse."""
        if self._key_watch is not None:
            self._key_watch.cancel()
        if self._services is not None:
            await self._services.aclose()
        if self.library is not None:
            await self.library.embedder.close()
        if self._store is not None:
            await self._store.close()
