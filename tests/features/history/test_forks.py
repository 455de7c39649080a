"""Sessions that are copies of the beginning of others: what was paid and said once counts once."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from gateway.core.decision_settings import Policy
from gateway.features.history.reading import read_session
from gateway.features.history.summary import Summary, summarise
from tests.features.history.logs import sessions

LOGS = Path(__file__).parent / "logs"
Lines = list[dict[str, Any]]


def summary(*paths: Path) -> Summary:
    return summarise([read_session(session, Policy()) for session in sessions(*paths)])


def facts(found: Summary) -> tuple[int, int, int, int]:
    did = found.acts.did
    return found.total.steps, found.total.tokens.total, did["message"], did["interrupt"]


def codex_meta(name: str, **more: str) -> dict[str, Any]:
    payload = {"id": f"thread-{name}", "cwd": "/p", "cli_version": "0.142.3", **more}
    return {"type": "session_meta", "payload": payload}


def codex_turn(number: int, *, with_ids: bool) -> Lines:
    """A turn with a call and a last answer, in which nothing but the call has an id."""

    def item(**payload: Any) -> dict[str, Any]:
        return {"type": "response_item", "payload": payload}

    def counted(total: int) -> dict[str, Any]:
        last = {"input_tokens": 100, "output_tokens": 7, "total_tokens": 107}
        total_usage = {"input_tokens": total * 100, "output_tokens": 7 * total}
        info = {"total_token_usage": total_usage, "last_token_usage": last}
        return {"type": "event_msg", "payload": {"type": "token_count", "info": info}}

    def text(role: str, words: str, name: str) -> dict[str, Any]:
        ids = {"id": f"{name}_{number}"} if with_ids else {}
        return item(type="message", role=role, content=[{"type": "text", "text": words}], **ids)

    typed = {"type": "user_message", "message": f"task {number}"}
    call = {"name": "sh", "arguments": "{}", "call_id": f"call_{number}"}
    return [
        text("user", f"task {number}", "u"),
        {"type": "event_msg", "payload": typed},
        item(type="reasoning", summary=[]),
        item(type="function_call", **call),
        item(type="function_call_output", call_id=f"call_{number}", output="ok"),
        counted(2 * number - 1),
        text("assistant", "Done.", "m"),
        counted(2 * number),
    ]


def write_codex(folder: Path, name: str, day: int, lines: Lines) -> Path:
    """A rollout whose lines all have the time at which it was begun or forked."""
    path = folder / f"rollout-{name}.jsonl"
    stamped = [{"timestamp": f"2026-01-{day:02}T00:00:0{n % 9}Z", **e} for n, e in enumerate(lines)]
    path.write_text("\n".join(map(json.dumps, stamped)))
    return path


@pytest.mark.parametrize("with_ids", [True, False])
def test_codex_forks_of_forks_share_what_they_copied(tmp_path: Path, with_ids: bool) -> None:
    """A fork begins with the lines of the session it came from, under new times: each answer is
    known by its ids or, without any, by the count that it brought the session to."""
    turns = [codex_turn(number, with_ids=with_ids) for number in (1, 2, 3)]
    root = [codex_meta("root")]
    fork = [codex_meta("fork", forked_from_id="thread-root"), *root]
    again = [codex_meta("again", forked_from_id="thread-fork"), *fork]
    write_codex(tmp_path, "root", 1, [*root, *turns[0]])
    write_codex(tmp_path, "fork", 2, [*fork, *turns[0], *turns[1]])
    write_codex(tmp_path, "again", 3, [*again, *turns[0], *turns[1], *turns[2]])
    assert facts(summary(tmp_path)) == (6, 6 * 107, 3, 0)


def test_codex_sessions_that_are_no_forks_share_nothing(tmp_path: Path) -> None:
    """Two that say the same with the same tokens were both paid."""
    for day, name in enumerate(("one", "two"), 1):
        turn = [line for line in codex_turn(1, with_ids=False) if "call_id" not in line["payload"]]
        write_codex(tmp_path, name, day, [codex_meta(name), *turn])
    assert facts(summary(tmp_path))[:3] == (4, 4 * 107, 2)


def test_a_fork_of_claude_code_repeats_nothing_that_was_said() -> None:
    """Neither words nor interruptions of the session that it came from."""
    folder = LOGS / "claude_code" / "2.1.332"
    names = ("47d4c21a-0dc2-4196-b5e0-29f462935166", "057d3b65-70bc-48ad-9a64-4b3e0877199d")
    fork, origin = (folder / f"{name}.jsonl" for name in names)
    alone = [facts(summary(path)) for path in (fork, origin)]
    shared = facts(summary(fork, origin))
    assert (alone[0][0], alone[1][0], shared[0]) == (7, 7, 9)
    (forked,), (first,) = sessions(fork), sessions(origin)
    typed = {(turn.at, turn.text) for each in (forked, first) for turn in each.human}
    assert shared[2] == len(typed) == 4


def test_opencode_gives_new_ids_to_what_a_fork_copies(tmp_path: Path) -> None:
    """Its copies keep their times, tokens and texts."""

    def message(name: str, role: str, at: int, **part: Any) -> dict[str, Any]:
        info = {"id": f"msg_{name}", "role": role, "time": {"created": at}, "modelID": "m"}
        tokens = {"input": 10, "output": 5, "total": 15}
        finish = {"type": "step-finish", "tokens": tokens, "cost": 0.5}
        text = {"type": "text", "text": part["text"]}
        return {"info": info, "parts": [text, finish] if role == "assistant" else [text]}

    for name, end in (("a", 1_700_000_003_000), ("b", 1_700_000_009_000)):
        messages = [
            message(f"1{name}", "user", 1_700_000_001_000, text="go"),
            message(f"2{name}", "assistant", 1_700_000_002_000, text="done"),
            message(f"3{name}", "user", end, text=f"now {name}"),
            message(f"4{name}", "assistant", end + 1000, text="done"),
        ]
        info = {"id": f"ses_{name}", "title": name}
        (tmp_path / f"{name}.json").write_text(json.dumps({"info": info, "messages": messages}))
    found = summary(tmp_path)
    assert facts(found) == (3, 45, 3, 0)
    assert found.total.usd == 1.5
