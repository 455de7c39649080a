"""`gateway report` and `gateway pilot` on a file with a log in it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from gateway.cli import main
from steering_gateway_testing import ScriptedUpstream
from steering_gateway_testing.control_plane import CONTROL, operator_of
from tests.api.conftest import Start
from tests.api.conftest import start as start
from tests.api.test_wrong_alarms import a_loop
from tests.commands.test_changes import KEY
from tests.commands.test_changes import database as database
from tests.commands.test_runs import Run
from tests.commands.test_runs import command as command
from tests.commands.test_runs import log as log


def test_an_experiment_is_reported(command: Run) -> None:
    """With its intervals and its caveats; as JSON the whole report."""
    shown = command("report", "routing-2")
    for part in (
        "on against off",
        "Success ",
        "Cost per run, mean",
        "before you draw conclusions",
    ):
        assert part in shown
    assert "\non     12    81.8%  52% to 95%           1  $0.0282   44.8k   6.42\n" in shown
    assert "\nSuccess                 +24.7   -15.4 to +59.3\n" in shown
    told = json.loads(command("report", "routing-2", "--json"))
    assert sum(arm["runs"] for arm in told["arms"]) == told["runs"] == 20


def test_all_runs_are_summed_up(command: Run) -> None:
    """Without an experiment: how everything went."""
    assert "\nsteps per state\nNORMAL                          172\n" in command("report")
    told = json.loads(command("report", "--json", "--tenant", "acme"))
    assert 0 < told["total_runs"] < 41


def test_a_runs_text_does_nothing_to_the_terminal(command: Run) -> None:
    """No escape sequence of an agent reaches it."""
    assert not set(command("report")) & set("\x1b\x07\u202e")


def test_what_there_is_not_is_said(command: Run) -> None:
    """One line on stderr, and status 2."""
    assert command("report", "none", status=2).startswith("gateway: ")


def test_the_share_is_shown_by_project(
    start: Start,
    upstream: ScriptedUpstream,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """On the page of Health and by `gateway report`; by the command that mutes, too."""
    path = tmp_path / "runs.db"
    server = start(storage={"path": str(path)})
    first, _ = a_loop(server, upstream, "First.")
    a_loop(server, upstream, "Second.")
    monkeypatch.setenv("GATEWAY_STORAGE__PATH", str(path))
    monkeypatch.setenv("GATEWAY_ADMIN_KEY", CONTROL["x-gateway-key"])

    def printed(*words: str) -> str:
        assert main(list(words)) == 0
        return capsys.readouterr().out

    assert json.loads(printed("runs", "wrong", first, "--json"))["muted"] is True
    (row,) = json.loads(printed("report", "--json"))["wrong_alarms"]
    assert row["project"] == "web"
    assert 0 < row["share"] == row["wrong"] / row["alarms"] <= 0.5
    assert row["muted"]
    with operator_of(server) as client:
        page = client.get("/dashboard/health").text
    assert "Alarms called wrong" in page
    assert "alarms called wrong in web" in printed("report")
    printed("runs", "wrong", first, "--undo")
    (row,) = json.loads(printed("report", "--json"))["wrong_alarms"]
    assert (row["wrong"], row["muted"]) == (0, [])


def test_a_pilot_says_what_it_does_before_it_begins(
    database: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The noun alone shows; `start` asks."""
    monkeypatch.setenv("GATEWAY_ADMIN_KEY", KEY)
    assert main(["pilot"]) == 0
    assert "there is no pilot: `gateway pilot start` begins one" in capsys.readouterr().out
    assert main(["pilot", "start", "--client", "cli"]) == 2
    said = capsys.readouterr().err
    assert "half of runs of client cli that begin from now on will not be steered" in said
    assert "--yes" in said
    assert main(["pilot", "start", "--client", "cli", "--yes"]) == 0
    assert main(["pilot"]) == 0
    assert "running" in capsys.readouterr().out
