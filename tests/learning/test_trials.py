"""Trials of lessons: strong ones pass, harmful ones go, chance does not promote."""

from __future__ import annotations

import random
from collections import Counter

import msgspec
import pytest

from gateway.learning.life_cycle import (
    ACTIVE_SHARE,
    LEAST_SHARE,
    MOST_SHARE,
    Observation,
    interval,
    judged,
    next_move,
    posterior,
    why_not_active,
)
from gateway.steering.guidance.pattern import Lesson, Pattern, Status, Tier, Trust
from gateway.stores.learning import Posterior, StoredLesson, Support

MOST_DECISIONS = 300
RECOMPUTED_EVERY = 5
"""As runs end: several decisions come to be known at once."""


def trial(seed: int, held: float, given: float) -> tuple[str, int]:
    """A trial of a lesson with these recurrence rates: the status at its end, after how many."""
    draw, seen, share = random.Random(seed), list[Observation](), 0.5
    for number in range(1, MOST_DECISIONS + 1):
        gives = draw.random() < share
        seen.append(Observation(gives, share, draw.random() < (given if gives else held)))
        if number % RECOMPUTED_EVERY == 0:
            found = posterior(seen)
            assert LEAST_SHARE <= found.share <= MOST_SHARE
            share = found.share
            move = judged(found, active=False)
            if move is not None:
                return move.status.value, number
    return Status.TRIAL.value, MOST_DECISIONS


@pytest.mark.parametrize(
    "seeds", [10, pytest.param(100, marks=pytest.mark.nightly)], ids=["ten", "hundred"]
)
def test_a_planted_trap(seeds: int) -> None:
    """A lesson that nearly always helps is active within 60 decisions in 95 % of the trials, one
    that doubles the failures is retired in 90 %, one without an effect promoted in at most 3 %."""
    strong = [trial(seed, held=0.9, given=0.1) for seed in range(seeds)]
    quick = sum(status == "active" and number <= 60 for status, number in strong)
    assert quick >= 0.95 * seeds - 1
    harmful = [trial(seed, held=0.3, given=0.6)[0] for seed in range(seeds)]
    assert harmful.count("retired") >= 0.9 * seeds
    null = Counter(trial(seed, held=0.4, given=0.4)[0] for seed in range(seeds))
    assert null["active"] <= 0.03 * seeds
    assert null["retired"] >= 0.5 * seeds


def test_the_estimate_is_right_while_the_share_moves() -> None:
    """Over 200 logs with a known effect of 20 points the mean estimate is within one point, and
    what crediting by the run's outcome would say has the wrong sign."""
    effects, credited = [], []
    for seed in range(200):
        draw, seen, runs = random.Random(seed), list[Observation](), list[tuple[bool, bool]]()
        share = 0.5
        for _ in range(150):
            share = min(max(share + draw.uniform(-0.1, 0.1), LEAST_SHARE), MOST_SHARE)
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


def test_a_lesson_leans_on_its_general_one() -> None:
    """With few decisions of its own an instance is judged by what is known of its kind."""
    few = [Observation(True, 0.5, False), Observation(False, 0.5, True)] * 2
    parent = posterior([Observation(n % 2 == 0, 0.5, n % 2 == 1) for n in range(40)])
    alone, leaning = posterior(few), posterior(few, parent=parent)
    assert alone.helps is not None
    assert leaning.helps is not None
    assert leaning.helps > alone.helps
    assert posterior(few, active=True).share == ACTIVE_SHARE
    assert posterior([]).share == pytest.approx(0.5)
    low, high = interval(0.5, 20)
    assert 0.25 < low < 0.5 < high < 0.75


def stored(status: Status, **changes: object) -> StoredLesson:
    """A lesson with support for a trial, or with these changes."""
    lesson = Lesson(
        key="k", status=status, trust=Trust(str(changes.pop("trust", "template"))), expires_at=1000
    )
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
    """Support opens a trial, a model's text waits for an operator, time retires, trials can be
    off."""
    candidate = Status.CANDIDATE
    ready = next_move(stored(candidate), 0.0, trials=True)
    assert ready is not None
    assert ready.status is Status.TRIAL
    assert next_move(stored(candidate), 0.0, trials=False) is None
    for lacking in ({"conversations": 1}, {"trust": "model"}, {"tier": "e2", "tasks": 1}):
        held = stored(candidate, **lacking)
        assert next_move(held, 0.0, trials=True) is None
        assert why_not_active(held, trials=True)
    alone = {"keys": 1, "tenant_keys": 2}
    for lacking in (alone, alone | {"tenant_keys": 1}):
        held = stored(candidate, **lacking)
        assert next_move(held, 0.0, trials=True, config_tenants={"acme"}) is None
        why = why_not_active(held, trials=True, config_tenants={"acme"})
        assert why == "runs of 1 more gateway key have to confirm it"
    for enough in (alone | {"keys": 2}, alone | {"tenant_keys": 1}, {"keys": 1}):
        assert next_move(stored(candidate, **enough), 0.0, trials=True, config_tenants={"other"})
    gone = next_move(stored(Status.ACTIVE), 2000.0, trials=True)
    assert gone is not None
    assert gone.status is Status.RETIRED
    assert next_move(stored(Status.QUARANTINED), 2000.0, trials=True) is None
    helps = Posterior(decisions=60, given=30, helps=0.99, harms=0.0)
    judged_now = next_move(stored(Status.TRIAL, posterior=helps), 0.0, trials=True)
    assert judged_now is not None
    assert judged_now.status is Status.ACTIVE
    assert why_not_active(stored(Status.ACTIVE), trials=True) == ""
