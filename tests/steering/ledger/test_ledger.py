"""The ledger of tries: what joins an entry, what closes it, and what does not matter."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.core.decision_settings import Policy
from gateway.core.fold import RunFold
from gateway.core.ledger.entries import MAX_ENTRIES, Ending
from gateway.core.ledger.ledger import Ledger, LedgerStep
from gateway.core.monitors import RobustSettings
from gateway.core.monitors.robust import CallCount
from gateway.core.monitors.settings import CALLS_OF_TALK, CALLS_OF_WORK
from gateway.core.step import Action, Step, alike
from gateway.steering.evidence.action_facts import describe
from gateway.steering.guidance.situation import READER
from gateway.steering.runs_of_transcript import ConversationFold
from steering_gateway_testing.planting import step

ASSERTION = "E       assert 41 == 42\nFAILED tests/test_a.py::test_sum - assert 41 == 42\n1 failed"


def ran(result: str = ASSERTION) -> Step:
    """A test that is run."""
    return step("bash", {"command": "pytest tests/test_a.py"}, result)


def edit(number: int, result: str = "The file has been updated.") -> Step:
    """A new edit of one file."""
    return step(
        "Edit",
        {"file_path": "a.py", "old_string": f"x = {number}", "new_string": f"x = {number + 1}"},
        result,
    )


def read(steps: Sequence[Step]) -> list[LedgerStep]:
    """The steps against the ledger of one run."""
    ledger = Ledger(describe)
    return [ledger.observe(each) for each in steps]


def alarms(steps: Sequence[Step]) -> list[str]:
    """The sentences of a run's alarms."""
    fold = RunFold(Policy(), READER)
    return [alarm.sentence for each in steps for alarm in fold.push(each).readings.alarms]


def test_the_same_failure_after_each_edit_is_one_entry() -> None:
    """Patched, the same assertion: the tries count over the edits, and the alarm names them."""
    found = read([each for n in range(5) for each in (edit(n), ran())])
    counts = [entry.count for each in found for entry in each.entries]
    assert counts == [1, 2, 3, 4, 5]
    (sentence, *_) = alarms([each for n in range(5) for each in (edit(n), ran())])
    assert sentence.startswith("`pytest tests/test_a.py` failed in the same way, 5 tries")
    assert "steps 2 to 10" in sentence


def test_ten_refused_edits_without_a_flag_are_ten_failures() -> None:
    """A client's words for a refusal are enough."""
    refused = (
        "<tool_use_error>File has not been read yet. Read it first before writing.</tool_use_error>"
    )
    found = read([edit(n, refused) for n in range(10)])
    assert [each.entries[0].count for each in found] == list(range(1, 11))
    assert {each.entries[0].ending for each in found} == {Ending.REFUSED}


def test_a_success_closes_the_entry() -> None:
    """The step after it is a first failure again."""
    passed = ran("1 passed in 0.31s")
    found = read([ran(), ran(), passed, ran()])
    closed = found[2].closed
    assert closed is not None
    assert closed.count == 2
    assert [entry.count for entry in found[3].entries] == [1]


def test_an_entry_that_the_agent_has_left_begins_anew() -> None:
    """Seven results that the run did not have lie in between."""
    others = [step("Read", {"file_path": f"f{n}.py"}, f"content {n} of it") for n in range(7)]
    found = read([ran(), ran(), *others, ran()])
    assert [entry.count for entry in found[-1].entries] == [1]


def test_a_page_that_has_moved_is_counted_from_one_again() -> None:
    """Four edits leave it red; once it has turned blue, the red ones do not count on."""
    results = ["red"] * 4 + ["blue"] * 3
    pages = [step("bash", {"command": "curl localhost/a"}, each) for each in results]
    found = read([each for n, page in enumerate(pages) for each in (edit(n), page)])
    counts = [entry.count for each in found for entry in each.entries]
    assert counts == [2, 3, 4, 2, 3]
    assert {entry.ending for each in found for entry in each.entries} == {Ending.UNMOVED}


