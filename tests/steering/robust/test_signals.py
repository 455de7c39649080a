"""Readings of the tools of 2026, and what makes repetition be forgotten."""

from __future__ import annotations

import pytest

from gateway.steering.evidence.features import describe_action
from gateway.steering.evidence.outcomes import failure_line, readable, signature
from gateway.steering.evidence.repeats import CallMemory, Repeat
from gateway.steering.fold import ConversationFold
from gateway.steering.monitors import MonitorSettings, Readings, make_suite
from gateway.steering.policy import Policy
from gateway.steering.transcript.steps import Action, Step, extract
from gateway.steering.transcript.text_protocols import read_cue
from tests.steering.robust.planting import step

CODEX = (
    "Chunk ID: 7ad0db\nWall time: 0.01 seconds\nProcess {}\nOriginal token count: 4\nOutput:\n{}"
)


def failure(result: str, name: str = "bash", command: str = "run-it") -> str | None:
    action = Action(name=name, arguments=f'{{"command": "{command}"}}', observation=result)
    return describe_action(action).failure


def read(steps: list[Step]) -> Readings:
    suite = make_suite(MonitorSettings())
    for each in steps:
        suite.push(each)
    return suite.readings()


def repeats(steps: list[Step]) -> list[Repeat]:
    memory = CallMemory()
    return [memory.observe(describe_action(a)) for each in steps for a in each.actions]


@pytest.mark.parametrize(
    "result",
    [
        '{"returncode": 1, "output": "FAILED tests/test_a.py::test_a"}',
        '{"returncode": "1", "output": "FAILED tests/test_a.py::test_a"}',
        '{"output": "FAILED tests/test_a.py::test_a", "metadata": {"exit_code": 1}}',
        '{"exitCode": 1, "stdout": "", "stderr": "FAILED tests/test_a.py::test_a"}',
        CODEX.format("exited with code 1", "FAILED tests/test_a.py::test_a"),
        "Command: pytest\nDirectory: (root)\nOutput: FAILED tests/test_a.py::test_a\n"
        "Error: (none)\nExit Code: 1\nSignal: 0\nProcess Group PGID: 41",
        "Exit code 1\nFAILED tests/test_a.py::test_a",
    ],
)
def test_the_exit_code_around_an_output_is_read(result: str) -> None:
    """Whatever a client puts around it, the failure is that of the program."""
    assert failure(result) == "FAILED tests/test_a.py::test_a"


def test_an_output_that_went_well_is_the_output() -> None:
    """The frame with its ids and times is gone, so equal outputs are equal."""
    assert readable(CODEX.format("exited with code 0", "src\ntests")) == "src\ntests"
    assert readable('{"returncode": 0, "output": "3 passed"}') == "3 passed"
    assert readable('{"returncode": "x"}') == '{"returncode": "x"}'
    assert readable('{"exit_code": 1, "output": ') == '{"exit_code": 1, "output": '
    assert failure('{"content": "' + "long text " * 90 + '", "is_error": true}') is not None


def test_a_report_without_errors_is_no_failure() -> None:
    """Gemini CLI names every part of its report, also those that are empty."""
    report = (
        "Command: git add a\nDirectory: (root)\nOutput: {}\nError: (none)\nExit Code: 0\nPGID: 4"
    )
    assert readable(report.format("src")) == "src"
    assert readable(report.format("(empty)")) == ""
    assert failure(report.format("(empty)"), "run_shell_command") is None
    assert readable("Output: as it is") == "Output: as it is"


def test_a_shell_is_known_by_its_arguments() -> None:
    """Whatever its name is: no other tool runs in a directory."""
    for more, shell in (("", False), (', "workdir": "/w"', True)):
        call = Action(name="function", arguments=f'{{"cmd": "pytest -q"{more}}}', observation="ok")
        assert (describe_action(call).program is not None) is shell


def test_a_program_that_still_runs_is_waited_for() -> None:
    """Its result is to come, also where four are started at once."""
    running = CODEX.format("running with session ID 7", "")
    arguments = '{"cmd": "crew wait a", "workdir": "/w"}'
    calls = tuple([Action(name="exec_command", arguments=arguments, observation=running)] * 4)
    steps = [Step(index=at, thought="I wait.", actions=calls) for at in range(3)]
    assert all(repeat.waits for repeat in repeats(steps))
    assert not read(steps).fired


def test_a_program_that_fails_on_purpose_is_left_alone() -> None:
    """Other programs pass for the first time between its runs; without that it fires."""
    fault = step("bash", {"command": "pytest fault.py"}, "FAILED fault.py::test_it - assert 0")
    others = [
        step("bash", {"command": f"pytest tests/test_{name}.py"}, f"{name} passed")
        for name in "abcdefghijkl"
    ]
    mixed = [each for at in range(0, 12, 3) for each in (*others[at : at + 3], fault)]
    assert "test_repeat" not in read(mixed).fired
    assert "test_repeat" in read([*others[:3], fault, fault, fault]).fired


