"""The recipe "a store": one package in `gateway/stores` and one row of `STORES`."""

from __future__ import annotations

import ast
import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.recipes.conftest import ROOT, ScratchCopy

PACKAGE = ROOT / "gateway"
EXAMPLE = Path(__file__).parent / "journal_store.py"
OWNERS = (
    "gateway/backends.py",
    "gateway/commands/backup.py",
    "gateway/features/postgres/",
    "gateway/stores/sqlite/engine.py",
    "gateway/stores/sqlite/",
    "gateway/features/store_outages/spool_file.py",
    "gateway/features/history/readers/opencode.py",
)

ROW = '    "journal": ".stores.journal:open_journal",\n'
CONFIG = "etraces: {enabled: false}\n"

# Every check that the example, which is no complete store, has to pass.
CONFORMANCE = """
import asyncio, sys
from gateway.backends import open_stores
from gateway.config.storage import StorageSettings
from steering_gateway_testing.store_conformance import ALL_CHECKS

chosen = {check.__name__: check for check in ALL_CHECKS}

async def main():
    for name in sys.argv[1:]:
        stores = await open_stores(StorageSettings(url=f"journal://here/{name}.journal"))
        await chosen[name](stores)
        await stores.close()
        print("kept", name)

asyncio.run(main())
"""
CHECKS = (
    "lists_keys_in_the_order_they_were_added",
    "revokes_a_key_once",
    "refuses_a_second_key_of_one_id",
    "returns_what_was_saved",
    "knows_no_other_conversation",
    "saves_over_the_version_it_was_made_from",
    "refuses_a_stale_version",
    "refuses_to_update_an_unknown_conversation",
    "loses_none_of_many_concurrent_saves",
    "finds_the_longest_prefix",
    "finds_a_digest_that_is_its_own_root",
    "keeps_unknown_costs_unknown",
    "keeps_two_runs_of_one_call_apart",
)

RECORD_A_RUN = """
import asyncio
from gateway.backends import open_stores
from gateway.config.storage import StorageSettings
from steering_gateway_testing.store_conformance.records import one_run

async def main():
    stores = await open_stores(StorageSettings(url="journal://here/runs.journal"))
    await stores.states.commit(one_run(7))
    await stores.close()

asyncio.run(main())
"""

# The commands one after the other, each in its own line.
COMMANDS = """
import sys
from gateway.cli import main

for command in ("runs list", "keys create acme", "keys list", "migrate"):
    status = main([*command.split(), "--json"])
    assert status == 0, command
    assert "apsw" not in sys.modules, "SQLite was loaded"
"""


@pytest.fixture
def journal(scratch: ScratchCopy, monkeypatch: pytest.MonkeyPatch) -> ScratchCopy:
    """The package with the example store added as the recipe says."""
    scratch.write("gateway/stores/journal/__init__.py", EXAMPLE.read_text())
    file = '    "": '
    scratch.replace("gateway/config/storage.py", file, ROW + file)
    (scratch.root / "config.yaml").write_text(CONFIG)
    monkeypatch.setenv("GATEWAY_STORAGE__URL", "journal://here/runs.journal")
    return scratch


@pytest.mark.slow
def test_one_package_and_one_row_add_a_store(journal: ScratchCopy) -> None:
    """The conformance suite runs on it and the commands use it; nothing else had to change."""
    kept = journal.run("-c", CONFORMANCE, *CHECKS).stdout.split()
    assert kept == [word for name in CHECKS for word in ("kept", name)]
    journal.run("-c", RECORD_A_RUN)
    said = journal.run("-c", COMMANDS).stdout.splitlines()
    run, made, key, migrated = map(json.loads, said)
    assert run["id"] == "r0007"
    assert key["id"] == made["id"]
    assert migrated["ok"]
    written = [path for path in journal.root.iterdir() if path.is_file()]
    assert not [path for path in written if path.read_bytes().startswith(b"SQLite format 3")]
    assert journal.changed() == {"gateway/config/storage.py", "gateway/stores/journal/__init__.py"}


def imported(path: Path) -> Iterator[str]:
    """Dotted names of everything a file imports, at whatever place in it."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def test_only_one_module_knows_sqlite() -> None:
    """Outside its package, SQLite's stores and library are imported in `backends.py`, where its
    file is copied and put back (other databases have commands of their own for this), in the files
    of records that wait for another store, which are SQLite's whatever that store is, and where the
    sessions of an agent are read that keeps them in a database of its own."""
    importers = {
        str(path.relative_to(ROOT))
        for path in PACKAGE.rglob("*.py")
        for name in imported(path)
        if name.startswith(("gateway.stores.sqlite", "apsw", "sqlite3", "sqlite_vec"))
    }
    assert "gateway/backends.py" in importers
    assert not [path for path in importers if not path.startswith(OWNERS)]


def test_the_recipe_is_documented() -> None:
    """`docs/architecture.md` names the package, the row and the proof."""
    lines = (ROOT / "docs" / "architecture.md").read_text().splitlines()
    (row,) = [line for line in lines if line.startswith("| a store |")]
    for part in ("`gateway/stores`", "`gateway/config/storage.py`", "conformance"):
        assert part in row
