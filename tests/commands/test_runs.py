"""`gateway runs` on a file with a log in it."""

from __future__ import annotations

import asyncio
import json
import re
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from gateway.backends import open_stores
from gateway.cli import main
from gateway.config.storage import StorageSettings
from gateway.steering.transcript.interventions import Intervention
from gateway.stores.sql.states import SQLStateStore
from gateway.stores.sqlite.database import Database
from gateway.stores.sqlite.engine import SQLiteEngine
from steering_gateway_testing import processes
from steering_gateway_testing.many_runs import write_runs
from steering_gateway_testing.store_conformance import records

Run = Callable[..., str]


@pytest.fixture
async def log(tmp_path: Path) -> str:
    """Forty runs of two tenants, half of them of an experiment, and one with hostile texts."""
    path = str(tmp_path / "log.db")
    await write_runs(path, runs=40, steps=8, now=time.time())
    database = await Database.open(StorageSettings(path=path))
    act = Intervention(kind="reject", words="\x1b[2Jnot like this")
    said = records.some_content(thought="\x1b[2Jgone \x1b]0;t\x07\u202e", human=(act,))
    call = records.a_call(
        conversation=records.a_conversation("c-hostile", external_key="my-task"),
        runs=(
            records.a_run(
                "c-hostile.0", task_preview="\x1b[31mred\x07\ntwo", agent="\x1b]0;x\x07a"
            ),
        ),
        steps=(
            records.a_first_step("c-hostile.0"),
            records.a_step(
                1, "c-hostile.0", content=said, scores={"streak": 0.8}, fired=("streak",)
            ),
        ),
        injections=(records.an_injection(1, "c-hostile.0", text="Stop.\x1b[5m"),),
    )
    await SQLStateStore(SQLiteEngine(database)).commit(call)
    await database.close()
    return path


