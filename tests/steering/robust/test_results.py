"""When two results count as the same."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.core.step import Action
from gateway.steering.evidence.action_facts import describe_action
from gateway.steering.evidence.results import HEAD_CHARS, TAIL_CHARS, sameness

_WORDS = ("ok", "took", "row", "failed", "src/a.py", "3", "in", "=", "\n", "-", "\u00e9t\u00e9")
_IDS = {
    "0.51s": "12s",
    "2025-01-02T10:00:00Z": "2025-11-30T23:59:59Z",
    "/tmp/pytest-1": "/tmp/run_22/x",  # noqa: S108 - a text
    "0xdeadbeef": "0x12",
    "a81bc81b2f": "b123456789ab",
    "screenshot_3433.png": "screenshot_7136.png",
    "shellId6": "shellId7",
    "1784523": "9912345",
}
_lines = st.lists(st.sampled_from(_WORDS), min_size=2, max_size=30)


PENDING = {
    True: [
        ("deploy", "Still creating the volume"),
        ("get_pod", "web-0 ContainerCreating"),
        ("job", "state: still_in_progress"),
    ],
    False: [
        ("describe", "Uses autoscaling"),
        ("ask_user", "Manual scaling, in the pending release"),
        ("dialog", "User has answered: manual scaling"),
        ("deploy", "The user denied the call: it is still running"),
    ],
}


@pytest.mark.parametrize(
    ("tool", "result", "pending"),
    [(*case, pending) for pending, cases in PENDING.items() for case in cases],
)
def test_a_job_is_waited_for_and_a_persons_answer_is_none(
    tool: str, result: str, *, pending: bool
) -> None:
    """Nor does a part of a longer word say that something is in progress."""
    action = Action(name=tool, arguments='{"of": "it"}', observation=result)
    assert describe_action(action).answer.pending is pending


@given(_lines, st.lists(st.sampled_from([*_IDS]), max_size=2))
def test_ids_and_times_do_not_make_a_result_new(words: list[str], ids: list[str]) -> None:
    """Results are the same that differ only in names with digits, long numbers and times."""
    one = " ".join(["result of", *words, *ids])
    other = " ".join(["result of", *words, *[_IDS[each] for each in ids]])
    assert sameness(one) == sameness(other)


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("remaining 2993", "remaining 2737"),
        ("3f2b8c1e0d", "9aa7c1b0ff"),
        ("f1 0.8013 of all", "f1 0.8040 of all"),
        ("step 2 of 16", "step 3 of 16"),
    ],
)
def test_values_do(one: str, other: str) -> None:
    """A number that is counted is news, and so is an id where nothing else is said."""
    assert sameness(one) != sameness(other)


def test_content_is_compared_as_it_is() -> None:
    """Another time in a file is another content; and a picture is part of the result."""
    assert sameness("shown at 10:00:00") == sameness("shown at 11:30:00")
    assert sameness("at 10:00:00", exact=True) != sameness("at 11:30:00", exact=True)
    assert sameness("done", image=7) != sameness("done")


def test_the_middle_of_a_long_result_counts() -> None:
    """Only the ends are read for ids and times."""
    ends = "x" * (HEAD_CHARS + TAIL_CHARS)
    assert sameness(f"{ends}{'a' * 50}{ends}") != sameness(f"{ends}{'b' * 50}{ends}")
