"""`gateway history` as a person uses it: what it prints, for what is there and for what is not."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import orjson
import pytest

from gateway.cli import main
from steering_gateway_testing.claude_code_sessions import REJECTED, Log, looping, smooth, write_all

Capture = pytest.CaptureFixture[str]


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty home directory."""
    monkeypatch.setenv("HOME", str(tmp_path))
    return tmp_path


def lines(capsys: Capture) -> list[dict[str, Any]]:
    """The JSON objects printed."""
    return [orjson.loads(line) for line in capsys.readouterr().out.splitlines()]


def test_the_screen_says_what_it_cost_and_where_it_went_wrong(home: Path, capsys: Capture) -> None:
    """Sums by project, model and week, and each place with the command that shows it."""
    write_all([looping(), smooth()], home)
    assert main(["history"]) == 0
    out = capsys.readouterr().out
    assert "2 sessions of claude-code, Feb 2, 2026" in out
    assert "16 steps (a step is one answer of a model), 17.6k tokens" in out
    for name in ("shop", "blog", "claude-sonnet-4-5-20250929", "2026-02-02"):
        assert name in out
    assert "You typed 3 messages, interrupted 1 time and rejected 0 calls." in out
    assert "failed in the same way" in out
    assert '2. shop, Feb 2: you interrupted, then said: "stop, the fixture is wrong' in out
    assert "show 00000000-0000-0000-0000-000000000001 --steps 6-11" in out
    assert len(out.split()) < 280


def test_nothing_at_home_is_said_with_the_places_looked_in(home: Path, capsys: Capture) -> None:
    """A machine without sessions: one line that names the folders, each whole."""
    assert main(["history"]) == 2
    err = capsys.readouterr().err
    assert "~/.claude/projects/**/*.jsonl, ~/.config/claude/projects/**/*.jsonl, " in err
    assert "~/.local/share/opencode/opencode*.db, " in err
    assert err.count("\n") == 1


@pytest.mark.parametrize(
    ("options", "fault"),
    [
        (["--since", "2030-01-01"], "no session fits --since\n"),
        (["--since", "7d", "--agent", "aider"], "no session fits --since and --agent\n"),
        (["--project", "x"], "no session fits --project\n"),
    ],
)
def test_only_options_that_were_given_are_named(
    options: list[str], fault: str, home: Path, capsys: Capture
) -> None:
    """Where no session fits them."""
    smooth().write(home)
    assert main(["history", *options]) == 2
    assert capsys.readouterr().err.endswith(fault)


def test_a_log_without_an_answer_is_no_session(home: Path, capsys: Capture) -> None:
    """It is said as it is, and not as options that nobody gave."""
    log = Log()
    log.lines.append({"type": "summary", "summary": "x", "leafUuid": "y"})
    log.write(home)
    assert main(["history"]) == 2
    assert capsys.readouterr().err.endswith("no log has an answer of a model\n")


def test_a_session_without_usage_has_no_number_of_tokens(home: Path, capsys: Capture) -> None:
    """`show` says that none is in the log."""
    said = [{"role": "user", "content": "Count."}, {"role": "assistant", "content": "One."}]
    (home / "runs.jsonl").write_bytes(orjson.dumps({"id": "one", "messages": said}))
    assert main(["history", str(home / "runs.jsonl"), "show", "one"]) == 0
    out = capsys.readouterr().out
    assert "1 step, no usage in the log" in out
    assert "tokens" not in out


def test_json_counts_each_session(home: Path, capsys: Capture) -> None:
    """One object per session, oldest first, with counts, tokens and alarms."""
    write_all([looping(), smooth()], home)
    assert main(["history", "--json"]) == 0
    first, second = lines(capsys)
    assert first["agent"] == "claude-code"
    counts = {name: first[name] for name in ("steps", "calls", "said", "interrupts", "rejects")}
    assert counts == {"steps": 12, "calls": 12, "said": 2, "interrupts": 1, "rejects": 0}
    assert first["tokens"]["input"] == 12_000
    assert first["tokens"]["total"] == 13_200
    assert first["usd"] == pytest.approx(12 * (1000 * 3e-6 + 100 * 15e-6))
    assert first["alarms"]
    assert (second["project"], second["folder"]) == ("blog", "/home/me/blog")
    assert second["alarms"] == []


@pytest.mark.parametrize(
    ("options", "found"),
    [
        (["--project", "blog"], ["blog"]),
        (["--agent", "codex"], []),
        (["--agent", "claude-code", "--project", "SHOP"], ["shop"]),
        (["--since", "2026-02-02"], ["shop", "blog"]),
        (["--since", "2026-02-03"], []),
    ],
)
def test_sessions_are_chosen(
    options: list[str], found: list[str], home: Path, capsys: Capture
) -> None:
    """By project, agent and date."""
    write_all([looping(), smooth()], home)
    assert main(["history", "--json", *options]) == 0
    assert [each["project"] for each in lines(capsys)] == found
    assert main(["history", *options]) == (0 if found else 2)


@pytest.mark.parametrize("text", ["yesterday", "7", "d", "2026-13-01"])
def test_a_wrong_date_is_refused(text: str, home: Path, capsys: Capture) -> None:
    """The message names the option and shows forms that are right."""
    assert main(["history", "--since", text]) == 2
    assert "--since" in capsys.readouterr().err


