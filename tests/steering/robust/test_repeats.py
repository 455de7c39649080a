"""What counts as going nowhere, and what does not."""

from __future__ import annotations

import pytest

from gateway.steering.evidence.features import alike, describe_action
from gateway.steering.evidence.repeats import MAX_CALLS, CallMemory, Repeat
from tests.steering.robust.planting import step


def observe(*calls: tuple[str, object, str]) -> list[Repeat]:
    """What a fresh memory says about calls (name, arguments, result) in order."""
    memory = CallMemory()
    return [memory.observe(describe_action(step(*call).actions[0])) for call in calls]


def test_a_new_call_repeats_nothing() -> None:
    """The first call of a run has strength 0."""
    assert observe(("search", {"q": "a"}, "x"))[0].strength == 0.0


def test_the_same_call_with_the_same_result_repeats() -> None:
    """The second time counts, the third in full."""
    first, second, third = observe(*[("search", {"q": "alpha beta"}, "nothing there")] * 3)
    assert first.strength < second.strength < third.strength == 1.0
    assert third.count == 3


def test_the_same_call_with_another_result_is_progress() -> None:
    """A call whose answer changed is no repeat, and says so."""
    _, second = observe(("run", {"n": "x"}, "3 open"), ("run", {"n": "x"}, "2 open"))
    assert second.strength == 0.0
    assert second.changed


def test_reworded_arguments_with_the_same_answer_repeat() -> None:
    """Other words for the same question that bring the same answer are a repeat."""
    _, second = observe(
        ("search", {"query": "parser cache reload"}, "No results found."),
        ("search", {"query": "please reload parser cache"}, "No results found."),
    )
    assert second.kind == "reworded"
    assert second.strength > 0.5


@pytest.mark.parametrize(
    ("one", "two"),
    [
        (({"page": 1, "list": "orders"}, "a b c d"), ({"page": 2, "list": "orders"}, "a b c d")),
        (({"path": "src/a.py"}, "def a(): pass"), ({"path": "src/b.py"}, "def b(): return 2")),
        (({"id": "X17"}, "no entry"), ({"id": "X18"}, "no entry")),
    ],
)
def test_pages_files_and_ids_are_different_questions(one: tuple, two: tuple) -> None:
    """What differs in a number, or brings other text, is no rewording."""
    _, second = observe(("read", *one), ("read", *two))
    assert second.strength == 0.0


def test_asking_a_running_job_again_is_no_repeat() -> None:
    """A pending answer excuses the next call."""
    repeats = observe(*[("job_status", {"id": "j"}, '{"status": "running"}')] * 6)
    assert {repeat.strength for repeat in repeats} == {0.0}


def test_a_refusal_for_now_counts_little() -> None:
    """Trying again after a rate limit is right, up to a point."""
    repeats = observe(*[("fetch", {"u": "x"}, "Error: 429 Too Many Requests")] * 3)
    assert sum(repeat.strength for repeat in repeats) < 1.0


def test_a_passing_test_after_a_change_is_no_repeat() -> None:
    """Running the same test again after an edit verifies the edit."""
    edit = {"file_path": "a.py", "old_string": "1", "new_string": "2"}
    *_, last = observe(
        ("bash", {"command": "pytest tests"}, "3 passed in 0.1s"),
        ("edit_file", edit, "edited"),
        ("bash", {"command": "pytest tests"}, "3 passed in 0.2s"),
    )
    assert last.kind == "rerun"
    assert last.strength == 0.0


def test_memory_is_bounded() -> None:
    """However many different calls a run makes, only the newest are remembered."""
    memory = CallMemory()
    for i in range(5 * MAX_CALLS):
        memory.observe(describe_action(step("read", {"path": f"f{i}"}, f"text {i}").actions[0]))
    assert len(memory._past) + len(memory._older) <= 2 * MAX_CALLS + 1


@pytest.mark.parametrize(
    ("a", "b", "threshold", "expected"),
    [
        ("ab", "ab", 1.0, True),
        ("abcd", "abce", 0.6, True),
        ("abcd", "abce", 0.61, False),
        ("a", "abcdef", 0.5, False),
        ("", "", 0.1, False),
    ],
)
def test_similarity_is_jaccard(a: str, b: str, threshold: float, expected: bool) -> None:
    """Shared words over all words, decided without counting where sizes already tell."""
    assert alike(frozenset(a), frozenset(b), threshold) is expected
