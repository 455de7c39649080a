"""opencode's sessions: a SQLite database in `~/.local/share/opencode`, before version 1.2 a folder
of JSON files there, or the document that `opencode export` prints.

All three hold the same objects: a session, its messages, and the parts of each message. An answer
goes from a `step-start` to a `step-finish` part, which has its tokens and its price.
"""

from __future__ import annotations

import json
import re
import sqlite3
from collections.abc import Iterable, Iterator, Mapping
from contextlib import closing
from pathlib import Path
from typing import Any

from gateway.history.log_file import LogFile
from gateway.history.session import ModelCall, Session
from gateway.steering.transcript.content import json_text
from gateway.steering.transcript.interventions import rejection
from gateway.steering.transcript.user_words import user_words
from gateway.wire.coerce import as_list, as_mapping, as_number, as_text

AGENT = "opencode"
_SQLITE = b"SQLite format 3\0"
_SESSION_FILE = re.compile(r"ses_\w+\.json")
_SILENT = frozenset(("snapshot", "patch", "agent", "retry", "subtask", "compaction", "step-start"))
"""Types of parts without text of a message. Source: the program's own schema, version 1.18."""
_COMPACTION_PROMPT = "What did we do so far?"  # sent instead of everything before a summary


def matches(head: bytes, name: str) -> bool:
    """See LogFormat."""
    if head.startswith(_SQLITE):
        return name.startswith("opencode") and name.endswith(".db")
    if _SESSION_FILE.fullmatch(name) and b'"time"' in head:
        return True
    return name.endswith(".json") and b'"messages"' in head and bool(_EXPORT.match(head))


_EXPORT = re.compile(rb'\s*\{\s*"info"\s*:\s*\{\s*"id"\s*:\s*"ses_')


_Object = Mapping[str, Any]
_Messages = list[tuple[_Object, list[_Object]]]
"""The messages of a session, each with its parts, in their order."""
_ROWS = {
    "part": "SELECT id, message_id AS owner, data FROM part WHERE session_id = ? ORDER BY id",
    "message": "SELECT id, id AS owner, data FROM message WHERE session_id = ? ORDER BY id",
}


def read(log: LogFile) -> Iterable[Session]:
    """See LogFormat."""
    if log.head().startswith(_SQLITE):
        stored = _from_database(log)
    elif _SESSION_FILE.fullmatch(log.name):
        stored = _from_files(log)
    else:
        stored = _from_export(log)
    for info, messages in stored:
        session = _session(info, messages, log)
        if session.messages:
            yield session


def _from_database(log: LogFile) -> Iterator[tuple[_Object, _Messages]]:
    try:
        with closing(_open(log.path)) as database:
            database.row_factory = sqlite3.Row
            for row in database.execute("SELECT * FROM session ORDER BY time_created, id"):
                info = dict(row)
                info["parentID"] = info.get("parent_id")
                parts: dict[str, list[_Object]] = {}
                for owner, part in _rows(database, "part", info["id"], log):
                    parts.setdefault(owner, []).append(part)
                rows = _rows(database, "message", info["id"], log)
                yield info, [(message, parts.get(name, [])) for name, message in rows]
    except (sqlite3.Error, IndexError) as exc:
        log.skip(f"the database cannot be read: {exc}", 0)


def _open(path: Path) -> sqlite3.Connection:
    """The database for reading, without any change to its files: a running opencode has it open."""
    wal = path.with_name(path.name + "-wal")
    live = wal.exists() and wal.stat().st_size > 0
    mode = "mode=ro" if live else "immutable=1"
    return sqlite3.connect(f"{path.resolve().as_uri()}?{mode}", uri=True)


def _rows(
    database: sqlite3.Connection, table: str, session: str, log: LogFile
) -> Iterator[tuple[str, _Object]]:
    """The owner and the object of each row of a session; ids grow with time."""
    for row in database.execute(_ROWS[table], (session,)):
        log.seen += 1
        try:
            found = json.loads(row["data"])
        except (ValueError, RecursionError, TypeError):
            found = None
        if isinstance(found, dict):
            yield str(row["owner"]), {**found, "id": row["id"]}
        else:
            log.skip(f"not an object in JSON ({table})")


