"""The first screen of `gateway history`: what was paid, for whom, what was paid again, and why."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Callable
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import orjson
import pytest

from gateway.cli import main
from gateway.core.decision_settings import Policy
from gateway.core.fsm import FSMSettings, FSMState
from gateway.features.history.prompt_cache import COMPACTION, MODEL, PAUSE, PREFIX
from gateway.features.history.reading import outcomes_of, read_session
from gateway.features.history.session import ModelCall, Session
from gateway.features.history.summary import SessionSums, largest
from steering_gateway_testing.claude_code_sessions import (
    INTERRUPTED,
    REJECTED,
    Log,
    smooth,
    write_all,
)

Capture = pytest.CaptureFixture[str]
REVIEW = "Look at the changes of pull request {} and list what is wrong with them."


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty home directory."""
    monkeypatch.setenv("HOME", str(tmp_path))
    return tmp_path


def screen(capsys: Capture, *options: str) -> str:
    """The printed screen, with single spaces."""
    assert main(["history", *options]) == 0
    return " ".join(capsys.readouterr().out.split())


def readings(capsys: Capture) -> list[dict[str, Any]]:
    """The sessions as JSON objects."""
    assert main(["history", "--json"]) == 0
    return [orjson.loads(line) for line in capsys.readouterr().out.splitlines()]


def reviewing(times: int) -> list[Log]:
    """A session that starts sub-agents for reviews, and one to explore; each with its own log."""
    main_log = Log(1).user("Review all open pull requests.")
    logs = [main_log]
    for number in range(times):
        prompt = REVIEW.format(number)
        order = {"description": f"Review PR {number}", "subagent_type": "general-purpose"}
        main_log.answer("", ("Task", {**order, "prompt": prompt})).result("Nothing is wrong.")
        agent = Log(1, sub_agent=f"a{number}").user(prompt)
        for _ in range(number + 1):
            agent.bash("git show", "a change")
        logs.append(agent.answer("Nothing is wrong."))
    prompt = "Find out where the totals of a cart are computed."
    order = {"description": "Find totals", "subagent_type": "Explore", "prompt": prompt}
    main_log.answer("", ("Task", order)).result("cart.py").answer("All are reviewed.")
    return [*logs, Log(1, sub_agent="b1").user(prompt).answer("cart.py")]


def test_what_sub_agents_cost_is_named_by_their_kind_and_task(home: Path, capsys: Capture) -> None:
    """Client logs name a sub-agent only in its parent's call; a task that comes again is a kind of
    its own, and its row has their number, all their steps, the cost, and the dearest."""
    write_all(reviewing(4), home)
    out = screen(capsys)
    assert "1 session of claude-code" in out
    assert "sub-agents Review PR 0 (general-purpose) 4 started 14 15.4k $0.063 $0.0225" in out
    assert "Explore 1 started 1 1.1k $0.0045" in out
    agents = [each for each in readings(capsys) if each["parent"]]
    assert {each["kind"] for each in agents} == {"general-purpose", "Explore"}
    assert {each["task"] for each in agents} >= {"Review PR 3", "Find totals"}


def test_the_session_row_holds_what_its_sub_agents_cost(home: Path, capsys: Capture) -> None:
    """A session's money is that of its whole tree; another session beside it has its own."""
    write_all([*reviewing(4), smooth()], home)
    out = screen(capsys)
    assert "session Review all open pull requests. 1 21 23.1k $0.0945" in out
    assert "Rename the page. 1 4 4.4k $0.018" in out
    assert "model claude-sonnet-4-5-20250929 2 25 27.5k $0.113 $0.0945" in out


def test_opencode_names_a_sub_agent_in_its_title(home: Path, capsys: Capture) -> None:
    """Exports of child sessions alone have the kind and the task, too."""
    for number in range(3):
        child = {"id": f"ses_{number}", "parentID": "ses_p", "directory": "/home/me/shop"}
        child["title"] = "review changes (@general subagent)"
        asked = {"info": {"role": "user"}, "parts": [{"type": "text", "text": "Review them."}]}
        tokens = {"input": 1000, "output": 100}
        answered = {
            "info": {"role": "assistant", "id": f"msg_{number}", "modelID": "gpt-5"},
            "parts": [
                {"type": "text", "text": "Fine."},
                {"type": "step-finish", "tokens": tokens, "cost": 0.5},
            ],
        }
        file = home / f"{number}.json"
        file.write_text(json.dumps({"info": child, "messages": [asked, answered]}))
    out = screen(capsys, *(str(path) for path in sorted(home.glob("*.json"))))
    assert "sub-agents review changes (general) 3 started 3 3.3k $1.50 $0.50" in out


