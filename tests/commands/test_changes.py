"""Every command with every verb, at the database of a gateway that has an admin key."""

from __future__ import annotations

import argparse
import asyncio
import json
import sqlite3
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from gateway.backends import open_stores
from gateway.cli import build_parser, main, tree
from gateway.config.storage import StorageSettings
from gateway.features.budgets.accounts import AccountKey
from gateway.stores.controls import Control
from steering_gateway_testing.store_conformance.budgets import kept_budgets

KEY = "k" * 40
_OTHERS = {"serve", "dashboard", "wrap", "bench", "demo"}
_OF_AGENTS = {"runs outcome", "migrate"}
"""What a program may do without the key: report how its run ended, and open the database."""
_VALUES = {
    "budget": "daily",
    "subject": "acme",
    "tenant": "acme",
    "text": "a loop",
    "pattern": '{"tier": "e3", "fields": {"instruction": "Never stop."}}',
    "file": "pattern.jsonl",
    "files": "pattern.jsonl",
    "apply": "on",
}
_OPTIONS = {"--yes": [], "--once": [], "--usd": ["9"], "--active": []}


def words_of() -> Iterator[list[str]]:
    """Every command, and every noun without a verb."""
    for words, parser, _ in tree(build_parser()):
        below = [a for a in parser._actions if isinstance(a, argparse._SubParsersAction)]
        if words and words[0] not in _OTHERS and not any(action.required for action in below):
            needed = [a for a in parser._get_positional_actions() if a.nargs in (None, "+")]
            named = [next(iter(a.choices)) if a.choices else _VALUES.get(a.dest) for a in needed]
            known = {option for action in parser._actions for option in action.option_strings}
            more = [each for o, v in _OPTIONS.items() if o in known for each in (o, *v)]
            yield [*words, *[value or "x" for value in named], *more]


COMMANDS = list(words_of())


@pytest.fixture
def database(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A database of a gateway with a key, a budget and a hold."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    monkeypatch.setenv("HOME", str(tmp_path))
    Path("pattern.jsonl").write_text(_VALUES["pattern"])

    async def fill() -> None:
        stores = await open_stores(StorageSettings(path="gateway.db"), vectors=True)
        assert stores.controls is not None
        await stores.controls.show_key(KEY, 0)
        await stores.controls.hold(Control(subject="acme", tenant="acme", action="stop"))
        key = AccountKey(budget="daily", subject="acme")
        await kept_budgets(stores).allow(key, at=1.0, limits={"usd": 2.0}, lifted=False)
        await stores.close()

    asyncio.run(fill())
    assert main(["patterns", "list"]) == 0  # puts the starter library there
    return tmp_path / "gateway.db"


def dumped(database: Path) -> list[str]:
    with closing(sqlite3.connect(database)) as connection:
        names = connection.execute(
            "SELECT name FROM sqlite_master WHERE type = 'table' AND name NOT LIKE '%vec%'"
        ).fetchall()
        rows = [
            f"{name} {row}"
            for (name,) in names
            if "run_words" not in name and "_words" not in name
            for row in connection.execute(f"SELECT * FROM {name}")
        ]
    return sorted(rows)


def test_without_the_key_no_command_changes_anything(
    database: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Neither a noun alone nor any verb; what would change something names what it needs."""
    before, refused = dumped(database), set[str]()
    for words in COMMANDS:
        try:
            status = main(words)
        except SystemExit as ended:
            status = ended.code  # type: ignore[assignment]
        if "GATEWAY_ADMIN_KEY" in capsys.readouterr().err:
            assert status == 2
            refused.add(" ".join(words[:2]))
        if " ".join(words[:2]) not in _OF_AGENTS:
            assert dumped(database) == before, words
    changing = {
        *("budgets raise", "budgets lift", "budgets reset", "runs stop", "runs resume"),
        *("runs approve", "runs deny", "keys create", "keys set", "keys rotate", "keys revoke"),
        *("keys reset", "pilot start", "pilot stop", "pilot apply"),
        *("prices update", "learn approve", "learn retire", "learn edit"),
        *("patterns add", "patterns import", "patterns delete", "steering off", "steering on"),
    }
    there = {words[0] for words in COMMANDS}  # without those of a feature that is gone
    assert refused >= {act for act in changing if act.split()[0] in there}
    assert not refused & {"pilot", "steering", "budgets list", "keys list", "runs held"}


def test_with_the_key_they_work(
    database: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """In the variable; another key does not do."""
    monkeypatch.setenv("GATEWAY_ADMIN_KEY", "another")
    assert main(["budgets", "raise", "daily", "acme", "--usd", "9"]) == 2
    monkeypatch.setenv("GATEWAY_ADMIN_KEY", KEY)
    assert main(["budgets", "raise", "daily", "acme", "--usd", "9", "--author", "ann"]) == 0
    assert main(["runs", "resume", "acme"]) == 0
    assert main(["audit", "--json"]) == 0
    acts = [json.loads(line) for line in capsys.readouterr().out.splitlines() if "act" in line]
    assert "ann" in [act.get("author") for act in acts]
    assert not [act for act in acts if "changes" in json.dumps(act)]


@pytest.mark.parametrize(
    "name", ["gateway", " Gateway ", "\uff27ateway", "steering", "g-a-t-e-w-a-y"]
)
def test_nobody_is_the_gateway(
    database: Path, capsys: pytest.CaptureFixture[str], name: str
) -> None:
    """Its own acts are told from those of people by the name."""
    assert main(["runs", "resume", "acme", "--author", name]) == 2
    assert "state a person's name" in capsys.readouterr().err
