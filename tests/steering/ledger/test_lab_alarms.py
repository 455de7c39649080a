"""`python -m lab alarms` counts planted forms and runs, and lists what sessions have."""

from __future__ import annotations

import io
import json
from pathlib import Path

from lab.alarms import run_alarms, share_line
from tests.steering.ledger.test_ledger import ran


def transcript(count: int) -> list[dict]:
    """One failing test, run so many times."""
    messages: list[dict] = [{"role": "user", "content": "Repair it."}]
    for n in range(count):
        action = ran().actions[0]
        call = {"id": f"c{n}", "type": "function"}
        call["function"] = {"name": action.name, "arguments": action.arguments}  # type: ignore[assignment]
        messages.append({"role": "assistant", "content": None, "tool_calls": [call]})
        messages.append({"role": "tool", "tool_call_id": f"c{n}", "content": action.observation})
    return messages


def printed(tmp_path: Path, records: list[dict[str, object]]) -> str:
    """The tables of these records."""
    file = tmp_path / "project.jsonl"
    file.write_text("\n".join(map(json.dumps, records)), encoding="utf-8")
    out = io.StringIO()
    assert run_alarms([file], out=out) == 0
    return out.getvalue()


def test_each_kind_of_record_is_counted_apart(tmp_path: Path) -> None:
    """A loop within ten repetitions, a run by its outcome, a session with its sentences."""
    records: list[dict[str, object]] = [
        {"id": "a/x", "form": "x", "kind": "loop", "marks": [*range(6)], "messages": transcript(6)},
        {"id": "a/y", "form": "y", "kind": "loop", "marks": [10] * 6, "messages": transcript(6)},
        {"id": "b/z", "form": "z", "kind": "innocent", "marks": [0], "messages": transcript(1)},
        {"id": "c", "source": "s", "success": False, "messages": transcript(2)},
        {"id": "d", "messages": transcript(6)},
    ]
    text = printed(tmp_path, records)
    assert "planted, loop: 1 of 2 (50.0 %) [9.5, 90.5]" in text
    assert "planted, a, loop: 1 of 2" in text
    assert "0: 1 of 2 forms: y\n1: 1 of 2 forms: x" in text
    assert "planted, b, innocent: 0 of 1" in text
    assert "s, failed: 0 of 1" in text
    assert "all others, failed: 0 of 1" in text
    assert "sessions of project: 1 of 1" in text
    assert "d\trun 0\t`pytest tests/test_a.py` failed in the same way, 3 tries" in text


def test_what_follows_a_second_strike_would_be_saved(tmp_path: Path) -> None:
    """A run that fails on after a text is struck, and what it took after that is a share of all
    tokens; a short one is not."""
    runs = [
        {"id": "a", "source": "swe-x", "success": False, "messages": transcript(30)},
        {"id": "b", "source": "swe-x", "success": True, "messages": transcript(2)},
    ]
    text = printed(tmp_path, runs)
    strikes = text[text.index("with a second strike") :]
    assert "all coding, failed: 1 of 1" in strikes
    assert "all coding, solved: 0 of 1" in strikes
    saved = float(strikes.split("tokens after it: ")[1].split(" %")[0])
    assert 50 < saved < 100
    assert "that reach FAST:" in text


def test_a_share_has_its_interval() -> None:
    """Also at none and at all of them, where it is not empty."""
    assert share_line([0, 144]) == "0 of 144 (0.0 %) [0.0, 2.6]"
    assert share_line([4, 4]) == "4 of 4 (100.0 %) [51.0, 100.0]"
