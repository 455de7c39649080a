"""The risk by own outcomes: taken where it is proven, once a night, read by every gateway."""

from __future__ import annotations

import asyncio
import math
from typing import Any

import numpy as np
import pytest
from msgspec.structs import replace

from gateway.backends import Stores
from gateway.config.models import DAY_S
from gateway.conversations.workloads import Workloads, workload_of
from gateway.learning.own_risk import OwnRisks, OwnRun, fit_own, measured_gain
from gateway.steering.evidence.observation import RunObserver
from gateway.steering.routing import RoutingSettings
from gateway.steering.scoring.calibration import Peaks, shipped_calibration
from gateway.steering.scoring.risk import (
    LASTING_STEPS,
    NO_OUTCOMES,
    OwnRisk,
    RiskModel,
    WorkloadPrior,
    risk_of,
)
from gateway.steering.scoring.scorer import DifficultySettings
from gateway.steering.transcript.steps import Step
from steering_gateway_testing.store_conformance.records import START, TENANT
from steering_gateway_testing.store_conformance.workloads import a_workload_run
from tests.learning.distilling import stored
from tests.learning.runs import shell
from tests.learning.test_gateways_at_once import gateways

__all__ = ["gateways"]

DAYS, A_DAY = 30, 10


def installation(seed: int, *, shift: float = 0.0) -> list[OwnRun]:
    """Runs of two clients whose outcomes follow the evidence, and `shift` by the client."""
    chance, runs = np.random.default_rng(seed), []
    for number in range(DAYS * A_DAY):
        client = "one" if chance.random() < 0.5 else "two"
        evidence = float(chance.normal())
        odds = evidence + (shift if client == "one" else -shift)
        runs.append(
            OwnRun(
                at=START + number // A_DAY * DAY_S + number % A_DAY,
                names=OwnRisk.of_run(client, f"model-{number % 3}", ""),
                failed=bool(chance.random() < risk_of(odds)),
                weight=0.9,
                evidence=(evidence, evidence),
                peak=evidence,
            )
        )
    return runs


