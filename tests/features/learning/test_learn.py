"""`gateway learn` on a file with runs in it."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from gateway.backends import open_stores
from gateway.cli import main
from gateway.config.storage import StorageSettings
from gateway.stores.learning import JOBS, ReaderJob
from tests.features.learning.runs import shell, state, stored
from tests.features.learning.test_rules import RULE

Run = Callable[..., str]


@pytest.fixture
async def log(tmp_path: Path) -> str:
    """Three runs in which a person stated a rule, and one with a job for a model."""
    path = str(tmp_path / "log.db")
    stores = await open_stores(StorageSettings(path=path))
    for number in range(4):
        record = stored(number, [shell("pytest", "1 failed")], tenant="default")
        await stores.states.commit(record)
    for number in range(3):
        await state(stores, number, RULE)
    payload = {"run": "r0003", "question": "title", "step": 0}
    await stores.learning.enqueue(ReaderJob(kind=JOBS, key="j", tenant="default", payload=payload))
    await stores.close()
    return path


@pytest.fixture
def command(log: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Run:
    """Run `gateway learn`, or `gateway forget`, on the log and give what it printed."""
    monkeypatch.setenv("GATEWAY_STORAGE__PATH", log)

    def run(*words: str, status: int = 0) -> str:
        verb = [] if words[0] == "forget" else ["learn"]
        assert main([*verb, *words]) == status
        printed = capsys.readouterr()
        return printed.err if status else printed.out

    return run


def lessons(command: Run, *words: str) -> list[dict[str, Any]]:
    """The lessons that are listed."""
    return [json.loads(line) for line in command("rules", "--json", *words).splitlines()]


def test_rules_are_listed_with_what_supports_them(command: Run) -> None:
    """The rules of a tenant, each once."""
    (found,) = lessons(command)
    assert (found["status"], found["conversations"]) == ("candidate", 3)
    assert command("rules").count(RULE) == 1
    assert "nobody has stated a rule yet" in command("rules", "--tenant", "other")


def test_a_lesson_is_moved_and_edited(command: Run) -> None:
    """What the page and the API can do, a terminal can."""
    (found,) = lessons(command)
    one = found["pattern_id"]
    for words, status in (
        (("approve", one), "active"),
        (("retire", one, "--pause"), "quarantined"),
        (("approve", one, "--active"), "active"),
        (("retire", one), "retired"),
    ):
        assert command(*words) == "done\n"
        assert [each["status"] for each in lessons(command)] == [status]
    assert command("retire", one) == "nothing changed\n"
    edited = command("edit", one, "Use yarn.").strip()
    shown = {each["pattern_id"]: each for each in lessons(command)}[edited]
    assert (shown["advice"], shown["version"], shown["status"]) == ("Use yarn.", 2, "active")
    assert shown["conversations"] == 3
    for text in (" ", "x" * 601, "Use password=hunter2hunter2x for it."):
        assert "advice: " in command("edit", edited, text, status=2)
    assert "Use yarn." in command("rules")
    assert "there is no lesson 'x'" in command("retire", "x", status=2)


def waiting(log: str) -> int:
    """Jobs of the reader that wait."""

    async def counted() -> int:
        stores = await open_stores(StorageSettings(path=log))
        counts = await stores.learning.count_jobs(JOBS)
        await stores.close()
        return counts.get("waiting", 0)

    return asyncio.run(counted())


def test_a_run_is_forgotten_with_what_only_it_supports(command: Run, log: str) -> None:
    """A lesson goes with the last run that supports it, a job with its run."""
    assert waiting(log) == 1
    assert "conversations 1" in command("forget", "--session", "r0003", "--yes")
    assert waiting(log) == 0
    for run in ("r0000", "r0001"):
        assert "lessons" not in command("forget", "--session", run, "--yes")
    assert len(lessons(command)) == 1
    assert (
        json.loads(command("forget", "--session", "r0002", "--yes", "--json"))["erased"]["lessons"]
        == 1
    )
    assert lessons(command) == []
    assert "nothing is known" in command("forget", "--session", "unknown", "--yes", status=2)
