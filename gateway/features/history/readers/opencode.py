"""opencode's sessions: a SQLite database in `~/.local/share/opencode`, the files in folders there
that versions before 1.2 wrote, or the document that `opencode export` prints.

All hold the same objects: a session, its messages, and the parts of each message. An answer
goes from a `step-start` to a `step-finish` part, which has its tokens and its price."""

import json
import re
import sqlite3
from collections import defaultdict
from collections.abc import Iterable, Iterator
from contextlib import closing
from pathlib import Path

from gateway.features.history.log_file import LogFile
from gateway.features.history.session import (
    Session,
    add_call,
    chat_usage,
    epoch,
    joined,
    own_id,
    token_counts,
)
from gateway.steering.sub_agents import Order
from gateway.steering.transcript.client_texts import typed_words
from gateway.steering.transcript.content import json_text
from gateway.values import FieldDict, Fields
from gateway.wire.coerce import (
    as_mapping,
    as_number,
    as_text,
    mapping_at,
    mappings_at,
    text_at,
)

AGENT = "opencode"
_SQLITE = b"SQLite format 3\0"
_KINDS = re.compile(
    r"text|reasoning|tool|file|step-(?:start|finish)|snapshot|patch|agent|retry|subtask|compaction"
)
"""Types of parts. Source: the program's own schema, version 1.18."""
_TEXTS = ("text", "reasoning")
_COMPACTION_PROMPT = "What did we do so far?"  # sent instead of everything before a summary
_TITLE = re.compile(r"(.*) \(@([^\s()]+) subagent\)", re.DOTALL)  # of a sub-agent


_Object = Fields
_Messages = list[tuple[_Object, list[_Object]]]
"""The messages of a session, each with its parts, in their order."""


def read(log: LogFile) -> Iterable[Session]:
    """See LogFormat."""
    if log.head().startswith(_SQLITE):
        found = _from_database(log)
    elif log.name.startswith("ses_"):
        found = _from_files(log)
    else:
        found = _from_export(log)
    for info, messages in found:
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
                for part in _rows(database, "part", info["id"], log=log):
                    parts.setdefault(str(part["message_id"]), []).append(part)
                rows = _rows(database, "message", info["id"], log=log)
                yield info, [(message, parts.get(message["id"], [])) for message in rows]
    except (sqlite3.Error, IndexError, KeyError) as exc:
        log.skip(f"the database cannot be read: {exc}", 0)


def _open(path: Path) -> sqlite3.Connection:
    """The database for reading, without any change to its files: a running opencode has it open."""
    wal = path.with_name(path.name + "-wal")
    mode = "immutable=1"
    if wal.exists() and wal.stat().st_size > 0:
        mode = "mode=ro"
    return sqlite3.connect(f"{path.resolve().as_uri()}?{mode}", uri=True)


def _rows(
    database: sqlite3.Connection, table: str, session: str, log: LogFile
) -> Iterator[FieldDict]:
    """The objects in the rows of a session, with the columns beside them; ids grow with time."""
    query = f"SELECT * FROM {table} WHERE session_id = ? ORDER BY id"
    for row in database.execute(query, (session,)):
        log.seen += 1
        columns = dict(row)
        try:
            found = json.loads(columns.pop("data"))
        except (ValueError, RecursionError, TypeError):
            found = None
        if isinstance(found, dict):
            yield {**found, **columns}
        else:
            log.skip(f"not an object in JSON ({table})")


def _from_files(log: LogFile) -> Iterator[tuple[_Object, _Messages]]:
    """The session of a file, whose messages and parts are files in folders beside its own: a folder
    for each message, in versions before 0.6 inside one for each session. Names grow with time."""
    info = as_mapping(log.document())
    messages: _Messages = []
    for storage in log.path.parents[1:3]:
        for path in sorted(storage.glob(f"message/{log.stem}/*.json")):
            parts = sorted(storage.glob(f"part/{path.stem}/*.json"))
            parts += sorted(storage.glob(f"part/{log.stem}/{path.stem}/*.json"))
            messages.append((log.beside(path), [log.beside(part) for part in parts]))
    yield info, messages


def _from_export(log: LogFile) -> Iterator[tuple[_Object, _Messages]]:
    document = as_mapping(log.document())
    messages: _Messages = []
    for entry in mappings_at(document, "messages"):
        parts = mappings_at(entry, "parts")
        log.seen += 1 + len(parts)
        messages.append((mapping_at(entry, "info"), parts))
    yield mapping_at(document, "info"), messages


