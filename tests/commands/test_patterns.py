"""`gateway patterns` on a new file, and on one with a damaged index."""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import Callable
from pathlib import Path

import apsw
import asyncpg
import pytest

from gateway.backends import open_stores
from gateway.cli import main
from gateway.config.storage import StorageSettings
from gateway.config.values import Secret
from tests.postgres import new_database

Run = Callable[..., list[str]]
KEY = "k" * 40
SAYS = '{"tier": "e1", "fields": {"situation": "the build is red", "unlock": "look at its log"}}'


@pytest.fixture
def database(tmp_path: Path) -> Path:
    return tmp_path / "patterns.db"


@pytest.fixture
def command(
    database: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Run:
    """Run `gateway patterns`, expect a status, and give the lines of both outputs."""
    monkeypatch.setenv("GATEWAY_STORAGE__PATH", str(database))
    assert main(["migrate"]) == 0
    capsys.readouterr()

    def run(*words: str, status: int = 0) -> list[str]:
        found = main(["patterns", *words])
        printed = capsys.readouterr()
        assert found == status, printed.err
        return (printed.out + printed.err).splitlines()

    return run


def test_an_instance_is_of_the_tenant_that_keyless_requests_have(command: Run) -> None:
    """Unless another is named; `list`, `search` and `delete` look at the same one."""
    (added,) = command("add", SAYS)
    kept = added.split()[1]
    assert any(kept in line for line in command("list", "--tier", "e1"))
    assert kept in command("search", "the build is red", "--tier", "e1")[0]
    assert command("list", "--tier", "e1", "--tenant", "acme") == []
    assert json.loads(command("export", "--tier", "e1")[0])["tenant"] == "default"
    assert command("delete", kept) == ["deleted"]


def test_an_import_names_file_and_line_of_what_it_refuses(command: Run, tmp_path: Path) -> None:
    """All other lines are stored, and the exit status says that some were not."""
    path = tmp_path / "mine.jsonl"
    path.write_text(f"{SAYS}\n{{\n\n{json.dumps({'tier': 'e2'})}\n{SAYS.replace('red', 'x')}\n")
    said = command("import", str(path), status=1)
    assert said[0] == "2 added, 0 replaced, 0 unchanged, 2 refused"
    assert [line.split(": ")[:2] for line in said[1:]] == [
        [str(path), "line 2"],
        [str(path), "line 4"],
    ]
    counts = command("import", str(path), "--json", status=1)[0]
    assert json.loads(counts) == {"added": 0, "replaced": 0, "unchanged": 2, "refused": 2}


def test_a_search_marks_what_a_run_would_be_given(command: Run) -> None:
    """By the gate of the case asked about, and by a pattern's own where it has one."""
    own = '{"tier": "e2", "pattern_id": "p", "gate_threshold": 0, "fields": {"unlock": "zebra"}}'
    command("add", own)
    said = command("search", "zebra crossing", "--limit", "60")
    assert any(line.split()[-1] == "p" and "*" in line for line in said)
    assert said[-1].endswith("(gate 0.54)")
    said = command("search", "the same test fails again", "--failure-type", "test_repeat")
    assert said[-1].endswith("(gate 0.48)")
    assert command("search", "") == ["none found"]


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (("add", "nonsense"), "gateway: not JSON: Expecting value, column 1"),
        (("add", '{"tier": "e9"}'), "gateway: tier: 'e9' is not one of e1, e2, e3"),
        (("add", "[" * 100_000), "gateway: nested too deeply"),
        (("import", "missing.jsonl"), "missing.jsonl"),
        (("delete", "nobody"), "gateway: no pattern 'nobody'"),
        (("list", "--failure-type", "no label"), "gateway: failure_type: 'no label'"),
    ],
)
def test_what_is_wrong_is_said_in_a_line(command: Run, words: tuple[str, ...], says: str) -> None:
    """No traceback, and status 2."""
    (line,) = command(*words, status=2)
    assert says in line


@pytest.mark.parametrize(
    "statement", ["UPDATE pattern_vectors SET vector = x'0000'", "DELETE FROM pattern_vectors"]
)
def test_reindex_mends_the_vectors(command: Run, database: Path, statement: str) -> None:
    """After it everything is found as before."""
    before = command("search", "the same test fails again")
    connection = apsw.Connection(str(database))
    connection.execute(statement)
    connection.close()
    command("reindex")
    assert command("search", "the same test fails again") == before


def test_without_the_extension_all_but_patterns_works(
    command: Run, database: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The complaint names the package and the setting that does without it."""
    command("list")
    monkeypatch.setitem(sys.modules, "sqlite_vec", None)
    (complaint,) = command("list", status=2)
    assert "sqlite-vec" in complaint
    assert "etraces.enabled" in complaint
    assert main(["runs", "list"]) == 0


@pytest.mark.slow
def test_who_may_not_change_a_servers_tables_does_not_migrate_them(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The key is asked for first, also by a command that makes tables which are missing."""
    storage = StorageSettings(url=Secret(new_database()), spool_path=None)
    monkeypatch.setenv("GATEWAY_STORAGE__URL", str(storage.url))

    async def fill() -> None:
        stores = await open_stores(storage, vectors=True)
        assert stores.controls is not None
        await stores.controls.show_key(KEY, 0)
        await stores.close()

    async def fetched(statement: str) -> list[str]:
        connection = await asyncpg.connect(str(storage.url))
        rows = await connection.fetch(statement)
        await connection.close()
        return [str(row[0]) for row in rows]

    def changes() -> list[str]:
        return asyncio.run(fetched("SELECT name FROM gateway_migrations ORDER BY name"))

    asyncio.run(fill())
    newest = changes()
    asyncio.run(fetched("DROP INDEX jobs_by_run"))
    asyncio.run(fetched("DELETE FROM gateway_migrations WHERE name = 'learning_006_jobs_by_run'"))
    older = changes()
    asked = (["patterns", "delete", "x"], ["patterns", "add", SAYS], ["keys", "create", "acme"])
    for words in asked:
        assert main(words) == 2
        assert "GATEWAY_ADMIN_KEY" in capsys.readouterr().err
        assert changes() == older
    assert main(["patterns", "list"]) == 0
    assert changes() == older
    monkeypatch.setenv("GATEWAY_ADMIN_KEY", KEY)
    assert main(["patterns", "add", SAYS]) == 0
    assert changes() == newest


@pytest.mark.slow
def test_the_first_pattern_of_a_server_makes_its_tables(monkeypatch: pytest.MonkeyPatch) -> None:
    """A database that is still empty has no key to ask for."""
    monkeypatch.setenv("GATEWAY_STORAGE__URL", new_database())
    monkeypatch.setenv("GATEWAY_STORAGE__SPOOL_PATH", "")
    assert main(["patterns", "list"]) == 2
    assert main(["patterns", "add", SAYS]) == 0
    assert main(["patterns", "list"]) == 0
