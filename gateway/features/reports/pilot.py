"""Results of a pilot, with a verdict that holds however often it is looked at. Up to the first act
both arms are treated alike: only units with an act are compared, each by its first such run."""

import time
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import accumulate, takewhile
from math import inf, log, sqrt
from secrets import token_hex
from typing import TYPE_CHECKING, Any

from gateway.errors import ConfigError
from gateway.features.reports.experiment import report
from gateway.features.reports.results import ExperimentReport
from gateway.features.reports.success_rates import Difference, Rate, Sample, newcombe, rate_of
from gateway.reporting.statistics import e_values
from gateway.steering.experiments import ModeOfRuns, Pilot
from gateway.stores.records import OWN_MODE
from gateway.stores.totals import ExperimentRun
from gateway.tasks import off_loop
from gateway.text.formatting import iso
from gateway.values import frozen

if TYPE_CHECKING:
    from gateway.runtime import Runtime

# E-values of a verdict: where acting does not help, *steer* has one chance in 20 at most, ever;
# where it helps by MATTERS or more, *only watch* one in 10.
STEER_FROM = 20.0
WATCH_FROM = 10.0
MATTERS = 0.02  # of success: an act costs cents, so that two more solved runs in 100 are worth it
_BETS = tuple([(MATTERS / 2 * 2**n, 1 / 6) for n in range(6)])  # half of what matters, doubled
RUNS = 50  # with an outcome, after which a pilot draws no more
WAIT_S = 86_400.0  # after a run's newest call, for its outcome
ALL = ModeOfRuns()
MORE = "more runs needed"
STEER = "steer"
WATCH = "only watch"
MODES = {STEER: "on", WATCH: "shadow"}
_MOST = 20_000  # runs that a forecast reaches
_FEWEST = 5  # outcomes per arm for a forecast

# Per unit, in order of the first acts: whether it was steered, and its success; None: unknown.
DrawnUnits = Sequence[tuple[bool, bool | None]]


@frozen
class Verdict:
    """The verdict on the units with an act so far."""

    name: str  # STEER, WATCH or MORE
    words: str  # the name, for MORE with a forecast
    steer: float  # e-value that steering helps, the highest one so far
    watch: float  # e-value that it does not help by MATTERS, the highest one so far
    units: int  # that the verdict is about


@frozen
class Acted:
    """Units by their first act."""

    action: str  # empty: any
    units: Mapping[str, int]  # by arm
    fails: Rate | None  # failures among those only watched
    net: Difference | None  # change of success by steering
    verdict: Verdict  # steer, watch, or not decided yet


@frozen
class PilotReport:
    """A pilot and what came of it."""

    pilot: Pilot  # as it was declared
    runs: int  # in the pilot
    judged: int  # of them with an outcome
    parts: tuple[Acted, ...]  # all units with an act, then those by action
    results: ExperimentReport  # of the units with an act
    notes: tuple[str, ...]  # reasons for doubt

    @property
    def line(self) -> str:
        """State and verdict in one line."""
        pilot = self.pilot
        state = "ended, later runs are only watched"
        if pilot.draws:
            state = "running"
        elif pilot.over:
            state = "over"
        verdict = self.parts[0].verdict.words
        return f"{state}; {self.judged} of {pilot.most} runs have an outcome; verdict: {verdict}"


def pilot_report(pilot: Pilot, every: Sequence[ExperimentRun], now: float) -> PilotReport:
    """The report of the runs that a pilot has drawn so far."""
    # A client that chooses its mode after an act, knowing how the run goes, cannot take it out.
    runs = [r for r in every if r.arm and not 0 < r.acts.get(OWN_MODE, 0) <= _acted_at(r)]
    first: dict[str, ExperimentRun] = {}
    for run in sorted((run for run in runs if run.acts), key=_acted_at):
        first.setdefault(run.unit, run)
    units = list(first.values())
    by_action: dict[str, list[ExperimentRun]] = {}
    for run in units:
        acts = sorted(name for name, at in run.acts.items() if at == _acted_at(run))
        by_action.setdefault(" + ".join(acts), []).append(run)
    share = len(units) / max(len(runs), 1)
    parts = {"": units, **dict(sorted(by_action.items()))}
    return PilotReport(
        pilot=pilot,
        runs=len(runs),
        judged=sum(_won(run) is not None for run in runs),
        parts=tuple(_acted(name, part, share, now=now) for name, part in parts.items()),
        results=report(pilot.id, units, shares={"on": 0.5, "shadow": 0.5}),
        notes=tuple(_notes(units, len(every) - len(runs), now)),
    )


