"""Results of a pilot, with a verdict that holds however often it is looked at. Up to the first act
both arms are treated alike: only units with an act are compared, each by its first such run."""

import math
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import takewhile
from secrets import token_hex
from typing import Any

import numpy as np

from gateway.errors import ConfigError
from gateway.learning.life_cycle import e_values
from gateway.reporting.experiment import report
from gateway.reporting.rates import Difference, Rate, Sample, newcombe, rate_of
from gateway.reporting.results import ExperimentReport
from gateway.steering.experiments import ModeOfRuns, Pilot
from gateway.stores.records import OWN_MODE
from gateway.stores.totals import ExperimentRun
from gateway.text import formatting
from gateway.values import frozen

STEER_FROM = 20.0
WATCH_FROM = 10.0
"""E-values of a verdict: where acting does not help, *steer* has one chance in 20 at most, ever;
where it helps by MATTERS or more, *only watch* one in 10."""
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
_CELLS = 51
_POINTS = 200  # of the grids of r and d, and of p
_REGION = 5.991 / 2  # of a logarithm of likelihood: 95 % for two parameters

Drawn = Sequence[tuple[bool, bool | None]]
"""Per unit, in order of the first acts: whether it was steered, and its success; None: unknown."""
Range = tuple[float, float]


@frozen
class Verdict:
    """`steer`, `watch`: the highest e-values, after `units`. `words`: with a forecast."""

    name: str
    words: str
    steer: float
    watch: float
    units: int


@frozen
class Acted:
    """Units whose first act was `action`, all for an empty one, by arm; `fails`: p, the failures
    among those only watched; `net`: the change of success; `region`: 95 % for r (`recovered`), d
    (`disturbed`) and d / (r + d) (`break_even`)."""

    action: str
    units: Mapping[str, int]
    fails: Rate | None
    net: Difference | None
    region: Mapping[str, Range]
    verdict: Verdict


@frozen
class PilotReport:
    """`runs` in the pilot, `judged` of them with an outcome; `parts`: all units with an act, then
    those by action; `results`: of their runs; `notes`: reasons for doubt."""

    pilot: Pilot
    runs: int
    judged: int
    parts: tuple[Acted, ...]
    results: ExperimentReport
    notes: tuple[str, ...]

    @property
    def line(self) -> str:
        """State and verdict in one line."""
        pilot = self.pilot
        verdict = self.parts[0].verdict.words
        ended = "over" if pilot.over else "ended, later runs are only watched"
        state = "running" if pilot.draws else ended
        return f"{state}; {self.judged} of {pilot.most} runs have an outcome; verdict: {verdict}"


def pilot_report(pilot: Pilot, every: Sequence[ExperimentRun], now: float) -> PilotReport:
    """The report of the runs that a pilot has drawn so far."""
    # A client that chooses its mode after an act, knowing how the run goes, cannot take it out.
    runs = [r for r in every if r.arm and not 0 < r.acts.get(OWN_MODE, 0) <= _acted_at(r)]
    first: dict[str, ExperimentRun] = {}
    for run in sorted((run for run in runs if run.acts), key=_acted_at):
        first.setdefault(run.unit, run)
    units = list(first.values())
    by_action = dict[str, list[ExperimentRun]]()
    for run in units:
        kinds = (name for name, at in run.acts.items() if at == _acted_at(run))
        by_action.setdefault(" + ".join(sorted(kinds)), []).append(run)
    share = len(units) / max(len(runs), 1)
    parts = {"": units, **dict(sorted(by_action.items()))}
    return PilotReport(
        pilot=pilot,
        runs=len(runs),
        judged=sum(_won(run) is not None for run in runs),
        parts=tuple(_acted(name, part, share, now) for name, part in parts.items()),
        results=report(pilot.id, units, shares={"on": 0.5, "shadow": 0.5}),
        notes=tuple(_notes(units, len(every) - len(runs), now)),
    )