@pytest.fixture
def command(log: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Run:
    """Run `gateway` on the log and give what it printed."""
    monkeypatch.setenv("GATEWAY_STORAGE__PATH", log)
    monkeypatch.setenv("COLUMNS", "100")

    def run(*words: str, status: int = 0) -> str:
        assert main(list(words)) == status
        printed = capsys.readouterr()
        return printed.err if status else printed.out

    return run


def lines(text: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in text.splitlines()]


def test_runs_are_listed(command: Run) -> None:
    """Newest first, with whole ids however narrow the terminal."""
    listed = lines(command("runs", "list", "--json", "--limit", "5"))
    times = [run["started_at"] for run in listed]
    assert times == sorted(times, reverse=True)
    table = command("runs", "list", "--limit", "5")
    assert all(run["id"] in table for run in listed)


def test_a_terminal_without_a_character_gets_another(log: str, tmp_path: Path) -> None:
    """Of a cost that is unknown, in Latin-1, which has no dash of that length."""
    env = {"PYTHONIOENCODING": "latin-1", "GATEWAY_STORAGE__PATH": log}
    listed = processes.run("runs", "list", directory=tmp_path, env=env)
    assert (listed.returncode, listed.stderr) == (0, "")
    assert "?" in listed.stdout


def test_no_key_of_a_provider_is_needed(
    command: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is stored can be read where the variables are not set that the config names."""
    file = tmp_path / "providers.yaml"
    file.write_text(
        "model_list:\n"
        "- model_name: m\n"
        "  litellm_params: {model: openai/m, api_key: os.environ/NO}\n"
        "default_upstream: {api_key: '${NOT_SET}'}\n"
        "auth: {admin_key: os.environ/NO}\n"
    )
    monkeypatch.setenv("GATEWAY_DEFAULT_UPSTREAM__API_KEY", "${NOT_SET_EITHER}")
    assert command("runs", "list", "--config", str(file), "--json")
    assert "NO" in command("patterns", "list", "--config", str(file), status=2)


def test_filters_choose(command: Run) -> None:
    """As in the control plane."""
    listed = lines(command("runs", "list", "--json", "--tenant", "acme", "--outcome", "success"))
    assert listed
    assert {(run["tenant"], run["outcome"]) for run in listed} == {("acme", "success")}
    assert command("runs", "list", "--json", "--task", "elephant") == ""


def test_runs_are_found_by_their_words(command: Run) -> None:
    """By words of what a person said, too; the filters are those of the API."""
    found = lines(command("runs", "list", "--json", "--search", "LIKE this"))
    assert [run["id"] for run in found] == ["c-hostile.0"]
    assert "no runs" in command("runs", "list", "--search", '"this like"')
    assert "no runs" in command("runs", "list", "--search", "red", "--project", "web")
    assert "no runs" in command("runs", "list", "--until", "1971-01-01")
    assert "--since: must be seconds" in command("runs", "list", "--since", "soon", status=2)


def test_what_a_person_did_is_shown(command: Run) -> None:
    """In a list of its own, and as a filter of the runs."""
    drawn = command("runs", "show", "c-hostile.0")
    assert "step 1    call rejected    not like this" in drawn
    (run,) = lines(command("runs", "list", "--json", "--intervention", "reject"))
    assert (run["id"], run["totals"]["human"]) == ("c-hostile.0", {"reject": 1})
    assert command("runs", "list", "--json", "--intervention", "undo") == ""


def test_a_run_is_shown(command: Run) -> None:
    """The stretches in one state, the monitors with the steps at which they fired, the guidance."""
    drawn = command("runs", "show", "c-000007.0")
    for part in ("difficulty up to", "monitors", "hedge", "steps 0 to 0"):
        assert part in drawn
    runs = lines(command("runs", "list", "--json", "--limit", "100"))
    troubled = next(run["id"] for run in runs if run["totals"]["fired"])
    told = json.loads(command("runs", "show", troubled, "--json"))["steps"]
    name, at = next((step["fired"][0], step["step_index"]) for step in told if step["fired"])
    assert re.search(
        rf"^{name} +up to .*, fired at {at}\b", command("runs", "show", troubled), re.M
    )
    trace = json.loads(command("runs", "show", "c-000007.0", "--json"))
    assert len(trace["steps"]) == trace["run"]["totals"]["steps"] + 1


@pytest.mark.parametrize(
    "words",
    [
        ("runs", "list", "--limit", "100"),
        ("runs", "show", "c-hostile.0"),
        ("runs", "show", "c-hostile.0", "--step", "1"),
        ("runs", "tail", "--once"),
    ],
)
def test_a_runs_text_does_nothing_to_the_terminal(command: Run, words: tuple[str, ...]) -> None:
    """No escape sequence of an agent reaches it."""
    shown = command(*words)
    assert not set(shown) & set("\x1b\x07\u202e")
    assert "c-hostile" in shown or "gone" in shown


def test_a_conversation_stands_for_its_newest_run(command: Run) -> None:
    """Its id is what a client has from the answer's headers, or gave itself."""
    shown = json.loads(command("runs", "show", "c-000007", "--json"))
    assert shown["run"]["id"] == "c-000007.0"
    judged = json.loads(command("runs", "outcome", "c-hostile", "failure", "--json"))
    assert judged["run_id"] == "c-hostile.0"
    named = json.loads(command("runs", "show", "my-task", "--json"))
    assert named["run"]["id"] == "c-hostile.0"


def test_an_outcome_is_kept(command: Run) -> None:
    """And told by whom it was said."""
    command("runs", "outcome", "c-hostile.0", "failure", "--json")
    run = json.loads(command("runs", "show", "c-hostile.0", "--json"))["run"]
    assert (run["outcome"], run["outcome_source"]) == ("failure", "cli")


@pytest.mark.parametrize(
    "words",
    [
        ("runs", "show", "none"),
        ("runs", "show", "c-000007.0", "--step", "900"),
        ("runs", "outcome", "none", "other"),
    ],
)
def test_what_there_is_not_is_said(command: Run, words: tuple[str, ...]) -> None:
    """One line on stderr, and status 2."""
    assert command(*words, status=2).startswith("gateway: ")


def test_tail_tells_each_step(command: Run) -> None:
    """In order within each run, for machines too."""
    told = lines(command("runs", "tail", "--once", "--json", "--tenant", "acme"))
    steps = [line["step"] for line in told if line["run_id"] == told[0]["run_id"]]
    assert steps == sorted(steps)
    assert {line["tenant"] for line in told} <= {"acme"}


async def test_every_outcome_is_kept(command: Run, log: str) -> None:
    """The newest report is the run's outcome; the same again adds nothing."""
    stores = await open_stores(StorageSettings(path=log))
    call = records.a_call(
        conversation=records.a_conversation("c-told"),
        runs=(records.a_run("c-told.0"),),
        steps=(records.a_first_step("c-told.0"),),
    )
    await stores.states.commit(call)
    await stores.close()
    for said in ("success", "success", "failure"):
        await asyncio.to_thread(command, "runs", "outcome", "c-told.0", said, "--score", "2")
    stores = await open_stores(StorageSettings(path=log))
    kept = await stores.learning.outcomes(None, "c-told.0")
    await stores.close()
    assert [(row.source, row.verdict, row.score) for row in kept] == [
        ("told_cli", "success", 2.0),
        ("told_cli", "failure", 2.0),
    ]


@pytest.mark.parametrize("words", [("runs", "list"), ("runs", "tail", "--once")])
@pytest.mark.parametrize("path", ["none.db", ":memory:"])
def test_a_log_that_is_not_there(
    words: tuple[str, ...],
    path: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Reading makes no database, and does not pass a wrong path off as an empty log."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("GATEWAY_STORAGE__PATH", path)
    assert main(list(words)) == 2
    assert "storage.path" in capsys.readouterr().err
    assert not list(tmp_path.iterdir())


def test_the_page_of_a_run_that_is_not_there_is_not_opened(
    log: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """No address is printed, and no gateway started."""
    monkeypatch.setenv("GATEWAY_STORAGE__PATH", log)
    assert main(["dashboard", "nope"]) == 2
    said = capsys.readouterr()
    assert said.out == ""
    assert said.err == "gateway: there is no run 'nope'\n"


def test_migrating_for_a_machine(command: Run, log: str) -> None:
    """One JSON object."""
    assert json.loads(command("migrate", "--json")) == {"path": log, "ok": True}