def _from_files(log: LogFile) -> Iterator[tuple[_Object, _Messages]]:
    """The session of a file in `storage/session`; its messages and parts are files beside it."""
    info = as_mapping(log.document())
    name = as_text(info.get("id"), "") or log.stem
    root = log.path.parent.parent  # storage/session of this version, or with `info` of older ones
    root = root if root.name == "session" and log.path.parent.name == "info" else root.parent
    if not info or _is_in_database(root.parent, name):
        return
    messages: _Messages = []
    for path in sorted((root / "message" / name).glob("*.json")):
        if message := log.beside(path):
            folders = (root / "part" / path.stem, root / "part" / name / path.stem)
            files = [part for folder in folders for part in sorted(folder.glob("*.json"))]
            parts = [found for part in files if (found := log.beside(part))]
            messages.append(({"id": path.stem, **message}, [*parts]))
    yield {**info, "id": name}, messages


def _is_in_database(folder: Path, session: str) -> bool:
    """True if a newer opencode has taken this session over; it leaves the files where they are."""
    for path in sorted(folder.glob("opencode*.db")):
        try:
            with closing(_open(path)) as database:
                query = "SELECT 1 FROM session WHERE id = ?"
                if database.execute(query, (session,)).fetchone():
                    return True
        except sqlite3.Error:
            continue
    return False


def _from_export(log: LogFile) -> Iterator[tuple[_Object, _Messages]]:
    document = as_mapping(log.document())
    messages: _Messages = []
    for entry in map(as_mapping, as_list(document.get("messages"))):
        parts = [as_mapping(part) for part in as_list(entry.get("parts"))]
        log.seen += 1 + len(parts)
        messages.append((as_mapping(entry.get("info")), parts))
    yield as_mapping(document.get("info")), messages


def _session(info: _Object, messages: _Messages, log: LogFile) -> Session:
    session = Session(
        id=as_text(info.get("id"), "") or log.stem,
        agent=AGENT,
        version=as_text(info.get("version"), ""),
        project=as_text(info.get("directory"), ""),
        parent=as_text(info.get("parentID"), ""),
        title=as_text(info.get("title"), ""),
    )
    for message, parts in messages:
        at = session.at(as_mapping(message.get("time")).get("created"))
        if message.get("role") == "user":
            _user(session, parts, at, log)
        elif message.get("role") == "assistant":
            _assistant(session, message, parts, at, log)
        else:
            log.skip(f"unknown role {message.get('role')!r}")
    return session


def _user(session: Session, parts: list[_Object], at: float | None, log: LogFile) -> None:
    """Read a message of the user; texts that the program added are `synthetic`."""
    content: list[dict[str, Any]] = []
    typed = []
    for part in parts:
        kind, text = as_text(part.get("type"), ""), as_text(part.get("text"), "")
        if kind == "text" and part.get("ignored") is not True:
            content.append({"type": "text", "text": text})
            typed += [] if part.get("synthetic") is True else [user_words(text)]
        elif kind == "file":
            content.append({"type": "image_url", "image_url": {"url": part.get("url")}})
            typed.append("")
        elif kind == "subtask":
            content.append({"type": "text", "text": as_text(part.get("prompt"), "")})
            typed.append(as_text(part.get("prompt"), ""))
        elif kind == "compaction":
            content.append({"type": "text", "text": _COMPACTION_PROMPT})
        elif kind != "text" and kind not in _SILENT:
            log.skip(f"unknown type of part {kind!r}")
    if content:
        session.messages.append({"role": "user", "content": content})
        if typed and not session.parent:
            session.did("message", "\n".join(filter(None, typed)), at, back=1)


