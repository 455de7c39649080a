"""Commands find an id in every store that is known on the machine, and hints work in any folder."""

from __future__ import annotations

import asyncio
import shlex
import time
from pathlib import Path

import pytest

from gateway.backends import open_stores
from gateway.cli import main
from gateway.config.storage import StorageSettings
from gateway.features.budgets.accounts import AccountKey
from gateway.process.running_gateways import state_database
from gateway.stores.stopped_by import as_command
from steering_gateway_testing.many_runs import write_runs
from steering_gateway_testing.store_conformance.budgets import kept_budgets


@pytest.fixture
def folders(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with a gateway's database, and a database of `wrap`."""
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    for name in ("here", "there"):
        (tmp_path / name).mkdir()
    monkeypatch.chdir(tmp_path / "here")
    state_database().parent.mkdir(parents=True)
    asyncio.run(write_runs("gateway.db", runs=2, steps=2, now=time.time()))
    asyncio.run(write_runs("own.db", runs=2, steps=2, now=time.time()))
    asyncio.run(write_runs(str(state_database()), runs=3, steps=2, now=time.time()))
    return tmp_path


def only_in_wrap(folders: Path) -> str:
    """The id of a run that only the database of `wrap` has."""

    async def ids(path: str) -> set[str]:
        stores = await open_stores(StorageSettings(path=path), existing=True)
        try:
            from gateway.stores.filters import RunFilter
            from gateway.stores.lists import PageRequest

            found = await stores.runs.list_runs(RunFilter(), PageRequest(limit=50))
            return {run.id for run in found.runs}
        finally:
            await stores.close()

    found = asyncio.run(ids(str(state_database()))) - asyncio.run(ids("own.db"))
    return sorted(found)[0]


def test_a_run_of_wrap_is_found_beside_a_config(
    folders: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Reading, stopping and resuming work, and say where; an unknown id names all places."""
    config = folders / "other.yaml"
    config.write_text("storage: {path: own.db}")
    run = only_in_wrap(folders)
    for words in (["show", run], ["stop", run], ["resume", run], ["outcome", run, "success"]):
        assert main(["runs", *words, "--config", str(config)]) == 0
        assert f"it is in {state_database()} of gateway wrap" in capsys.readouterr().err
    assert main(["runs", "show", "c-unknown.0", "--config", str(config)]) == 2
    said = capsys.readouterr().err
    assert "there is no run 'c-unknown.0'" in said
    assert f"searched: own.db, {state_database()}" in said


def test_a_budget_of_wrap_is_found_from_any_folder(
    folders: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Its account is named like those of other wraps: the name of the budget decides."""

    async def spend() -> None:
        stores = await open_stores(StorageSettings(path=str(state_database())))
        key = AccountKey(budget="wrap-12ab", subject="default")
        await kept_budgets(stores).allow(key, at=time.time(), limits={"usd": 2.0}, lifted=False)
        await stores.close()

    asyncio.run(spend())
    assert main(["budgets", "raise", "wrap-12ab", "default", "--usd", "4"]) == 0
    assert "limits: $4.00" in capsys.readouterr().out
    assert main(["budgets", "list", "--budget", "wrap-12ab"]) == 0
    assert "$4.00" in capsys.readouterr().out


def test_a_printed_command_works_in_another_folder(
    folders: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """It names the config that the command was given."""
    config = folders / "here" / "a config.yaml"
    config.write_text(f"storage: {{path: {folders / 'here' / 'own.db'}}}")
    assert main(["runs", "list", "--json", "--config", "a config.yaml"]) == 0
    run = capsys.readouterr().out.split('"id":"')[1].split('"')[0]
    assert main(["runs", "stop", run, "--config", "a config.yaml"]) == 0
    assert main(["runs", "show", run, "--config", "a config.yaml"]) == 0
    shown = capsys.readouterr().out.replace("\n", " ").split("to let it go on: gateway ")[1]
    hint = shown.partition(".yaml'")[0] + ".yaml'"
    monkeypatch.chdir(folders / "there")
    assert main(shlex.split(hint)) == 0
    assert f"{run}: may continue" in capsys.readouterr().out
    assert main(["runs", "list"]) == 0
    assert as_command("runs", "list") == "gateway runs list"