async def current_pilot(runtime: "Runtime", tenant: str | None) -> PilotReport | None:
    """The report on the newest pilot, over a tenant's runs or all; None without one."""
    pilot = None
    if runtime.opened.workloads:
        pilot = runtime.opened.workloads.pilot
    if pilot is None or tenant not in (None, pilot.runs.tenant or tenant):
        return None
    runs = await runtime.runs.experiment_runs(pilot.id, tenant=tenant)
    applied = tuple([each for each in pilot.applied if tenant in (None, each.tenant or tenant)])
    pilot = replace(pilot, applied=applied, salt="")
    return await off_loop(pilot_report, pilot, runs, time.time())


def pilot_change(
    args: Any, found: PilotReport | None, used: Collection[str], now: float
) -> Pilot | None:
    """Returns the pilot as a verb of `gateway pilot` changes it, None for no change. `used`: ids
    of earlier pilots. Raises ConfigError: the change is not possible now."""
    if args.runs is not None and args.runs < 1:
        raise ConfigError("pilot: --runs: at least 1")
    asked = ModeOfRuns(tenant=args.tenant, client=args.client.lower(), project=args.project)
    ends = args.stop or args.apply
    if found is None or (found.pilot.over and not ends):
        if ends:
            raise ConfigError("pilot: there is none yet; `gateway pilot start` begins one")
        return Pilot(
            id=_new_id(used, now),
            runs=asked,
            windows=((now, None),),
            most=args.runs or RUNS,
            applied=found.pilot.applied if found else (),
            salt=token_hex(8),
        )
    if args.stop:
        return _stopped(found.pilot)
    if args.apply:
        return _applied(found, args.apply)
    if asked not in (ALL, found.pilot.runs):
        about = found.pilot.runs.words
        raise ConfigError(f"pilot: {found.pilot.id} is about {about}; `stop` it first")
    return _prolonged(found, args.runs, now)


def _new_id(used: Collection[str], now: float) -> str:
    day = f"pilot-{iso(now)[:10]}"
    name = day
    number = 1
    while name in used:
        number += 1
        name = f"{day}-{number}"
    return name


def _stopped(pilot: Pilot) -> Pilot:
    """Returns the pilot, ended. If it is over already, returns it without the modes that were
    applied after it."""
    if not pilot.over:
        return replace(pilot, over=True)
    if not pilot.applied:
        raise ConfigError("pilot: it is over already, and no mode is applied")
    return replace(pilot, applied=())


def _applied(found: PilotReport, asked: str) -> Pilot:
    """The pilot ended, with a mode for its runs: the one asked for, or the `verdict`'s."""
    pilot = found.pilot
    verdict = found.parts[0].verdict
    mode = MODES.get(verdict.name) if asked == "verdict" else asked
    if mode is None:
        raise ConfigError(f"pilot: verdict: {verdict.words}; `apply on` or `apply shadow` sets one")
    given = replace(pilot.runs, mode=mode)
    others = [each for each in pilot.applied if replace(each, mode=mode) != given]
    return replace(pilot, over=True, applied=(given, *others))


def _prolonged(found: PilotReport, runs: int | None, now: float) -> Pilot | None:
    """Returns the pilot with another number of `runs`; a pilot that has ended draws again from
    now on."""
    pilot = found.pilot
    if runs is None or (runs == pilot.most and pilot.draws):
        return None
    if runs <= found.judged:
        raise ConfigError(f"pilot: --runs: {found.judged} have an outcome already")
    if pilot.draws:
        windows = pilot.windows
    else:
        windows = (*pilot.windows, (now, None))
    return replace(pilot, most=runs, windows=windows)


def _won(run: ExperimentRun) -> bool | None:
    if run.outcome in ("success", "failure"):
        return run.outcome == "success"
    return None


def _acted_at(run: ExperimentRun) -> float:
    """The time of a run's first act; without any, the end of time."""
    return min({**run.acts, OWN_MODE: inf}.values())


def _open(run: ExperimentRun, now: float) -> bool:
    """True if the run's outcome may still come."""
    return run.outcome is None and run.updated_at > now - WAIT_S


def _acted(action: str, units: Sequence[ExperimentRun], share: float, now: float) -> Acted:
    on = _sample(units, "on")
    shadow = _sample(units, "shadow")
    # Those behind an open one wait, too: which outcomes are known first may depend on the arm.
    settled = sum(1 for _ in takewhile(lambda run: not _open(run, now), units))
    return Acted(
        action=action,
        units={arm: sum(run.arm == arm for run in units) for arm in ("on", "shadow")},
        fails=rate_of(Sample(outcomes=[(unit, not won) for unit, won in shadow.outcomes])),
        net=newcombe(on, shadow),
        verdict=judge([(run.arm == "on", _won(run)) for run in units], share, settled),
    )


