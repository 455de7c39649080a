"""Logs of other machines: times, ids, folders and copies that no clean log has."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import orjson
import pytest

from gateway.cli import main
from steering_gateway_testing.claude_code_sessions import Log, write_all
from tests.features.history.logs import write_files

Capture = pytest.CaptureFixture[str]


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty home directory."""
    monkeypatch.setenv("HOME", str(tmp_path))
    return tmp_path


def printed(capsys: Capture, *options: str) -> str:
    assert main(["history", *options]) == 0
    return capsys.readouterr().out


def lines(capsys: Capture) -> list[dict[str, Any]]:
    return [orjson.loads(line) for line in printed(capsys, "--json").splitlines()]


@pytest.mark.parametrize(
    "stamp",
    [1_767_225_600_000_000_000, 1e300, -1, 0, True, "0001-01-01T00:00:00Z", "9999-12-31T23:59:59"],
)
def test_a_time_that_cannot_be_is_none(stamp: object, home: Path, capsys: Capture) -> None:
    """Nanoseconds, years 1 and 9999: the session counts, without a time."""
    log = Log(1).user("Go.").answer("Done.")
    for line in log.lines:
        line["timestamp"] = stamp
    write_all([log], home)
    assert lines(capsys)[0]["started"] is None
    assert "no time of calls in the log" in printed(capsys)


@pytest.mark.parametrize(("folder", "name"), [("/", "/"), ("/srv/api/", "api"), ("C:\\", "C:")])
def test_a_folder_at_the_root_has_a_name(
    folder: str, name: str, home: Path, capsys: Capture
) -> None:
    """No row of the table is without one."""
    write_all([Log(1, folder=folder).user("Go.").answer("Done.")], home)
    assert lines(capsys)[0]["project"] == name


def test_long_paths_of_one_name_differ_on_the_screen(home: Path, capsys: Capture) -> None:
    """Both ends of a path are shown, so that two that begin alike are no equal rows."""
    deep = "/home/me/" + "a-long-name/" * 6
    folders = (f"{deep}api", f"{deep}second/api", "/opt/" + "a-long-name/" * 6 + "api")
    for number, folder in enumerate(folders, 1):
        Log(number, folder=folder).user("Go.").answer("Done.").write(home)
    rows = printed(capsys).partition("\nproject ")[2].partition("\nsession ")[0].splitlines()
    names = {row.split("  1  ")[0].strip().split("  ")[0] for row in rows}
    assert len(names) == 3
    assert any(name.endswith("second/api") for name in names)


def codex(home: Path, name: str) -> None:
    """A session of Codex with a model whose server counts the calls of a session."""
    call = {"type": "function_call", "name": "sh", "arguments": "{}", "call_id": "functions.sh:0"}
    total = {"input_tokens": 100, "output_tokens": 7}
    info = {"total_token_usage": total, "last_token_usage": total}
    meta = {"id": name, "cwd": "/srv/shop", "cli_version": "0.142.3"}
    rows = [
        ("session_meta", meta),
        ("response_item", call),
        ("event_msg", {"type": "token_count", "info": info}),
    ]
    path = home / f".codex/sessions/2026/02/05/rollout-2026-02-05T10-00-00-{name}.jsonl"
    path.parent.mkdir(parents=True, exist_ok=True)
    stamped = [{"timestamp": "2026-02-05T10:00:00Z", "type": k, "payload": p} for k, p in rows]
    path.write_text("".join(json.dumps(line) + "\n" for line in stamped))


TWINS = ("0199abcd-0000-7000-8000-000000000000", "0199abcd-0001-7000-8000-000000000001")


def test_calls_that_a_server_numbers_are_no_copies(home: Path, capsys: Capture) -> None:
    """`functions.sh:0` is the first call of every session; each was paid."""
    for name in TWINS:
        codex(home, name)
    assert [each["tokens"]["total"] for each in lines(capsys)] == [107, 107]
    assert "\n2 steps" in printed(capsys)


def test_answers_without_id_and_time_are_no_copies(home: Path, capsys: Capture) -> None:
    """Of two sessions of Gemini CLI each is counted."""
    tokens = {"input": 9, "output": 1, "total": 10}
    said = {"type": "gemini", "content": "Done.", "model": "gemini-2.5-pro", "tokens": tokens}
    documents = {
        f".gemini/tmp/x/chats/session-{name}.json": {
            "sessionId": name,
            "projectHash": "0" * 64,
            "messages": [said],
        }
        for name in TWINS
    }
    write_files(home, documents)
    assert [each["steps"] for each in lines(capsys)] == [1, 1]
    assert "\n2 steps" in printed(capsys)


