"""`gateway learn` on a file with runs in it."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from gateway.backends import open_stores
from gateway.cli import main
from gateway.config.storage import StorageSettings
from tests.learning.distilling import MODEL, fill, stored, unsaid
from tests.learning.runs import Call, shell

Run = Callable[..., str]
FIXED: list[Call] = [
    shell("mvn test", "bash: mvn: command not found"),
    shell("./gradlew test", "BUILD SUCCESSFUL in 3s"),
]


@pytest.fixture
async def log(tmp_path: Path) -> str:
    """Three runs on as many tasks that teach the same, and one with a job for a model."""
    path = str(tmp_path / "log.db")
    stores = await open_stores(StorageSettings(path=path))
    times = {"updated_at": time.time() - 3600.0}
    for number, task in enumerate(("one task", "another task", "a third")):
        await stores.states.commit(stored(number, FIXED, task_preview=task, **times))
    await fill(stores, [stored(3, unsaid())], model=MODEL)
    await stores.close()
    return path


@pytest.fixture
def command(log: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Run:
    """Run `gateway learn` on the log and give what it printed."""
    monkeypatch.setenv("GATEWAY_STORAGE__PATH", log)

    def run(*words: str, status: int = 0) -> str:
        assert main(["learn", *words]) == status
        printed = capsys.readouterr()
        return printed.err if status else printed.out

    return run


def lessons(command: Run, *words: str) -> dict[str, dict[str, Any]]:
    """The lessons that are listed, by tier."""
    listed = map(json.loads, command("status", "--json", *words).splitlines())
    return {each["tier"]: each for each in listed}


def test_runs_are_read_once(command: Run) -> None:
    """The first pass learns, the second changes nothing."""
    first = json.loads(command("run", "--json"))
    assert (first["runs"], first["lessons"], first["evidence"]) == (4, 2, 5)
    again = json.loads(command("run", "--json"))
    assert (again["runs"], again["lessons"], again["evidence"]) == (4, 0, 0)
    assert "4 runs" in command("run")
    found = lessons(command)
    assert {tier: (e["status"], e["conversations"]) for tier, e in found.items()} == {
        "e1": ("candidate", 2),
        "e2": ("candidate", 2),
    }
    assert found["e1"]["why_not_active"] == "learning.trials is off"
    assert command("status").count("Use `./gradlew test` instead") == 2
    assert "nothing learned yet" in command("status", "--tenant", "other")


def test_a_lesson_is_moved_edited_and_shared(command: Run) -> None:
    """What the page and the API can do, a terminal can."""
    command("run")
    one, general = (lessons(command)[tier]["pattern_id"] for tier in ("e1", "e2"))
    for words, status in (
        (("approve", one), "trial"),
        (("retire", one, "--pause"), "quarantined"),
        (("approve", one, "--active"), "active"),
        (("retire", one), "retired"),
    ):
        assert command(*words) == "done\n"
        assert lessons(command)["e1"]["status"] == status
    assert command("retire", one) == "nothing changed\n"
    edited = command("edit", one, "Use gradle.").strip()
    shown = json.loads(command("show", edited, "--json"))
    assert (shown["advice"], shown["version"], shown["status"]) == ("Use gradle.", 2, "trial")
    assert {(row["run_id"], row["kind"]) for row in shown["evidence"]} == {
        ("r0000", "fact"),
        ("r0001", "unsure"),
        ("r0002", "fact"),
    }
    for text in (" ", "x" * 601, "Use password=hunter2hunter2x for it."):
        assert "advice: " in command("edit", edited, text, status=2)
    assert command("approve", general, "--share") == "done\n"
    assert lessons(command, "--tenant", "other")["e2"]["tenant"] == ""
    text = command("show", edited)
    assert "Use gradle." in text
    assert "not active" in text
    assert "there is no lesson 'x'" in command("show", "x", status=2)
    exported = [json.loads(line) for line in command("export").splitlines()]
    assert {each["pattern_id"] for each in exported} == {one, general, edited}


def test_a_run_is_forgotten_with_what_only_it_supports(command: Run) -> None:
    """A lesson goes with the last run that supports it, a job with its run."""
    command("run")
    assert "1 waiting" in command("jobs")
    assert command("forget", "r0003") == "0 lessons removed\n"
    assert json.loads(command("jobs", "--json"))["jobs"] == []
    for run in ("r0000", "r0001"):
        assert command("forget", run) == "0 lessons removed\n"
    removed = json.loads(command("forget", "r0002", "--json"))["removed"]
    assert len(removed) == 2
    assert lessons(command) == {}
    command("run")  # a forgotten run teaches nothing again
    assert lessons(command) == {}
    assert "there is no run 'unknown'" in command("forget", "unknown", status=2)