def test_an_exit_code_says_what_failed() -> None:
    """Many failures share a code; a search that ends with 1 has found nothing."""
    first, second = (failure(f"Exit code 1\n{why}") for why in ("no space left", "no such key"))
    assert first != second
    assert failure("Exit code 1", command="grep -rn handler src") is None
    assert failure("Exit code 1", command="make") is not None


def test_exceptions_of_other_names_are_other_failures() -> None:
    """A name without "Error" in it is read from the end of the traceback."""
    trace = 'Traceback (most recent call last):\n  File "r.py", line 3, in f\n{}\nexit code 1'
    lines = [failure_line(trace.format(name)) for name in ("lib.NotKnown: a", "lib.Absent: b")]
    assert lines == ["lib.NotKnown: a", "lib.Absent: b"]


def test_a_container_that_cannot_start_is_one_failure() -> None:
    """Its name counts, not the letters that are drawn for a pod, nor its age."""
    line = "web-7d9f8c6b5-x2k9p 0/1 ImagePullBackOff 0 {}s"
    assert signature(line.format(20)) == signature("web-5bb7f-q8z4 0/1 ImagePullBackOff 3 90s")
    assert signature(line.format(20)) != signature("api-5bb7f-q8z4 0/1 ImagePullBackOff 3 90s")
    assert failure("NAME READY\n" + line.format(20), command="kubectl get pods") is not None


def test_a_plan_is_how_far_its_points_are() -> None:
    """Other words are the same plan; another state of a point is another plan."""

    def plan(word: str, status: str) -> Step:
        todos = [{"content": f"{word} it", "status": status}, {"content": "x", "status": "pending"}]
        return step("TodoWrite", {"todos": todos}, "Todos have been modified. Track your progress.")

    assert [r.count for r in repeats([plan(w, "pending") for w in ("Fix", "Mend", "Cure")])][
        -1
    ] == 3
    moved = [plan("Fix", "pending"), plan("Fix", "in_progress"), plan("Fix", "completed")]
    assert not any(r.strength or r.waits for r in repeats(moved))


def test_a_job_that_runs_is_waited_for_in_any_client() -> None:
    """With a long output so far, and by keys that are not sent."""
    running = "<status>running</status>\n" + "output so far\n" * 90
    asked = [step("TaskOutput", {"task_id": "a1"}, running)] * 9
    waited = [step("write_stdin", {"session_id": 4, "chars": ""}, "same")] * 9
    assert all(r.waits for r in repeats(asked) + repeats(waited))
    keys = [step("write_stdin", {"session_id": 4, "chars": c}, "(END)") for c in "qxyz\nn"]
    assert repeats(keys)[-1].count == 6


def part(first: int, last: int) -> Step:
    text = "\n".join(f"{n}: name_{n} = value_{n}" for n in range(first, last + 1))
    return step("Read", {"file_path": "/a.py", "offset": first, "limit": last - first + 1}, text)


def test_lines_that_were_shown_are_known() -> None:
    """Parts that overlap repeat; parts that touch, and a file that was edited, do not."""
    assert repeats([part(1, 60), part(50, 130), part(20, 100)])[-1].kind == "reworded"
    touching = repeats([part(n, n + 109) for n in range(1, 900, 100)])
    edit = step("Edit", {"file_path": "/a.py", "old_string": "a", "new_string": "b"}, "ok")
    assert not any(r.strength for r in touching)
    assert not repeats([part(1, 60), edit, part(10, 50)])[-1].strength


def test_other_questions_at_a_rate_limit_are_no_wait() -> None:
    """From the fourth refusal on; a wait, and questions asked at once, begin it again."""
    refused = [step("search", {"q": f"topic {n}"}, "429 Too Many Requests") for n in range(5)]
    assert [r.strength for r in repeats(refused)] == [0.0, 0.0, 0.0, 1.0, 1.0]
    waiting = [each for asked in refused for each in (asked, step("sleep", {"s": 9}, "ok"))]
    assert not any(r.strength for r in repeats(waiting))
    at_once = Step(index=0, actions=tuple(a for each in refused for a in each.actions))
    assert read([at_once]).scores["streak"] == 0.0


def edit(old: str, new: str, result: str = "ok") -> Step:
    return step("Edit", {"file_path": "a.py", "old_string": old, "new_string": new}, result)


