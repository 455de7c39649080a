"""Composition root: the objects that live as long as one version of the config."""

import dataclasses
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import lru_cache
from typing import NamedTuple, Protocol, Self

from cachetools import TTLCache
from msgspec.structs import replace

from gateway.backends import Stores
from gateway.budget_interface import Accounting, Guard, OwnCalls
from gateway.config import Settings
from gateway.conversations.in_memory import ConversationIndex
from gateway.conversations.judge import ModelJudge
from gateway.conversations.loading import ConversationLoader, LoggedSteps
from gateway.conversations.resolve import ConversationResolver
from gateway.conversations.steer_request import (
    LessonLookup,
    RefusedPlaces,
    RequestSteerer,
)
from gateway.conversations.workloads import RunWorkloads, Workloads
from gateway.core.placement import GuidanceTarget, target_for
from gateway.holds import Holds
from gateway.library import PatternLibrary, PatternTally
from gateway.observability.metrics import Metrics
from gateway.stores.raw_calls_and_answers import RawKeeper
from gateway.stores.records import CallRecord
from gateway.stores.watched import WatchedStates
from gateway.tasks import Turns, spawn
from gateway.upstream.deployments import DeploymentRests, DeploymentTable
from gateway.upstream.dispatch import INSTANCE_HEADER, Dispatcher
from gateway.upstream.dry_seats import DrySeats
from gateway.upstream.model_abilities import ModelCatalogue
from gateway.upstream.model_costs import use_list
from gateway.upstream.native import NativeLane
from gateway.upstream.translation import translating_lane
from gateway.values import frozen

_MODELS_KEPT = 1000  # models whose traits are remembered: clients name them, hence a limit


@dataclass(frozen=True, slots=True)
class KnownRefusals:
    """Refusals of upstreams that outlive a version of the config."""

    # deployments that rest after failures
    rests: DeploymentRests = field(default_factory=DeploymentRests)
    # by address and model, for an hour; models are named by clients
    usage: TTLCache[tuple[str, str], bool] = field(default_factory=lambda: TTLCache(1000, 3600))
    places: RefusedPlaces = field(default_factory=RefusedPlaces)  # where guidance is not accepted
    seats: DrySeats = field(default_factory=DrySeats)  # logins of clients at their limit


class Patterns(NamedTuple):
    """The guidance patterns, and the count of how they did."""

    library: PatternLibrary  # looks patterns up
    tally: PatternTally  # counts how they did


class Learning(LessonLookup, Protocol):
    """Learns from runs, and gives what it learned."""

    def forget(self) -> None:
        """Read the lessons again: they have changed."""

    def recorded(self, record: CallRecord) -> None:
        """Note a call that is stored."""


@frozen
class Opened:
    """Everything that the start has opened: the stores, and what reads and writes them."""

    stores: Stores  # as the database gives them
    states: WatchedStates  # of conversations; never makes an answer wait for long
    accounting: Accounting  # of budgets
    holds: Holds  # stops and pauses
    index: ConversationIndex  # conversations in memory
    patterns: Patterns | None  # None when `etraces.enabled` is false
    workloads: Workloads | None  # outcomes by workload and model; None for a store without
    raw_calls: RawKeeper | None  # keeps calls as they were sent and received; None if that is off