def _assistant(
    session: Session, message: _Object, parts: list[_Object], at: float | None, log: LogFile
) -> None:
    """Read a message of the model: one answer, in older versions several."""
    answers: list[list[_Object]] = [[]]
    for part in parts:
        if part.get("type") == "step-start" and answers[-1]:
            answers.append([])
        elif part.get("type") != "step-start":
            answers[-1].append(part)
    failure = as_text(as_mapping(message.get("error")).get("name"), "")
    if message.get("summary") is True and not failure:
        last = session.messages[-1:]
        prompted = bool(last) and json_text(last[0]["content"]).count(_COMPACTION_PROMPT) > 0
        session.compactions.append(len(session.messages) - prompted)
    for number, answer in enumerate(answers):
        _answer(session, message, answer, at, log, number)
    if failure == "MessageAbortedError" and not session.parent:
        session.did("interrupt", at=session.at(as_mapping(message.get("time")).get("completed")))


def _answer(
    session: Session,
    message: _Object,
    parts: list[_Object],
    at: float | None,
    log: LogFile,
    number: int,
) -> None:
    known: dict[str, list[_Object]] = {"text": [], "reasoning": [], "tool": [], "step-finish": []}
    for part in parts:
        kind = as_text(part.get("type"), "")
        if kind in known:
            known[kind].append(part)
        elif kind != "file" and kind not in _SILENT:
            log.skip(f"unknown type of part {kind!r}")
    if not any(known[kind] for kind in ("text", "tool", "step-finish")):
        return  # the call failed or was stopped before the model answered
    finish = known["step-finish"][0] if known["step-finish"] else message
    call = ModelCall(
        position=len(session.messages),
        model=as_text(message.get("modelID"), ""),
        usage=_usage(as_mapping(finish.get("tokens"))),
        at=at,
        key=f"{message.get('id')}:{number}",
        cost_usd=as_number(finish.get("cost"), None) or None,
    )
    session.calls.append(call)
    answer: dict[str, Any] = {"role": "assistant", "content": _text(known["text"])}
    if thoughts := _text(known["reasoning"]):
        answer["reasoning_content"] = thoughts
    if known["tool"]:
        answer["tool_calls"] = [_call(part) for part in known["tool"]]
    session.messages.append(answer)
    for part in known["tool"]:
        _result(session, part)


def _text(parts: list[_Object]) -> str:
    return "\n".join(as_text(part.get("text"), "") for part in parts)


def _call(part: _Object) -> dict[str, Any]:
    arguments = json_text(as_mapping(part.get("state")).get("input"))
    function = {"name": as_text(part.get("tool"), ""), "arguments": arguments}
    return {"id": as_text(part.get("callID"), ""), "type": "function", "function": function}


def _result(session: Session, part: _Object) -> None:
    state = as_mapping(part.get("state"))
    failed = state.get("status") == "error"
    default = "" if state.get("status") == "completed" else "[Tool execution was interrupted]"
    text = as_text(state.get("error" if failed else "output"), default)
    at = session.at(as_mapping(state.get("time")).get("end"))
    said = rejection(text) if failed else None
    if said is not None:
        session.did("reject", said, at)
    name = as_text(part.get("callID"), "")
    result = {"role": "tool", "tool_call_id": name, "content": text, "is_error": failed}
    session.messages.append(result)


def _usage(tokens: _Object) -> _Object:
    """The tokens in the provider's form; opencode counts cached and reasoning tokens apart."""
    cache = as_mapping(tokens.get("cache"))
    reasoning = as_number(tokens.get("reasoning"), 0.0)
    usage = {
        "input_tokens": tokens.get("input"),
        "cache_read_input_tokens": cache.get("read"),
        "cache_creation_input_tokens": cache.get("write"),
        "output_tokens": as_number(tokens.get("output"), 0.0) + reasoning,
        "output_tokens_details": {"reasoning_tokens": reasoning},
    }
    counts = (usage[name] for name in usage if name != "output_tokens_details")
    return usage if any(counts) else {}
