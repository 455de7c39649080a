"""`gateway dashboard`: which gateway shows the pages."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from gateway.cli import main
from gateway.config.storage import StorageSettings
from gateway.process.running_gateways import announced
from gateway.stores.sql.states import SQLStateStore
from gateway.stores.sqlite.database import Database
from gateway.stores.sqlite.engine import SQLiteEngine
from steering_gateway_testing.store_conformance import records


async def _store_with_a_run(path: Path) -> None:
    database = await Database.open(StorageSettings(path=str(path)))
    await SQLStateStore(SQLiteEngine(database)).commit(records.a_call())
    await database.close()


def test_the_dashboard_of_a_running_gateway_is_named(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    """From any folder; its key, unless it is kept from agents. Without a database it says so and
    starts nothing."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    assert main(["dashboard"]) == 2
    assert "there is no database yet" in capsys.readouterr().err
    database = tmp_path / "elsewhere.db"
    asyncio.run(_store_with_a_run(database))
    with announced("http://127.0.0.1:4321", str(database)):
        assert main(["dashboard", "r1"]) == 0
    told = capsys.readouterr()
    assert told.out.splitlines() == ["http://127.0.0.1:4321/dashboard/runs/r1"]
    assert str(database) in told.err
    with announced("http://127.0.0.1:4321", str(database), "gw-its-key"):
        assert main(["dashboard"]) == 0
    assert capsys.readouterr().out.splitlines()[1:] == [
        "to change something there, log in with gw-its-key"
    ]
    assert not list((tmp_path / "steering-gateway").iterdir())
