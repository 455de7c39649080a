"""The risk by the outcomes of an installation's own runs. What ships is the prior: a fit of slope,
offset and offsets by client, model and project, drawn towards it, is used for a tenant from the
night on which it beats the prior on days that it never saw. Solved runs set the alarm's levels."""

from __future__ import annotations

import asyncio
import math
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import TYPE_CHECKING

from gateway.config.models import DAY_S
from gateway.learning.verdicts import steps_of
from gateway.observability.logging import get_logger
from gateway.steering.evidence.observation import RunObserver
from gateway.steering.routing import RoutingSettings
from gateway.steering.scoring import risk
from gateway.steering.scoring.calibration import Calibration, Peaks, shipped_calibration
from gateway.steering.scoring.scorer import DifficultySettings
from gateway.steering.transcript.steps import Step
from gateway.stores.learning import Allowance, EndedRun, Job
from gateway.stores.protocols import RunStore, StoreError
from gateway.stores.sql.learning import LearningStore
from gateway.stores.sql.workloads import WorkloadStore
from gateway.tasks import off_loop

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    Array = NDArray[np.float64]

MOST_RUNS = 1000  # newest runs of a tenant that are read
LEAST_RUNS = 40  # runs that a fit is made of
LEAST_NAMED = 5  # of them that have a name, so that it gets an offset
LEAST_BLOCK = 10  # runs that are held out together: those of a day, or of some days in a row
LEAST_BLOCKS = 8
T_95 = 1.9  # standard errors of the mean of so many blocks below it: one side, 95 %
SLOPE_PENALTY, NAME_PENALTY, OFFSET_PENALTY = 10.0, 2.0, 0.5
MOST_ROUNDS, CONVERGED = 50, 1e-8  # of the fits
REST_PER_WORK = 3.0  # a night's reading takes a quarter of the time at most
JOB, LEASE_S, FIRST_S, TRIES_S = "risk", 3600.0, 60.0, 1800.0

_log = get_logger("gateway.learning")


@dataclass(frozen=True, slots=True, kw_only=True)
class OwnRun:
    """A run as the fit reads it. `evidence` at half of its steps and at its end; `base`: the log
    odds of its workload by the runs before it; `peak`: the highest evidence that lasted; `weight`:
    the confidence in its outcome."""

    at: float
    names: tuple[str, ...]
    failed: bool
    weight: float
    evidence: tuple[float, ...]
    base: float = 0.0
    works: bool = True
    peak: float = -math.inf


def newton(
    design: Array, outcome: Array, weight: Array, penalty: Array, offset: Array | float = 0.0
) -> Array:
    """Coefficients of a logistic regression by Newton's method, from the design, outcomes and
    weights of the rows, the penalty of each coefficient's square, and log odds known before."""
    import numpy as np

    beta = np.zeros(design.shape[1])
    for _ in range(MOST_ROUNDS):
        chance = 1.0 / (1.0 + np.exp(-np.clip(design @ beta + offset, -30.0, 30.0)))
        gradient = design.T @ (weight * (chance - outcome)) + penalty * beta
        curvature = (design * (weight * chance * (1 - chance))[:, None]).T @ design
        step = np.linalg.solve(curvature + np.diag(penalty), gradient)
        beta = beta - step
        if np.abs(step).max() < CONVERGED:
            break
    return beta


class _Fit:
    """The changes that own runs make to the log odds that ship."""

    def __init__(self, runs: Sequence[OwnRun]) -> None:
        import numpy as np

        counts = Counter(name for run in runs for name in run.names)
        self.names = sorted(name for name, count in counts.items() if count >= LEAST_NAMED)
        named = [NAME_PENALTY if name else OFFSET_PENALTY for name in self.names]
        rows = [len(run.evidence) for run in runs]
        self.changes = newton(
            np.vstack([self._design(run) for run in runs]),
            np.repeat([float(run.failed) for run in runs], rows),
            np.repeat([run.weight / len(run.evidence) for run in runs], rows),
            np.array([SLOPE_PENALTY, SLOPE_PENALTY, *named]),
            np.concatenate([_shipped(run) for run in runs]),
        )

    def _design(self, run: OwnRun) -> Array:
        import numpy as np

        has = [float(name in run.names) for name in self.names]
        return np.array([[evidence, run.base, *has] for evidence in run.evidence])

    def gain(self, run: OwnRun) -> float:
        """Nats of log loss that the fit saves on a run, by the confidence in its outcome."""
        import numpy as np

        sign, shipped = 1.0 if run.failed else -1.0, _shipped(run)
        own = shipped + self._design(run) @ self.changes
        saved = np.logaddexp(0.0, -sign * shipped) - np.logaddexp(0.0, -sign * own)
        return run.weight * float(saved.mean())


def _shipped(run: OwnRun) -> Array:
    import numpy as np

    return np.array(run.evidence) + run.base


def fit_own(
    runs: Sequence[OwnRun], before: risk.OwnRisk = risk.AS_SHIPPED, now: float = 0.0
) -> risk.OwnRisk:
    """The fit of a tenant's runs, and whether it is used; `before`: that of the night before."""
    runs = sorted(runs, key=lambda run: run.at)
    solved = [run for run in runs if not run.failed]
    works, talks = (Peaks.of([r.peak for r in solved if r.works == kind]) for kind in (True, False))
    if not _enough(runs):
        return risk.OwnRisk(works=works, talks=talks, fitted_at=now)
    fit, gain = _Fit(runs), measured_gain(runs)
    slope, share, *offsets = [round(float(change), 5) for change in fit.changes]
    return risk.OwnRisk(
        slope=1.0 + slope,
        share=1.0 + share,
        offsets=dict(zip(fit.names, offsets, strict=True)),
        works=works,
        talks=talks,
        gain=gain,
        since=(before.since or now) if gain.proven else 0.0,
        fitted_at=now,
    )


