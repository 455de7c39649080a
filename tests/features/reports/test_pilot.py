"""A pilot's verdict, its figures, and what `gateway pilot` makes of its state."""

from __future__ import annotations

import argparse
import random
from dataclasses import replace
from typing import Any

import pytest
from msgspec import structs

from gateway.errors import ConfigError
from gateway.features.reports.pilot import (
    MORE,
    STEER,
    WAIT_S,
    WATCH,
    PilotReport,
    judge,
    pilot_change,
    pilot_report,
)
from gateway.steering.experiments import ExperimentSettings, ModeOfRuns, Pilot, assign
from lab.pilot import WORLDS, World, drawn, play
from tests.examples import by_day
from tests.features.reports.builders import START, a_run

NOW = START + 1000 * 600.0
PILOT = Pilot(id="pilot-x", runs=ModeOfRuns(), windows=((START, None),), most=50)


def run(number: int, *, on: bool, won: bool | None, at: float | None = None, **more: Any) -> Any:
    """A run that was guided, or would have been, 30 seconds after it began."""
    outcome = None if won is None else "success" if won else "failure"
    acted = START + number * 600.0 + 30.0 if at is None else at
    acts = {"guidance": acted}
    arm = "on" if on else "shadow"
    return a_run(number, arm=arm, outcome=outcome, **({"acts": acts} | more))


def many(count: int, world: World, seed: int = 1) -> list[Any]:
    units = drawn(world, count, random.Random(seed))
    return [run(n, on=on, won=won) for n, (on, won) in enumerate(units)]


@pytest.mark.parametrize("world", by_day([World(0.5, 0.9, 0.1), World(0.2, 0.1, 0.5)], 1))
def test_a_verdict_stays(world: World) -> None:
    """Whoever looks after every run sees it at the same unit, and nothing later changes it."""
    units = drawn(world, 400, random.Random(3))
    final = judge(units)
    assert final.name == (STEER if world.net > 0 else WATCH)
    for look in range(len(units)):
        found = judge(units[:look])
        assert found.name == (MORE if look < final.units else final.name)


def test_unknown_outcomes_cannot_prove_steering() -> None:
    """Failures that are reported less often where runs are steered look like an effect: not when
    they are read as failures."""
    world = World(0.6, 0.0, 0.0, reported=(0.3, 1.0, 1.0, 1.0))
    units = drawn(world, 600, random.Random(5))
    assert judge([unit for unit in units if unit[1] is not None]).name == STEER
    assert judge(units).name != STEER


def test_a_verdict_waits_for_open_runs() -> None:
    """Outcomes behind one that is not known yet do not count, until that is known or given up."""
    runs = many(300, World(0.6, 0.9, 0.0))
    assert pilot_report(PILOT, runs, NOW).parts[0].verdict.name == STEER
    runs[0] = run(0, on=True, won=None)
    waiting = pilot_report(PILOT, runs, START + 3600.0)
    assert (waiting.parts[0].verdict.units, waiting.parts[0].verdict.name) == (0, MORE)
    assert "299 later units wait for the outcome of c0.0" in waiting.notes[0]
    # How many more is said by all that is known, not only by what counts.
    assert "too few outcomes" not in waiting.parts[0].verdict.words
    later = pilot_report(PILOT, runs, START + WAIT_S + 3600.0)
    assert later.parts[0].verdict.name == STEER
    other = a_run(0, outcome="other", acts=runs[0].acts)
    assert pilot_report(PILOT, [other, *runs[1:]], NOW).parts[0].verdict.name == STEER


def test_which_runs_are_compared() -> None:
    """Units with an act, once each; not those whose client chose the mode; divided by what came
    first."""
    runs = [
        run(0, on=True, won=True),
        run(1, on=True, won=False, unit="u0"),  # its unit has a run with an act
        run(2, on=False, won=True, acts={}),
        run(3, on=False, won=False, acts={"own_mode": START, "guidance": START}),
        run(4, on=False, won=False, acts={"routing": START + 9, "lessons": START}),
        run(5, on=False, won=True, acts={"routing": START + 9, "guidance": START + 9}),
    ]
    found = pilot_report(PILOT, runs, NOW)
    assert (found.runs, found.judged, found.results.runs) == (5, 5, 3)
    names = [part.action for part in found.parts]
    assert names == ["", "guidance", "guidance + routing", "lessons"]
    whole = found.parts[0]
    assert whole.units == {"on": 1, "shadow": 2}
    assert whole.fails is not None
    assert whole.fails.rate == 0.5
    assert found.notes == ("Runs left out, in which the client set x-gateway-mode itself: 1.",)


def test_a_client_cannot_take_a_run_out_after_an_act() -> None:
    """By choosing the mode once it sees how the run goes: it stays in the arm that it was drawn
    for. Before any act it may, as both arms are alike up to there."""
    acts = {"guidance": START + 30}
    late = run(0, on=True, won=False, acts={**acts, "own_mode": START + 60})
    early = run(1, on=True, won=False, acts={**acts, "own_mode": START})
    never = run(2, on=True, won=False, acts={"own_mode": START})
    found = pilot_report(PILOT, [late, early, never], NOW)
    assert found.runs == 1
    assert [part.action for part in found.parts] == ["", "guidance"]
    assert found.parts[0].units == {"on": 1, "shadow": 0}


def test_an_outcome_that_changes_changes_the_verdict() -> None:
    """It is computed from what is known now, and not kept."""
    runs = many(300, World(0.6, 0.9, 0.0))
    assert pilot_report(PILOT, runs, NOW).parts[0].verdict.name == STEER
    failed = [structs.replace(each, outcome="failure") for each in runs]
    assert pilot_report(PILOT, failed, NOW).parts[0].verdict.name != STEER