def pilot_change(
    args: Any, found: PilotReport | None, used: Collection[str], now: float
) -> Pilot | None:
    """The new state that a verb of `gateway pilot` asks for, None for none. `used`: ids of earlier
    ones. Raises ConfigError: it cannot be done now."""
    asked = ModeOfRuns(tenant=args.tenant, client=args.client.lower(), project=args.project)
    pilot = found.pilot if found else None
    ends = args.stop or args.apply
    if args.runs is not None and args.runs < 1:
        raise ConfigError("pilot: --runs: at least 1")
    if pilot is None or found is None or (pilot.over and not ends):
        if ends:
            raise ConfigError("pilot: there is none yet; `gateway pilot start` begins one")
        day = f"pilot-{formatting.iso(now)[:10]}"
        name = next(n for n in (day, *(f"{day}-{n}" for n in range(2, 1000))) if n not in used)
        applied = pilot.applied if pilot else ()
        most = args.runs or RUNS
        about: Any = {"id": name, "runs": asked, "most": most, "applied": applied}
        return Pilot(windows=((now, None),), salt=token_hex(8), **about)
    if args.stop:
        if pilot.over and not pilot.applied:
            raise ConfigError("pilot: it is over already, and no mode is applied")
        return replace(pilot, over=True, applied=() if pilot.over else pilot.applied)
    if args.apply:
        verdict = found.parts[0].verdict
        mode = MODES.get(verdict.name) if args.apply == "verdict" else args.apply
        if mode is None:
            raise ConfigError(
                f"pilot: verdict: {verdict.words}; `apply on` or `apply shadow` sets one"
            )
        given = replace(pilot.runs, mode=mode)
        others = (each for each in pilot.applied if replace(each, mode=mode) != given)
        return replace(pilot, over=True, applied=(given, *others))
    if asked not in (ALL, pilot.runs):
        raise ConfigError(f"pilot: {pilot.id} is about {pilot.runs.words}; `stop` it first")
    if args.runs is None or (args.runs == pilot.most and pilot.draws):
        return None
    if args.runs <= found.judged:
        raise ConfigError(f"pilot: --runs: {found.judged} have an outcome already")
    windows = pilot.windows if pilot.draws else (*pilot.windows, (now, None))
    return replace(pilot, most=args.runs, windows=windows)


def _won(run: ExperimentRun) -> bool | None:
    return run.outcome == "success" if run.outcome in ("success", "failure") else None


def _acted_at(run: ExperimentRun) -> float:
    return min({**run.acts, OWN_MODE: math.inf}.values())


def _open(run: ExperimentRun, now: float) -> bool:
    return run.outcome is None and run.updated_at > now - WAIT_S


def _acted(action: str, units: Sequence[ExperimentRun], share: float, now: float) -> Acted:
    known = [(run, won) for run in units if (won := _won(run)) is not None]
    on, shadow = (
        Sample(outcomes=[(run.unit, won) for run, won in known if run.arm == arm])
        for arm in ("on", "shadow")
    )
    # Those behind an open one wait, too: which outcomes are known first may depend on the arm.
    settled = sum(1 for _ in takewhile(lambda run: not _open(run, now), units))
    return Acted(
        action=action,
        units={arm: sum(run.arm == arm for run in units) for arm in ("on", "shadow")},
        fails=rate_of(Sample(outcomes=[(unit, not won) for unit, won in shadow.outcomes])),
        net=newcombe(on, shadow),
        region=region(_failures(known)) if on.trials and shadow.trials else {},
        verdict=judge([(run.arm == "on", _won(run)) for run in units], share, settled),
    )


def judge(drawn: Drawn, share: float = 1.0, settled: int | None = None) -> Verdict:
    """The verdict after the first unit at which one was proved, of the first `settled` ones: it
    stays, whatever comes later. `share`: of the runs that are units with an act, for the forecast,
    which is made of all units."""
    steer, watch = (_evidence(drawn[:settled], steers=steers) for steers in (True, False))
    for at, (helps, does_not) in enumerate(zip(steer, watch, strict=True), start=1):
        if helps >= STEER_FROM or does_not >= WATCH_FROM:
            name = STEER if helps >= STEER_FROM else WATCH
            return Verdict(name=name, words=name, steer=helps, watch=does_not, units=at)
    most = (max(values, default=1.0) for values in (steer, watch))
    words = _forecast(drawn, share)
    return Verdict(name=MORE, words=words, steer=next(most), watch=next(most), units=len(steer))


