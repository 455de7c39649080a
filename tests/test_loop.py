"""The loop in a deterministic world: real failures, a live gateway, agents that follow with q."""

from __future__ import annotations

from pathlib import Path

import pytest

from gateway.core.pattern import Status, Trust
from lab.acting import Move
from lab.break_even import Findings, not_worse_from, picture, tables
from lab.loop import ARMS, MORE_ARMS, LoopTable, Place, Trip, Work, places, play, run_loop
from tests.examples import by_day


def shell(command: str) -> Move:
    return Move("bash", (("command", command),))


def attempt(place: Place, folder: Path, way: str, *, changed: bool = False) -> Work:
    """The folder of an environment after its first calls and one way."""
    work = Work(place, folder / f"{way}-{changed}", changed=changed)
    ways = getattr(place, way)
    for command in (*place.first, *(each for each in ways if each != "(finish)")):
        work.execute(shell(command))
    return work


def results(table: LoopTable) -> list[tuple[str, int, bool, int]]:
    return [(each.world, each.number, each.success, each.steps) for each in table.trips]


@pytest.mark.parametrize("place", by_day(places(), 3), ids=lambda place: place.name)
def test_only_the_right_way_works_and_the_look_up_names_it(place: Place, tmp_path: Path) -> None:
    """Before the change and after it; the poisoned lesson names the wrong way."""
    for changed, right, old in ((False, "fix", "later"), (True, "later", "fix")):
        assert attempt(place, tmp_path, right, changed=changed).success()
        looked = attempt(place, tmp_path, "look", changed=changed)
        assert place.named[right].search("\n".join(looked.texts))
        assert not place.named["wrong"].search("\n".join(looked.texts))
        for way in ("tries", "wrong", old):
            assert not attempt(place, tmp_path, way, changed=changed).success(), way
    assert place.named["wrong"].search(place.lesson)
    assert not any(place.named[way].search(place.lesson) for way in ("fix", "later", "look"))
    for way in ("fix", "later", "wrong"):
        assert not place.named[way].search(f"{place.about} {place.task}"), way


@pytest.mark.slow
def test_an_agent_that_follows_nothing_ends_as_without_the_gateway() -> None:
    """At q = 0 only what the gateway sends differs."""
    off, on = (play(arm, 1, 0.0, "shell-fd", 4) for arm in ("off", "guidance"))
    assert results(off) == results(on)
    assert sum(trip.tokens for trip in on.trips) > sum(trip.tokens for trip in off.trips)


@pytest.mark.slow
def test_a_wrong_text_is_followed_from_an_operator_and_not_from_a_model() -> None:
    """What a model wrote waits for an operator: it is not given, and changes no run."""
    operator, model, off = (
        play(arm, 0, 1.0, "tool-images", 4) for arm in ("wrong_operator", "wrong_model", "off")
    )
    assert sum(trip.astray for trip in operator.trips if isinstance(trip, Trip)) > 0
    assert not any(trip.astray for trip in model.trips if isinstance(trip, Trip))
    assert results(model) == results(off)
    (waiting,) = (
        each.pattern.lesson
        for each in model.learned
        if each.pattern.lesson and each.pattern.lesson.trust is Trust.MODEL
    )
    assert waiting.status is Status.CANDIDATE


@pytest.mark.parametrize(
    ("curve", "found"),
    [
        ([0.0, 0.1, 0.2], 0.0),
        ([0.0, -0.1, 0.1], 0.75),
        ([-0.1, 0.1, -0.1], None),
        ([0.0, 0.0, -0.2], None),
        ([-0.3, -0.1, 0.0], 1.0),
    ],
)
def test_the_break_even_is_where_a_curve_is_no_longer_below_zero(
    curve: list[float], found: float | None
) -> None:
    """From there on; between two points by a straight line."""
    least = not_worse_from([0.0, 0.5, 1.0], curve)
    assert least == (found if found is None else pytest.approx(found))


@pytest.mark.nightly
def test_the_whole_loop_holds_what_its_page_says() -> None:
    """All environments and arms at q 0 and 1: equal without reading, no poison from a model."""
    arms = (*ARMS, *MORE_ARMS)
    trips = run_loop([0.0, 1.0], arms=arms, jobs=2)
    found = {arm: [t for t in trips if t.arm == arm] for arm in arms}

    def ends(arm: str, q: float) -> dict[tuple[str, int], tuple[bool, int]]:
        return {(t.world, t.number): (t.success, t.steps) for t in found[arm] if t.q == q}

    assert all(ends(arm, 0.0) == ends("off", 0.0) for arm in arms)
    assert ends("wrong_model", 1.0) == ends("lessons", 1.0)
    before = Findings(trips, changed=False)
    assert (before.difference("guidance", 1.0, "success").low or 0.0) > 0.0
    assert (before.difference("wrong_operator", 1.0, "success").high or 0.0) < 0.0
    assert before.break_even("wrong_operator", "success").value is None
    assert len(list(tables(trips))) > 2 * len(arms)
    assert picture(trips).startswith("<svg")
