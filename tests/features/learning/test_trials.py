"""Trials of lessons: harmful ones go, chance ends none, an operator decides the rest."""

from __future__ import annotations

import itertools
import random

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.core.pattern import Lesson, Pattern, Status, Tier, Trust
from gateway.features.learning.life_cycle import (
    ACTIVE_SHARE,
    Observation,
    harm_of,
    next_move,
    observations,
    posterior,
    why_not_active,
)
from gateway.reporting.statistics import e_values
from gateway.stores.learning import (
    OutcomeRow,
    Posterior,
    SettledDecision,
    StoredLesson,
    Support,
)
from lab.learning import trials
from steering_gateway_testing.store_conformance.learning import a_decision


@pytest.mark.parametrize(
    "seeds",
    [pytest.param(10, marks=pytest.mark.slow), pytest.param(500, marks=pytest.mark.nightly)],
    ids=["few", "many"],
)
def test_planted_lessons(seeds: int) -> None:
    """A trial of a lesson that does no harm hardly ever ends, whatever results depend on; that of a
    harmful one does, and so does one whose failure never comes again while no run succeeds."""
    found = {each["lesson"]: each for each in trials(range(seeds))}
    slack = 0.0 if seeds > 100 else 0.1
    for name, each in found.items():
        if name.startswith(("no effect", "+30")):
            assert each["retired"] <= 0.14 + slack, name
        if name.startswith("no failure, no success"):
            assert each["retired"] >= 0.95 - slack, name
    assert found["-30 points"]["retired"] >= 0.9 - slack
    assert found["+30 points"]["helps"] >= 0.9 - slack
    assert found["no failure, no success, of .5"]["retired_within_60"] >= 0.95 - slack
    assert found["no effect"]["helps"] <= 0.07 + slack


RATES = st.floats(0.05, 0.95)


@given(
    rates=st.lists(RATES, min_size=4, max_size=4),
    shares=st.lists(st.sampled_from((0.2, 0.37, 0.5, 0.9)), min_size=5, max_size=5),
    above=st.sampled_from((0.0, -0.05, -0.1, 0.05)),
)
def test_bets_cannot_be_won_by_chance(
    rates: list[float], shares: list[float], above: float
) -> None:
    """Where giving raises the rate by exactly `above`, the mean of the capital over all draws and
    results is 1, also with shares that follow the results so far, and rates that change."""
    rates = [min(max(rate, -above), 1.0 - above) for rate in rates]
    mean = 0.0
    for outcomes in itertools.product(itertools.product((True, False), repeat=2), repeat=4):
        chance, seen = 1.0, list[tuple[bool, float, bool]]()
        for (gives, good), rate in zip(outcomes, rates, strict=True):
            share, now = shares[sum(d[2] for d in seen)], rate + above * gives
            chance *= (share if gives else 1.0 - share) * (now if good else 1.0 - now)
            seen.append((gives, share, good))
        values = e_values(seen, above)
        assert min(values) > 0.0
        mean += chance * values[-1]
    assert mean == pytest.approx(1.0)


