"""Memory and text are bounded however long or odd a run is."""

from __future__ import annotations

import gc
import json
import tracemalloc

import pytest

from gateway.core.ledger.ledger import Ledger
from gateway.core.monitors import MonitorSettings, make_suite
from gateway.core.step import Action, Step
from gateway.steering.evidence.action_facts import describe
from gateway.steering.evidence.commands import read_call
from gateway.steering.evidence.outcomes import failure_line
from steering_gateway_testing.planting import step


def test_monitors_keep_what_they_know_of_files_and_programs_bounded() -> None:
    """Many files edited and many programs failing leave the suite working."""
    suite = make_suite(MonitorSettings(suite="robust"))
    ledger = Ledger(describe)
    for i in range(200):
        edit = {"file_path": f"f{i}.py", "old_string": "a", "new_string": f"b{i}"}
        suite.push(ledger.observe(step("edit_file", edit, "edited")))
        suite.push(
            ledger.observe(step("bash", {"command": f"python job_{i}.py"}, f"KeyError: 'k{i}'"))
        )
    assert suite.readings().scores["edit_revert"] == 0.0


def test_values_of_long_arguments_are_not_held_with_a_step() -> None:
    """12,000 numbers take ten times the memory of their text, and a ledger keeps many steps."""
    arguments = json.dumps({f"k{number}": number for number in range(12_000)})
    long = Step(index=0, actions=(Action(name="store", arguments=arguments),))
    describe(long)  # what is remembered of names
    tracemalloc.start()
    facts = describe(long)
    gc.collect()
    held = tracemalloc.get_traced_memory()[0]
    tracemalloc.stop()
    assert held < len(arguments)
    short = describe(Step(index=0, actions=(Action(name="store", arguments='{"k0": 0}'),)))
    assert facts.actions[0].question != short.actions[0].question


def test_many_suspect_lines_are_given_up_on() -> None:
    """A long text full of harmless mentions costs a bounded number of looks."""
    assert failure_line("the error handler of the module is described here\n" * 40) is None


def test_letters_that_change_length_with_case_are_read() -> None:
    """A text whose lower case is longer is still searched."""
    assert failure_line("\u0130\u0130 note\nerror: broken") is not None


def test_a_count_of_zero_beside_a_failure() -> None:
    """A line that says both none and some failed is a failure; one that says none is not."""
    assert failure_line("FAILED tests: 0 errors, 3 failed")
    assert failure_line("FAILED (errors=0), 0 failures") is None


def test_a_lone_count_is_the_failure() -> None:
    """Without a message of its own the count speaks."""
    assert failure_line("== 2 failed, 1 passed in 0.10s ==") == "2 failed, 1 passed in 0.10s"
    assert failure_line("Traceback (most recent call last):\n  File x") is not None


@pytest.mark.parametrize("arguments", ['{"command": 5}', "[1, 2]", '{"other": "x"}'])
def test_a_shell_call_without_a_command_is_a_plain_call(arguments: str) -> None:
    """Nothing to run is nothing to read."""
    assert read_call("bash", arguments).operation == "bash"


def test_a_command_given_as_words() -> None:
    """Some shells take a list of words."""
    assert read_call("local_shell", '{"command": ["git", "status"]}').operation == "$git"
