"""Sub-agents of Claude Code of which the lines of their session tell, each call counted once."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from gateway.cli import main
from steering_gateway_testing.claude_code_sessions import Log

Capture = pytest.CaptureFixture[str]
PROMPT = "Find every place where the totals of a cart are computed."
HAIKU = "claude-haiku-4-5-20251001"
AGENT = "a671c91"


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty home directory."""
    monkeypatch.setenv("HOME", str(tmp_path))
    return tmp_path


def explorer() -> Log:
    """The own log of a sub-agent: three answers, one of two calls, and its last words."""
    log = Log(1, sub_agent=AGENT).user(PROMPT)
    log.model = HAIKU
    log.usage = usage(0, 9_000)
    log.answer("I look.", ("Grep", {"pattern": "total"})).result("cart.py")
    log.usage = usage(9_000, 2_000)
    log.answer("", ("Read", {"file_path": "cart.py"})).result("def total()")
    log.usage = usage(11_000, 500)
    return log.answer("In cart.py.")


def usage(read: int, written: int) -> dict[str, Any]:
    """The usage of an answer that wrote to the cache for an hour."""
    return {
        "input_tokens": 3,
        "cache_read_input_tokens": read,
        "cache_creation_input_tokens": written,
        "cache_creation": {"ephemeral_5m_input_tokens": 0, "ephemeral_1h_input_tokens": written},
        "output_tokens": 20,
    }


def progress(line: dict[str, Any]) -> dict[str, Any]:
    """A line of a sub-agent as its session repeats it."""
    names = ("type", "timestamp", "uuid", "message", "requestId")
    inner = {name: line[name] for name in names if name in line}
    data = {"type": "agent_progress", "message": inner, "prompt": PROMPT, "agentId": AGENT}
    outer = {name: line[name] for name in ("sessionId", "cwd", "version", "timestamp")}
    ids = {"toolUseID": "agent_1", "parentToolUseID": "call_1", "uuid": f"p{line['uuid']}"}
    return {**outer, **ids, "type": "progress", "isSidechain": False, "data": data}


def session(lines: list[dict[str, Any]], result: dict[str, Any] | None) -> Log:
    """A session that starts the sub-agent, with these lines before the result of its call."""
    log = Log(1).user("Where is it?")
    order = {"description": "Find totals", "subagent_type": "Explore", "prompt": PROMPT}
    log.answer("", ("Task", order))
    log.lines += lines
    if result:
        result = {"agentId": AGENT, "prompt": PROMPT, "status": "completed", **result}
    log.user(
        [{"type": "tool_result", "tool_use_id": "call_1", "content": "In cart.py."}],
        **({"toolUseResult": result} if result else {}),
    )
    return log.answer("In cart.py.")


LAST = {"content": [{"type": "text", "text": "In cart.py."}], "usage": usage(11_000, 500)}
ENDED = {"status": "completed"}


def readings(capsys: Capture, *paths: Path) -> list[dict[str, Any]]:
    """The sessions as JSON objects."""
    assert main(["history", *map(str, paths), "--json"]) == 0
    return [json.loads(line) for line in capsys.readouterr().out.splitlines()]


def screen(capsys: Capture) -> str:
    """The printed screen, with single spaces."""
    assert main(["history"]) == 0
    return " ".join(capsys.readouterr().out.split())


def test_calls_in_lines_of_progress_count_under_the_kind_of_their_sub_agent(
    home: Path, capsys: Capture
) -> None:
    """With the last answer, which only the result of the parent's call has."""
    reported = [progress(line) for line in explorer().lines[:-1]]
    session(reported, LAST).write(home)
    found = {each["parent"] is None: each for each in readings(capsys)}
    agent = found[False]
    assert (agent["kind"], agent["task"], agent["models"]) == ("Explore", "Find totals", [HAIKU])
    assert (agent["steps"], agent["calls"], found[True]["steps"]) == (3, 2, 2)
    assert agent["unread"] == []
    tokens = {"input": 9, "cache_read": 20_000, "cache_write": 11_500, "output": 60}
    assert agent["tokens"] == {**tokens, "total": 31_569}
    usd = 9 * 1e-6 + 20_000 * 1e-7 + 11_500 * 2e-6 + 60 * 5e-6
    assert agent["usd"] == pytest.approx(usd)
    out = screen(capsys)
    assert f"sub-agents Explore 1 started 3 31.6k ${usd:.4f}" in out
    assert f"{HAIKU} sub-agents 3 31.6k" in out
    assert "1 session of claude-code" in out


