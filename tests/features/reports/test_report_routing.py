"""`gateway report --routing`: what routing has learned."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import pytest

from gateway.backends import open_stores
from gateway.cli import main
from gateway.config.storage import StorageSettings
from steering_gateway_testing.store_conformance.records import a_call, a_conversation, a_run
from steering_gateway_testing.store_conformance.workloads import a_workload_run

CHOICE = {
    "model": "small",
    "default": "big",
    "probabilities": {"small": 0.5, "big": 0.5},
    "learned": True,
}


async def _write(path: str) -> None:
    """Runs on two models, drawn alike; the small one fails at every second."""
    stores = await open_stores(StorageSettings(path=path))
    assert stores.workloads is not None
    for number in range(20):
        name, model = f"r{number}", "small" if number < 10 else "big"
        call = a_call(
            conversation=a_conversation(f"c{number}"),
            heads=(),
            runs=(a_run(name),),
            steps=(),
            injections=(),
        )
        await stores.states.commit(call)
        choice = {**CHOICE, "model": model}
        await stores.workloads.note([a_workload_run(name, model, choice=choice)])
        outcome = "failure" if model == "small" and number % 2 else "success"
        await stores.runs.set_outcome(name, outcome, source="test", tenant=None)
    await stores.workloads.settle()
    await stores.close()


def test_the_report(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """As tables for people, as JSON for machines, for one tenant."""
    path = str(tmp_path / "log.db")
    asyncio.run(_write(path))
    monkeypatch.setenv("GATEWAY_STORAGE__PATH", path)
    monkeypatch.setenv("COLUMNS", "120")
    assert main(["report", "--routing"]) == 0
    table = capsys.readouterr().out
    assert "\nagent   big        small    10    50.0%\n" in table
    assert main(["report", "--routing", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    rates = {row["model"]: (row["solved"], row["failed"]) for row in found["workloads"]}
    assert rates == {"small": (5, 5), "big": (10, 0)}
    recent = [row["recent_solved"] + row["recent_failed"] for row in found["workloads"]]
    assert sum(recent) == pytest.approx(sum(0.5 ** (n / 200) for n in range(20)))
    assert main(["report", "--routing", "--json", "--tenant", "nobody"]) == 0
    assert json.loads(capsys.readouterr().out) == {"workloads": []}
