"""`gateway runs outcome --import`: outcomes of benchmarks and plain files, by the client's ids."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from gateway.commands.runs import read_reports
from gateway.errors import ConfigError

SWE = {"total_instances": 3, "resolved_ids": ["a__b-1"], "unresolved_ids": ["a__b-2"]}
FILES: dict[str, tuple[str, list[tuple[Any, ...]]]] = {
    "plain.csv": (
        'id,outcome,score,comment\nt-1,success,0.5,"two\nlines"\nt-2,failure,,\n',
        [("t-1", "success", 0.5, "twolines", 3), ("t-2", "failure", None, "", 4)],
    ),
    "plain.jsonl": (
        '{"id": "t-1", "outcome": "other", "comment": "end"}\n\n{"id": 2, "outcome": "success"}',
        [("t-1", "other", None, "end", 1), ("2", "success", None, "", 3)],
    ),
    "swe.json": (
        json.dumps({**SWE, "error_ids": ["a__b-3"]}, indent=1),
        [
            ("a__b-1", "success", None, "", 4),
            ("a__b-2", "failure", None, "", 7),
            ("a__b-3", "failure", None, "", 10),
        ],
    ),
    "report.json": (
        json.dumps({"a__b-1": {"patch_exists": True, "resolved": True}}),
        [("a__b-1", "success", None, "", 1)],
    ),
    "tau.json": (
        json.dumps(
            [{"task_id": 7, "reward": 1.0, "trial": 0}, {"task_id": 7, "reward": 0.0, "trial": 1}]
        ),
        [("7", "success", 1.0, "", 1), ("7.1", "failure", 0.0, "", 1)],
    ),
    "tau2.json": (
        json.dumps({"simulations": [{"id": "x", "task_id": "t", "reward_info": {"reward": 0.4}}]}),
        [("t", "failure", 0.4, "", 1)],
    ),
}


@pytest.mark.parametrize("name", FILES)
def test_forms_of_files(name: str, tmp_path: Path) -> None:
    """Each entry with its id, outcome, score, comment and line."""
    text, expected = FILES[name]
    path = tmp_path / name
    path.write_text(text)
    found = read_reports(path, "run-{id}")
    told = [(f"run-{run}", *said, f"{path}:{line}") for run, *said, line in expected]
    rows = [(row.run_id, row.verdict, row.score, row.comment, row.evidence) for row in found]
    assert rows == told


@pytest.mark.parametrize(
    ("name", "text", "place"),
    [
        ("a.csv", "id,outcome\nt-1,success\nt-2,won\n", "a.csv:3: needs an id"),
        ("a.csv", "id,outcome\nt-1\n", "a.csv:2: needs an id"),
        ("a.jsonl", '{"id": 1, "outcome": "success"}\n\n{"id": 2,\n', "a.jsonl:3: no JSON"),
        ("a.jsonl", '{"id": 1, "outcome": "success"}\n[]\n', "a.jsonl:2: needs an id"),
        ("a.jsonl", '{"id": 1, "outcome": "success", "score": "high"}\n', "a.jsonl:1: needs"),
        ("a.json", '{\n"id" 1}', "a.json:2: no JSON"),
        ("a.json", "3", "a.json:1: needs"),
        ("none.json", "", "none.json:1: no JSON"),
    ],
)
def test_what_is_wrong_is_named_by_its_line(
    name: str, text: str, place: str, tmp_path: Path
) -> None:
    """Nothing of a wrong file is used."""
    path = tmp_path / name
    path.write_text(text)
    with pytest.raises(ConfigError, match=place):
        read_reports(path, "{id}")
    with pytest.raises(ConfigError, match="cannot be read"):
        read_reports(tmp_path / "missing.csv", "{id}")