@pytest.mark.parametrize("place", ["subagents", "beside", "sidechain", "other"])
def test_a_call_that_stands_in_two_places_counts_once(
    place: str, home: Path, capsys: Capture
) -> None:
    """In lines of progress, and in the sub-agent's own file, or between those of the session."""
    own = explorer()
    reported = [progress(line) for line in own.lines[:-1]]
    if place == "sidechain":
        lines = [{key: line[key] for key in line if key != "agentId"} for line in own.lines]
        for line, before in zip(lines[1:], lines, strict=False):
            line["parentUuid"] = before["uuid"]
        reported = [each for pair in zip(reported, lines, strict=False) for each in pair]
        reported.append(lines[-1])
    path = session(reported, LAST).write(home)
    if place == "subagents":
        own.write(home)
    elif place != "sidechain":
        written = own.write(home)
        folder = home / "other" if place == "other" else path.parent
        folder.mkdir(exist_ok=True)
        written.rename(folder / written.name)
    found = [each for each in readings(capsys, home) if each["parent"]]
    (agent,) = found
    assert (agent["steps"], agent["calls"], agent["tokens"]["total"]) == (3, 2, 31_569)
    assert agent["kind"] == "Explore"
    assert main(["history", str(home)]) == 0
    out = " ".join(capsys.readouterr().out.split())
    assert "5 steps (a step is one answer of a model), 33.8k tokens" in out


def test_of_a_sub_agent_without_a_log_the_last_answer_counts(home: Path, capsys: Capture) -> None:
    """The result states its tokens, no model, and how many calls it made: with more than the log
    has, its steps, tokens and cost are a floor. The row of a model that only it has says so."""
    session([], {**LAST, "totalToolUseCount": 2}).write(home)
    found = {each["parent"] is None: each for each in readings(capsys)}
    assert (found[True]["steps"], found[False]["steps"]) == (2, 1)
    assert (found[True]["answers_missing"], found[False]["answers_missing"]) == (False, True)
    out = screen(capsys)
    assert "at least 3 steps (a step is one answer of a model), at least 13.7k tokens" in out
    assert "sub-agents Explore 1 started ≥1 ≥11.5k unknown" in out
    assert "no model in the log sub-agents ≥1 ≥11.5k unknown" in out
    assert "1 sub-agent of which the log has only the last answer, or not all before it" in out
    assert "whose price is not known: no model in the log." in out
    assert main(["history", "show", found[False]["id"]]) == 0
    assert "at least 1 step, at least 11.5k tokens" in capsys.readouterr().out


@pytest.mark.parametrize("count", [2, None])
def test_a_sub_agent_whose_calls_are_all_in_the_log_is_no_floor(
    count: int | None, home: Path, capsys: Capture
) -> None:
    """As many calls as its result counts, or a result that counts none."""
    reported = [progress(line) for line in explorer().lines[:-1]]
    session(reported, {**LAST, "totalToolUseCount": count}).write(home)
    assert not any(each["answers_missing"] for each in readings(capsys))
    assert "≥" not in screen(capsys)


@pytest.mark.parametrize("result", [None, {"status": "async_launched"}, {"usage": {}}])
def test_a_result_without_tokens_is_no_answer(
    result: dict[str, Any] | None, home: Path, capsys: Capture
) -> None:
    """Such as that of a sub-agent that goes on in the background."""
    session([], result).write(home)
    assert [each["steps"] for each in readings(capsys)] == [2]


def test_a_last_answer_that_was_reported_counts_once(home: Path, capsys: Capture) -> None:
    """The result has the same prompt, and its complete output."""
    lines = [progress(line) for line in explorer().lines]
    lines[-1]["data"]["message"]["message"]["usage"]["output_tokens"] = 1
    session(lines, LAST).write(home)
    (agent,) = [each for each in readings(capsys) if each["parent"]]
    assert (agent["steps"], agent["tokens"]["output"]) == (3, 60)