def _enough(runs: Sequence[OwnRun]) -> bool:
    return len(runs) >= LEAST_RUNS and len({run.failed for run in runs}) == 2


def measured_gain(runs: Sequence[OwnRun]) -> risk.Gain:
    """The gain of fits to the days before on each block of days, whole, in order."""
    blocks: list[list[OwnRun]] = []
    for run in runs:
        full = blocks and len(blocks[-1]) >= LEAST_BLOCK
        if not blocks or (full and run.at // DAY_S > blocks[-1][-1].at // DAY_S):
            blocks.append([])
        blocks[-1].append(run)
    judged, sums = list[OwnRun](), list[tuple[float, float]]()
    for number, block in enumerate(blocks):
        earlier = [run for other in blocks[:number] for run in other]
        if _enough(earlier):
            fit = _Fit(earlier)
            judged += block
            sums.append((sum(map(fit.gain, block)), sum([run.weight for run in block])))
    if len(sums) < LEAST_BLOCKS:
        return risk.Gain()
    gains, weights = zip(*sums, strict=True)
    mean, count = sum(gains) / sum(weights), len(sums)
    spread = math.sqrt(sum([(g - w * mean) ** 2 for g, w in sums]) * count / (count - 1))
    return risk.Gain(
        runs=len(judged),
        failed=sum([run.failed for run in judged]),
        days=len({run.at // DAY_S for run in judged}),
        mean=round(mean, 5),
        low=round(mean - T_95 * spread / sum(weights), 5),
        total=round(sum(gains), 4),
    )


def read_own(ended: EndedRun, steps: Sequence[Step], calibration: Calibration) -> OwnRun | None:
    """A stored run as the fit reads it; None without steps."""
    if not steps:
        return None
    model, observer = risk.RiskModel(calibration, led=ended.sequence > 0), RunObserver()
    found, peak = [], -math.inf
    for step in steps:
        model.push(observer.observe(step))
        found.append(model.log_odds)
        peak = max(peak, model.lasting)
    return OwnRun(
        at=ended.run.at,
        names=risk.OwnRisk.of_run(ended.run.client, ended.run.requested, ended.project),
        failed=ended.failed,
        weight=ended.weight,
        evidence=(found[(len(found) - 1) // 2], found[-1]),
        works=model.works,
        peak=peak,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class OwnRisks:
    """Fits the risk of each tenant of one store. `settings`: of routing, by which it is on."""

    store: WorkloadStore
    learning: LearningStore
    runs: RunStore
    settings: Callable[[], RoutingSettings]
    difficulty: Callable[[], DifficultySettings]
    now: Callable[[], float] = time.time
    rest: float = REST_PER_WORK

    async def follow(self) -> None:
        """Fit once in each night, on one of the gateways of a store, without end."""
        await asyncio.sleep(FIRST_S)  # not amid the first requests
        while True:
            try:
                await self.tonight()
            except StoreError as error:
                _log.warning("risk not fitted to own outcomes", reason=str(error))
            await asyncio.sleep(TRIES_S)

    async def tonight(self) -> bool:
        """Fit if no gateway has done so since midnight (UTC); whether this one did."""
        now = self.now()
        if not self.settings().own_risk:
            return False
        day = datetime.fromtimestamp(now, UTC).date().isoformat()
        await self.learning.enqueue(Job(kind=JOB, key=day, tenant="", created_at=now))
        free = Allowance(since=now, tokens=math.inf, cost_usd=math.inf)
        job = await self.learning.claim(
            JOB, now=now, lease_s=LEASE_S, most_attempts=3, allowance=free
        )
        if job is None:
            return False
        await self.fit()
        return await self.learning.finish(job, now=self.now())

    async def fit(self) -> Mapping[str, risk.OwnRisk]:
        """Fit now, and store it; by tenant. Raises: StoreError."""
        by_tenant: dict[str, list[EndedRun]] = defaultdict(list)
        for ended in await self.store.ended(limit=10 * MOST_RUNS):
            by_tenant[ended.run.tenant].append(ended)
        before, found = await self.store.own_risks(), dict[str, risk.OwnRisk]()
        for tenant, newest in sorted(by_tenant.items()):
            forgotten = await self.learning.forgotten(tenant)
            kept = [each for each in newest[:MOST_RUNS] if each.run.run_id not in forgotten]
            runs = await self._read(sorted(kept, key=lambda each: each.run.at))
            known = before.get(tenant, risk.AS_SHIPPED)
            found[tenant] = await off_loop(fit_own, runs, known, self.now())
            await self.store.put_own_risk(tenant, found[tenant])
        return found

    async def _read(self, ended: Sequence[EndedRun]) -> list[OwnRun]:
        """The runs of a tenant, oldest first, each with what was known of its workload by then."""
        known: dict[str, dict[str, risk.WorkloadPrior]] = defaultdict(dict)
        calibration = self.difficulty().calibration or shipped_calibration()
        prior, read = self.settings().risk_prior, list[OwnRun]()
        for each in ended:
            started = time.monotonic()
            run = each.run
            own = known[run.workload or f"{run.client} {run.requested}"]
            base = risk.known_prior(own, run.requested).log_odds if prior else 0.0
            own[run.model] = own.get(run.model, risk.NO_OUTCOMES).with_outcome(failed=each.failed)
            trace = await self.runs.get_run(run.run_id, tenant=run.tenant)
            steps = steps_of(trace) if trace is not None else []
            if found := await off_loop(read_own, each, steps, calibration):
                read.append(replace(found, base=base))
            await asyncio.sleep(self.rest * (time.monotonic() - started))
        return read
