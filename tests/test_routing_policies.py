"""`python -m lab routing`: routing policies on recorded tasks that several models ran."""

from __future__ import annotations

import gzip
import io
import json
from pathlib import Path
from typing import Any

import pytest

from gateway.errors import ConfigError
from gateway.offline.replay import policy_from_dict
from lab.__main__ import main as lab
from lab.prices import prices_of
from lab.routing import run_routing

PRICES = {"prices": {"dear": {"input": 10, "output": 30}, "cheap": {"input": 1, "output": 3}}}


def a_run(source: str, task: int, model: str, *, success: bool) -> dict[str, Any]:
    return {
        "id": f"{source}/{task}/{model}",
        "source": source,
        "model": model,
        "group": f"{source}-{task}",
        "success": success,
        "messages": [
            {"role": "user", "content": "Do it. " * 200},
            {"role": "assistant", "content": f"Done by {model}."},
        ],
    }


def recordings(path: Path) -> Path:
    """In one source only the dear model solves tasks; in the other both do; some tasks had one."""
    runs = []
    for task in range(30):
        runs.append(a_run("hard", task, "dear", success=task % 5 != 0))
        runs.append(a_run("hard", task, "cheap", success=task % 5 == 1))
        runs.append(a_run("easy", task, "dear", success=True))
        runs.append(a_run("easy", task, "cheap", success=task % 10 != 0))
        runs.append(a_run("alone", task, "cheap", success=True))
    with gzip.open(path, "wt", encoding="utf-8") as file:
        file.writelines(json.dumps(run) + "\n" for run in runs)
    return path


def compared(path: Path, *names: str, **routing: Any) -> dict[str, dict[str, Any]]:
    out = io.StringIO()
    about: dict[str, Any] = {"policy": policy_from_dict({"routing": routing})}
    about |= {"prices": prices_of(PRICES)}
    run_routing([path], names, **about, as_json=True, out=out, jobs=1)
    return {row["policy"]: row for row in json.loads(out.getvalue())}


def test_the_learned_policy_buys_success_where_it_is_to_be_had(tmp_path: Path) -> None:
    """It pays for the dear model where that helps, decided for each task by the other tasks; so it
    solves more than a coin that spends as much."""
    path = recordings(tmp_path / "runs.jsonl.gz")
    names = ("learned", "states", "cheapest", "dearest", "always:dear")
    found = compared(path, *names, regret=10)
    learned = found["learned"]
    assert learned["tasks"] == 60, "tasks of one model compare nothing"
    assert learned["given"] == {"cheap": 30, "dear": 30}
    assert learned["over_coin"]["value"] > 8
    assert learned["over_coin"]["low"] > 0
    assert learned["success"]["value"] >= found["states"]["success"]["value"]
    assert learned["cost_usd"] < found["dearest"]["cost_usd"]
    assert found["cheapest"]["over_coin"]["value"] == pytest.approx(0)
    assert found["dearest"]["over_coin"]["value"] == pytest.approx(0)
    assert found["always:dear"]["success"] == found["dearest"]["success"]
    # No run of these is in trouble.
    assert found["states"]["given"] == {"cheap": 60}
    # With more regret allowed, nothing is paid for.
    assert compared(path, "learned", regret=100)["learned"]["given"] == {"cheap": 60}


def test_the_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A table of the policies, and a clear refusal of what cannot be compared."""
    path = recordings(tmp_path / "runs.jsonl.gz")
    config = tmp_path / "prices.yaml"
    config.write_text(json.dumps(PRICES))
    asked = ["routing", str(path), "--config", str(config), "--jobs", "1"]
    assert lab([*asked, "--policy", "learned", "--policy", "dearest"]) == 0
    table = capsys.readouterr().out
    assert "learned" in table
    assert "dearest" in table
    with pytest.raises(ConfigError, match="always:other"):
        compared(path, "always:other")
    assert lab([*asked, "--policy", "learned", "--policy", str(config)]) == 2
    assert "always:MODEL" in capsys.readouterr().err
    assert lab(["routing", str(path), "--jobs", "1"]) == 2
    assert "known price" in capsys.readouterr().err