def cached(log: Log, read: int, written: int) -> Log:
    """Answer once more, with this much of the prompt read from and written to the cache."""
    log.usage = {
        "input_tokens": 10,
        "cache_read_input_tokens": read,
        "cache_creation_input_tokens": written,
        "output_tokens": 100,
    }
    return log.bash("ls", "a file")


@pytest.mark.parametrize("cause", [PAUSE, PREFIX, MODEL, COMPACTION])
def test_what_the_cache_lost_is_named_with_its_cause(
    cause: str, home: Path, capsys: Capture
) -> None:
    """A call that writes again what the one before it had in the cache; one that only adds to it
    lost nothing."""
    log = Log(1).user("Make the tests pass.")
    cached(log, 0, 50_000)
    cached(log, 50_000, 800)
    if cause == PAUSE:
        log.wait(301).user("And the others.")
    elif cause == MODEL:
        log.model = "claude-opus-4-5-20251101"
    elif cause == COMPACTION:
        log.user("This session is continued from a previous one.", isCompactSummary=True)
    cached(log, 0, 40_000)
    write_all([log], home)
    (session,) = readings(capsys)
    (lost,) = session["paid_again"]
    assert (lost["step"], lost["cause"]) == (2, cause)
    assert lost["tokens"] == 40_010
    # dollars per token of input; a write costs 1.25, a read .1
    price = {MODEL: 5e-6}.get(cause, 3e-6)
    assert lost["usd"] == pytest.approx((40_000 * 1.15 + 10 * 0.9) * price, rel=1e-6)
    out = screen(capsys)
    assert f" in 1 call {cause}" in out
    before = ", or a compaction had put in their place," if cause == COMPACTION else ""
    assert f"that an earlier call had sent{before} were not read from the provider's cache;" in out


def test_what_was_written_for_an_hour_was_lost_at_its_own_price(
    home: Path, capsys: Capture
) -> None:
    """Twice the price of input, less that of a read; in the cost of the session, too."""
    log = Log(1).user("Make the tests pass.")
    cached(log, 0, 50_000)
    cached(log, 0, 50_000)
    for line in log.lines:
        if usage := line["message"].get("usage"):
            usage["cache_creation"] = {
                "ephemeral_5m_input_tokens": 10_000,
                "ephemeral_1h_input_tokens": 40_000,
            }
    write_all([log], home)
    (session,) = readings(capsys)
    (lost,) = session["paid_again"]
    assert lost["tokens"] == 50_010
    usd = 3e-6 * (40_000 * 1.9 + 10_000 * 1.15 + 10 * 0.9)
    assert lost["usd"] == pytest.approx(usd, rel=1e-6)
    each = 3e-6 * (10 + 40_000 * 2 + 10_000 * 1.25) + 100 * 15e-6
    assert session["usd"] == pytest.approx(2 * each, rel=1e-6)
    assert f"extra cost ${usd:.3f}, " in screen(capsys)


@pytest.mark.parametrize(
    ("hour", "minutes", "cause"),
    [(True, 30, PREFIX), (True, 61, PAUSE), (False, 30, PAUSE), (False, 4, PREFIX)],
)
def test_a_pause_is_the_cause_of_a_loss_if_it_was_longer_than_the_cache_was_kept(
    hour: bool, minutes: int, cause: str, home: Path, capsys: Capture
) -> None:
    """An hour where the call before wrote for an hour; else five minutes."""
    log = cached(Log(1).user("Go."), 0, 50_000).wait(minutes * 60).user("Go on.")
    cached(log, 0, 50_000)
    lifetime = "ephemeral_1h_input_tokens" if hour else "ephemeral_5m_input_tokens"
    for line in log.lines:
        if usage := line["message"].get("usage"):
            usage["cache_creation"] = {lifetime: 50_000}
    write_all([log], home)
    (session,) = readings(capsys)
    assert [each["cause"] for each in session["paid_again"]] == [cause]