@pytest.mark.parametrize(("where", "repeats"), [("src/{}.py", 0), ("https://a.test/{}", 1)])
def test_equal_texts_of_two_addresses_are_one_and_of_two_files_are_two(
    where: str, repeats: int
) -> None:
    """Copies of a file are read each for itself; one page has many addresses."""
    page = "\n".join(f"word{n} other{n} text of line number{n}" for n in range(40))
    found = read([step("Read", {"file_path": where.format(n)}, page) for n in "ab"])
    assert len(found[1].entries) == repeats


def write(text: str) -> Step:
    """A file that is written as a whole."""
    arguments = {"file_path": "a.py", "content": text}
    return step("Write", arguments, "The file has been written.")


def test_a_file_that_is_written_as_it_was_before_is_taken_back() -> None:
    """Another text is new work, and the first text after it is an edit taken back."""
    found = read([write("one"), write("two"), write("three"), write("one")])
    assert [len(each.entries) for each in found] == [0, 0, 0, 1]
    assert found[-1].entries[0].ending is Ending.REVERTED


def test_a_bare_failure_belongs_to_the_program_whatever_stands_around_it() -> None:
    """An exit code says nothing; other directories and pipes do not make the call another."""
    commands = ["make test", "cd src && make test", "make test | tail -5"]
    found = read([step("bash", {"command": each}, "Exit code 1") for each in commands])
    assert [entry.count for each in found for entry in each.entries] == [1, 2, 3]
    assert {e.ending for each in found for e in each.entries} == {Ending.FAILED}


@pytest.mark.parametrize(
    ("call", "expected"),
    [
        (step("bash", {"command": "make test"}, "ok"), CALLS_OF_WORK),
        (step("Read", {"file_path": "a.py"}, "x = 1"), CALLS_OF_WORK),
        (step("get_order", {"id": 4}, "one book"), CALLS_OF_TALK),
    ],
)
def test_a_run_that_runs_a_program_or_sees_files_may_call_more_often(
    call: Step, expected: int
) -> None:
    """Talk with a person needs fewer calls than work on files."""
    count = CallCount(RobustSettings())
    for each in read([call]):
        count.push(each)
    assert count.reading()[1] == f"1 calls of {expected} expected"


@pytest.mark.parametrize(("threshold", "same"), [(0.5, True), (0.51, False)])
def test_words_are_alike_from_the_threshold_on(threshold: float, same: bool) -> None:
    """They share two of their four words."""
    one = frozenset(("read", "the", "file"))
    other = frozenset(("read", "the", "page"))
    assert alike(one, other, threshold) is same
    assert not alike(one, frozenset(), threshold)


def batch(results: Sequence[str]) -> Step:
    """Calls that are made at once."""
    actions = [
        Action(
            name="web_fetch", arguments=json.dumps({"url": f"https://a.test/{n}"}), observation=text
        )
        for n, text in enumerate(results)
    ]
    return Step(index=0, thought="", actions=tuple(actions))


def test_a_batch_is_one_try() -> None:
    """However many of its calls fail, and a call that was not made is none at all."""
    failed = "Request failed with status code 403"
    assert read([batch([failed] * 4)])[0].entries[0].count == 1
    cancelled = "<tool_use_error>Sibling tool call errored</tool_use_error>"
    assert [each.kind for _, each in read([batch([failed, cancelled])])[0].actions][
        1
    ] == "cancelled"


@given(st.permutations(range(4)))
def test_the_order_of_a_batch_does_not_matter(order: list[int]) -> None:
    """The counts after it are the same."""
    results = ["Error: no route to b", "one page of text", "Error: no such host", "another page"]
    plain = read([batch(results), batch(results)])
    actions = plain[0].step.actions
    mixed = Step(index=0, thought="", actions=tuple(actions[at] for at in order))
    found = read([mixed, mixed])
    assert sorted(e.count for e in found[1].entries) == sorted(e.count for e in plain[1].entries)


