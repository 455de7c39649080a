"""Suite `reference`: the six monitors, rule by rule."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.core.ledger.ledger import Ledger
from gateway.core.monitors import MONITORS, make_suite
from gateway.core.monitors.reference import EDIT_TOOLS, PHRASES, edited_path, failure_signature
from gateway.core.step import Action, Step
from gateway.steering.evidence.action_facts import describe
from gateway.steering.transcript.steps import steps_from_records
from tests.examples import examples
from tests.steering.builders import acts, evaluate_reference, reference, thinks
from tests.steering.monitors import direct

TEMP = "/tmp/"  # noqa: S108 - the text of a failure, no file


def score(name: str, *steps: Step | dict[str, Any]) -> float:
    return evaluate_reference(steps).scores[name]


def calls(*names: str) -> list[Step]:
    return [acts(name) for name in names]


class TestStreak:
    """`min(run_length / 5, 1.0)`; a streak of 1 scores 0.0."""

    @pytest.mark.parametrize(
        ("length", "expected"), [(0, 0), (1, 0), (2, 0.4), (3, 0.6), (4, 0.8), (5, 1), (9, 1)]
    )
    def test_the_score_is_the_length_over_five(self, length: int, expected: float) -> None:
        """2 gives 0.4, 3 gives 0.6, 5 or more 1.0."""
        assert score("streak", *calls("ls", *["cat"] * length)) == (expected if length else 0)

    def test_it_fires_at_three_equal_calls(self) -> None:
        """Score 0.6 and more: 3 or more consecutive identical actions."""
        assert "streak" not in evaluate_reference(calls("cat", "cat")).fired
        assert "streak" in evaluate_reference(calls("cat", "cat", "cat")).fired

    def test_only_the_newest_run_counts(self) -> None:
        """Walking back from the end stops at another tool."""
        assert score("streak", *calls("a", "a", "a", "b")) == 0

    def test_steps_without_an_action_are_passed_over(self) -> None:
        """A thought between two equal calls does not break the run."""
        assert score("streak", acts("a"), thinks("hm"), acts("a")) == 0.4

    def test_names_are_compared_with_their_case_and_without_arguments(self) -> None:
        """`Cat` is another tool; another argument is not another call."""
        assert score("streak", *calls("Cat", "cat")) == 0
        assert score("streak", acts("cat", arguments="a"), acts("cat", arguments="b")) == 0.4

    def test_parallel_calls_count_each(self) -> None:
        """One step with three calls of one tool is a run of three."""
        step = Step(index=0, actions=tuple(Action(name="read") for _ in range(3)))
        assert score("streak", step) == 0.6


class TestCallCount:
    """`min(total_tool_calls / 20, 1.0)`."""

    @pytest.mark.parametrize(("count", "expected"), [(0, 0), (1, 0.05), (12, 0.6), (25, 1)])
    def test_the_score_is_the_share_of_twenty(self, count: int, expected: float) -> None:
        """It rises linearly to 1.0 at the default budget of 20 calls."""
        assert score("call_count", *calls(*["a", "b", "c"] * 9)[:count]) == expected

    def test_it_fires_at_the_twelfth_call_for_ever(self) -> None:
        """12 or more tool calls; thoughts do not count."""
        rotation = calls(*["read", "edit", "check"] * 4)
        assert "call_count" not in evaluate_reference([*rotation[:11], thinks("x")]).fired
        assert "call_count" in evaluate_reference([*rotation, thinks("x")]).fired


class TestEditRevert:
    """An edit taken back, or edits of one file that keep failing."""

    A, B = "a.py: return one + two + three", "a.py: raise NotImplementedError now"

    def test_the_edit_tools_are_the_eight_of_the_page(self) -> None:
        """Edit-like tools recognised by default."""
        page = "edit write str_replace str_replace_editor patch apply_patch create_file overwrite"
        assert set(page.split()) == EDIT_TOOLS

    def test_one_edit_scores_nothing(self) -> None:
        """Fewer than two edits: 0."""
        assert score("edit_revert", acts("edit", arguments="a.py", observation="error")) == 0

    def test_an_edit_like_the_one_before_the_last_is_a_revert(self) -> None:
        """C17: 1.0 when more similar to a than to b by more than 0.10."""
        edits = [acts("EDIT", arguments=text) for text in (self.A, self.B, self.A)]
        assert score("edit_revert", *edits) == 1.0
        assert score("edit_revert", *edits, acts("edit", arguments="new x.py text")) == 0.0

    def test_a_difference_of_exactly_the_margin_is_none(self) -> None:
        """The comparison is strict: equal overlaps, or both empty, are no revert."""
        assert score("edit_revert", *[acts("edit", arguments="aa") for _ in range(3)]) == 0
        assert score("edit_revert", *[acts("edit", arguments=self.A) for _ in range(3)]) == 0

    def test_one_failed_cycle_gives_half_and_does_not_fire(self) -> None:
        """C17: edit, error, edit of the same file: 0.5."""
        first = acts("edit", arguments="src/a.py one", observation="SyntaxError: error")
        readings = evaluate_reference([first, acts("edit", arguments="src/a.py two")])
        assert readings.scores["edit_revert"] == 0.5
        assert readings.fired == ()

    def test_two_cycles_on_a_path_give_one_and_never_expire(self) -> None:
        """Counted over the whole trace, later health does not lower it."""
        failing = [
            acts("edit", arguments=f"src/a.py {i} {i}", observation="failed") for i in range(3)
        ]
        healthy = [acts(name, arguments=f"b{i}.md zzz") for i, name in enumerate("rewrw")]
        assert score("edit_revert", *failing, *healthy) == 1.0

    def test_any_later_steps_error_marks_the_newest_edit(self) -> None:
        """At every step, edit or not, an error counts against the most recent edit."""
        steps = [acts("edit", arguments="a.py x"), acts("run", is_error=True)]
        assert score("edit_revert", *steps, acts("edit", arguments="a.py y")) == 0.5

    def test_a_cycle_needs_the_same_path_next(self) -> None:
        """Another file in between, or no path at all, is no cycle."""
        failed = acts("edit", arguments="a.py alpha", observation="error")
        other = acts("edit", arguments="b.py gamma delta")
        assert score("edit_revert", failed, other, acts("edit", arguments="a.py gamma delta")) == 0
        blank = acts("edit", arguments="nothing here", observation="error")
        assert score("edit_revert", blank, blank) == 0

    @pytest.mark.parametrize(
        ("text", "path"),
        [
            ("open src/app.py now", "src/app.py"),
            ("see self.x", "self.x"),
            ("file.abcdefg", "file.abcde"),
            ("a.b.c1 d", "a.b.c"),
            ("no dots", ""),
            (".py", ""),
            ("..py", "..py"),
            ("v1.2 then C:\\x\\y.txt", "\\x\\y.txt"),
        ],
    )
    def test_the_path_is_the_first_stretch_with_an_extension(self, text: str, path: str) -> None:
        """Word characters, dots, slashes, hyphens, then a dot and one to five ASCII letters."""
        assert edited_path(text) == direct.path_in(text) == path

    @given(st.text(alphabet="ab1./\\-_ é:", max_size=30))
    def test_the_linear_search_finds_the_same_path(self, text: str) -> None:
        """One pattern with two quantifiers would be quadratic on a blob; this is linear."""
        assert edited_path(text) == direct.path_in(text)


class TestTestRepeat:
    """1.0 when one failure comes twice in a row."""

    FAILURE = "test_x FAILED: AssertionError 1 != 2"

    def test_the_same_failure_twice_scores_one_for_ever(self) -> None:
        """Anywhere in the trace, and it never expires."""
        twice = [acts("run_tests", observation=self.FAILURE)] * 2
        assert score("test_repeat", *twice) == 1.0
        assert score("test_repeat", *twice, acts("run_tests", observation="ok")) == 1.0

    def test_edits_and_passing_runs_in_between_are_ignored(self) -> None:
        """C18: only the sequence of failure signatures counts."""
        failing = acts("pytest", observation=self.FAILURE)
        between = [acts("edit", arguments="a.py"), acts("pytest", observation="1 passed")]
        assert score("test_repeat", failing, *between, failing) == 1.0

    def test_another_failure_in_between_breaks_the_pair(self) -> None:
        """Neighbouring entries must be equal."""
        failing, other = (acts("pytest", observation=f"failed {x}") for x in "ab")
        assert score("test_repeat", failing, other, failing) == 0.0

    @pytest.mark.parametrize(
        ("name", "observation"),
        [
            ("cargo test", "error"),
            ("latest_news", "error"),
            ("bash", "the tests: error"),
            ("bash", "x" * 80 + " AssertionError"),
            ("bash", "x" * 80 + " failed 3"),
            ("bash", "x" * 80 + " FAILURES=2 invalid"),
        ],
    )
    def test_what_makes_a_test_step(self, name: str, observation: str) -> None:
        """C19: a hint in the tool name, "test" in the first 60 characters, or a failure mark."""
        assert score("test_repeat", *[acts(name, observation=observation)] * 2) == 1.0

    def test_what_does_not(self) -> None:
        """The command text of a shell tool is not looked at, nor "test" behind 60 characters."""
        shell = acts("bash", arguments="pytest", observation="error")
        late = acts("bash", observation="x" * 57 + "test error")
        assert score("test_repeat", shell, shell) == score("test_repeat", late, late) == 0.0

    def test_a_passing_test_adds_nothing(self) -> None:
        """A test step must look like an error or be flagged as one; "0 errors" looks like one."""
        passing, zero = (
            acts("pytest", observation="1 passed"),
            acts("pytest", observation="0 errors"),
        )
        flagged = acts("pytest", observation="1 passed", is_error=True)
        assert score("test_repeat", passing, passing) == 0.0
        assert score("test_repeat", zero, zero) == 1.0
        assert score("test_repeat", flagged, flagged) == 1.0

    def test_an_empty_signature_repeats_nothing(self) -> None:
        """Entries must be equal and non-empty."""
        empty = acts("pytest", observation=" ", is_error=True)
        assert score("test_repeat", empty, empty) == 0.0

    @pytest.mark.parametrize(
        ("one", "other", "equal"),
        [
            (f"{TEMP}a1/x.py fails", f"{TEMP}b2/y.py fails", True),
            ("C:\\Users\\a x", "C:\\Users\\b x", True),
            ("/var/folders/q x", "/var/folders/r x", True),
            ("/TMP/a", "/TMP/b", False),
            (
                "id 01234567-89ab-cdef-0123-456789abcdef",
                "id ffffffff-89AB-CDEF-0123-456789abcdef",
                True,
            ),
            ("at 0x1F", "at 0X2e", True),
            ("pid=1", "PID=22", True),
            ("pid 1", "pid 2", True),
            ("pid: 12", "pid: 13", False),
            ("2024-01-02 03:04:05.678", "2025-01-02T03:04:05Z", True),
            ("2024-01-02", "2024-01-03", False),
            ("1234567890 x", "99999999999 x", True),
            ("123456789 x", "923456789 x", False),
            ("a1234567890", "a1234567891", False),
            ("line 10", "line 11", False),
            ("0.10s", "0.11s", False),
            ("Fail", "fail", False),
        ],
    )
    def test_what_the_signature_leaves_out(self, one: str, other: str, equal: bool) -> None:
        """Volatile stretches go; line numbers, durations, short numbers and case stay."""
        assert (failure_signature(one) == failure_signature(other)) is equal

    def test_the_signature_has_at_most_two_hundred_characters(self) -> None:
        """What follows the first 200, after stripping, is not compared."""
        assert failure_signature("  " + "x" * 300) == "x" * 200
        assert failure_signature("x" * 650 + "\n" + "y" * 99) == "x" * 200
        blank = "\n".join(["x", " " * 700, "y" * 99])
        assert failure_signature(blank) == direct.signature(blank)

    @given(
        st.lists(
            st.sampled_from(
                ["FAILED a.py", "\n", " ", f"{TEMP}x y", "pid 12", "2024-01-02 03:04:05", "x" * 250]
            ),
            max_size=14,
        ).map("".join)
    )
    def test_a_prefix_of_lines_yields_the_same_signature(self, observation: str) -> None:
        """Reading only as many lines as needed changes nothing."""
        assert failure_signature(observation) == direct.signature(observation)


class TestDiversity:
    """Tool use collapsed to two or fewer distinct tools across five calls, from eight on."""

    @pytest.mark.parametrize(
        ("tail", "expected"),
        [("aaaaa", 1.0), ("aabba", 0.7), ("ababa", 0.0), ("babab", 0.0), ("aabca", 0.0)],
    )
    def test_the_score_by_distinct_tools(self, tail: str, expected: float) -> None:
        """One tool 1.0, two 0.7 unless they alternate, three or more 0.0."""
        assert score("diversity", *calls("x", "y", "z", *tail)) == expected

    def test_fewer_than_eight_calls_score_nothing(self) -> None:
        """The run must have reached the minimum call count; thoughts do not count."""
        assert score("diversity", *calls(*"aaaaaaa"), thinks("x")) == 0
        assert score("diversity", *calls(*"aaaaaaaa")) == 1.0

    def test_a_tail_shorter_than_the_window_scores_nothing(self) -> None:
        """Only possible when the minimum is set below the window."""
        few = reference(diversity_min_total=1)
        assert evaluate_reference(calls("a", "a"), few).scores["diversity"] == 0


class TestHedge:
    """Retractions, and uncertainty that grows."""

    def test_there_are_fifteen_phrases(self) -> None:
        """The 13 of the difficulty score and two more."""
        assert len(PHRASES) == 15
        assert PHRASES[-2:] == ("let me think", "on second thought")

    @pytest.mark.parametrize(
        "phrase",
        [
            "The bug is actually not there",
            "so the issue is\nnot mine",
            "fix is not",
            "problem  is ACTUALLY fine",
            "I was wrong",
            "never mind",
            "nevermind",
            "Disregard that",
            "disregard my last",
        ],
    )
    def test_a_retraction_scores_one_for_ever(self, phrase: str) -> None:
        """Any retraction anywhere in the trace scores 1.0 immediately (C20)."""
        assert score("hedge", thinks(phrase)) == 1.0
        assert score("hedge", thinks(phrase), *[thinks("All is well now.")] * 6) == 1.0

    @pytest.mark.parametrize(
        "text", ["the bug isn't here", "debug is not on", "prefix is not", "hi was wrong"]
    )
    def test_what_is_no_retraction(self, text: str) -> None:
        """Contractions do not match, nor do words that merely end like one of the list."""
        assert score("hedge", thinks(text)) == 0.0

    def test_no_thoughts_score_nothing(self) -> None:
        """Missing data gives 0."""
        assert score("hedge", acts("a"), thinks("")) == 0

    def test_a_short_run_scores_hedges_per_word(self) -> None:
        """Fewer than four thoughts: one hedge in five words is 0.8, and fires (C20)."""
        readings = evaluate_reference([thinks("maybe this is the file")])
        assert readings.scores["hedge"] == 0.8
        assert readings.fired == ("hedge",)

    def test_hedging_that_starts_late_scores_by_density(self) -> None:
        """Early density 0: late density over 0.05, at most 1."""
        calm, late = thinks("all is well"), thinks(" ".join(["word"] * 39 + ["maybe"]))
        assert score("hedge", calm, calm, calm, late) == pytest.approx(1 / 43 / 0.05)
        assert score("hedge", calm, calm, calm, calm) == 0.0

    @pytest.mark.parametrize(
        ("late", "expected"), [(1, 0.0), (2, 0.0), (3, 2 / 3), (4, 1.0), (8, 1.0)]
    )
    def test_the_ratio_of_late_to_early(self, late: int, expected: float) -> None:
        """2x scores 0, above it (q - 1) / 3, at or above 4x scores 1.0 (C20)."""
        early = thinks(" ".join(["maybe"] + ["word"] * 9))
        after = thinks(" ".join(["maybe"] * late + ["word"] * (10 - late)))
        assert score("hedge", early, early, after, after) == pytest.approx(expected)

    def test_of_an_odd_number_the_middle_thought_is_late(self) -> None:
        """Split at n // 2."""
        one, calm = thinks("maybe so it is"), thinks("so it is now")
        assert score("hedge", calm, calm, one, calm, calm) == 1.0
        assert score("hedge", one, calm, calm, calm, calm) == 0.0

    def test_the_thought_of_a_step_with_parallel_calls_counts_once(self) -> None:
        """Two calls do not double the words."""
        two = Step(index=0, thought="maybe this is the file", actions=(Action(name="a"),) * 2)
        assert score("hedge", two) == 0.8