def answering(log: Log) -> Log:
    """A message at once, and an answer that takes long."""
    return log.user("Go on.").wait(400)


def refusing(log: Log) -> Log:
    """A call that the person refused after long, which stopped the agent."""
    log.answer("", ("ExitPlanMode", {"plan": "Build it."})).wait(400)
    return log.result(REJECTED, error=True).user(INTERRUPTED).user("Smaller.")


def noticing(log: Log) -> Log:
    """A notice of the client after long, which nobody typed."""
    log.answer("The tests run.").wait(400)
    return log.user("<task-notification>Done.</task-notification>", isMeta=True)


@pytest.mark.parametrize(
    ("then", "cause"), [(answering, PREFIX), (refusing, PAUSE), (noticing, PAUSE)]
)
def test_a_pause_ends_when_the_next_call_is_sent(
    then: Callable[[Log], Log], cause: str, home: Path, capsys: Capture
) -> None:
    """It runs from the end of an answer to the message or result that the next one answers, not to
    the end of that one."""
    write_all([cached(then(cached(Log(1).user("Go."), 0, 50_000)), 0, 50_000)], home)
    (session,) = readings(capsys)
    assert [each["cause"] for each in session["paid_again"]][-1:] == [cause]


@pytest.mark.parametrize(("asked", "cause"), [(1, PREFIX), (6, PAUSE)])
def test_a_pause_in_a_log_of_codex_ends_when_the_next_call_is_sent(
    asked: int, cause: str, home: Path, capsys: Capture
) -> None:
    """Codex writes an answer when it has ended: here minutes after the message, which was typed
    `asked` minutes after the answer before."""
    usage = {"input_tokens": 50_000, "cached_input_tokens": 0, "output_tokens": 9}
    lines: list[dict[str, Any]] = [{"type": "session_meta", "payload": {"id": "s", "cwd": "/p"}}]
    for number, minutes in enumerate([(0, 1, 2), (2 + asked, 12, 13)]):
        usage["cached_input_tokens"] = 0 if number else 40_000
        info = {"total_token_usage": {"total_tokens": number}, "last_token_usage": {**usage}}
        said = {"type": "message", "role": "assistant"}
        payloads: list[dict[str, Any]] = [
            {"type": "user_message", "message": f"Look at {number}."},
            {**said, "content": [{"type": "output_text", "text": "I look."}]},
            {**said, "content": [{"type": "output_text", "text": "It is fine."}]},
        ]
        for minute, payload in zip(minutes, payloads, strict=True):
            kind = "event_msg" if payload["type"] == "user_message" else "response_item"
            at = f"2026-02-02T09:{minute:02}:00Z"
            lines.append({"timestamp": at, "type": kind, "payload": payload})
        count = {"type": "token_count", "info": info}
        lines.append({"timestamp": at, "type": "event_msg", "payload": count})
    file = home / "rollout.jsonl"
    file.write_text("".join(json.dumps(line) + "\n" for line in lines))
    assert f" in 1 call {cause}" in screen(capsys, str(file))


def test_a_cache_that_works_is_nothing_to_report(home: Path, capsys: Capture) -> None:
    """Small losses, as at the end of a prompt that changes, are below the threshold."""
    log = Log(1).user("Make the tests pass.")
    for number in range(10):
        cached(log, 50_000 + 500 * number, 500)
    write_all([log], home)
    assert "Cache losses: nothing to report." in screen(capsys)


def test_a_prompt_that_changes_at_every_call_is_named(home: Path, capsys: Capture) -> None:
    """A clock in the system prompt: hardly anything of a call is read from the cache."""
    log = Log(1).user("Make the tests pass.")
    for _ in range(8):
        cached(log, 0, 30_000)
    write_all([log], home)
    assert "In 1 session of claude-code hardly a call could use what" in screen(capsys)


def reasons(log: Log, *stopped: str | None) -> Log:
    """The log whose lines of answers have these reasons, as versions to 2.1 write them."""
    lines = [line for line in log.lines if line["type"] == "assistant"]
    for line, reason in zip(lines, stopped, strict=True):
        line["message"]["stop_reason"] = reason
    return log


