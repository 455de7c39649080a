"""What ended an exact failure: shown to people, and given only when the same failure is there."""

from __future__ import annotations

import sys
from collections import Counter

import pytest

from gateway.backends import Stores
from gateway.core.pattern import Status
from gateway.features.learning.ended_failures import BY_ITSELF, HOLE, endings
from gateway.features.learning.life_cycle import LessonActions
from gateway.features.learning.views import lesson_view
from gateway.stores.learning import LessonFilter
from steering_gateway_testing.store_conformance import records
from tests.features.learning.families import answers, families, given, learn, read_one
from tests.features.learning.runs import Call, read, shell


def behind(name: str) -> Call:
    """A call that fails until somebody migrates."""
    return shell(f"larch serve {name}", f'larch: fatal: table "{name}" is behind')


def serves(name: str) -> Call:
    """The same call when it works."""
    return shell(f"larch serve {name}", "served")


MIGRATE = shell("larch migrate", "applied 2 steps")
MOVE = "Call `larch migrate` before you make the same call again."


def ended(name: str) -> tuple[Call, ...]:
    """A run in which one command ended the failure."""
    return (behind(name), MIGRATE, serves(name))


@pytest.mark.parametrize(
    ("name", "at_once", "approved"), [("families", 26, 28), ("families_unseen", 6, 6)]
)
async def test_what_is_given_names_the_hidden_rule(name: str, at_once: int, approved: int) -> None:
    """Nothing that is given is wrong, and where chance, time or an edit decided nothing is; with
    the names approved that the run does not know, some more are right and none is wrong."""
    found = [Counter[str](), Counter[str]()]
    for family in families(name):
        texts, waiting = await given(family)
        for count, said in zip(found, (texts, [*texts, *waiting]), strict=True):
            judged = {family.judge(text) for text in said}
            count["wrong" if "wrong" in judged else "right" if "right" in judged else ""] += 1
    assert [count["wrong"] for count in found] == [0, 0]
    assert [count["right"] for count in found] == [at_once, approved]


def test_every_family_has_runs_that_fail_and_runs_that_end_well() -> None:
    """Each with a name of its own, enough runs, and both outcomes."""
    for name, count in (("families", 37), ("families_unseen", 15)):
        found = families(name)
        assert len({family.name for family in found}) == count
        for family in found:
            assert len(family.runs) >= 9
            assert {"success", None} <= {outcome for _, outcome in family.runs}, family.name


def said(*calls: Call) -> list[tuple[str, bool]]:
    """What ended the failures of a run, or did not help."""
    return [(each.move, each.helped) for each in endings(read(list(calls)))]


def test_an_edit_ends_a_failure_and_what_only_looks_does_not() -> None:
    """With an edit in between nothing is said, however the agent looked before."""
    edit: Call = ("edit", {"path": "src/a.py", "find": "x = 1", "replace": "x = 2"}, "done")
    look = shell("cat src/a.py", "x = 1")
    assert said(behind("a"), look, edit, serves("a")) == []
    assert said(behind("a"), edit, MIGRATE, serves("a")) == []
    assert said(behind("a"), look, MIGRATE, serves("a")) == [(MOVE, True)]


def test_what_passes_by_itself_or_with_time_is_said_so() -> None:
    """A failure that a repetition, a look or a pause ended has ended by itself."""
    for between in ((), (shell("ls", "a b"),), (shell("sleep 30", ""),)):
        assert said(behind("a"), *between, serves("a")) == [(BY_ITSELF, True)]


def test_options_stand_behind_the_sub_command() -> None:
    """A command is said in the order in which it is typed."""
    lands = (shell("git push", "error: failed to push some refs"), shell("git push", "done"))
    pull = shell("git pull --rebase", "up to date")
    text = "Call `git pull --rebase` before you make the same call again."
    assert said(lands[0], pull, lands[1]) == [(text, True)]


def test_of_two_things_neither_ended_it() -> None:
    """The run does not show which of two did; both were in vain where the failure came again."""
    other = shell("larch unlock", "unlocked")
    assert said(behind("a"), MIGRATE, other, serves("a")) == []
    in_vain = said(behind("a"), MIGRATE, other, behind("a"))
    unlock = "Call `larch unlock` before you make the same call again."
    assert sorted(in_vain) == sorted([(MOVE, False), (unlock, False)])


def test_another_object_is_another_matter() -> None:
    """What works for one object ends no failure of another one."""
    assert said(behind("a"), MIGRATE, serves("b")) == []
    assert said(behind("a"), MIGRATE, behind("b")) == []


