"""opencode's sessions from its database, and from an export."""

from __future__ import annotations

import json
import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from gateway.features.history.session import Session
from tests.features.history.logs import PROGRAMS, Counts, counts, sessions

ROWS: dict[str, list[dict[str, Any]]] = json.loads((PROGRAMS / "opencode-1.18.33.json").read_text())


def write_database(path: Path) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    with closing(sqlite3.connect(path)) as database:
        for table, rows in ROWS.items():
            names = list(rows[0])
            database.execute(f"CREATE TABLE {table} ({', '.join(names)})")
            for row in rows:
                values = [json.dumps(v) if isinstance(v, dict) else v for v in row.values()]
                marks = ", ".join("?" * len(names))
                database.execute(f"INSERT INTO {table} VALUES ({marks})", values)
        database.commit()
    return path


def main_and_children(found: list[Session]) -> tuple[Session, list[Session]]:
    mains = [session for session in found if not session.parent]
    assert len(mains) == 1
    return mains[0], [session for session in found if session.parent == mains[0].id]


def test_the_database_has_what_the_program_counted_itself(tmp_path: Path) -> None:
    """Tokens and price are those in the program's own columns of each session."""
    found = sessions(write_database(tmp_path / "opencode.db"))
    main, children = main_and_children(found)
    assert counts(main)[:5] == Counts(9, 6, 5, 1, 2, 0)[:5]
    assert [counts(each)[:5] for each in children] == [(2, 1, 0, 0, 0)] * 2
    for session, row in zip(found, sorted(ROWS["session"], key=_started), strict=True):
        tokens = sum(value for name, value in row.items() if name.startswith("tokens_"))
        assert counts(session).tokens == tokens
        assert sum(call.cost_usd or 0 for call in session.calls) == pytest.approx(row["cost"])
        assert (session.title, session.version) == (row["title"], "1.18.33")
        assert session.project == "/project"
    assert main.lines == len(ROWS["message"]) + len(ROWS["part"])
    assert not main.reasons


def _started(row: dict[str, Any]) -> int:
    return int(row["time_created"])


def test_a_person_rejected_twice_with_and_without_words(tmp_path: Path) -> None:
    """A rejection is at the result that the model saw, an interruption behind what was stopped."""
    main, _ = main_and_children(sessions(write_database(tmp_path / "opencode.db")))
    rejected = [turn for turn in main.human if turn.kind == "reject"]
    assert [turn.text for turn in rejected] == ["", "Keep the file, rename it."]
    for turn in rejected:
        assert main.messages[turn.position]["role"] == "tool"
        assert main.messages[turn.position]["is_error"] is True
    stopped = next(turn for turn in main.human if turn.kind == "interrupt")
    assert "User aborted the command" in main.messages[stopped.position - 1]["content"]


def test_a_summary_takes_the_place_of_what_was_before_it(tmp_path: Path) -> None:
    """A compaction begins at the question that stands for all earlier messages."""
    main, _ = main_and_children(sessions(write_database(tmp_path / "opencode.db")))
    (at,) = main.compactions
    assert main.messages[at]["content"][0]["text"] == "What did we do so far?"
    assert main.messages[at + 1] == {"role": "assistant", "content": "Count the files"}


def test_an_export_is_the_session(tmp_path: Path) -> None:
    """An exported session has the counts and the keys of the stored one."""
    info = next(row for row in ROWS["session"] if not row["parent_id"])
    of = [row for row in ROWS["message"] if row["session_id"] == info["id"]]
    export = {
        "info": info,
        "messages": [
            {
                "info": {**row["data"], "id": row["id"]},
                "parts": [p["data"] for p in ROWS["part"] if p["message_id"] == row["id"]],
            }
            for row in of
        ],
    }
    (tmp_path / "session.json").write_text(json.dumps(export))
    (exported,) = sessions(tmp_path)
    stored, _ = main_and_children(sessions(write_database(tmp_path / "opencode.db")))
    assert counts(exported) == counts(stored)
    assert [call.key for call in exported.calls] == [call.key for call in stored.calls]