@pytest.mark.parametrize(
    "frame",
    [
        "<shellId: {n} completed with exit code 1>\n{text}",
        "Chunk ID: a{n}b{n}\nWall time: 0.{n} seconds\nProcess exited with code 1\nOutput:\n{text}",
        "{text}\n[took {n}.2s]",
        "2026-01-0{n}T10:0{n}:00Z {text}",
    ],
)
def test_counters_ids_and_times_do_not_make_a_failure_new(frame: str) -> None:
    """Seven runs that fail alike are seven tries, whatever their frame counts."""
    text = "AssertionError: expected 42, got 41"
    found = read([ran(frame.format(n=n, text=text)) for n in range(1, 8)])
    assert found[-1].entries[0].count == 7


def test_one_failing_test_less_is_another_failure() -> None:
    """What is counted is no noise."""
    results = [f"== {n} failed, {9 - n} passed in 0.5s ==" for n in (5, 4, 3, 2)]
    assert alarms([ran(each) for each in results]) == []


def test_more_tests_that_pass_are_no_news_of_the_failure() -> None:
    """The failure counts on while other tests are added; fewer failures, twice in a row, end it."""
    added = [f"{ASSERTION}, {n} passed in 0.{n}s" for n in range(11, 16)]
    assert [each.entries[0].count for each in read([ran(each) for each in added])] == [
        1,
        2,
        3,
        4,
        5,
    ]
    wobbles = [f"== {n} failed in 0.5s ==" for n in (2, 5, 3, 4, 3)]
    assert read([ran(each) for each in wobbles])[-1].entries[0].count == 5
    shrinks = [f"== {n} failed in 0.5s ==" for n in (1, 6, 5, 4, 3)]
    assert read([ran(each) for each in shrinks])[-1].entries[0].count == 1


def test_an_edit_refused_for_another_reason_is_another_matter() -> None:
    """Something has moved; refused for the same reason, the tries count, whatever was to be set."""
    same = "No replacement was performed, old_str `x = {}` did not appear verbatim in a.py."
    found = read([edit(n, same.format(n)) for n in range(3)])
    assert found[-1].entries[0].count == 3
    reasons = [
        same.format(0),
        "No replacement was performed. Multiple occurrences of old_str `x = 1` in lines [3, 9].",
        "File already exists at: a.py. Cannot overwrite files using command `create`.",
    ]
    found = read([edit(n, reason) for n, reason in enumerate(reasons)])
    refused = [e for each in found for e in each.entries if e.ending is Ending.REFUSED]
    assert {entry.count for entry in refused} == {1}


def test_lines_that_were_shown_are_known_however_they_are_asked_for() -> None:
    """Agents that write their calls as text give numbers as text; the first look counts."""

    def look(first: int, last: int) -> Step:
        arguments = {"command": "view", "path": "a.py", "view_range": f"[{first}, {last}]"}
        return step("str_replace_editor", arguments, f"{first}\tline of it, to {last}")

    found = read([look(10, 60), look(10, 60), look(20, 65), look(200, 260)])
    assert [[entry.count for entry in each.entries] for each in found] == [[], [2], [3], []]
    assert found[1].entries[0].first == 1


def test_a_text_polished_without_a_look_at_anything_is_written_again() -> None:
    """The same draft in nearly the same words; another draft each time is work, and so is a text
    that something else was found out for."""
    words = ("glad", "pleased", "happy", "ready", "able")

    def write(word: str, draft: int) -> Step:
        body = f"We are {word} to replace the broken part of your order at no cost, and send it."
        arguments = {"draft_id": f"r10{draft}", "body": body}
        return step("update_draft", arguments, f'{{"id": "r10{draft}", "history": {len(word)}9}}')

    polished = [write(word, 0) for word in words]
    said = " ".join(alarms(polished))
    assert (
        "5 tries, not all the same: was done again in nearly the same words, steps 1 to 5" in said
    )
    assert said.endswith("; the newest was `update_draft r100`")
    assert alarms([write(word, at) for at, word in enumerate(words)]) == []
    looks = [
        [step("get_order", {"id": at}, f"order {at} is of {word}")] for at, word in enumerate(words)
    ]
    asked = [each for at, one in enumerate(polished) for each in (one, *looks[at])]
    assert alarms(asked) == []