_NAMES = st.sampled_from(["bash", "edit", "Write", "pytest", "read", "", "str_replace"])
_INPUTS = st.sampled_from(
    ["src/a.py one two three", "src/a.py one two four", "b.md other", "", "x", "self.x = 1"]
)
_THOUGHTS = st.one_of(
    st.just(""),
    st.lists(
        st.sampled_from([*PHRASES, "word", "the bug", "is", "not", "never", "mind", "fine", "\n"]),
        max_size=6,
    ).map(" ".join),
)
_OBSERVATIONS = st.sampled_from(
    [
        "",
        "ok",
        "error",
        "FAILED test_a pid=1",
        "FAILED test_a pid=22",
        "Traceback in /tmp/x1/y",
        "Traceback in /tmp/x2/y",
        "AssertionError 0x1f",
        "tests: 0 errors",
        " test \x1f ",
    ]
)
_RECORDS = st.fixed_dictionaries(
    {
        "action": _NAMES,
        "action_input": _INPUTS,
        "thought": _THOUGHTS,
        "observation": _OBSERVATIONS,
        "is_error": st.booleans(),
    }
)


@examples(300)
@given(st.lists(_RECORDS, max_size=26))
def test_the_suite_equals_the_formulas(trace: list[dict[str, Any]]) -> None:
    """After each push the incremental scores are those of the whole-trace formulas."""
    suite = make_suite(reference())
    ledger = Ledger(describe)
    for count, step in enumerate(steps_from_records(trace), start=1):
        suite.push(ledger.observe(step))
        expected = {name: direct.DIRECT[name](trace[:count]) for name in MONITORS}
        assert suite.readings().scores == expected


@given(st.lists(_RECORDS, max_size=12))
def test_scores_and_evidence_go_together(trace: list[dict[str, Any]]) -> None:
    """Scores lie in [0, 1]; exactly those above 0 come with a short reason."""
    readings = evaluate_reference(trace)
    assert all(0.0 <= value <= 1.0 for value in readings.scores.values())
    assert set(readings.evidence) == {name for name, value in readings.scores.items() if value > 0}
    assert all(len(reason) < 160 for reason in readings.evidence.values())
