"""The ledger of a session: what returns over its runs."""

from __future__ import annotations

import json

from gateway.core.decision_settings import Policy
from gateway.steering.runs_of_transcript import ConversationFold


def called(number: int, command: str, result: str) -> list[dict]:
    """A shell command with its result."""
    call = {"id": f"c{number}", "type": "function"}
    call["function"] = {"name": "Bash", "arguments": json.dumps({"command": command})}  # type: ignore[assignment]
    return [
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "tool", "tool_call_id": f"c{number}", "content": result},
    ]


def sentences(runs: list[list[dict]]) -> list[str]:
    """The alarms of a session of these runs, each asked for in its own words."""
    messages: list[dict] = []
    for number, run in enumerate(runs):
        messages.append({"role": "user", "content": f"Now task number {number}, please."})
        messages += called(100 * number, "ls", f"file_{number}.py")
        messages += run
        messages.append({"role": "assistant", "content": f"Task {number} is done as you wished."})
    outcomes = ConversationFold(Policy()).extend(messages)
    return [alarm.sentence for each in outcomes for alarm in each.readings.alarms]


def test_a_setting_made_in_three_runs_is_an_alarm() -> None:
    """It names the command, the time, and where it began; two runs are none."""
    command = "git remote set-url origin git@example.test:team/app.git"
    runs = [called(100 * n + 1, command, "") for n in range(3)]
    assert sentences(runs[:2]) == []
    (sentence,) = sentences(runs)
    assert command[:40] in sentence
    assert "is run, for the third time in this session, first in run 1, step 2" in sentence


def test_what_only_looks_is_no_setting() -> None:
    """Neither a status nor a value that is read."""
    for command in ("git status", "git config --get user.name", "git remote -v"):
        assert sentences([called(100 * n + 1, command, f"x {n}") for n in range(4)]) == []