def _evidence(drawn: Drawn, *, steers: bool) -> list[float]:
    """After each unit, the evidence that steering raises success, or that it does not by MATTERS:
    the least of three readings of unknown outcomes: left out, failures, successes."""
    readings = (None, False, True) if any(won is None for _, won in drawn) else (None,)
    found = []
    for unknown in readings:
        read = [(on is steers, unknown if won is None else won) for on, won in drawn]
        seen = [(given, 0.5, won) for given, won in read if won is not None]
        values = iter(e_values(seen, 0.0 if steers else -MATTERS, _BETS))
        value = next(values)
        found.append([value := value if won is None else next(values) for _, won in read])
    return [min(values) for values in zip(*found, strict=True)]


def _forecast(drawn: Drawn, share: float) -> str:
    """Runs until a verdict at the present rates, and at one standard error to either side."""
    arms = [[won for on, won in drawn if on is arm and won is not None] for arm in (True, False)]
    if min(map(len, arms)) < _FEWEST:
        return f"{MORE}, too few outcomes to say how many"
    rates = [(sum(won) + 0.5) / (len(won) + 1) for won in arms]
    error = math.sqrt(sum(p * (1 - p) / len(won) for p, won in zip(rates, arms, strict=True)))
    effect = rates[0] - rates[1]
    middle = sum(rates) / 2

    def needed(effect: float) -> float:  # where the bet is the effect
        ways = ((effect, STEER_FROM), (MATTERS - effect, WATCH_FROM))
        units = (math.log(bar * len(_BETS)) / x**2 for x, bar in ways if x > 0)
        return max(1.0, (8 * middle * (1 - middle) * min(units) - len(drawn)) / share)

    low, *_, high = sorted(map(needed, (effect - error, effect, effect + error)))
    if low > _MOST:
        return f"more than {_MOST:,} {MORE}, the arms hardly differ"
    return f"{low:,.0f} to {f'{high:,.0f}' if high <= _MOST else f'over {_MOST:,}'} {MORE}"


Failures = tuple[int, int, int, int]  # failed and all units in shadow, failed and all in on


def _failures(known: Sequence[tuple[ExperimentRun, bool]]) -> Failures:
    shadow = [won for run, won in known if run.arm == "shadow"]
    on = [won for run, won in known if run.arm == "on"]
    return shadow.count(False), len(shadow), on.count(False), len(on)


def region(failures: Failures) -> dict[str, Range]:
    """The pairs of r and d whose likelihood, at the p that fits best, is near the highest. Two
    rates do not fix p, r and d: a whole curve fits them equally."""
    sides = np.linspace(0.0, 1.0, _CELLS)
    p = (np.arange(_POINTS) + 0.5) / _POINTS
    failing = p * (1 - sides[:, None, None]) + (1 - p) * sides[None, :, None]
    failing = np.clip(failing, 1e-9, 1 - 1e-9)
    failed, watched, failed_on, steered = failures
    shadow = failed * np.log(p) + (watched - failed) * np.log1p(-p)
    on = failed_on * np.log(failing) + (steered - failed_on) * np.log1p(-failing)
    fit = (shadow + on).max(axis=2)
    inside = np.argwhere(fit >= fit.max() - _REGION) / (_CELLS - 1)
    moved = inside[inside.sum(axis=1) > 0]
    even = moved[:, 1] / moved.sum(axis=1)
    if len(moved) < len(inside):  # no effect at all fits, too
        even = np.array([0.0, 1.0])
    named = {"recovered": inside[:, 0], "disturbed": inside[:, 1], "break_even": even}
    return {name: (float(each.min()), float(each.max())) for name, each in named.items()}


def _notes(units: Sequence[ExperimentRun], left_out: int, now: float) -> Iterator[str]:
    at = next((n for n, run in enumerate(units, 1) if _open(run, now)), len(units))
    if later := len(units) - at:
        one = units[at - 1].id
        sets = f"`gateway runs outcome {one} success` (or failure, or other) sets it"
        yield f"{later} later units wait for the outcome of {one}, a day at most: {sets}."
    if left_out:
        yield f"Runs left out, in which the client set x-gateway-mode itself: {left_out}."
    if any("rules" in run.acts for run in units):
        yield "Universal rules act on the first call; `etraces.e3_max: 0` leaves them out."