def test_what_ships_is_kept_where_it_is_right() -> None:
    """However often it is looked at: a fit that only learned chance is used for nobody."""
    half = [installation(seed)[: DAYS * A_DAY // 2] for seed in range(60)]
    fits = [fit_own(runs, now=START) for runs in [*half, *map(installation, range(10))]]
    assert not any(fit.since for fit in fits)
    assert any(fit.gain.mean > 0.0 for fit in fits), "by chance some look better"
    assert all(fit.gain.runs > 100 for fit in fits)
    prior = fits[0].applied(NO_OUTCOMES, ("", "client:one"), 0.05)
    assert (prior.slope, prior.offset) == (1.0, 0.0)


def test_a_real_shift_is_taken() -> None:
    """Where outcomes depend on the client, on runs that the fit never saw; at once it stays."""
    fit = fit_own(installation(1, shift=1.5), now=START)
    assert fit.since == START
    assert 0 < fit.gain.low < fit.gain.mean
    one, two = (fit.applied(NO_OUTCOMES, OwnRisk.of_run(c, "m", ""), 0.05) for c in ("one", "two"))
    assert risk_of(0.0, one) > 0.7
    assert risk_of(0.0, two) < 0.3
    assert fit_own(installation(1, shift=1.5), fit, now=START + DAY_S).since == START
    back = fit_own(installation(1), fit, now=START + DAY_S)
    assert not back.since


def test_a_few_runs_prove_nothing() -> None:
    """Nor do many of one day, or ones that all failed."""
    runs = installation(1, shift=3.0)
    assert not fit_own(runs[:60], now=START).since
    one_day = [OwnRun(**{**values(run), "at": START}) for run in runs]
    assert not measured_gain(one_day).proven
    assert fit_own([run for run in runs if run.failed], now=START).slope == 1.0


def values(run: OwnRun) -> dict[str, Any]:
    """The fields of a run."""
    return {name: getattr(run, name) for name in run.__slots__}


def test_a_share_of_the_workload_is_taken_back() -> None:
    """Where the workload says less than its outcomes promise, it counts less."""
    own = OwnRisk(slope=2.0, share=0.25, offsets={"": 0.5, "model:m": 1.0}, since=START)
    bad = WorkloadPrior(failed=9)
    prior = own.applied(bad, OwnRisk.of_run("c", "m", "p"), 0.05)
    assert prior.log_odds == pytest.approx(0.25 * bad.log_odds + 1.5)
    assert risk_of(1.0, prior) == pytest.approx(risk_of(2.0 + prior.log_odds))


@pytest.mark.parametrize("promised", [0.02, 0.05, 0.1])
def test_the_promised_rate_holds_while_runs_are_watched(promised: float) -> None:
    """Of simulated runs that end well, of any length, in nearly every sample of solved runs."""
    chance = np.random.default_rng(7)

    def peaks(count: int) -> np.ndarray[Any, Any]:
        """The highest level at which each of these random walks stays for three steps."""
        walks = 0.3 * chance.normal(size=(count, 60)).cumsum(axis=1)
        lasting = np.lib.stride_tricks.sliding_window_view(walks, LASTING_STEPS, axis=1).min(axis=2)
        ends = chance.integers(1, lasting.shape[1], size=count)
        return np.array([row[:end].max() for row, end in zip(lasting, ends, strict=True)])

    pool, above, used = np.sort(peaks(20_000)), 0, 0
    for size in (60, 150, 400):
        for _ in range(100):
            level = Peaks.of(peaks(size).tolist()).level(promised)
            rate = 1.0 - np.searchsorted(pool, level) / len(pool)
            above += bool(rate > promised)
            used += math.isfinite(level)
    assert above <= 0.02 * 300
    assert used >= 100


def test_own_solved_runs_set_the_level() -> None:
    """Once there are enough of them to promise it; fewer leave the level that ships."""
    risky = [OwnRun(**{**values(run), "failed": False}) for run in installation(3)]
    few, many = (fit_own(risky[:n]).applied(NO_OUTCOMES, (), 0.05) for n in (80, 300))
    assert few.works_alarm is None
    assert many.works_alarm is not None
    assert many.talks_alarm is None
    observer, steps = RunObserver(), [Step(index=n, thought="I look again.") for n in range(4)]
    low = RiskModel(shipped_calibration(), prior=replace(many, talks_alarm=-99.0))
    for step in steps:
        low.push(observer.observe(step))
    assert low.likely


def of_gateway(stores: Stores, now: float = START, **routing: Any) -> OwnRisks:
    assert stores.workloads is not None
    return OwnRisks(
        store=stores.workloads,
        learning=stores.learning,
        runs=stores.runs,
        settings=lambda: RoutingSettings(**routing),
        difficulty=DifficultySettings,
        now=lambda: now,
        rest=0.0,
    )


async def test_one_gateway_of_several_fits_in_a_night(gateways: list[Stores]) -> None:
    """All of them read the same fit afterwards; with the setting off, none fits."""
    first = gateways[0]
    assert first.workloads is not None
    for number in range(60):
        await first.states.commit(stored(number, [shell("ls", "a"), shell(f"cat {number}", "b")]))
        await first.workloads.note([a_workload_run(f"r{number:04}", client="claude")])
        outcome = "failure" if number % 3 else "success"
        await first.runs.set_outcome(f"r{number:04}", outcome, source="api", tenant=TENANT)
    assert not await of_gateway(first, own_risk=False).tonight()
    done = await asyncio.gather(*[of_gateway(each).tonight() for each in gateways])
    assert sum(done) == 1
    assert not any([await of_gateway(each, START + 60).tonight() for each in gateways])
    (job,) = await first.learning.jobs("risk")
    assert (job.state, job.attempts) == ("done", 1)
    found = [await each.workloads.own_risks() for each in gateways if each.workloads]
    assert found[0] == found[1] == found[2]
    own = found[0][TENANT]
    assert own.works.runs + own.talks.runs == 20
    assert "client:claude" in own.offsets
    assert not own.since
    assert await of_gateway(gateways[1], START + DAY_S).tonight()


async def test_what_is_stored_is_read_at_the_start(gateways: list[Stores]) -> None:
    """And again at each refresh; of its own tenant only."""
    store = gateways[0].workloads
    assert store is not None
    await store.put_own_risk(TENANT, OwnRisk(slope=2.0, since=START))
    read = await Workloads.open(store, lambda: 999.0)
    assert read.own_risk(TENANT).slope == 2.0
    assert read.own_risk(workload_of("other", "claude", (), "m").tenant) == OwnRisk()
    await store.put_own_risk(TENANT, OwnRisk(slope=3.0, since=START))
    await read.refresh()
    assert read.own_risk(TENANT).slope == 3.0
    await read.close()