def test_a_value_of_one_task_is_no_content() -> None:
    """Neither a value, a path nor a name of the failing call is said; where the words say nothing
    without it, the text has a hole."""
    refused: Call = ("reroute", {"parcel": "P1", "code": "OTHER"}, "Error: rule 12 applies")
    taken: Call = ("reroute", {"parcel": "P1", "code": "CUST_REQ"}, "accepted")
    assert said(refused, taken) == [(f"Make the same call with `code` {HOLE}.", True)]
    fix = shell("./fix/mend.sh a", "mended")
    ((text, _),) = said(behind("a"), fix, serves("a"))
    assert HOLE in text
    assert "mend" not in text
    key: Call = ("press_key", {"key": "Enter"}, "pressed")
    ((text, _),) = said(refused, key, (*refused[:2], "accepted"))
    assert HOLE in text
    assert "Enter" not in text


async def test_it_is_given_from_the_second_conversation_on(stores: Stores) -> None:
    """One run is evidence for people; with a second one it is given, in its project and to its
    tenant only; reading a run again changes nothing."""
    await learn(stores, 0, ended("a"))
    assert await answers(stores, [behind("z")]) == []
    (row,) = await stores.learning.lessons(LessonFilter())
    assert lesson_view(row)["why_not_active"] == "only one conversation shows it so far"
    await read_one(stores, 0)
    assert await answers(stores, [behind("z")]) == []
    await learn(stores, 1, ended("b"))
    assert await answers(stores, [behind("z")]) == [MOVE]
    assert await answers(stores, [shell("larch serve z", "larch: fatal: no key")]) == []
    assert await answers(stores, [behind("z")], tenant="other") == []
    assert await answers(stores, [behind("z")], opening="/srv/shop") == []
    (row,) = await stores.learning.lessons(LessonFilter())
    assert (row.support.conversations, row.support.against) == (2, 0)


async def test_once_without_help_is_enough_to_give_it_no_more(stores: Stores) -> None:
    """Whether the run in which it did not help was read before or after the others."""
    in_vain = (behind("c"), MIGRATE, behind("c"))
    await learn(stores, 0, in_vain)
    assert await stores.learning.lessons(LessonFilter()) == []
    for number in (1, 2, 3):
        await learn(stores, number, ended("abc"[number - 1]))
    assert await answers(stores, [behind("z")]) == []
    (row,) = await stores.learning.lessons(LessonFilter())
    assert lesson_view(row)["why_not_active"] == "it did not help in 1 conversation"


async def test_a_failure_that_has_ended_by_itself_gets_no_lesson(stores: Stores) -> None:
    """However often something seemed to end it."""
    for number in range(2):
        await learn(stores, number, ended("ab"[number]))
    assert await answers(stores, [behind("z")]) == [MOVE]
    await learn(stores, 2, (behind("c"), serves("c")))
    assert await answers(stores, [behind("z")]) == []


async def test_what_only_forgotten_runs_showed_is_gone(stores: Stores) -> None:
    """With one of two runs forgotten it is given to nobody; with both there is no row left."""
    for number in range(2):
        await learn(stores, number, ended("ab"[number]))
    await learn(stores, 2, (behind("c"), shell("larch doctor", "all is well"), behind("c")))
    assert await stores.learning.forget(None, "r0000", records.START) == []
    assert await answers(stores, [behind("z")]) == []
    assert len(await stores.learning.forget(None, "r0001", records.START) or ()) == 1
    assert await stores.learning.lessons(LessonFilter()) == []
    await read_one(stores, 0)
    assert await stores.learning.lessons(LessonFilter()) == []


async def test_what_installs_waits_for_an_operator(stores: Stores) -> None:
    """What does harm in a text of ours is given as a quotation after approval; what an operator
    took back stays away."""
    missing = shell("pytest tests/a", "ModuleNotFoundError: No module named 'ext'")
    works = shell("pytest tests/a", "3 passed")
    for number in range(2):
        calls = (missing, shell("poetry install", "Installing"), works)
        await learn(stores, number, calls)
    assert await answers(stores, [missing]) == []
    (row,) = await stores.learning.lessons(LessonFilter())
    assert lesson_view(row)["why_not_active"] == "an operator has to approve it"
    actions = LessonActions(stores.learning)
    await actions.move(row, Status.ACTIVE, "approved by the operator", at=records.START)
    text = "Call `poetry install` before you make the same call again."
    assert await answers(stores, [missing]) == [text]
    (row,) = await stores.learning.lessons(LessonFilter())
    await actions.move(row, Status.RETIRED, "retired by the operator", at=records.START)
    await learn(stores, 2, (missing, shell("poetry install", "Installing"), works))
    assert await answers(stores, [missing]) == []


def work(calls: list[Call]) -> int:
    """The calls of functions that reading the endings of a run takes."""
    found = read(calls)
    counted = Counter[str]()
    sys.setprofile(lambda _frame, event, _value: counted.update((event,)))
    try:
        endings(found)
    finally:
        sys.setprofile(None)
    return counted["call"]


@pytest.mark.parametrize("objects", [1, 300])
def test_a_late_step_costs_what_an_early_one_does(objects: int) -> None:
    """A run that fails on and on, at one thing or at many, is read in a time that grows with its
    length only."""
    calls = [behind(f"orders{number % objects}") for number in range(2000)]
    assert work(calls) < 5 * work(calls[:500])