def test_a_beginning_of_several_ids_opens_none(home: Path, capsys: Capture) -> None:
    """Ids of one minute begin alike, in files of their own; the whole id opens its session."""
    for name in TWINS:
        codex(home, name)
    assert main(["history", "show", "0199abcd"]) == 2
    err = capsys.readouterr().err
    assert all(name in err for name in TWINS)
    for name in TWINS:
        assert printed(capsys, "show", name).startswith(f"{name}, codex")


def test_a_session_without_an_answer_is_shown(home: Path, capsys: Capture) -> None:
    """With what was typed in it."""
    log = Log(1).user("Mend the fence.")
    log.write(home)
    assert "you said: Mend the fence." in printed(capsys, "show", log.id, "--steps", "0")


def test_copies_of_a_session_are_one_session(home: Path, capsys: Capture) -> None:
    """A copy that ends early, in another folder: the sums are those of the whole, on the screen, in
    JSON and in what is shown."""
    log = Log(1).user("Go.").bash("ls", "a").bash("ls", "b").answer("Done.")
    log.write(home)
    copy = home / f".config/claude/projects/old/{log.id}.jsonl"
    copy.parent.mkdir(parents=True)
    copy.write_text("".join(json.dumps(line) + "\n" for line in log.lines[:3]))
    (session,) = lines(capsys)
    assert session["steps"] == 3
    out = printed(capsys)
    assert out.startswith("1 session of claude-code")
    assert "\n3 steps" in out
    assert ": 3 steps" in printed(capsys, "show", log.id[:8])


def test_json_adds_up_to_the_screen(home: Path, capsys: Capture) -> None:
    """What a resumed session holds of the one before is in one object alone."""
    first = Log(1).user("Go.").bash("ls", "a").answer("Done.")
    first.write(home)
    second = Log(2).wait(9000).user("Now the header.").answer("Done.")
    second.lines = [*first.lines, *second.lines]
    second.write(home)
    found = lines(capsys)
    assert [(each["steps"], each["said"]) for each in found] == [(2, 1), (1, 1)]
    assert sum(each["tokens"]["total"] for each in found) == 3300
    assert "\n3 steps (a step is one answer of a model), 3.3k tokens" in printed(capsys)


def test_a_link_to_the_folder_of_logs_doubles_nothing(home: Path, capsys: Capture) -> None:
    """Where both places of an agent are one, also a session without an answer counts once."""
    Log(1).user("Mend the fence.").write(home)
    (home / ".config").mkdir()
    (home / ".config/claude").symlink_to(home / ".claude")
    assert len(lines(capsys)) == 1
    assert "You typed 1 message," in printed(capsys)


def test_logs_that_cannot_be_read_are_not_missing(home: Path, capsys: Capture) -> None:
    """Each says what is wrong with it; that no log was found would not be true."""
    path = home / ".claude/projects/shop/broken.jsonl"
    path.parent.mkdir(parents=True)
    path.write_text("{")
    assert main(["history"]) == 2
    first, last = capsys.readouterr().err.splitlines()
    assert first.startswith(f"gateway: {path}:1: ")
    assert last == "gateway: no session could be read"


def test_a_session_without_an_answer_has_no_table(home: Path, capsys: Capture) -> None:
    """Nor a statement about times, of which its one message has one."""
    write_all([Log(1).user("Hello?")], home)
    out = printed(capsys)
    assert "0 steps (a step is one answer of a model)" in out
    assert "costliest" not in out
    assert "Days and weeks" not in out
    assert "Time: nothing to report." in out


def test_sub_agents_without_their_session_are_named_as_such(home: Path, capsys: Capture) -> None:
    """In each row, where sessions are counted; their time is not told, which is not unknown."""
    agents = [Log(1, sub_agent=f"a{n}").user("Find it.").answer("cart.py") for n in range(3)]
    write_all(agents, home)
    out = " ".join(printed(capsys).split())
    assert out.startswith("3 sub-agents, Feb 2, 2026 3 steps")
    assert "project shop sub-agents 3 3.3k" in out
    assert "sub-agents Find it. 3 started 3 3.3k" in out
    assert "Time: nothing to report." in out


def test_paths_and_what_is_asked_of_them_stand_in_any_order(home: Path, capsys: Capture) -> None:
    """Options may stand between them."""
    for number, folder in enumerate(("one", "two"), 1):
        log = Log(number).wait(9000 * number).user("Never push to the main branch.").answer("Ok.")
        write_all([log], home / folder)
    one, two = str(home / "one"), str(home / "two")
    asked = printed(capsys, one, two, "typed")
    assert "2 sentences in 2 sessions, Feb 2, 2026\n" in asked
    assert printed(capsys, "typed", one, two) == asked
    assert printed(capsys, one, "--jobs", "1", two, "typed") == asked
    shown = printed(capsys, one, "--steps", "0", "show", Log(1).id)
    assert "Never push" in shown
    with pytest.raises(SystemExit):
        main(["history", one, "--jobs", "1", "--nothing"])
