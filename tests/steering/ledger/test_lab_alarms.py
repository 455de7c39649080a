"""`python -m lab alarms` counts planted forms and runs, and lists what sessions have."""

from __future__ import annotations

import io
import json
from pathlib import Path

from lab.alarms import run_alarms
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


def test_each_kind_of_record_is_counted_apart(tmp_path: Path) -> None:
    """A loop within ten repetitions, a run by its outcome, a session with its sentences."""
    records = [
        {"id": "a", "form": "x", "kind": "loop", "marks": [*range(6)], "messages": transcript(6)},
        {"id": "b", "form": "y", "kind": "loop", "marks": [10] * 6, "messages": transcript(6)},
        {"id": "c", "source": "s", "success": False, "messages": transcript(2)},
        {"id": "d", "messages": transcript(6)},
    ]
    file = tmp_path / "records.jsonl"
    file.write_text("\n".join(map(json.dumps, records)), encoding="utf-8")
    out = io.StringIO()
    assert run_alarms([file], out=out) == 0
    text = out.getvalue()
    assert "planted, loop: 1 of 2 with an alarm, 50.0%" in text
    assert "s, failed: 0 of 1 with an alarm" in text
    assert "sessions: 1 of 1" in text
    assert "d\trun 0\t`pytest tests/test_a.py` failed in the same way, 3 tries" in text