def test_the_copy_of_a_session_costs_nothing(home: Path, capsys: Capture) -> None:
    """A resumed session's copy holds the same answers: they count once."""
    log = looping()
    log.write(home)
    copy = home / ".claude/projects/copy" / f"{smooth().id}.jsonl"
    copy.parent.mkdir(parents=True)
    copy.write_bytes(b"".join(orjson.dumps(line) + b"\n" for line in log.lines))
    assert main(["history"]) == 0
    out = capsys.readouterr().out
    assert "12 steps (a step is one answer of a model), 13.2k tokens" in out
    assert "not counted again: 1" in out


def test_show_prints_the_steps_asked_for(home: Path, capsys: Capture) -> None:
    """A session is found by the beginning of its id; the person's words are between the steps."""
    path = looping().write(home)
    assert main(["history", "show", path.stem[:13], "--steps", "11-"]) == 0
    out = capsys.readouterr().out
    assert "Bash: pytest tests/test_cart.py" in out
    assert "assert 3 == 4" in out
    assert "you interrupted" in out
    assert "you said: stop, the fixture is wrong" in out
    assert "step 11, difficulty 0." in out
    assert "step 10," not in out


def test_show_takes_the_name_of_a_file(home: Path, capsys: Capture) -> None:
    """Of a log that has another name than the session's id."""
    path = smooth().write(home)
    path = path.rename(path.with_name("kept-log.jsonl"))
    assert main(["history", str(path), "show", "kept-log"]) == 0
    assert smooth().id in capsys.readouterr().out


def refusal(words: list[str], home: Path, capsys: Capture) -> str:
    """The errors of a command about one session that is refused."""
    looping().write(home)
    assert main(["history", *words]) == 2
    return capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "fault"),
    [
        (["show", "ffff"], "sessions whose ids begin with 'ffff': none"),
        (["show", "00000000", "--steps", "x"], "--steps: 'x' is not a range"),
        (["show", "00000000", "--steps", "40"], "the session has the steps 0 to 11"),
    ],
)
def test_show_says_what_it_cannot_find(
    words: list[str], fault: str, home: Path, capsys: Capture
) -> None:
    """One line that names what was asked for."""
    assert fault in refusal(words, home, capsys)


def test_secrets_are_masked(home: Path, capsys: Capture) -> None:
    """Neither the list nor the steps show a key that was typed or printed."""
    key = "sk-ant-api03-" + "aB3" * 20
    log = Log().user(f"use {key}").bash(f"export KEY={key}", f"KEY={key}")
    log.answer("", ("Bash", {"command": f"curl -H 'x-api-key: {key}' localhost"}))
    log.result(f"{REJECTED}To tell you how to proceed, the user said:\nnot with {key}", error=True)
    path = log.write(home)
    for words in (["history"], ["history", "--json"], ["history", "show", path.stem]):
        assert main(words) == 0
        out = capsys.readouterr().out
        assert key not in out
        assert key[:20] not in out


def test_a_broken_file_does_not_hide_the_others(home: Path, capsys: Capture) -> None:
    """Its problem is one line, and the exit status says that not all was read."""
    smooth().write(home)
    broken = home / ".claude/projects/x/broken.jsonl"
    broken.parent.mkdir(parents=True)
    broken.write_bytes(b'{"type": "user", "sessionId"\n' * 3)
    assert main(["history"]) == 1
    captured = capsys.readouterr()
    assert "1 session of claude-code" in captured.out
    assert captured.err.count("\n") == 1
    assert "broken.jsonl:1: not JSON" in captured.err


def test_a_hostile_session_reaches_the_terminal_as_text(home: Path, capsys: Capture) -> None:
    """Control characters in names and texts, and counts that no provider reports."""
    log = Log(folder="/home/me/\x1b]0;owned\x07shop").user("hi \x1b[2J there")
    log.bash("printf '\x1b[31m'", "\x1b[2Jred")
    for line in log.lines[1:]:
        line["version"] = "\x1b[5m2.1"
        if line["type"] == "assistant":
            line["message"]["model"] = "\x1b[31mevil"
            line["message"]["usage"] = {"input_tokens": 10**30, "output_tokens": -5}
    path = log.write(home)
    for words in (["history"], ["history", "--json"], ["history", "show", path.stem]):
        assert main(words) == 0
        out = capsys.readouterr().out
        assert "\x1b" not in out
        assert "\x07" not in out


def test_only_the_sessions_asked_for_are_kept(
    home: Path, capsys: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The choice holds inside a file, too: a recording may hold sessions of several days."""
    monkeypatch.chdir(home)
    monkeypatch.setenv("XDG_STATE_HOME", str(home / "state"))
    said = [{"role": "user", "content": "Count."}, {"role": "assistant", "content": "One."}]
    days = ("2026-02-02T09:00:00Z", "2026-02-09T09:00:00Z")
    records = [{"id": day[:10], "messages": said, "started": day} for day in days]
    (home / "runs.jsonl").write_bytes(b"\n".join(map(orjson.dumps, records)))
    assert main(["history", "runs.jsonl", "--since", "2026-02-05", "--keep"]) == 0
    assert "kept 1 session as past runs" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("words", "fault"),
    [
        (["--steps", "1-2"], "--steps: only with"),
        (["--json", "--keep"], "--keep: not with --json"),
        (["show", "00000000", "--json"], "show: prints one session"),
        (["show", "00000000", "--keep"], "show: prints one session"),
    ],
)
def test_options_that_would_do_nothing_are_refused(
    words: list[str], fault: str, home: Path, capsys: Capture
) -> None:
    """Instead of being left out silently."""
    assert fault in refusal(words, home, capsys)
