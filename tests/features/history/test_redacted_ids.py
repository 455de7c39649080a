"""Logs that were published with their ids masked: what was done and paid is the same."""

from __future__ import annotations

import json
import re
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from gateway.core.decision_settings import Policy
from gateway.features.history.log_file import LogFile
from gateway.features.history.reading import read_session
from gateway.features.history.summary import summarise
from gateway.steering.transcript.steps import extract
from tests.features.history.logs import PROGRAMS, counts, sessions, write_files

LOGS = Path(__file__).parent / "logs"
FILES = sorted(LOGS.rglob("*.json*"))
STYLES = ("REDACTED", "[REDACTED]", "<redacted>", "xxx", "", "00000000-0000-0000-0000-000000000000")
_ID = re.compile(r"(?:^|_)(?:uuid|id)$|(?:Id|Uuid|UUID|ID)$")


def masked(value: Any, style: str) -> Any:
    """A copy in which every id has the same value."""
    if isinstance(value, dict):
        return {
            key: style if isinstance(each, str) and _ID.search(key) else masked(each, style)
            for key, each in value.items()
        }
    return [masked(each, style) for each in value] if isinstance(value, list) else value


def raw_records(path: Path) -> list[Any]:
    """The records of a log. The scripted model counted the same tokens for each answer; here a
    prompt grows from answer to answer, as that of an agent does."""
    log = LogFile(path)
    values = list(log.records()) if log.name.endswith(".jsonl") else [log.document()]
    numbers: dict[str, int] = {}
    for value in values:
        message = value.get("message") if isinstance(value, dict) else None
        if isinstance(message, dict) and "usage" in message:
            number = numbers.setdefault(message["id"], len(numbers))
            message["usage"]["cache_read_input_tokens"] += number
    return values


def write_log(path: Path, folder: Path, style: str | None = None) -> Path:
    values = raw_records(path)
    folder.mkdir(exist_ok=True, parents=True)
    copy = folder / path.name
    kept = values if style is None else [masked(value, style) for value in values]
    copy.write_text("\n".join(map(json.dumps, kept)) + "\n")
    return copy


def sums(*paths: Path) -> tuple[Counter[str], list[Any]]:
    """The counts of all sessions, with those of a summary, and the calls of each step."""
    found = sessions(*paths)
    totals: Counter[str] = Counter()
    steps = []
    for session in found:
        totals.update(counts(session)._asdict())
        for step in extract(session.messages):
            steps.append([(each.name, each.arguments) for each in step.actions])
    summary = summarise([read_session(session, Policy()) for session in found])
    totals.update(paid=summary.total.tokens.total, summed=summary.total.steps)
    totals["dollars"] = round(summary.total.usd * 1e6)
    return totals, sorted(steps)


@pytest.mark.parametrize("style", STYLES)
@pytest.mark.parametrize("path", FILES, ids=lambda path: f"{path.parent.name}-{path.stem[:8]}")
def test_masked_ids_change_no_count(path: Path, style: str, tmp_path: Path) -> None:
    """Answers and calls are told apart by their place, time and tokens."""
    whole = write_log(path, tmp_path / "whole")
    assert sums(write_log(path, tmp_path / "masked", style)) == sums(whole)


def test_sessions_with_one_masked_id_are_paid_each(tmp_path: Path) -> None:
    """No answer is a copy of another because both lost their ids."""
    paths = [path for path in FILES if "cut" in path.parts or path.stem in ("0.140.0", "0.142.1")]
    wholes = [write_log(path, tmp_path / "whole") for path in paths]
    copies = [write_log(path, tmp_path / "masked", "REDACTED") for path in paths]
    assert sums(*copies) == sums(*wholes)
    assert len({session.id for session in sessions(*copies)}) == len(paths)


def test_a_masked_fork_shares_its_answers(tmp_path: Path) -> None:
    """A copy of an answer has the time and the content of the first."""
    folder = LOGS / "claude_code" / "2.1.332"
    names = ("47d4c21a-0dc2-4196-b5e0-29f462935166", "057d3b65-70bc-48ad-9a64-4b3e0877199d")
    copies = [write_log(folder / f"{name}.jsonl", tmp_path / "m", "xxx") for name in names]
    totals, _ = sums(*copies)
    assert (totals["steps"], totals["summed"]) == (14, 9)


@pytest.mark.parametrize("style", STYLES)
def test_a_masked_sub_agent_belongs_to_the_session_of_its_folder(
    style: str, tmp_path: Path
) -> None:
    """Each of several has an id of its own, and the session is their parent."""
    name = "bb4aa7f6-1635-443f-94e6-8a4fa5db650f"
    folder = LOGS / "claude_code" / "2.1.332"
    write_log(folder / f"{name}.jsonl", tmp_path, style)
    (agent,) = (folder / name / "subagents").iterdir()
    for number in (1, 2):
        copy = write_log(agent, tmp_path / name / "subagents", style)
        copy.rename(copy.with_name(f"agent-{number}.jsonl"))
    main, *agents = sorted(sessions(tmp_path), key=lambda each: each.id)
    assert (main.id, main.parent) == (name, "")
    assert [(each.id, each.parent) for each in agents] == [
        (f"{name}/agent-1", name),
        (f"{name}/agent-2", name),
    ]


@pytest.mark.parametrize("style", STYLES)
def test_masked_ids_of_openhands(style: str, tmp_path: Path) -> None:
    """Usage is in another file, in the order of the answers."""
    files = json.loads((PROGRAMS / "openhands-sdk-1.58.2.json").read_text())
    write_files(tmp_path / "whole", files)
    write_files(tmp_path / "masked", masked(files, style))
    assert sums(tmp_path / "masked") == sums(tmp_path / "whole")