def test_reading_changes_no_file_of_a_live_database(tmp_path: Path) -> None:
    """What is only in the write-ahead log is read, and no file changes."""
    path = write_database(tmp_path / "opencode.db")
    with closing(sqlite3.connect(path)) as database:
        database.execute("PRAGMA journal_mode=WAL")
        database.execute("UPDATE session SET title = 'a newer title'")
        database.commit()
        before = _contents(tmp_path)
        assert sessions(path)[0].title == "a newer title"
        assert _contents(tmp_path) == before
        assert len(before) == 2


def _contents(folder: Path) -> dict[str, bytes]:
    """The files of a folder but for the database's shared memory, which holds its locks."""
    files = (file for file in folder.iterdir() if not file.name.endswith("-shm"))
    return {file.name: file.read_bytes() for file in files}


@pytest.mark.parametrize("kept", [16, 4000, 20_000])
def test_a_cut_off_database_is_noted(tmp_path: Path, kept: int) -> None:
    """A database that breaks off gives what can be read of it."""
    path = write_database(tmp_path / "opencode.db")
    path.write_bytes(path.read_bytes()[:kept])
    for session in sessions(path):
        assert session.messages


def test_broken_rows_are_noted(tmp_path: Path) -> None:
    """Each unreadable row and each unknown part has its reason."""
    path = write_database(tmp_path / "opencode.db")
    with closing(sqlite3.connect(path)) as database:
        for number, data in enumerate(("{", "[]", '{"type": "hologram"}')):
            query = "UPDATE part SET data = ? WHERE id = (SELECT id FROM part LIMIT 1 OFFSET ?)"
            database.execute(query, (data, number))
        database.commit()
    reasons = {reason for session in sessions(path) for reason in session.reasons}
    assert reasons == {"not an object in JSON (part)", "unknown type of part 'hologram'"}


def test_only_what_a_person_typed_is_said(tmp_path: Path) -> None:
    """Texts that the program added are sent to the model and not said."""
    parts = [
        {"type": "text", "text": "Called the Read tool", "synthetic": True},
        {"type": "text", "text": "a note to the screen", "ignored": True},
        {"type": "text", "text": "look"},
        {"type": "file", "mime": "image/png", "url": "data:image/png;base64,AA=="},
    ]
    messages = [{"info": {"id": "msg_1", "role": "user"}, "parts": parts}]
    export = {"info": {"id": "ses_1"}, "messages": messages}
    (tmp_path / "session.json").write_text(json.dumps(export))
    (session,) = sessions(tmp_path)
    assert [turn.text for turn in session.human] == ["look"]
    content = session.messages[0]["content"]
    assert [part.get("text") for part in content] == ["Called the Read tool", "look", None]


def test_each_step_of_a_message_is_an_answer(tmp_path: Path) -> None:
    """Older versions put all answers to a person into one message."""
    older = {"input": 10, "output": 5, "reasoning": 2}
    finish = [
        {"type": "step-finish", "tokens": older},
        {"type": "step-finish", "tokens": {**older, "total": 17}},
    ]
    start = {"type": "step-start"}
    texts = [{"type": "text", "text": text} for text in ("One.", "Two.")]
    thought = {"type": "reasoning", "text": "Hm."}
    parts = [start, thought, texts[0], finish[0], start, texts[1], finish[1]]
    message = {"id": "msg_1", "role": "assistant", "modelID": "m"}
    export = {"info": {"id": "ses_1"}, "messages": [{"info": message, "parts": parts}]}
    (tmp_path / "session.json").write_text(json.dumps(export))
    (session,) = sessions(tmp_path)
    assert counts(session) == (2, 0, 0, 0, 0, 15 + 17)
    assert [m["content"] for m in session.messages] == ["One.", "Two."]
    assert session.messages[0]["reasoning_content"] == "Hm."
