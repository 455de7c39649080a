"""`gateway migrate --to`: a SQLite file with everything in it, copied to PostgreSQL."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest

from gateway.backends import Stores, copy_to_server, open_stores
from gateway.cli import main
from gateway.config.storage import StorageSettings
from gateway.config.values import Secret
from gateway.features.budgets.accounts import AccountKey
from gateway.stores.controls import Control
from gateway.stores.filters import RunFilter
from gateway.stores.lists import PageRequest
from gateway.stores.patterns import PatternFilter
from gateway.stores.records import ItemRecord
from steering_gateway_testing.store_conformance import records
from steering_gateway_testing.store_conformance.budgets import kept_budgets
from steering_gateway_testing.store_conformance.keys import a_key, kept_keys
from steering_gateway_testing.store_conformance.sample_patterns import (
    add,
    drawn,
    found,
    opened,
    pattern,
)
from tests.postgres import new_database, shared_server

STRANGE = "NUL \x00, \U0001f600 and \U0010ffff0"


async def fill(stores: Stores) -> None:
    """Some rows of many tables; texts that PostgreSQL cannot keep as they are among them."""
    for number in range(25):
        await stores.states.commit(records.one_run(number, outcome="success", outcome_source="api"))
    await stores.states.commit(
        records.a_call(
            conversation=records.a_conversation("strange", external_key=STRANGE),
            heads=(records.a_head("strange", records.history("s", 3)),),
            runs=(records.a_run(task_preview=STRANGE, tags={"team": "blue"}, key_name="laptop"),),
            steps=(
                records.a_first_step(
                    failure_type=STRANGE, content=records.some_content(thought=STRANGE)
                ),
            ),
            items=(ItemRecord(id="fc_1", content=b"{}"),),
        )
    )
    patterns = await opened(stores)
    for number in range(5):
        await add(patterns, pattern(f"p{number}"), drawn(number))
    await kept_keys(stores).add_key(a_key("k1"))
    await kept_keys(stores).revoke_key("k1", records.START + 1)
    assert stores.controls is not None
    await stores.controls.hold(
        Control(subject="r1", tenant=records.TENANT, action="pause", at=records.START)
    )
    key = AccountKey(budget="per-run", subject="r1")
    await kept_budgets(stores).allow(key, at=records.START, limits={"usd": 2.0}, lifted=False)


async def everything(stores: Stores) -> list[Any]:
    """What the stores answer."""
    patterns = await opened(stores)
    page = await stores.runs.list_runs(RunFilter(), PageRequest(limit=100))
    assert stores.controls is not None
    return [
        [await stores.runs.get_run(run.id, tenant=None) for run in page.runs],
        await stores.runs.list_conversations(tenant=None),
        await stores.runs.health_summary(RunFilter()),
        await stores.states.load(records.TENANT, "strange"),
        await stores.states.find_prefix_hashes(records.TENANT, records.history("s", 4)),
        await stores.states.find_items(records.TENANT, ["fc_1"]),
        await kept_keys(stores).list_keys(),
        [stored.pattern for stored in (await patterns.list_patterns(PatternFilter())).patterns],
        await found(patterns, vector=drawn(2), limit=2),
        await stores.controls.list_controls(),
        await kept_budgets(stores).list_accounts(),
    ]


async def test_a_copy_answers_as_the_file_does(tmp_path: Path) -> None:
    """Runs, conversations, hashes, keys, patterns, vectors, holds and accounts are the same, and
    what is stored afterwards does not meet what was copied. A second copy is refused."""
    source = StorageSettings(path=str(tmp_path / "gateway.db"))
    target = StorageSettings(url=Secret(new_database()))
    file = await open_stores(source, vectors=True)
    await fill(file)
    expected = await everything(file)
    await file.close()
    seen: list[tuple[int, int]] = []
    copied = await copy_to_server(source, target, lambda done, total: seen.append((done, total)))
    assert copied["runs"] == 26
    assert seen[-1] == (sum(copied.values()),) * 2
    stores = await open_stores(target, vectors=True)
    assert await everything(stores) == expected
    assert await stores.states.commit(records.one_run(100)) == 1
    patterns = await opened(stores)
    await add(patterns, pattern("new"), drawn(9))
    await kept_keys(stores).add_key(a_key("k2"))
    await stores.close()
    with pytest.raises(Exception, match="is not empty; copy to a new database"):
        await copy_to_server(source, target, lambda done, total: None)


async def test_a_copy_to_a_server_without_pgvector(tmp_path: Path) -> None:
    """Patterns are copied without their vectors, for a gateway that does not search them; one that
    does finds which ones it has to embed again."""
    source = StorageSettings(path=str(tmp_path / "gateway.db"))
    target = StorageSettings(url=Secret(url := new_database()))
    name, server = url.split("?")[0].rpartition("/")[2], shared_server()
    server.execute(f"ALTER DATABASE {name} SET extension_control_path = '/nowhere'")
    file = await open_stores(source, vectors=True)
    await fill(file)
    await file.close()
    copied = await copy_to_server(source, target, lambda done, total: None, vectors=False)
    assert copied["patterns"] == 5
    server.execute(f"ALTER DATABASE {name} RESET extension_control_path")
    stores = await open_stores(target, vectors=True)
    patterns = await opened(stores)
    assert len(await patterns.without_vector(9)) == 5
    await stores.close()


def test_the_command_says_which_package_it_needs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The driver is an extra of the package."""
    monkeypatch.chdir(tmp_path)
    assert main(["keys", "create", "acme", "--json"]) == 0
    for module in [each for each in sys.modules if each.startswith("gateway.features.postgres")]:
        monkeypatch.delitem(sys.modules, module)
    monkeypatch.setitem(sys.modules, "asyncpg", None)
    assert main(["migrate", "--to", "postgresql://127.0.0.1:9/x"]) == 2
    assert "install steering-gateway[postgres]" in capsys.readouterr().err


def test_the_command_copies_and_checks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """`migrate --to` reports the rows, `check-config --connect` finds the copy, `runs list` reads
    it; an empty database is no obstacle, a wrong one is one line."""
    monkeypatch.chdir(tmp_path)
    url = new_database()
    assert main(["keys", "create", "acme", "--json"]) == 0
    capsys.readouterr()
    assert main(["migrate", "--to", url, "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["rows"]["keys"] == 1
    monkeypatch.setenv("GATEWAY_STORAGE__URL", url)
    assert main(["check-config", "--connect"]) == 0
    capsys.readouterr()
    for command in (["keys", "list", "--json"], ["runs", "list", "--json"], ["report", "--json"]):
        assert main(command) == 0, command
    assert "acme" in capsys.readouterr().out
    monkeypatch.setenv("GATEWAY_STORAGE__URL", url.replace("postgres@", "nobody-there@"))
    assert main(["check-config", "--connect"]) == 2
    assert "nobody-there" in capsys.readouterr().out