def test_changes_taken_back_one_after_the_other_are_one_decision() -> None:
    """Three places restored are no thrash, the same place twice is; not if it worked in between."""
    there = [edit(f"old {n}", f"new {n}") for n in range(3)]
    back = [edit(f"new {n}", f"old {n}") for n in range(3)]
    assert read([*there, *back]).fired == ()
    again = [there[0], back[0], there[0]]
    assert read(again).fired == ("edit_revert",)
    green = step("bash", {"command": "pytest -q"}, "3 passed in 0.1s")
    assert read([there[0], back[0], green, there[0]]).fired == ()


def test_calls_made_at_once_are_one_attempt() -> None:
    """Four edits of one step that all miss are not four attempts; of four steps they are."""
    missed = [edit(f"x{n}", "y", "Error: string not found in file") for n in range(4)]
    at_once = Step(index=0, actions=tuple(a for each in missed for a in each.actions))
    assert read([at_once]).fired == ()
    assert "edit_revert" in read(missed).fired


def test_a_success_of_the_same_thing_forgets_its_failures() -> None:
    """An edit refused and then accepted, file by file; one that is refused again and again."""

    def tried(n: int, result: str) -> Step:
        change = {"file_path": f"src/m{n}.py", "old_string": "a", "new_string": "b"}
        return step("Edit", change, result)

    missed = "Error: string not found in file"
    assert not read([tried(n, r) for n in range(6) for r in (missed, "ok")]).fired
    assert "test_repeat" in read([tried(n, missed) for n in range(6)]).fired


def test_hosts_that_do_not_answer_are_hosts_looked_at() -> None:
    """One host asked again and again is a loop."""

    def ping(n: int) -> Step:
        said = f"ssh: connect to host 10.0.0.{n} port 22: Connection timed out"
        return step("bash", {"command": f"ssh root@10.0.0.{n} uptime"}, said)

    assert not read([ping(100 + n) for n in range(12)]).fired
    assert read([ping(100) for _ in range(6)]).fired


@pytest.mark.parametrize(
    ("said", "cue"),
    [
        ("yes, go ahead", "go"),
        ("ok do it", "go"),
        ("go through the list of files again", ""),
        ("You have made 4 identical calls in a row.", "reminded"),
        ("No tool calls were found in your reply.", "uncalled"),
        ("This session is being continued from a previous conversation.", "compacted"),
        ("Please add a test.", ""),
    ],
)
def test_cues_of_a_message(said: str, cue: str) -> None:
    """The few messages that say something about the agent's way."""
    assert read_cue(said) == cue


def conversation(*turns: str | Step) -> list[dict]:
    """Messages: texts are the user's, steps the agent's."""
    messages: list[dict] = [{"role": "user", "content": "Do the task."}]
    for at, turn in enumerate(turns):
        if isinstance(turn, str):
            messages.append({"role": "user", "content": turn})
            continue
        action = turn.actions[0]
        function = {"name": action.name, "arguments": action.arguments}
        call = {"id": f"c{at}", "type": "function", "function": function}
        messages.append({"role": "assistant", "content": None, "tool_calls": [call]})
        messages.append({"role": "tool", "tool_call_id": f"c{at}", "content": action.observation})
    return messages


def fired_at(*turns: str | Step) -> list[int]:
    outcomes = ConversationFold(Policy()).extend(conversation(*turns))
    return [at for at, outcome in enumerate(outcomes) if outcome.readings.fired]


def test_a_harness_that_has_just_spoken_is_not_repeated() -> None:
    """No alarm for three steps from its reminder on, in a message or in a result."""
    look = step("bash", {"command": "git status"}, "nothing to commit")
    note = "nothing to commit\n\nYou have made 6 identical calls in a row. Stop repeating them."
    noted = step("bash", {"command": "git status"}, note)
    assert fired_at(*[look] * 9) == [4, 5, 6, 7, 8]
    assert fired_at(*[look] * 4, "You are repeating the same call.", *[look] * 5) == [7, 8]
    assert fired_at(*[look] * 4, noted, *[look] * 4) == [7, 8]


def test_a_compaction_takes_away_what_was_seen() -> None:
    """To look once more is right; to begin from the start after each one is a loop."""
    looks = [step("read_file", {"path": f"src/{n}.py"}, f"text of {n}") for n in range(5)]
    summary = "This session is being continued from a previous conversation."
    assert not fired_at(*looks, summary, *looks)
    assert fired_at(*looks, summary, *looks, summary, *looks, summary, *looks)


def test_a_call_that_the_user_refused_is_no_failure() -> None:
    """What people say to an agent is not a result of its call."""
    refused = "The user doesn't want to proceed with this tool use. The user said: not now"
    steps = [step("Bash", {"command": f"make {n}"}, refused) for n in range(8)]
    assert not read(steps).fired
    assert extract(conversation(*steps))[0].cue == ""
