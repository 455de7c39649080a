"""Outcomes of runs in files: results of SWE-bench and tau-bench, and plain CSV or JSON lines."""

from __future__ import annotations

import csv
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from gateway.errors import ConfigError
from gateway.stores.learning import OutcomeRow
from gateway.stores.queries import OUTCOMES

_NEEDED = f"needs an id, and an outcome ({', '.join(OUTCOMES)}), `resolved` or `reward`"
_SWE = ("resolved_ids", "unresolved_ids", "error_ids", "empty_patch_ids")


def told_cli(run: str, outcome: str, **said: Any) -> OutcomeRow:
    """A report by the command; `run`: an id as the client knows it."""
    return OutcomeRow(run_id=run, tenant="", source="told_cli", verdict=outcome, at=0.0, **said)


def read_reports(path: Path, form: str) -> list[OutcomeRow]:
    """The outcomes of a file, all or none; `form` makes the client's id of one in the file, by its
    `{id}`. Raises: ConfigError with file and line."""
    found, line = list[OutcomeRow](), 1
    try:
        for line, row in _rows(path.suffix.lower(), path.read_text(encoding="utf-8-sig")):
            found.append(_report(row, f"{path}:{line}", form))
    except OSError as exc:
        raise ConfigError(f"{path}: cannot be read: {exc}") from exc
    except json.JSONDecodeError as exc:
        raise ConfigError(f"{path}:{line + exc.lineno - 1}: no JSON: {exc.msg}") from exc
    except (AttributeError, KeyError, TypeError, ValueError) as exc:
        raise ConfigError(f"{path}:{line}: {_NEEDED}") from exc
    return found


def _rows(suffix: str, text: str) -> Iterator[tuple[int, Any]]:
    """Each entry with its line: of a CSV, of JSON lines, or of one JSON value, which is a list
    (tau-bench), has `simulations` (tau2-bench) or lists of ids, or an entry by id (SWE-bench)."""
    lines, at = text.splitlines(), 0
    if suffix == ".csv":
        table = csv.DictReader(lines)
        yield from ((table.line_num, row) for row in table)
        return
    if suffix == ".jsonl":
        yield from ((n, line) for n, line in enumerate(lines, 1) if line.strip())
        return
    rows = json.loads(text)
    if isinstance(rows, dict) and _SWE[0] in rows:
        rows = [{"id": n, "resolved": k == _SWE[0]} for k in _SWE for n in rows.get(k, ())]
    elif isinstance(rows, dict):
        by_id = [{"id": name, **row} for name, row in rows.items() if isinstance(row, dict)]
        rows = rows.get("simulations", by_id)
    for row in rows:
        named = json.dumps(row.get("id", row.get("task_id")), ensure_ascii=False)
        at = max(text.find(named, at), at)
        yield text.count("\n", 0, at) + 1, row


def _report(entry: Any, place: str, form: str) -> OutcomeRow:
    row = json.loads(entry) if isinstance(entry, str) else entry
    reward = row.get("reward", (row.get("reward_info") or {}).get("reward"))
    name, score = row.get("id", row.get("instance_id")), row.get("score") or reward
    if name is None or reward is not None:  # tau-bench: one task may be tried several times
        name = f"{row['task_id']}.{row['trial']}" if row.get("trial") else row["task_id"]
    ended = row.get("resolved", None if reward is None else float(reward) >= 1.0)
    outcome = row.get("outcome") or {True: "success", False: "failure"}[ended]
    if outcome not in OUTCOMES:
        raise ValueError(outcome)
    number = None if score in (None, "") else float(score)
    said = {"score": number, "comment": str(row.get("comment") or ""), "evidence": place}
    return told_cli(form.replace("{id}", f"{name}"), outcome, **said)