def _sample(units: Sequence[ExperimentRun], arm: str) -> Sample:
    """The known outcomes of an arm."""
    known = [(run.unit, _won(run)) for run in units if run.arm == arm]
    return Sample(outcomes=[(unit, won) for unit, won in known if won is not None])


def judge(drawn: DrawnUnits, share: float = 1.0, settled: int | None = None) -> Verdict:
    """Returns the verdict of the first `settled` units. It is given at the first unit at which
    one of the two was proved, and stays, whatever comes later. `share`: of the runs that are
    units with an act, for the forecast, which is made of all units."""
    steer = _evidence(drawn[:settled], steers=True)
    watch = _evidence(drawn[:settled], steers=False)
    for units, (helps, does_not) in enumerate(zip(steer, watch, strict=True), start=1):
        if helps >= STEER_FROM or does_not >= WATCH_FROM:
            name = WATCH
            if helps >= STEER_FROM:
                name = STEER
            return Verdict(name=name, words=name, steer=helps, watch=does_not, units=units)
    return Verdict(
        name=MORE,
        words=_forecast(drawn, share),
        steer=max(steer, default=1.0),
        watch=max(watch, default=1.0),
        units=len(steer),
    )


def _evidence(drawn: DrawnUnits, *, steers: bool) -> list[float]:
    """Returns, after each unit, the evidence that steering raises success (`steers`), or that it
    does not raise it by MATTERS. Unknown outcomes are read in three ways (left out, all
    failures, all successes); the lowest evidence of the three counts."""
    readings = [_capital(drawn, None, steers=steers)]
    if any(won is None for _, won in drawn):
        readings += [_capital(drawn, won, steers=steers) for won in (False, True)]
    return [min(values) for values in zip(*readings, strict=True)]


def _capital(drawn: DrawnUnits, unknown: bool | None, *, steers: bool) -> list[float]:
    """Returns the e-value after each unit. Unknown outcomes are read as `unknown`; with None
    they are skipped, so that the e-value stays as it was."""
    read = [(on, unknown if won is None else won) for on, won in drawn]
    seen = [(on is steers, 0.5, won) for on, won in read if won is not None]
    values = e_values(seen, 0.0 if steers else -MATTERS, _BETS)
    return [values[known] for known in accumulate(won is not None for _, won in read)]


def _forecast(drawn: DrawnUnits, share: float) -> str:
    """Describes how many more runs a verdict needs at the present rates, and at one standard
    error to either side."""
    on = [won for steered, won in drawn if steered and won is not None]
    shadow = [won for steered, won in drawn if not steered and won is not None]
    if min(len(on), len(shadow)) < _FEWEST:
        return f"{MORE}, too few outcomes to say how many"
    rate_on = (sum(on) + 0.5) / (len(on) + 1)
    rate_shadow = (sum(shadow) + 0.5) / (len(shadow) + 1)
    variance_on = rate_on * (1 - rate_on) / len(on)
    error = sqrt(variance_on + rate_shadow * (1 - rate_shadow) / len(shadow))
    effect = rate_on - rate_shadow
    middle = (rate_on + rate_shadow) / 2

    def needed(effect: float) -> float:
        # Where the bet is the effect x, the logarithm of its capital, a part of all, grows by
        # x^2 / (8 p (1 - p)) with each unit.
        ways = ((effect, STEER_FROM), (MATTERS - effect, WATCH_FROM))
        units = [log(bar * len(_BETS)) / x**2 for x, bar in ways if x > 0]
        return max(1.0, (8 * middle * (1 - middle) * min(units) - len(drawn)) / share)

    runs = [needed(each) for each in (effect - error, effect, effect + error)]
    low = min(runs)
    high = max(runs)
    if low > _MOST:
        return f"more than {_MOST:,} {MORE}, the arms hardly differ"
    if high <= _MOST:
        end = f"{high:,.0f}"
    else:
        end = f"over {_MOST:,}"
    return f"{low:,.0f} to {end} {MORE}"


def _notes(units: Sequence[ExperimentRun], left_out: int, now: float) -> Iterator[str]:
    opened = next((number for number, run in enumerate(units) if _open(run, now)), len(units) - 1)
    if later := units[opened + 1 :]:
        one = units[opened].id
        sets = f"`gateway runs outcome {one} success` (or failure, or other) sets it"
        yield f"{len(later)} later units wait for the outcome of {one}, a day at most: {sets}."
    if left_out:
        yield f"Runs left out, in which the client set x-gateway-mode itself: {left_out}."
    if any("rules" in run.acts for run in units):
        yield "Universal rules act on the first call; `etraces.e3_max: 0` leaves them out."
