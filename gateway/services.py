"""Composition root: what lives as long as the process, and what lives as long as one config."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from gateway.config import Settings
from gateway.errors import ConfigError
from gateway.observability.logging import get_logger
from gateway.observability.metrics import Metrics
from gateway.tasks import spawn
from gateway.upstream.deployments import DeploymentTable
from gateway.upstream.dispatch import Dispatcher, ForeignLane
from gateway.upstream.foreign import ForeignProviders
from gateway.upstream.native import NativeLane


class Services:
    """What a request needs, built from one version of the settings; must be made on the loop."""

    def __init__(self, settings: Settings, metrics: Metrics, foreign: ForeignLane) -> None:
        self.settings = settings
        self.table = DeploymentTable(settings, os.environ)
        self.native = NativeLane(settings.timeouts, max_connections=settings.router.max_connections)
        self.dispatcher = Dispatcher(self.table, self.native, foreign, settings.router, metrics)
        self._users = 0
        self._retired = False

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
        self._services: Services | None = None
        self._foreign = ForeignProviders(settings.timeouts)

    @property
    def services(self) -> Services:
        """The services of the config in force."""
        if self._services is None:
            raise RuntimeError("the gateway has not been started")
        return self._services

    async def start(self) -> None:
        """Open everything; on the event loop that will serve."""
        self._services = Services(self.settings, self.metrics, self._foreign)
        if self._services.table.needs_litellm:
            spawn(self._foreign.warm(), name="import litellm")

    async def problems(self) -> list[str]:
        """Why requests should not be sent here now; empty when all is well."""
        found = []
        if self.draining:
            found.append("the gateway is shutting down")
        if self._services is None:
            found.append("the gateway is starting")
        return found

    def replace(self, load: Callable[[], Settings]) -> bool:
        """Put new settings in force; on any error the old ones stay. True when replaced."""
        try:
            settings = load()
            fresh = Services(settings, self.metrics, self._foreign)
        except (ConfigError, ValueError) as exc:
            self.metrics.config_reloads.labels("refused").inc()
            self.log.error("config not reloaded, the old one stays", reason=str(exc))
            return False
        if settings.server != self.settings.server:
            self.log.warning("changes of `server` take effect at the next start")
        old, self._services, self.settings = self.services, fresh, settings
        old.retire()
        if fresh.table.needs_litellm:
            spawn(self._foreign.warm(), name="import litellm")
        self.metrics.config_reloads.labels("done").inc()
        self.log.info("config reloaded")
        return True

    async def aclose(self) -> None:
        """Close what was opened, in reverse."""
        if self._services is not None:
            await self._services.aclose()
        await self._foreign.aclose()