def test_listings_of_the_same_files_are_one() -> None:
    """In another order, with sizes or without; not those of other files."""
    shown = {
        "ls": "a.py\nb.py\nc.py",
        "ls -la": "-rw- 1 dev 388 a.py\n-rw- 1 dev 62 b.py\n-rw- 1 dev 23 c.py",
        "find . -type f": "./c.py\n./a.py\n./b.py",
        "ls src": "d.py\ne.py\nf.py",
    }
    found = read([step("bash", {"command": each}, text) for each, text in shown.items()])
    assert [each.actions[0][1].kind for each in found] == ["new", "reworded", "reworded", "new"]


def test_a_file_that_reads_as_before_each_edit_is_an_alarm() -> None:
    """Something makes it again; edits that are there are none."""

    def rounds(shown: str) -> list[Step]:
        steps = []
        for n in range(5):
            text = shown.format(n=n if "{n}" in shown else "")
            steps += [edit(n), step("bash", {"command": "cat a.py"}, text)]
        return steps

    assert "gave the same result after each edit" in " ".join(alarms(rounds("y = 1\nz = 2")))
    assert alarms(rounds("x = {n}\ny = 1")) == []


def test_one_line_set_to_one_text_after_the_other_is_an_alarm_if_nothing_moves() -> None:
    """The check says the same after each; where it says something else, it is a search."""

    def rounds(place: str) -> list[Step]:
        steps = []
        for n, option in enumerate(("h", "t", "b", "p", "H", "!h")):
            new = f"figure[{'htbpH!'[n]}]"
            old = f"figure[{'xhtbpH'[n]}]"
            arguments = {"file_path": "a.tex", "old_string": old, "new_string": new}
            steps.append(step("Edit", arguments, "The file has been updated."))
            shown = f"Figure 3 is on page {place.format(option=option)}"
            steps.append(step("bash", {"command": "make && pdftotext a.pdf"}, shown))
        return steps

    assert "gave the same result after each edit" in " ".join(alarms(rounds("nine")))
    assert alarms(rounds("{option}")) == []


def test_a_persons_wish_for_a_repetition_is_none() -> None:
    """After a person has spoken the same look is a new one."""
    look = step("bash", {"command": "git status"}, "nothing to commit, working tree clean")
    asked = Step(index=0, thought="", actions=look.actions, prompted=True)
    assert alarms([asked] * 8) == []
    assert alarms([look] * 8) != []


FRAMES = {
    "claude-code": "Exit code 1\n{text}",
    "codex": "Chunk ID: 0a{n}f21\nWall time: 1.{n} seconds\nProcess exited with code 1\n"
    "Output:\n{text}",
    "codex-json": '{{"output": "{json}", "metadata": {{"exit_code": 1, "seconds": 0.{n}}}}}',
    "copilot": "{text}\n<shellId: {n} completed with exit code 1>",
    "gemini": "Command: pytest\nDirectory: (root)\nOutput: {text}\nError: (none)\nExit Code: 1\n"
    "Signal: 0\nBackground PIDs: (none)\nProcess Group PGID: 4{n}17",
    "mini-swe-agent": '{{"returncode": 1, "output": "{json}"}}',
    "mini-swe-agent-tags": "<returncode>1</returncode>\n<output>\n{text}\n</output>",
    "opencode": "{text}\n\n(exit code 1, took {n}ms)",
    "openhands": "{text}\n[The command completed with exit code 1.]\n[Directory: /w]",
    "cline": "Command executed.\nOutput:\n{text}",
}


@pytest.mark.parametrize("client", FRAMES)
def test_the_same_failure_is_an_alarm_at_the_same_step_in_every_client(client: str) -> None:
    """The third run of one failing test without a change between them, in each client's frame."""
    text = "E   assert 41 == 42\nFAILED tests/test_a.py::test_sum - assert 41 == 42"
    fold = RunFold(Policy(), READER)
    raised = []
    for n in range(1, 6):
        result = FRAMES[client].format(n=n, text=text, json=text.replace("\n", "\\n"))
        raised.append(bool(fold.push(ran(result)).readings.alarms))
    assert raised == [False, False, True, True, True]


