"""Commands that work on what is stored, where nothing is."""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from pathlib import Path

import pytest

from gateway.cli import build_parser, main

_NEED_NONE = {
    *("demo", "wrap", "serve", "check-config", "history", "replay", "bench"),
    "hooks",
}
_MAKE_ONE = (
    "migrate",
    "restore 1",
    "backup 1",
    "patterns add",
    "patterns import",
    "keys create",
    "alerts test",
)
"""Commands that take a database of their own alone, most of which make one if there is none."""


def commands(parser: argparse.ArgumentParser, *words: str) -> Iterator[list[str]]:
    """Every command and verb, with a number for each argument that it needs."""
    choices = [a for a in parser._actions if isinstance(a, argparse._SubParsersAction)]
    for action in choices:
        for name, below in action.choices.items():
            yield from commands(below, *words, name)
    if not choices:
        needed = [a for a in parser._get_positional_actions() if a.nargs is None]
        yield [*words, *[next(iter(a.choices)) if a.choices else "1" for a in needed]]


COMMANDS = [
    words
    for words in commands(build_parser())
    if words[0] not in _NEED_NONE and " ".join(words[:2]) not in _MAKE_ONE
]


@pytest.fixture(autouse=True)
def nowhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty folder, on a machine where no gateway runs or ran."""
    folder = tmp_path / "here"
    folder.mkdir()
    monkeypatch.chdir(folder)
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    return folder


@pytest.mark.parametrize("words", COMMANDS, ids=" ".join)
def test_it_says_that_there_is_no_database(
    words: list[str], nowhere: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """In one line, with status 2, and makes none: an empty one would hide the wrong folder."""
    answers = {
        "budgets raise": ["--usd", "5"],
        "keys reset": ["--yes"],
        "forget": ["--session", "c-1", "--yes"],
    }
    assert main([*words, *answers.get(" ".join(words[:2]), [])]) == 2
    said = capsys.readouterr()
    assert said.err.startswith("gateway: there is no database yet: no gateway.db in this folder")
    assert "`gateway wrap -- COMMAND` or `gateway serve` makes one" in said.err
    assert not said.out
    assert not list(nowhere.iterdir())


def test_every_verb_is_looked_at() -> None:
    """The walk over the parser finds the verbs that there are."""
    known = {
        *("keys list", "keys reset", "keys revoke 1", "patterns list", "patterns search 1"),
        *("patterns delete 1", "learn rules", "runs list", "budgets list", "report"),
    }
    there = {words[0] for words in COMMANDS}  # without those of a feature that is gone
    found = {" ".join(words) for words in COMMANDS}
    assert found >= {verb for verb in known if verb.split()[0] in there}


def test_a_copy_of_no_database_is_refused(
    nowhere: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Before a connection is tried."""
    assert main(["migrate", "--to", "postgresql://127.0.0.1:9/x"]) == 2
    assert "storage.path: there is no database at 'gateway.db' yet" in capsys.readouterr().err
    assert not list(nowhere.iterdir())


def test_a_backup_of_no_database_is_refused(
    nowhere: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """It takes that of the config alone, and no other that is known."""
    assert main(["backup", "all.tar"]) == 2
    assert "storage.path: there is no database at 'gateway.db' yet" in capsys.readouterr().err
    assert not list(nowhere.iterdir())


@pytest.mark.parametrize("words", [("add", "{"), ("import", "missing.jsonl")])
def test_what_cannot_be_read_creates_no_database(words: tuple[str, ...], nowhere: Path) -> None:
    """A pattern that is no JSON, a file that is not there."""
    assert main(["patterns", *words]) == 2
    assert not list(nowhere.iterdir())