@pytest.mark.parametrize(
    ("stopped", "begun"),
    [
        ((None, None, "end_turn"), 1),
        ((None, "tool_use", None), 1),
        (("tool_use", None, "end_turn"), 0),
        ((None, None, None), 2),
    ],
)
def test_answers_that_were_logged_before_they_ended_make_sums_a_floor(
    stopped: tuple[str | None, ...], begun: int, home: Path, capsys: Capture
) -> None:
    """An answer of which no line has a reason to stop has the usage of its beginning: sums that
    hold it say "at least", and a note says how many they are. What is not known to be so does not.
    """
    log = Log(1).user("Build it.").answer("I look.", ("Bash", {"command": "ls"})).result("cart")
    write_all([reasons(log.answer("It is there."), *stopped), smooth()], home)
    found = {each["id"]: each["steps_logged_before_end"] for each in readings(capsys)}
    assert sorted(found.values()) == [0, begun]
    out = screen(capsys)
    least = "≥" if begun else ""
    assert f" Build it. 1 2 {least}2.2k {least}$0.009" in out
    assert "Rename the page. 1 4 4.4k $0.018 " in out
    least = "at least " if begun else ""
    assert f", {least}6.6k tokens (0% read from the provider's cache), {least}$0.027 " in out
    counted = {0: "", 1: "1 step logged before the answer ended: output tokens, and so"}
    if begun:
        assert counted.get(begun, "2 steps logged before the answer ended: output") in out
        assert f"{begun} step" in (shown := screen(capsys, "show", log.id))
        assert "logged before the answer ended" in shown
    else:
        assert "logged before" not in out + screen(capsys, "show", log.id)


def test_an_answer_without_usage_makes_sums_a_floor(home: Path, capsys: Capture) -> None:
    """A log that ends before the usage of an answer: the step counts, its tokens are unknown. In
    a log without any usage there is nothing to add to."""
    log = Log(1).user("Build it.").answer("I look.", ("Bash", {"command": "ls"})).result("cart")
    log.answer("It is there.")
    del log.lines[-1]["message"]["usage"]
    bare = Log(9).user("Say it.").answer("Said.")
    del bare.lines[-1]["message"]["usage"]
    write_all([log, bare, smooth()], home)
    found = {each["id"]: each["steps_without_usage"] for each in readings(capsys)}
    assert sorted(found.values()) == [0, 1, 1]
    out = screen(capsys)
    assert " Build it. 1 2 ≥1.1k ≥$0.0045" in out
    assert " Say it. 1 1 not logged not logged" in out
    assert "Rename the page. 1 4 4.4k $0.018 " in out
    assert "2 steps without usage in the log: tokens and cost are at least this" in out
    assert "1 step without usage in the log" in screen(capsys, "show", log.id)
    assert "without usage" not in screen(capsys, "show", bare.id)


def test_a_rejection_and_the_line_that_marks_it_are_one_stop(home: Path, capsys: Capture) -> None:
    """Claude Code writes the line after a call that the person rejected; the sum, the list, `show`
    and `--json` count the rejection alone. Words of a rejection are no message of their own. An
    interruption of the next answer is another stop."""
    log = Log(1).user("Delete the old carts.")
    log.answer("", ("Bash", {"command": "rm -r carts"}))
    log.result(REJECTED, error=True).user("[Request interrupted by user for tool use]")
    log.user("Not those, the empty ones.").bash("ls", "one").user(INTERRUPTED).user("Go on.")
    log.answer("", ("Bash", {"command": "rm one"}))
    said = "To tell you how to proceed, the user said:\nkeep the first one"
    log.result(REJECTED + said, error=True).user(INTERRUPTED)
    log.answer("It is kept.")
    write_all([log], home)
    (session,) = readings(capsys)
    found = (session["interrupts"], session["rejects"], session["said"])
    assert found == (1, 2, 3)
    out = screen(capsys)
    assert "You typed 3 messages, interrupted 1 time and rejected 2 calls." in out
    assert 'you rejected: "keep the first one"' in out
    shown = screen(capsys, "show", log.id)
    acts = [shown.count(f"you {what}") for what in ("interrupted", "rejected", "said")]
    assert acts == [1, 2, 3]


