"""Outcomes of earlier runs, by workload: read from memory on the request path, counted and
refreshed behind it.

A run is noted when its first call is recorded. Every `routing.refresh_s` the notes are written,
outcomes that runs have got since are counted, once each, and the counts are read again."""

import asyncio
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from hashlib import blake2b
from operator import attrgetter

from msgspec.structs import asdict

from gateway.conversations.conversation import Workload
from gateway.conversations.decision import Decision
from gateway.core.routing import RunChoice, Serves
from gateway.core.steer import SteeringRules
from gateway.dialects import SteeredRequest
from gateway.observability.logging import get_logger
from gateway.steering.experiments import Pilot
from gateway.steering.learned_routing import (
    NO_OUTCOMES,
    LearnedRouting,
    WorkloadPrior,
    WorkloadRates,
    candidates,
)
from gateway.stores.learning import WorkloadRun
from gateway.stores.protocols import StoreError
from gateway.stores.redact import encodable
from gateway.stores.sql.audit_log import ChangeStore, pilot_of
from gateway.stores.sql.workloads import WorkloadStore
from gateway.tasks import spawn
from gateway.wire.message_identity import tool_names

_log = get_logger("gateway.steering")
_KEY_BYTES = 8
# Runs that wait to be written while the store is unavailable; the oldest are dropped.
_MOST_NOTED = 10_000
_SETTLED_AT_ONCE = 1000
# A large run log is searched for new outcomes for a twentieth of the time at most.
REST_PER_WORK = 20.0
_DROP_S = 3600.0
# A run that is not in the run log a day after it began has been removed from it.
_KEPT_S = 86_400.0


def workload_of(tenant: str, agent: str, tools: Iterable[str], requested: str) -> Workload:
    """The workload of a request that offers tools of these names. Their order and the client's
    version do not count: they change without the work being another."""
    client = agent.partition("/")[0].lower()
    names = sorted(filter(None, tools))
    parts = [part.encode("utf-8", "surrogatepass") for part in (client, requested, *names)]
    joined = b"".join(b"%d:%s" % (len(part), part) for part in parts)
    key = blake2b(joined, digest_size=_KEY_BYTES).hexdigest()
    return Workload(tenant=tenant, client=client, requested=requested, key=key)


_Priors = dict[str, WorkloadPrior]  # by model


