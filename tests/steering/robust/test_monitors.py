"""The six robust monitors, one by one."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.steering.monitors import MONITORS, MonitorSettings, Readings, make_suite
from gateway.steering.monitors.settings import CALLS_OF_TALK, RobustSettings
from gateway.steering.monitors.suite import RobustSuite
from gateway.steering.transcript.steps import Step
from tests.examples import examples
from tests.steering.robust.planting import say, step
from tests.steering.robust.test_calibrated import steps


def read(run: list[Step]) -> Readings:
    """The readings after a run."""
    suite = make_suite(MonitorSettings(suite="robust"))
    for each in run:
        suite.push(each)
    return suite.readings()


def edit(path: str, old: str, new: str, result: str = "edited") -> Step:
    """A replacement in a file."""
    return step("edit_file", {"file_path": path, "old_string": old, "new_string": new}, result)


def test_config_names_the_suite() -> None:
    """`suite: robust` gives the robust suite with the same six names and interface."""
    suite = make_suite(MonitorSettings(suite="robust", monitors=MONITORS))
    assert isinstance(suite, RobustSuite)
    assert tuple(suite.readings().scores) == MONITORS


def test_inactive_monitors_are_left_out() -> None:
    """`monitors.monitors` is an allowlist."""
    suite = make_suite(MonitorSettings(suite="robust", monitors=("hedge",)))
    assert tuple(suite.readings().scores) == ("hedge",)


def test_streak_counts_repeats_and_says_what_repeats() -> None:
    """The evidence names the operation and how often it came back."""
    readings = read([step("bash", {"command": "make all"}, "nothing to be done")] * 5)
    assert "streak" in readings.fired
    assert readings.failure_type == "loop"
    assert readings.evidence["streak"] == "5 x $make, same result"


def test_five_files_in_a_row_are_no_streak() -> None:
    """One tool with other arguments and other results is work."""
    files = [
        step("read", {"path": f"src/part_{i}.py"}, f"content number {i} of it") for i in range(5)
    ]
    assert read(files).scores["streak"] == 0.0


def test_an_agent_that_talks_instead_of_acting_fires() -> None:
    """Three messages in a row without an action are out of character for one that always acts."""
    work = [step("bash", {"command": f"ls d{i}"}, f"file_{i}") for i in range(8)]
    readings = read(
        [*work, say("Now I will fix it."), say("I have thought it over."), say("Well.")]
    )
    assert readings.evidence["streak"] == "3 messages in a row without an action"
    assert "streak" in readings.fired


def test_a_dialogue_is_no_monologue() -> None:
    """Asking the user several times in a row is how dialogues go."""
    work = [step("get_user", {"id": f"u{i}"}, f"name_{i}") for i in range(8)]
    asks = [say(f"Could you tell me detail {i}?") for i in range(4)]
    assert read([*work, *asks]).fired == ()


def test_call_count_fires_at_the_budget() -> None:
    """The budget is reached at the fire threshold."""
    monitor = RobustSuite(MonitorSettings(suite="robust", monitors=("call_count",)))
    for i in range(CALLS_OF_TALK - 1):
        monitor.push(step("ask", {"q": f"topic number {i}"}, f"answer about {i}"))
    assert "call_count" not in monitor.readings().fired
    monitor.push(step("ask", {"q": "topic number last"}, "last answer"))
    assert monitor.readings().fired == ("call_count",)


def test_one_change_taken_back_is_not_thrash() -> None:
    """Removing a debug print scores, and does not fire."""
    readings = read([edit("a.py", "x", "x; print(x)"), edit("a.py", "x; print(x)", "x")])
    assert readings.scores["edit_revert"] == 0.5
    assert readings.fired == ()


def test_changes_taken_back_twice_fire() -> None:
    """To and fro and to again in one file is thrash."""
    readings = read([edit("a.py", "x", "y"), edit("a.py", "y", "x"), edit("a.py", "x", "y")])
    assert readings.failure_type == "edit_revert"
    assert readings.evidence["edit_revert"] == "a.py changed back 2 x"


def test_changes_of_different_files_are_compared_per_file() -> None:
    """The same edit in several files is no revert."""
    run = [edit("a.py", "x", "y"), edit("b.py", "y", "x"), edit("c.py", "x", "y")]
    assert read(run).scores["edit_revert"] == 0.0


def test_edits_that_do_not_apply_fire_at_the_fourth() -> None:
    """An agent that cannot hit the text should look again."""
    failed = "No replacement was performed, old_str did not appear verbatim"
    run = [edit("a.py", f"guess {i}", "y", failed) for i in range(4)]
    readings = read(run)
    assert readings.evidence["edit_revert"] == "4 edits of a.py failed in a row"
    assert "edit_revert" in readings.fired


def test_whole_files_written_to_and_fro() -> None:
    """Content that returns to an earlier version counts without an old text."""
    one = step("write_file", {"path": "a.py", "content": "one"}, "ok")
    two = step("write_file", {"path": "a.py", "content": "two"}, "ok")
    assert read([one, two, one, two]).scores["edit_revert"] == 1.0


FAILING = "E   AssertionError: 3 != 4\n1 failed in 0.{}s"


def test_the_same_failing_test_without_a_change_fires_at_the_third_run() -> None:
    """Running it again does not make it pass; durations do not matter."""
    run = [step("bash", {"command": "pytest -q"}, FAILING.format(i)) for i in range(3)]
    readings = read(run)
    assert readings.scores["test_repeat"] >= 0.6
    assert "fails as before" in readings.evidence["test_repeat"]


def test_a_failing_test_between_changes_is_given_time() -> None:
    """Edits in between halve the count: work goes on."""
    run = []
    for i in range(3):
        run += [edit("a.py", f"v{i}", f"v{i + 1}"), step("bash", {"command": "pytest -q"}, FAILING)]
    assert "test_repeat" not in read(run).fired


def test_a_pass_clears_the_test() -> None:
    """After a pass the test starts anew."""
    fail = step("bash", {"command": "pytest -q"}, FAILING)
    good = step("bash", {"command": "pytest -q"}, "1 passed in 0.1s")
    change = edit("a.py", "x", "y")
    assert read([fail, fail, good, change, fail]).scores["test_repeat"] < 0.6


def test_one_error_from_different_calls_fires_at_the_fourth() -> None:
    """A missing tool stays missing whoever asks for it."""
    run = [
        step("bash", {"command": f"{name} build"}, "bash: line 3: javac: command not found")
        for name in ("javac A", "mvn", "gradle", "ant")
    ]
    readings = read(run)
    assert readings.evidence["test_repeat"].startswith("4 x the same failure")


def test_a_run_that_brings_nothing_new_loses_diversity() -> None:
    """Near-equal calls whose results are known words fire after a window of them."""
    run = [
        step(
            "bash",
            {"command": f"cat /repo/src/module.py | sed -n {i},{i + 5}p"},
            "alpha beta gamma",
        )
        for i in range(10)
    ]
    assert "diversity" in read(run).fired


def test_a_shell_only_agent_is_diverse() -> None:
    """One tool with many programs is not a collapsed tool set."""
    run = [step("bash", {"command": f"./tool_{i} --go"}, f"result_{i} of it") for i in range(12)]
    assert read(run).scores["diversity"] == 0.0


def thinking(text: str, i: int) -> Step:
    """A step with a thought and a call that brings something new."""
    return step("read", {"path": f"f{i}.py"}, f"text_{i}", text)


def stuck(text: str, i: int) -> Step:
    """A step with a thought and a call that brings what is known."""
    return step("read", {"path": f"f{i}.py"}, "text", text)


def test_hedging_needs_a_trend() -> None:
    """An agent that always hedges a little has no trend; one that starts to, has."""
    sure = [stuck("Now I read the next file of the package to see its parts.", i) for i in range(8)]
    unsure = [stuck("Maybe this is it, perhaps not, I am not sure, wait.", i) for i in range(4)]
    assert "hedge" not in read(unsure * 3).fired
    readings = read([*sure, *unsure])
    assert readings.failure_type == "hedge"


def test_doubt_that_asks_is_no_hedging() -> None:
    """Thoughts before calls that show something new weigh what is found; those are not counted."""
    sure = [stuck("Now I read the next file of the package to see its parts.", i) for i in range(8)]
    asking = [thinking("Maybe this is it, perhaps not, I am not sure, wait.", i) for i in range(9)]
    wrong = [thinking("I was wrong about the parser, the loader does it.", i) for i in range(4)]
    assert read([*sure, *asking]).scores["hedge"] == 0.0
    assert read(wrong).scores["hedge"] == 0.0


def test_one_self_correction_is_healthy() -> None:
    """A single retraction scores low, two of them fire."""
    plain = [stuck("I read the next file of this package now.", i) for i in range(3)]
    wrong = stuck("I was wrong about the parser, the loader does it.", 9)
    assert read([*plain, wrong]).scores["hedge"] == 0.3
    assert read([*plain, wrong, *plain, wrong]).scores["hedge"] == 0.7


def test_statements_about_the_problem_are_no_retraction() -> None:
    """ "The problem is not in the parser" says where the problem is not."""
    run = [thinking("The problem is not in the parser. The fix is actually small.", 1)] * 3
    assert read(run).scores["hedge"] == 0.0


@pytest.mark.parametrize(
    "bad",
    [
        {"call_budget": 0},
        {"recovery": 1.0},
        {"recovery": "x"},
        {"novelty_window": 0},
        {"trend_window": True},
    ],
)
def test_bad_settings_are_refused(bad: dict) -> None:
    """Values out of range are refused by their name."""
    with pytest.raises(ValueError, match=next(iter(bad))):
        RobustSettings(**bad)


@examples(50)
@given(st.lists(steps, max_size=15))
def test_readings_are_in_range_and_causal_for_any_run(run: list[Step]) -> None:
    """Scores lie in [0, 1], fired ones reach the threshold, each scoring one says why."""
    suite = make_suite(MonitorSettings(suite="robust"))
    for i, each in enumerate(run):
        suite.push(each)
        readings = suite.readings()
        assert all(0.0 <= score <= 1.0 for score in readings.scores.values())
        assert readings == read(run[: i + 1])
        assert set(readings.fired) == {n for n, s in readings.scores.items() if s >= 0.6}
        assert set(readings.evidence) == {n for n, s in readings.scores.items() if s > 0}