def test_an_alarm_is_counted_by_what_it_says(home: Path, capsys: Capture) -> None:
    """Two sessions with the same words are one label with a count; the alarm stands first among the
    places to look at, and is the one of `--json`."""
    write_all([stopped(1), stopped(2)], home)
    out = screen(capsys)
    said = "the person stopped the agent three times within twelve steps"
    assert f'Alarms: `gateway wrap` would have raised 2 alarms in 2 sessions: 2 x "{said}" (' in out
    assert "(once a step, plans and questions aside)." in out
    assert (
        f"right after, each the newest session first: 1. shop, Feb 2: {said} gateway history show"
        in out
    )
    assert [len(each["alarms"]) for each in readings(capsys)] == [1, 1]


def test_steps_have_one_numbering(home: Path, capsys: Capture) -> None:
    """That of `show`, from 0. The numbers of the monitors are of runs, from 1: no reason has them,
    on the screen, in `--json` or behind the step of an alarm, where the difficulty is named."""
    for number in range(8):
        log = Log(1 + number).user("Make the tests pass.")
        for _ in range(number + 1):
            log.bash("pytest", "FAILED test_cart.py::test_sum - assert 3 == 4", error=True)
        write_all([log.answer("I cannot."), stopped(20 + number)], home)
    found = readings(capsys)
    alarms = [alarm for each in found for alarm in each["alarms"]]
    shown = [screen(capsys, "show", each["id"]) for each in found]
    assert {each["monitors"][0] for each in alarms} > {"session"}
    assert not any(
        re.search(r"step", each["evidence"].replace("twelve steps", "")) for each in alarms
    )
    assert not any(
        re.search(r"(since|to|at|,) steps? \d", each) for each in (screen(capsys), *shown)
    )
    assert "step 0, difficulty 0." in shown[0]


def test_a_session_that_begins_with_an_interruption_is_named_by_what_it_was_for(
    home: Path, capsys: Capture
) -> None:
    """Claude Code begins the session of an accepted plan with the line of an interruption."""
    log = Log(1).user(INTERRUPTED)
    log.user("Implement the following plan:\n\n# Plan: Add a cart\n\nIt holds items.")
    write_all([log.answer("Done.")], home)
    assert readings(capsys)[0]["title"] == "Plan: Add a cart It holds items."


def stopped(number: int) -> Log:
    """A session that its person stopped three times within a few steps."""
    log = Log(number).user("Make the tests pass.")
    for at in range(3):
        log.bash(f"rm {at}", REJECTED, error=True).bash("ls", f"file {at}")
    return log.answer("Sorry.")


def test_a_score_without_a_reason_is_no_alarm() -> None:
    """A step of state SLOW whose monitors are silent is not stated."""
    steps: list[dict[str, Any]] = [{"role": "user", "content": "Go."}]
    for number in range(6):
        call = {"id": f"c{number}", "function": {"name": "bash", "arguments": f'{{"a": {number}}}'}}
        steps.append({"role": "assistant", "content": "I doubt it, hmm.", "tool_calls": [call]})
        steps.append({"role": "tool", "tool_call_id": f"c{number}", "content": f"error {number}"})
    policy = Policy(fsm=FSMSettings(slow_threshold=0.02, fast_threshold=0.01))
    session = Session(id="s", agent="any", messages=steps)
    session.calls = [ModelCall(position=at) for at in range(1, 13, 2)]
    outcomes, _ = outcomes_of(session, policy)
    assert any(each.state is FSMState.SLOW for each in outcomes)
    assert all(alarm.evidence for alarm in read_session(session, policy).alarms)


def test_every_list_that_is_cut_says_how_many_more(home: Path, capsys: Capture) -> None:
    """Of weeks the newest are shown, and the sums of those before; `--all` shows every row."""
    logs = [smooth(number).wait(0) for number in range(2, 10)]
    for number, log in enumerate(logs):
        for line in log.lines:
            day = datetime.fromisoformat(line["timestamp"]) + timedelta(weeks=number)
            line["timestamp"] = day.isoformat()
    write_all([*logs, *[rejecting(number) for number in range(20, 32)]], home)
    out = screen(capsys)
    assert "week of 2026-03-23 1 4" in out
    assert "3 earlier 15 36" in out
    assert "2026-02-02 13" not in out
    assert "15 more" in out
    assert "2 more with --all" in out
    out = screen(capsys, "--all")
    assert "2026-02-02 13" in out
    assert " more" not in out


def rejecting(number: int) -> Log:
    """A session with one rejected call, and why."""
    said = f"{REJECTED}To tell you how to proceed, the user said:\nnot here"
    return Log(number).user("Go.").bash("rm x", said, error=True).answer("Ok.")


