"""Checks of ChangeStore."""

from __future__ import annotations

import asyncio

from msgspec import structs

from gateway.backends import Stores
from gateway.steering.experiments import ModeOfRuns, Pilot
from gateway.stores.sql.audit_log import Change, ChangeStore, pilot_of
from steering_gateway_testing.store_conformance.check import Check
from steering_gateway_testing.store_conformance.records import START, a_first_step, a_step, one_run


def _changes(stores: Stores) -> ChangeStore:
    assert stores.changes is not None
    return stores.changes


def _a_change(number: int, kind: str = "policy") -> Change:
    return Change(
        id=f"{kind}-{number}",
        kind=kind,
        subject="é",
        tenant="t",
        at=START + number,
        author="someone",
        reason="a reason",
        body='{"n": 1}',
    )


async def lists_changes_newest_first(stores: Stores) -> None:
    """Each with every field as it was, of one kind or of all."""
    changes = _changes(stores)
    assert await changes.find() == []
    first, second, other = _a_change(1), _a_change(2), _a_change(3, "pilot")
    assert await changes.put(first, after=None)
    assert await changes.put(second, after=first.id)
    assert await changes.put(other, after=None)
    assert await changes.find() == [other, second, first]
    assert await changes.find(kind="policy") == [second, first]
    assert await changes.find(kind="policy", limit=1) == [second]


async def appends_to_what_its_author_knew(stores: Stores) -> None:
    """Of two changes that follow the same one, the second is refused, and nothing is stored."""
    changes = _changes(stores)
    assert not await changes.put(_a_change(1), after="unknown")
    asked = [changes.put(_a_change(number), after=None) for number in range(1, 6)]
    assert sorted(await asyncio.gather(*asked)) == [False] * 4 + [True]
    assert len(await changes.find()) == 1
    (only,) = await changes.find()
    # Its author's clock is behind: it is the newest all the same.
    assert await changes.put(_a_change(-9), after=only.id)
    assert [each.id for each in await changes.find()] == ["policy--9", only.id]


async def keeps_a_pilot(stores: Stores) -> None:
    """As it was declared, and after the newest change by any clock; its runs with a success or a
    failure are counted, and have the time of the first act of each kind."""
    changes = _changes(stores)
    later = structs.replace(_a_change(1, "pilot"), at=4e9)
    assert pilot_of(later) is None
    assert await changes.put(later, after=None)
    runs = ModeOfRuns(tenant="t", client="é", mode="on")
    pilot = Pilot(id="p", runs=runs, windows=((1.5, 2.5), (3.5, None)), most=7, applied=(runs,))
    assert await changes.put_pilot(pilot, later, "someone", "a reason")
    assert not await changes.put_pilot(pilot, later, "another", "too late")
    newest, before = await changes.find(kind="pilot")
    assert (before, newest.subject, newest.tenant, pilot_of(newest)) == (later, "p", "t", pilot)
    outcomes = ("success", "failure", "other", None)
    for number, outcome in enumerate(outcomes):
        run, own = f"r{number:04}", {"experiment": "p", "arm": "on", "outcome": outcome}
        acted = a_step(1, run, acts=("guidance", "routing"), at=START + 9.5)
        again = a_step(2, run, acts=("guidance", "hand_over"), at=START + 11.5)
        steps = (a_first_step(run), acted, again)
        await stores.states.commit(one_run(number, steps=steps, **own))
    assert (await changes.judged("p"), await changes.judged("q")) == (2, 0)
    (found, *_) = await stores.runs.experiment_runs("p", tenant=None)
    first = {"guidance": START + 9.5, "routing": START + 9.5, "hand_over": START + 11.5}
    assert found.acts == first
    assert found.duration_s == found.updated_at - found.started_at


CHANGE_CHECKS: tuple[Check, ...] = (
    lists_changes_newest_first,
    appends_to_what_its_author_knew,
    keeps_a_pilot,
)