def calls_made(steps: Sequence[Step]) -> int:
    """Function calls that the newest of these steps costs."""
    ledger = Ledger(describe)
    for each in steps[:-1]:
        ledger.observe(each)
    counted = 0

    def count(_frame: object, event: str, _argument: object) -> None:
        nonlocal counted
        counted += event == "call"

    sys.setprofile(count)
    try:
        ledger.observe(steps[-1])
    finally:
        sys.setprofile(None)
    return counted


def test_a_late_step_costs_what_an_early_one_does() -> None:
    """Counted in calls of functions: the memory of a run is bounded."""
    run = [
        each
        for n in range(400)
        for each in (edit(n), step("bash", {"command": f"make job_{n}"}, f"KeyError: 'k{n}'"))
    ]
    assert calls_made(run) <= 2 * calls_made(run[:40])
    ledger = Ledger(describe)
    for each in run:
        ledger.observe(each)
    assert len([*ledger._entries]) <= MAX_ENTRIES


@given(st.lists(st.sampled_from(["edit", "fail", "pass", "look"]), max_size=14))
def test_a_fold_built_again_has_the_same_alarms_and_reasons(kinds: list[str]) -> None:
    """Message by message, or from the whole transcript."""
    messages: list[dict] = [{"role": "user", "content": "Repair it."}]
    makers = {
        "edit": lambda n: edit(n),
        "fail": lambda n: ran(),
        "pass": lambda n: ran("1 passed in 0.31s"),
        "look": lambda n: step("Read", {"file_path": "a.py"}, "x = 1"),
    }
    online = ConversationFold(Policy())
    found = []
    for n, kind in enumerate(kinds):
        action = makers[kind](n).actions[0]
        call = {"id": f"c{n}", "type": "function"}
        call["function"] = {"name": action.name, "arguments": action.arguments}  # type: ignore[assignment]
        messages.append({"role": "assistant", "content": None, "tool_calls": [call]})
        messages.append({"role": "tool", "tool_call_id": f"c{n}", "content": action.observation})
        found += online.extend(messages)
    again = ConversationFold(Policy()).extend(messages)
    assert [(o.difficulty, o.reason, o.readings) for o in found] == [
        (o.difficulty, o.reason, o.readings) for o in again
    ]


def test_results_that_name_what_was_asked_for_are_not_one() -> None:
    """Pages of one form, each about the number that its call has, are reading on."""
    page = "\n".join(f"    value_{n} = table.lookup(key, default=None)" for n in range(30))
    looks = [
        step("search", {"path": f"src/parser_{n}.py"}, f"src/parser_{n}.py\n{page}")
        for n in range(8)
    ]
    assert alarms(looks) == []
    assert {each.kind for found in read(looks) for _, each in found.actions} == {"new"}


def test_each_host_that_does_not_answer_is_a_question_of_its_own() -> None:
    """Its first failure is an entry of its own, and no further failure of the tool in a row."""
    steps = [
        step(
            "bash",
            {"command": f"curl http://{host}.test/status"},
            f"curl: (6) Could not resolve host: {host}.test",
        )
        for host in ("alpha", "beta", "gamma", "gamma")
    ]
    found = [entry for each in read(steps) for entry in each.entries]
    assert [(entry.count, entry.ending) for entry in found] == [
        (1, Ending.FAILED),
        (1, Ending.FAILED),
        (1, Ending.FAILED),
        (2, Ending.FAILED),
    ]
    assert [entry.said.rpartition(" ")[2] for entry in found] == [
        "alpha.test",
        "beta.test",
        "gamma.test",
        "gamma.test",
    ]


@pytest.mark.parametrize("kind", ["subagent_type", "agent_type", "prompt"])
def test_the_report_of_a_sub_agent_is_not_judged_by_its_words(kind: str) -> None:
    """ "No issues found" of a review is good news; the same words of a tool that acts are not."""
    reports = [
        step("Task", {kind: "general-purpose", "about": f"change {n}"}, "No issues found.")
        for n in range(6)
    ]
    assert alarms(reports) == []
    acting = [step("book", {"about": f"room {n}"}, "No rooms found.") for n in range(6)]
    assert alarms(acting) != []