def test_hours_are_those_of_the_calls_by_a_clock_that_is_named(
    home: Path, capsys: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A session through the evening has its steps in both rows, and the screen says that it is
    counted in both. Its project is that of its first folder, wherever it goes."""
    monkeypatch.setenv("TZ", "EST5EDT")
    time.tzset()
    log = Log(1).user("Go.").bash("ls", "a").wait(15 * 3600).bash("ls", "b").bash("ls", "c")
    log.lines[-1]["cwd"] = "/home/me/garden"
    write_all([log.answer("Done."), smooth()], home)
    out = screen(capsys)
    monkeypatch.undo()
    time.tzset()
    assert "hours, EST/EDT night, 22:00 to 6:00 2 5 " in out
    assert "day, 6:00 to 22:00 1 3 " in out
    assert "project shop 1 4 " in out
    assert "garden" not in out
    assert "Days and weeks are UTC. A worktree counts as its repository." in out
    assert (
        "A session counts in the project of its first folder, and in each other row that has calls "
        "of it: of 2 sessions 1 with calls by night and by day." in out
    )


def test_what_a_log_does_not_hold_is_said(home: Path, capsys: Capture) -> None:
    """Recordings without usage and times of calls: no zero, no hour."""
    said = [{"role": "user", "content": "Count."}, {"role": "assistant", "content": "One."}]
    record = {"id": "r", "messages": said, "started": "2026-02-02T23:00:00Z"}
    (home / "runs.jsonl").write_bytes(orjson.dumps(record))
    out = screen(capsys, str(home / "runs.jsonl"))
    assert "1 recorded session, Feb 2, 2026" in out
    assert "1 step (a step is one answer of a model), no usage in the log" in out
    assert "no time of calls in the log 1 1 not logged not logged" in out
    assert "$0" not in out


def test_a_log_without_an_answer_is_named(home: Path, capsys: Capture) -> None:
    """It is no session; `--all` has the name of its file."""
    write_all([smooth()], home)
    line = {"type": "user", "isMeta": True, "sessionId": Log(3).id, "message": {"content": "Hm."}}
    path = home / ".claude/projects/shop/none.jsonl"
    path.parent.mkdir(parents=True)
    path.write_text(json.dumps(line))
    assert "1 log without an answer of a model: not counted (--all has" in screen(capsys)
    assert f"1 log without an answer of a model: not counted: {path}." in screen(capsys, "--all")
    assert len(readings(capsys)) == 1


def test_without_tokens_the_longest_come_first() -> None:
    """Recordings may have neither dollars nor tokens; they have steps."""
    rows = {"a": SessionSums(steps=1), "b": SessionSums(steps=3), "c": SessionSums(steps=2)}
    assert [name for name, _ in largest(rows, 2)] == ["b", "c", "1 more"]


def test_time_is_that_of_model_tools_and_person(home: Path, capsys: Capture) -> None:
    """From one line of the log to the next, for whoever made it; a night is no waiting."""
    log = Log(1).user("Make the tests pass.").wait(20)
    log.answer("", ("Bash", {"command": "pytest"})).wait(110)
    log.result("1 passed").answer("Done.").wait(590).user("And the docs?").answer("Done, too.")
    log.wait(40_000).user("Thanks.").answer("You are welcome.")
    write_all([log], home)
    (session,) = readings(capsys)
    assert session["seconds"] == {"model": 60, "tool": 120, "person": 600, "away": 40_010}
    assert "10 min waiting for you, 2 min 0 s of tools (with the time you took to permit" in screen(
        capsys
    )


@pytest.mark.parametrize(
    "tool", ["ExitPlanMode", "AskUserQuestion", "mcp__x__ask_user", "question"]
)
def test_what_asks_the_person_waits_for_the_person(tool: str, home: Path, capsys: Capture) -> None:
    """A question or a plan that is shown is no work of a tool, nor is a call that was refused."""
    log = Log(1).user("Go.").bash("ls", "a").answer("", (tool, {})).wait(90).result("yes")
    log.answer("", ("Bash", {"command": "rm x"})).wait(40).result(REJECTED, error=True)
    log.user(INTERRUPTED).answer("Ok.").wait(20).user(INTERRUPTED)
    write_all([log], home)
    (session,) = readings(capsys)
    assert session["seconds"] == {"model": 80, "tool": 10, "person": 150}


def test_copilot_notes_how_long_it_waited_for_permission(home: Path, capsys: Capture) -> None:
    """From the request to its answer the person is waited for, the rest is the tool's."""
    events = [
        ("user.message", 0, {"content": "Go."}),
        ("assistant.message", 10, {"toolRequests": [{"toolCallId": "c", "name": "bash"}]}),
        ("permission.requested", 11, {}),
        ("permission.completed", 51, {}),
        ("tool.execution_complete", 56, {"toolCallId": "c", "success": True}),
    ]
    lines = [
        {"type": kind, "timestamp": f"2026-02-02T09:00:{at:02}Z", "data": data}
        for kind, at, data in events
    ]
    file = home / ".copilot/session-state/one/events.jsonl"
    file.parent.mkdir(parents=True)
    file.write_bytes(b"\n".join(map(orjson.dumps, lines)))
    (session,) = readings(capsys)
    assert session["seconds"] == {"model": 10, "tool": 6, "person": 40}


STATED = [{"step": each, "status": each} for each in ("completed", "in_progress", "pending")]


def told(name: str, *lists: dict[str, Any]) -> Log:
    """A session in which a tool is given these lists, one after another."""
    log = Log(1).user("Go.")
    for each in lists:
        log.answer("", (name, each)).result("ok")
    return log.answer("Done.")


def tasks(state: str) -> Log:
    """A session with two tasks, of which the first gets this state."""
    log = Log(1).user("Go.")
    for number in (1, 2):
        log.answer("", ("TaskCreate", {"subject": "it"})).result(
            f"Task #{number} created successfully: it"
        )
    log.answer("", ("TaskUpdate", {"taskId": "1", "status": state})).result("Updated task #1")
    return log.answer("Done.")


def without_text(output: int, thought: str = "") -> Log:
    """A session whose last answer has so many tokens, and no text in the log."""
    log = Log(1).user("Go.")
    log.usage["output_tokens"] = output
    log.answer("This is left out.")
    blocks = [{"type": "thinking", "thinking": thought}] if thought else []
    log.lines[-1]["message"]["content"] = blocks
    return log


OPEN = [{"content": "one", "status": "completed"}, {"content": "two", "status": "in_progress"}]


@pytest.mark.parametrize(
    ("log", "ending"),
    [
        (smooth(), {"how": "answered"}),
        (Log(1).user("Go.").answer("", ("Bash", {"command": "ls"})), {"how": "in a call"}),
        (Log(1).user("Go.").bash("ls", "a file"), {"how": "after a result"}),
        (Log(1).user("Go.").answer("\n"), {"how": "empty"}),
        (without_text(100), {"how": "not logged"}),
        (without_text(3), {"how": "empty"}),
        (without_text(100, thought="Hm."), {"how": "empty"}),
        (
            Log(1).user("Go.").bash("ls", "a").user(INTERRUPTED),
            {"how": "interrupted"},
        ),
        (Log(1).user("Go.").answer("Done.").user("More."), {"how": "unanswered"}),
        (
            Log(1)
            .user("Go.")
            .answer("", ("TodoWrite", {"todos": OPEN}))
            .result("ok")
            .answer("Done."),
            {"how": "answered", "open_items": 1},
        ),
        (
            Log(1).user("Delete it.").answer("Shall I really delete it?"),
            {"how": "answered", "asked": True},
        ),
        (Log(1).user("Delete it?").answer("Yes, shall **I?**"), {"asked": True}),
        (Log(1).user("Delete it.").answer("Shall I? I did. Please look."), {"asked": False}),
        (told("update_plan", {"plan": STATED}), {"how": "answered", "open_items": 2}),
        (told("", {"plan": STATED}), {"how": "answered", "open_items": 2}),
        (told("todowrite", {"todos": STATED}, {"todos": []}), {"open_items": 0}),
        (told("update_todo", {"todos": "- [x] one\n- [ ] two"}), {"open_items": 1}),
        (told("update_plan", {"plan": STATED}, {"plan": "1. Then the rest."}), {"open_items": 2}),
        (told("update_plan", {"plan": STATED}, {"x": {"plan": []}}), {"open_items": 2}),
        (told("create_order", {"plan": [{"status": "shipped"}]}), {"open_items": 0}),
        (tasks("completed"), {"how": "answered", "open_items": 1}),
        (tasks("in_progress"), {"how": "answered", "open_items": 2}),
        (
            Log(1).user("Go.").answer("Half is done.\n\n## Next steps\n\n- the rest"),
            {"how": "answered", "next_steps": True},
        ),
        (Log(1).user("Go.").answer("The next steps were easy."), {"next_steps": False}),
    ],
)
def test_the_end_of_a_session_is_stated_as_facts(
    log: Log, ending: dict[str, Any], home: Path, capsys: Capture
) -> None:
    """How it ended, open items, a question as its last words, and next steps."""
    write_all([log], home)
    (session,) = readings(capsys)
    none = {"open_items": 0, "asked": False, "next_steps": False}
    assert session["ending"] == {"how": session["ending"]["how"], **none, **ending}


@pytest.mark.parametrize(
    ("lists", "left"),
    [
        (["{plan: [{step: 'a [b] \\'c', status: 'pending'}]}"], 1),
        (['{"plan":[{"step":"]","status":"completed"}, {"status":"pending"}]}'], 1),
        (['{explanation: "x",\n plan: [\n {step: `a`, status: "in_progress"},\n]}'], 1),
        (["{plan: [{status: 'pending'}]}", "{plan: []}"], 0),
        (["{plan: [{status: 'pending'}]}", "{plan}"], 1),
        ([], 0),
    ],
)
def test_a_list_that_a_program_states_is_read(
    lists: list[str], left: int, home: Path, capsys: Capture
) -> None:
    """Codex's newest models call its tools by programs: the last list that is written out counts,
    however its words are quoted."""
    programs = [f"const r = await tools.update_plan({each}); text('[x]');" for each in lists]
    calls = [
        {"type": "custom_tool_call", "call_id": f"c{at}", "name": "exec", "input": program}
        for at, program in enumerate([*programs, "text([{status: 'pending'}])"])
    ]
    results = [
        {"type": "custom_tool_call_output", "call_id": call["call_id"], "output": "{}"}
        for call in calls
    ]
    said = {"type": "message", "role": "assistant", "content": [{"text": "Done."}]}
    items = [each for pair in zip(calls, results, strict=True) for each in pair]
    lines: list[tuple[str, Any]] = [("session_meta", {"id": "s", "cwd": "/home/me/shop"})]
    lines += [("response_item", item) for item in [*items, said]]
    file = home / ".codex/sessions/2026/02/02/rollout-s.jsonl"
    file.parent.mkdir(parents=True)
    times = [f"2026-02-02T09:00:{at:02}Z" for at in range(len(lines))]
    file.write_bytes(
        b"\n".join(
            orjson.dumps({"timestamp": at, "type": kind, "payload": payload})
            for at, (kind, payload) in zip(times, lines, strict=True)
        )
    )
    (session,) = readings(capsys)
    assert session["ending"]["open_items"] == left


def test_calls_without_a_time_are_no_newest_week(home: Path, capsys: Capture) -> None:
    """The weeks stand the newest first; what is of none stands below them."""
    log = Log(1).user("Go.").answer("Done.")
    for line in log.lines:
        del line["timestamp"]
    write_all([log, smooth()], home)
    out = screen(capsys)
    assert out.index("week of 2026-02-02") < out.index("(no time in the log)")


def test_a_limit_is_proposed_that_few_sessions_would_have_met(home: Path, capsys: Capture) -> None:
    """One runaway among many: the line of config is accepted as it stands."""
    logs = [smooth(number) for number in range(2, 32)]
    runaway = Log(1).user("Make the tests pass.")
    for number in range(200):
        runaway.bash("ls", f"file {number}")
    write_all([*logs, runaway], home)
    out = screen(capsys)
    assert "would have ended 1 of 31 sessions, and saved at most $0.88" in out
    line = out.partition("budgets: ")[2].partition("]")[0]
    config = home / "config.yaml"
    config.write_text(f"budgets: {line}]\n")
    assert main(["check-config", "--config", str(config)]) == 0


def test_without_a_runaway_no_limit_is_proposed(home: Path, capsys: Capture) -> None:
    """Sessions of the same cost: a limit would save nothing."""
    write_all([smooth(number) for number in range(2, 12)], home)
    assert "A limit of" not in screen(capsys)