class UpstreamServices:
    """Everything that asks models, and counts what they cost; built on the event loop."""

    def __init__(
        self,
        settings: Settings,
        accounting: Accounting,
        metrics: Metrics,
        *,
        refusals: KnownRefusals,
        keys_required: Callable[[], bool] = lambda: False,
        instance: str = "",
    ):
        self.settings = settings
        self.metrics = metrics
        use_list(settings.storage.prices_file)
        self.table = DeploymentTable(
            settings, os.environ, refusals.rests, keys_required=keys_required
        )
        self.native = NativeLane(settings.timeouts, max_connections=settings.router.max_connections)
        headers = {INSTANCE_HEADER.decode(): instance}
        self.translating = translating_lane(self.native, settings.timeouts, headers)
        self.dispatcher = Dispatcher(
            self.table,
            self.native,
            self.translating,
            settings=settings.router,
            metrics=metrics,
            dry=refusals.seats,
            instance=instance.encode(),
        )
        infos = {d.model_name: d.model_info for d in settings.model_list}
        self.catalogue = ModelCatalogue(self.table, infos)
        self._guard = accounting.guard(settings, self.catalogue.cost)
        self._users = 0
        self._retired = False

    @property
    def budgets(self) -> Guard | None:
        """The guard of the budgets; None while there are none."""
        guard = self._guard
        if guard is None or not (guard.budgets or guard.of_keys):
            return None
        return guard

    @contextmanager
    def in_use(self) -> Iterator[Self]:
        """Keep these services open for one request, even if the config is replaced meanwhile."""
        self._users += 1
        try:
            yield self
        finally:
            self._users -= 1
            if self._retired and not self._users:
                spawn(self.aclose())

    def retire(self) -> None:
        """Close when the last request in progress has ended; no new one will use these services."""
        self._retired = True
        if not self._users:
            spawn(self.aclose())

    async def aclose(self) -> None:
        """Close the connections."""
        await self.native.aclose()


class Services(UpstreamServices):
    """Everything a request needs, built from one version of the settings, on the event loop."""

    def __init__(
        self,
        settings: Settings,
        opened: Opened,
        metrics: Metrics,
        *,
        refusals: KnownRefusals,
        lessons: LessonLookup | None,
        keys_required: Callable[[], bool],
        instance: str,
    ):
        accounting = opened.accounting
        super().__init__(
            settings,
            accounting,
            metrics,
            refusals=refusals,
            keys_required=keys_required,
            instance=instance,
        )
        self.usage_refusals = refusals.usage
        self.turns = Turns(settings.steering.max_at_once)
        self.large_turns = Turns(1)
        self.index = opened.index
        states = opened.states
        self.loader = ConversationLoader(self.index, states)
        shared = settings.storage.shared or settings.server.workers > 1
        own = settings.conversations
        self.resolver = ConversationResolver(self.index, self.loader, own, shared=shared)
        patterns = opened.patterns
        kept = settings.storage.store_content
        acting = settings.steering
        if self._guard is not None:
            # Live runs are asked to wrap up by their budgets' accounts: operators may change these.
            acting = dataclasses.replace(acting, budget_action="none")
        rules = replace(settings.rules(), acting=acting)
        self.policy_digest = rules.policy.digest()
        outcomes = None
        if opened.workloads is not None:
            outcomes = RunWorkloads(rules, opened.workloads, self.catalogue.price)
        self.steerer = RequestSteerer(
            rules,
            target_of=lru_cache(_MODELS_KEPT)(self._guidance_target),
            refusal=self.catalogue.refusal,
            lookup=patterns.library.with_settings(settings.etraces) if patterns else None,
            # Without content the run log has no texts that monitors could read.
            history=LoggedSteps(opened.stores.runs, states, states.read_beside) if kept else None,
            judge=self._judge(metrics, accounting.own_calls),
            lessons=lessons,
            workloads=outcomes,
            places=refusals.places,
        )

    def _judge(self, metrics: Metrics, own_calls: OwnCalls) -> ModelJudge | None:
        if (limit_s := self.settings.judge_limit_s()) is None:
            return None
        return ModelJudge(
            self.settings.difficulty.judge,
            self.dispatcher,
            limit_s=limit_s,
            count=lambda result: metrics.judgements.labels(result).inc(),
            meter=own_calls,
        )

    def _guidance_target(self, model: str) -> GuidanceTarget:
        target = self.table.resolve(model)[0]
        return target_for(target.provider, target.model or model, target.api_base.host)