def _session(info: _Object, messages: _Messages, log: LogFile) -> Session:
    session = Session(
        id=own_id(info.get("id")) or log.stem,
        agent=AGENT,
        version=text_at(info, "version"),
        project=text_at(info, "directory"),
        parent=text_at(info, "parentID"),
        title=text_at(info, "title"),
    )
    if session.parent and (asked := _TITLE.fullmatch(session.title)):
        session.order = Order(task=asked[1], kind=asked[2])
    for message, parts in messages:
        at = session.at(mapping_at(message, "time").get("created"))
        for kind in (text_at(part, "type") for part in parts):
            if not _KINDS.fullmatch(kind):
                log.skip(f"unknown type of part {kind!r}")
        if message.get("role") == "user":
            _user(session, parts, at)
        elif message.get("role") == "assistant":
            _assistant(session, message, parts, at=at)
        else:
            log.skip(f"unknown role {message.get('role')!r}")
    return session


def _user(session: Session, parts: list[_Object], at: float | None) -> None:
    """Read a message of the user; texts that the program added are `synthetic`."""
    content: list[FieldDict] = []
    typed = []
    for part in parts:
        kind = text_at(part, "type")
        text = text_at(part, "text")
        if kind == "file":
            content.append({"type": "image_url", "image_url": {"url": part.get("url")}})
            typed.append("")
        elif kind == "compaction":
            content.append({"type": "text", "text": _COMPACTION_PROMPT})
        elif kind == "subtask":  # a command, whose prompt is the program's or of a file
            content.append({"type": "text", "text": text_at(part, "prompt")})
            if command := text_at(part, "command"):
                typed.append(f"/{command}")
        elif kind == "text" and part.get("ignored") is not True:
            content.append({"type": "text", "text": text})
            if part.get("synthetic") is not True and (words := typed_words(text)):
                typed.append(words)
    if content:
        session.user(content, at=at)
        if typed:
            session.did("message", joined(*typed), at, back=1)


def _assistant(session: Session, message: _Object, parts: list[_Object], at: float | None) -> None:
    """Read a message of the model: one answer, in older versions several."""
    answers: list[list[_Object]] = [[]]
    for part in parts:
        if part.get("type") == "step-start" and answers[-1]:
            answers.append([])
        elif part.get("type") != "step-start":
            answers[-1].append(part)
    failure = text_at(mapping_at(message, "error"), "name")
    if message.get("summary") is True and not failure:
        last = session.messages[-1:]
        prompted = bool(last) and json_text(last[0]["content"]).count(_COMPACTION_PROMPT) > 0
        session.compactions.append(len(session.messages) - prompted)
    for answer in answers:
        _answer(session, message, answer, at)
    if failure == "MessageAbortedError":
        session.did("interrupt", at=session.at(mapping_at(message, "time").get("completed")))


def _answer(session: Session, message: _Object, parts: list[_Object], at: float | None) -> None:
    of = defaultdict[str, list[_Object]](list)
    for part in parts:
        of[text_at(part, "type")].append(part)
    if not (of["text"] or of["tool"] or of["step-finish"]):
        return  # the call failed or was stopped before the model answered
    finish = next(iter(of["step-finish"]), message)
    answer = session.reply(
        *("\n".join(text_at(part, "text") for part in of[kind]) for kind in _TEXTS),
        model=text_at(message, "modelID"),
        usage=_usage(mapping_at(finish, "tokens")),
        at=at,  # which a fork keeps, whose messages have new ids
        cost_usd=as_number(finish.get("cost"), None) or None,
    )
    begun = [mapping_at(mapping_at(part, "state"), "time").get("start") for part in of["tool"]]
    moments = [epoch(moment) for moment in (*begun, mapping_at(message, "time").get("completed"))]
    session.wrote(next(filter(None, moments), None))
    for part in of["tool"]:
        state = mapping_at(part, "state")
        arguments = json_text(state.get("input"))
        add_call(answer, text_at(part, "callID"), text_at(part, "tool"), arguments=arguments)
        failed = state.get("status") == "error"
        default = "[Tool execution was interrupted]"
        if state.get("status") == "completed":
            default = ""
        text = as_text(state.get("error" if failed else "output"), default)
        ended = session.at(mapping_at(state, "time").get("end"))
        refused = None if failed else False
        session.result(part.get("callID"), text, ended, failed=failed, rejected=refused)


def _usage(tokens: _Object) -> _Object:
    """opencode counts cached tokens apart, and since it notes a `total` also those of reasoning,
    which older versions leave in the output."""
    count = token_counts(tokens)
    cache = token_counts(mapping_at(tokens, "cache"))
    thoughts = count["reasoning"]
    made = count["output"] + (thoughts if "total" in tokens else 0)
    prompt = count["input"] + cache["read"] + cache["write"]
    return chat_usage(prompt, made, cache["read"], written=cache["write"], thoughts=thoughts)