class Workloads:
    """The counts in memory, and the runs that are not written yet. Of several errors of the
    store in a row the first is logged."""

    def __init__(self, store: WorkloadStore, changes: ChangeStore | None = None):
        self.store = store
        self._changes = changes
        self.pilot: Pilot | None = None
        self._following: asyncio.Task[None] | None = None
        self._by_workload: dict[tuple[str, str], _Priors] = {}
        self._by_tenant: dict[str, _Priors] = {}
        self._noted: list[WorkloadRun] = []
        self._failing = False
        self._dropped_at = time.monotonic()

    @classmethod
    async def open(
        cls,
        store: WorkloadStore,
        refresh_s: Callable[[], float],
        changes: ChangeStore | None = None,
    ) -> "Workloads":
        """Open with the counts that the store has now, refreshed after each `refresh_s` seconds."""
        workloads = cls(store, changes)
        await workloads.refresh()
        workloads._following = spawn(workloads._follow(refresh_s), name="outcomes of workloads")
        return workloads

    def rates(self, workload: Workload, run: str, prices: Mapping[str, float]) -> WorkloadRates:
        """The outcomes that a run of the workload is routed by; `prices` by model."""
        own = self._by_workload.get((workload.tenant, workload.key), {})
        tenant = self._by_tenant.get(workload.tenant, {})
        elsewhere = {m: _sum(all_, own.get(m, NO_OUTCOMES), -1) for m, all_ in tenant.items()}
        return WorkloadRates(
            key=workload.key, run=run, outcomes=own, elsewhere=elsewhere, prices=prices
        )

    def note(self, workload: Workload, run: str, model: str, choice: RunChoice | None) -> None:
        """A run of the workload has begun on a model; `choice`: of the learned policy."""
        noted = WorkloadRun(
            run_id=run,
            tenant=workload.tenant,
            workload=workload.key,
            client=workload.client,
            requested=workload.requested,
            model=model,
            at=time.time(),
            choice=asdict(choice) if choice is not None else None,
        )
        names = (noted.run_id, noted.tenant, noted.client, noted.requested, noted.model)
        # The names are the client's, who may write what no database encodes.
        plain = choice is None and all(map(str.isascii, names))
        self._noted.append(noted if plain else encodable(noted))
        del self._noted[:-_MOST_NOTED]

    async def _follow(self, refresh_s: Callable[[], float]) -> None:
        spent = 0.0
        while True:
            await asyncio.sleep(max(refresh_s(), REST_PER_WORK * spent))
            started = time.monotonic()
            await self.refresh()
            spent = time.monotonic() - started

    async def refresh(self) -> None:
        """Write what was noted, count new outcomes, read the counts; what cannot be done now is
        done the next time."""
        try:
            await self._write()
            while await self.store.settle(limit=_SETTLED_AT_ONCE) == _SETTLED_AT_ONCE:
                pass
            if self._changes is not None:
                await self._follow_pilot(self._changes)
            names = attrgetter("tenant", "workload", "model", "recent_solved", "recent_failed")
            self._keep(map(names, await self.store.rates()))
            if time.monotonic() - self._dropped_at > _DROP_S:
                self._dropped_at = time.monotonic()
                await self.store.drop(before=time.time() - _KEPT_S)
            self._failing = False
        except StoreError as error:
            if not self._failing:
                _log.warning("outcomes of workloads not counted", reason=str(error))
            self._failing = True

    async def _follow_pilot(self, changes: ChangeStore) -> None:
        """Read the pilot as it is now. The first gateway to see that enough runs have an outcome
        ends the draws."""
        newest = next(iter(await changes.find(kind="pilot", limit=1)), None)
        pilot = self.pilot = pilot_of(newest) or self.pilot
        if pilot is None or not pilot.draws or await changes.judged(pilot.id) < pilot.most:
            return
        windows = (*pilot.windows[:-1], (pilot.windows[-1][0], time.time()))
        ended = replace(pilot, windows=windows)
        reason = f"{pilot.most} runs have an outcome"
        if await changes.put_pilot(ended, newest, "gateway", reason=reason):
            self.pilot = ended

    def _keep(self, rates: Iterable[tuple[str, str, str, float, float]]) -> None:
        """The counts as they are now, by tenant, workload and model."""
        by_workload: dict[tuple[str, str], _Priors] = {}
        by_tenant: dict[str, _Priors] = {}
        for tenant, workload, model, *counts in rates:
            solved, failed = (max(n, 0.0) for n in counts)
            counted = WorkloadPrior(solved=solved, failed=failed)
            by_workload.setdefault((tenant, workload), {})[model] = counted
            total = by_tenant.setdefault(tenant, {})
            total[model] = _sum(total.get(model, NO_OUTCOMES), counted, 1)
        self._by_workload = by_workload
        self._by_tenant = by_tenant

    async def _write(self) -> None:
        noted = self._noted
        self._noted = []
        try:
            await self.store.note(noted)
        except StoreError:
            self._noted = [*noted, *self._noted]
            raise

    async def close(self) -> None:
        """Stop refreshing, and write what was noted if the store can be written."""
        if self._following is not None:
            self._following.cancel()
        try:
            await self._write()
        except StoreError as error:
            _log.warning("beginnings of runs not stored", reason=str(error))


def _sum(one: WorkloadPrior, other: WorkloadPrior, sign: int) -> WorkloadPrior:
    return WorkloadPrior(
        solved=one.solved + sign * other.solved, failed=one.failed + sign * other.failed
    )


@dataclass(eq=False)
class RunWorkloads:
    """The outcomes that one set of rules may use."""

    rules: SteeringRules  # the settings that decide
    workloads: Workloads  # what is known of runs
    # of a model, by which models are compared; None when not known
    price: Callable[[str], float | None]

    def learned(
        self, decision: Decision, request: SteeredRequest, serves: Serves
    ) -> LearnedRouting | None:
        """The learned policy for a call; None without a choice. `serves`: why a model cannot serve
        the request. A run keeps the workload with which it began."""
        run = decision.conversation.run
        tenant = decision.conversation.tenant
        requested = request.model
        if run.workload is None:
            tools = tool_names(request.body)
            run.workload = workload_of(tenant, decision.agent, tools, requested=requested)
        models = candidates(self.rules.routes, requested)
        priced = ((m, self.price(m)) for m in models)
        prices = {model: price for model, price in priced if price is not None}
        rates = self.workloads.rates(run.workload, decision.run_id, prices)
        if len(models) < 2:
            return None
        routing = self.rules.routing
        return LearnedRouting(
            rates=rates,
            models=models,
            requested=requested,
            regret=routing.regret,
            explore=routing.explore,
            serves=serves,
        )
