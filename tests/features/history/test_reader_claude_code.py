"""Claude Code's session files: counts of an independent reader, and what each version writes."""

from __future__ import annotations

import json
import re
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from gateway.features.history.find import named
from gateway.features.history.log_file import LogFile
from gateway.features.history.session import Session
from gateway.steering.transcript.steps import extract
from gateway.wire.usage import tokens_of
from tests.features.history.logs import acts

LOGS = Path(__file__).parent / "logs" / "claude_code"
FORKED, RESUMED = "47d4c21a-0dc2-4196-b5e0-29f462935166", "057d3b65-70bc-48ad-9a64-4b3e0877199d"
IN_TERMINAL = "36e47382-d33d-47d3-8033-57ff35f0eb4f"
REFUSED = "The user doesn't want to"


def read(path: Path) -> list[Session]:
    return [each for found in named([path]) for each in found.sessions(LogFile(found.path))]


def one(name: str) -> Session:
    (session,) = [each for path in LOGS.rglob(f"{name}.jsonl") for each in read(path)]
    return session


def independent(path: Path, side: bool) -> Counter[str]:
    """Counts of the lines of a session, or of the sub-agents in it, by a reader of its own."""
    usage: dict[str, Any] = {}
    counts: Counter[str] = Counter()
    typed: list[str] = []
    sent: list[str] = []
    rejected = False  # the newest act, since the newest answer
    decoder = json.JSONDecoder()
    for text in path.read_text("utf-8", "replace").splitlines():
        try:
            entry = decoder.raw_decode(text)[0]
        except json.JSONDecodeError:  # a backslash that someone's tool left behind
            entry = json.loads(re.sub(r'\\(?!["\\/bfnrtu])', "", text))
        if entry["type"] == "queue-operation" and entry["operation"] == "enqueue":
            typed.append(entry["content"])
        elif entry["type"] == "queue-operation":
            words = typed.pop(0)
            if entry["operation"] == "remove":
                sent.append(words)
        message = entry.get("message") or {}
        if entry["type"] == "attachment" and entry["attachment"]["type"] == "queued_command":
            sent.remove(entry["attachment"]["prompt"])
            message = {"content": entry["attachment"]["prompt"]}
        if bool(entry.get("isSidechain")) is not side or message.get("model") == "<synthetic>":
            continue
        content: Any = message.get("content") or []
        content = [{"type": "text", "text": content}] if isinstance(content, str) else content
        if entry["type"] == "assistant":
            rejected = False
            usage[message["id"]] = message["usage"]
            counts["calls"] += sum(part["type"] == "tool_use" for part in content)
        elif not (side or entry.get("isMeta") or entry.get("isCompactSummary")):
            said = [part["text"].strip() for part in content if part["type"] == "text"]
            if any(each.startswith("[Request interrupted") for each in said):
                counts["interrupts"] += not rejected
            elif any(not each.startswith(("<command-name>", "<local-", "<task-")) for each in said):
                counts["said"] += 1
                rejected = False
            results = [part for part in content if part["type"] == "tool_result"]
            refused = sum(str(part["content"]).startswith(REFUSED) for part in results)
            counts["rejects"] += refused
            rejected = rejected or refused > 0
    counts["said"] += 0 if side else len(sent)
    counts["steps"] = len(usage)
    kinds = ("input_tokens", "output_tokens", "cache_creation_input_tokens")
    for each in usage.values():
        counts["tokens"] += sum(each[kind] for kind in (*kinds, "cache_read_input_tokens"))
    return +counts


def ours(sessions: list[Session]) -> Counter[str]:
    counts: Counter[str] = Counter()
    for session in sessions:
        counts["steps"] += len(session.calls)
        counts["calls"] += sum(len(step.actions) for step in extract(session.messages))
        counts["said"] += acts(session, "message")
        counts["interrupts"] += acts(session, "interrupt")
        counts["rejects"] += acts(session, "reject")
        counts["tokens"] += sum(sum(tokens_of(call.usage).values()) for call in session.calls)
    return +counts


@pytest.mark.parametrize("path", sorted(LOGS.rglob("*.jsonl")), ids=lambda path: path.name[:8])
def test_an_independent_reader_counts_the_same(path: Path) -> None:
    """Every line is understood, also those that were broken on the way."""
    sessions = read(path)
    assert sum(sum(each.reasons.values()) for each in sessions) == 0
    assert sum(each.lines for each in sessions) == len(path.read_bytes().splitlines())
    own = [each for each in sessions if not each.parent]
    assert ours(own) == independent(path, side=False)
    assert ours([each for each in sessions if each.parent]) == independent(path, side=True)


def test_a_fork_shares_its_answers_with_the_session_it_came_from() -> None:
    """Copied lines keep their message ids, by which an answer is paid once."""
    fork, origin = one(FORKED), one(RESUMED)
    shared = {call.key for call in fork.calls} & {call.key for call in origin.calls}
    assert (len(shared), len(fork.calls), len(origin.calls)) == (5, 7, 7)
    assert fork.id == FORKED
    assert [turn.text[:8] for turn in fork.human] == ["Look at ", "again [[", "fork it "]


@pytest.mark.parametrize("name", [RESUMED, "938aeb9f-77c3-4432-8e49-8bbd3869d2f0"])
def test_a_compaction_replaces_the_history(name: str) -> None:
    """The summary is one message, and what follows joins it."""
    session = one(name)
    (position,) = session.compactions
    summary = session.messages[position]
    assert summary["compact"] is True
    assert "Summary of the work so far." in json.dumps(summary)
    assert [turn.position for turn in session.human][-1] == position


def test_sub_agents_are_sessions_with_a_parent() -> None:
    """In a folder below the session, beside it, and between its lines."""
    found = {each.id: each for each in read(LOGS) if each.parent}
    assert all(name.startswith(f"{each.parent}/") for name, each in found.items())
    assert [name[:8] for name in sorted(found)] == ["7e6679ff", "a433fdd7", "bb4aa7f6"]
    assert all(len(each.calls) == 2 for each in found.values())
    assert not any(each.human for each in found.values())


def test_a_message_typed_while_the_model_works_counts_once() -> None:
    """Written as an attachment, or, in 2.0, in no line but those of the queue."""
    for name in (IN_TERMINAL, "a433fdd7-4e95-4fd7-b3b5-8e8754adaef7"):
        session = one(name)
        assert [t.text for t in session.human].count("typed while the tool ran") == 1
        assert "typed while the tool ran" in json.dumps(session.messages)


def test_words_of_a_rejection_are_the_persons() -> None:
    """Without the client's sentence around them."""
    session = one(IN_TERMINAL)
    rejects = [turn.text for turn in session.human if turn.kind == "reject"]
    assert rejects == ["use another name please", "", ""]