@given(st.lists(st.tuples(st.booleans(), st.booleans(), st.booleans()), max_size=70))
def test_what_a_posterior_says(results: list[tuple[bool, bool, bool]]) -> None:
    """Each evidence is in [0, 1), grows with no result taken back, and says nothing at first; the
    share is that of the status."""
    seen = [Observation(gives, 0.5, again, won) for gives, again, won in results]
    for end in (0, len(seen) // 2, len(seen)):
        found = posterior(seen[:end])
        later = posterior(seen)
        for name in ("helps", "harms", "harms_success"):
            assert 0.0 <= getattr(found, name) <= getattr(later, name) < 1.0
    assert posterior([]).harms == 0.0
    assert (found.share, posterior(seen, active=True).share) == (0.5, ACTIVE_SHARE)


def test_less_success_is_seen_whatever_recurs() -> None:
    """A lesson after which the failure never comes again, and every run fails, is retired for its
    success; without runs whose success is known it is not."""
    seen = [Observation(n % 2 == 0, 0.5, n % 2 == 1, n % 2 == 1) for n in range(40)]
    assert "fail more often" in harm_of(posterior(seen))
    unknown = posterior([Observation(n % 2 == 0, 0.5, n % 2 == 1) for n in range(60)])
    assert (unknown.helps or 0.0) > 0.99
    assert unknown.harms_success == 0.0
    assert harm_of(unknown) == ""


def settled(run_id: str, step: int, **after: object) -> SettledDecision:
    decision = a_decision(run_id, step, pattern_id="x")
    values: dict = {"recurred": False, "calls_to_success": None, "steps_left": 9} | after
    return SettledDecision(decision=decision, tenant="acme", at=float(step), **values)


def test_decisions_are_joined_with_what_came_of_their_runs() -> None:
    """The first decision of a run has its success; a run that gave up soon has not got over the
    failure."""

    def verdict(run_id: str, source: str, said: str) -> OutcomeRow:
        return OutcomeRow(run_id=run_id, tenant="acme", source=source, verdict=said, at=1.0)

    verdicts = [verdict("good", "told_api", "success"), verdict("bad", "correction", "failure")]
    decisions = [
        settled("good", 1, steps_left=2),
        settled("good", 3),
        settled("bad", 1, steps_left=2, calls_to_success=1),
        settled("left", 1, steps_left=2),
        settled("went on", 1, steps_left=2, calls_to_success=1),
        settled("open", 1, recurred=None),
    ]
    found = observations(decisions, verdicts)
    assert [each.success for each in found] == [True, True, False, None, None]
    assert [each.first for each in found] == [True, False, True, True, True]
    assert [each.recurred for each in found] == [False, False, True, True, False]


def test_the_estimate_is_right_while_the_share_moves() -> None:
    """Over 200 logs with a known effect of 20 points the mean estimate is within one point, and
    what crediting by the run's outcome would say has the wrong sign."""
    effects, credited = [], []
    for seed in range(200):
        draw, seen, runs = random.Random(seed), list[Observation](), list[tuple[bool, bool]]()
        share = 0.5
        for _ in range(150):
            share = min(max(share + draw.uniform(-0.1, 0.1), 0.2), 0.5)
            gives = draw.random() < share
            again = draw.random() < (0.3 if gives else 0.5)
            seen.append(Observation(gives, share, again))
            # Lessons are given to runs in trouble; those without trouble never meet one.
            runs.append((gives, draw.random() < 0.93 - 0.1 * gives))
            runs.append((False, draw.random() < 0.3))
        found = posterior(seen).effect
        assert found is not None
        effects.append(found)
        given = [failed for gives, failed in runs if gives]
        others = [failed for gives, failed in runs if not gives]
        credited.append(sum(given) / len(given) - sum(others) / len(others))
    assert abs(sum(effects) / len(effects) - 0.2) < 0.01
    assert sum(credited) / len(credited) > 0.1  # the lesson would seem to make runs fail


def stored(status: Status, **changes: object) -> StoredLesson:
    """A lesson with support for a trial, or with these changes."""
    lesson = Lesson(key="k", status=status, trust=Trust(str(changes.pop("trust", "template"))))
    values: dict = {
        "pattern": Pattern(
            tier=Tier(str(changes.pop("tier", "e1"))),
            tenant="acme",
            pattern_id="x",
            fields={"situation": "s", "guidance": "g"},
            lesson=lesson,
        ),
        "created_at": 0.0,
        "updated_at": 0.0,
        "reason": "",
        "posterior": Posterior(),
    }
    given = {name: changes.pop(name) for name in Support.__struct_fields__ if name in changes}
    support = msgspec.convert({"conversations": 2, "tasks": 2} | given, Support)
    return StoredLesson(support=support, **(values | changes))


def test_when_a_lesson_moves() -> None:
    """A candidate waits for an operator, however many runs support it; harm retires."""
    candidate = stored(Status.CANDIDATE, conversations=9, tasks=9, keys=9)
    assert next_move(candidate) is None
    assert why_not_active(candidate) == "an operator has to approve it"
    assert next_move(stored(Status.QUARANTINED)) is None
    helps = Posterior(decisions=60, given=30, helps=0.99)
    assert next_move(stored(Status.TRIAL, posterior=helps)) is None  # an operator decides
    tried = stored(Status.TRIAL, posterior=helps, trust="operator")
    assert "60 decisions" in why_not_active(tried)
    assert why_not_active(stored(Status.TRIAL)) == why_not_active(candidate)
    for harm in ({"harms": 0.95}, {"harms_success": 0.95}):
        for status in (Status.TRIAL, Status.ACTIVE):
            harmful = Posterior(decisions=60, given=30, **harm)
            ended = next_move(stored(status, posterior=harmful))
            assert ended is not None
            assert ended.status is Status.RETIRED
    assert why_not_active(stored(Status.ACTIVE, trust="operator")) == ""
