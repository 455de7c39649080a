"""The first screen of `gateway history`: what was paid, for whom, what was paid again, and why."""

from __future__ import annotations

import json
from functools import partial
from pathlib import Path
from typing import Any

import orjson
import pytest

from gateway.cli import main
from gateway.features.history.prompt_cache import COMPACTION, MODEL, PAUSE, PREFIX
from gateway.features.history.reading import is_named
from gateway.features.history.screen import text_of
from gateway.features.history.summary import SessionSums, Summary, largest
from steering_gateway_testing.claude_code_sessions import (
    INTERRUPTED,
    REJECTED,
    Log,
    smooth,
    write_all,
)
from steering_gateway_testing.growth import exceeds_linear

Capture = pytest.CaptureFixture[str]
SIZES = [3_000, 12_000, 48_000]
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
    assert "sub-agents Review PR 0 (general-purpose) 4 14 15.4k $0.063 $0.0225" in out
    assert "Explore 1 1 1.1k $0.0045" in out
    agents = [each for each in readings(capsys) if each["parent"]]
    assert {each["kind"] for each in agents} == {"general-purpose", "Explore"}
    assert {each["task"] for each in agents} >= {"Review PR 3", "Find totals"}


def test_the_session_row_holds_what_its_sub_agents_cost(home: Path, capsys: Capture) -> None:
    """A session's money is that of its whole tree; another session beside it has its own."""
    write_all([*reviewing(4), smooth()], home)
    out = screen(capsys)
    assert "session Review all open pull requests. 1 21 23.1k $0.0945" in out
    assert "Rename the page. 1 4 4.4k $0.018" in out


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
    assert "sub-agents review changes (general) 3 3 3.3k $1.50 $0.5" in out


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
        log.wait(301)
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
    assert f" in 1 call {cause}" in screen(capsys)


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
    assert f"${usd:.3f} more than from the cache" in screen(capsys)


def test_a_cache_that_works_is_nothing_to_report(home: Path, capsys: Capture) -> None:
    """Small losses, as at the end of a prompt that changes, are below the threshold."""
    log = Log(1).user("Make the tests pass.")
    for number in range(10):
        cached(log, 50_000 + 500 * number, 500)
    write_all([log], home)
    assert "Cache: nothing to report." in screen(capsys)


def test_a_prompt_that_changes_at_every_call_is_named(home: Path, capsys: Capture) -> None:
    """A clock in the system prompt: hardly anything of a call is read from the cache."""
    log = Log(1).user("Make the tests pass.")
    for _ in range(8):
        cached(log, 0, 30_000)
    write_all([log], home)
    assert "In 1 session of claude-code hardly a call could use what" in screen(capsys)


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
    assert "You interrupted 1 time and rejected 2 calls in 3 messages." in out
    assert 'you rejected: "keep the first one"' in out
    shown = screen(capsys, "show", log.id)
    acts = [shown.count(f"you {what}") for what in ("interrupted", "rejected", "said")]
    assert acts == [1, 2, 3]


def test_an_alarm_that_names_an_object_and_a_count_is_found_in_one_pass() -> None:
    """Also in a long text, where each begins something that never ends."""
    assert is_named("`pytest` failed 3 times")
    assert is_named("3 times: `pytest`")
    assert not is_named("`pytest 3` failed")
    assert not is_named("3 times: pytest")
    assert not is_named("3 times: ``")
    for piece in ("1", "`", "1`", "`a", "1`\n", "``1"):
        found = exceeds_linear(
            lambda text: partial(is_named, text), lambda size, each=piece: each * size, SIZES
        )
        assert found == "", piece
    assert is_named("1`" * 100_000)
    assert not is_named("1" * 200_000 + "`")


def test_an_alarm_of_a_session_is_no_number_of_sessions() -> None:
    """Its kind has words of its own."""
    summary = Summary()
    summary.acts.alarmed = 1
    summary.acts.alarms["session"] = 1
    found = text_of("findings.txt", summary=summary, limit=None)
    assert "1 alarm in 1 session: 1 that returned in a later run." in found


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
    assert "10 min waiting for you, 2 min 0 s tools, 1 min 0 s the model" in screen(capsys)


OPEN = [{"content": "one", "status": "completed"}, {"content": "two", "status": "in_progress"}]


@pytest.mark.parametrize(
    ("log", "ending"),
    [
        (smooth(), {"how": "answered"}),
        (Log(1).user("Go.").answer("", ("Bash", {"command": "ls"})), {"how": "in a call"}),
        (Log(1).user("Go.").bash("ls", "a file"), {"how": "in a call"}),
        (
            Log(1).user("Go.").bash("ls", "a").user("[Request interrupted by user]"),
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
        (Log(1).user("Delete it?").answer("Yes, shall I?"), {"how": "answered", "asked": False}),
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
    """How it ended, open items, a question where an order was given, and next steps."""
    write_all([log], home)
    (session,) = readings(capsys)
    none = {"open_items": 0, "asked": False, "next_steps": False}
    assert session["ending"] == {"how": session["ending"]["how"], **none, **ending}


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