def test_every_amount_of_a_run_is_compared() -> None:
    """Tokens, cost, time and interventions; runs with universal rules are named."""
    runs = [
        structs.replace(each, human={"correction": 2}) for each in many(60, World(0.5, 0.2, 0.2))
    ]
    runs[0] = structs.replace(runs[0], acts={"rules": START})
    found = pilot_report(PILOT, runs, NOW)
    (comparison,) = found.results.comparisons
    for name in ("tokens", "cost_usd", "duration_s", "interventions"):
        ratio: Any = comparison.others.get(name) or getattr(comparison, name)
        assert ratio.mean.estimate == pytest.approx(1.0), name
    assert found.notes[-1].startswith("Universal rules act on the first call")


def test_a_forecast_is_a_range() -> None:
    """Of runs, not of units with an act; none from a few outcomes, and an end for hopeless ones."""
    assert judge(drawn(World(0.5, 0.5, 0.0), 6, random.Random(1))).words.endswith("say how many")
    some = drawn(World(0.5, 0.3, 0.0), 40, random.Random(2))
    ranges = [judge(some, share).words.split()[0].replace(",", "") for share in (1.0, 0.5)]
    assert int(ranges[1]) >= 2 * int(ranges[0]) - 1
    near = [(n % 2 == 0, n % 20 < 9 + n % 2) for n in range(1200)]
    assert judge(near, 0.1).words.startswith("more than 20,000")


def asked(**given: Any) -> argparse.Namespace:
    values = {"runs": None, "client": "", "project": "", "tenant": "", "stop": False, "apply": None}
    return argparse.Namespace(**(values | given))


def change(found: PilotReport | None, **given: Any) -> Pilot | None:
    return pilot_change(asked(**given), found, {"pilot-2025-10-16"}, NOW)


def test_the_states_of_a_pilot() -> None:
    """Begun, prolonged, applied, begun again for other runs, stopped, and taken back."""
    begun = change(None, client="Claude-CLI")
    assert begun is not None
    assert (begun.id, begun.runs.client, begun.most) == ("pilot-2025-10-16-2", "claude-cli", 50)
    ended = replace(begun, windows=((NOW - 100.0, NOW - 10.0),))
    report = pilot_report(ended, many(60, World(0.5, 0.0, 0.0)), NOW)
    assert change(report) is None
    longer = change(report, runs=200)
    assert longer is not None
    assert longer.draws
    assert (longer.most, longer.windows) == (200, (*ended.windows, (NOW, None)))
    with pytest.raises(ConfigError, match="60 have an outcome already"):
        change(report, runs=55)
    with pytest.raises(ConfigError, match="more runs needed; `apply on` or `apply shadow`"):
        change(report, apply="verdict")
    with pytest.raises(ConfigError, match="is about runs of client claude-cli"):
        change(report, client="other")
    applied = change(report, apply="on")
    assert applied is not None
    assert (applied.over, applied.applied) == (True, (replace(begun.runs, mode="on"),))
    over = pilot_report(applied, [], NOW)
    other = change(over, project="site")
    assert other is not None
    assert (other.applied, other.runs.project) == (applied.applied, "site")
    back = change(over, stop=True)
    assert back is not None
    assert back.applied == ()
    for given in ({"stop": True}, {"apply": "on"}):
        with pytest.raises(ConfigError, match="there is none yet"):
            change(None, **given)


def test_a_coin_for_units_that_begin_while_it_is_thrown() -> None:
    """The same arm as an even experiment of that id; watched between two windows; as the config
    says before the first, for other runs, and when it is over without a mode."""
    pilot = replace(PILOT, windows=((10.0, 20.0), (30.0, None)), runs=ModeOfRuns(client="cli"))
    even = ExperimentSettings(id=PILOT.id, arms={"on": 0.5, "shadow": 0.5})
    about = ("acme", "CLI/1.0", "site")
    for unit in map(str, range(50)):
        arm = assign(even, unit)
        assert (
            pilot.treatment(about, unit, 15.0) == pilot.treatment(about, unit, 31.0) == (arm, arm)
        )
    assert pilot.treatment(about, "u", 25.0) == (None, "shadow")
    assert pilot.treatment(about, "u", 5.0) == (None, "")
    assert pilot.treatment(("acme", "other", ""), "u", 15.0) == (None, "")
    over = replace(pilot, over=True, applied=(ModeOfRuns(project="site", mode="on"),))
    assert over.treatment(about, "u", 15.0) == (None, "on")
    assert over.treatment(("acme", "cli", ""), "u", 15.0) == (None, "")


def test_verdicts_in_known_worlds() -> None:
    """A small sample of what `python -m lab pilot` plays, in worlds that it does not list."""
    helps, harms = (
        play(world, pilots=12, look_every=1, most_runs=3000, seed=7)
        for world in (World(0.55, 0.7, 0.3), World(0.3, 0.3, 0.4))
    )
    assert helps.steer >= 0.75
    assert harms.watch >= 0.75
    assert harms.steer <= 0.1


@pytest.mark.nightly
@pytest.mark.parametrize("world", WORLDS, ids=str)
def test_verdicts_of_many_pilots(world: World) -> None:
    """Right in nine of ten where success changes by more than what matters and all is reported;
    never *steer* for no effect in more than one of twenty."""
    found = play(world, pilots=300, look_every=1, most_runs=20_000, seed=11)
    if world.net <= 0:
        assert found.steer <= 0.05 + 0.03
    if min(world.reported) == 1.0:
        if world.net > 0.03:
            assert found.steer >= 0.9 - 0.03
        if world.net < -0.001:
            assert found.watch >= 0.9 - 0.03
