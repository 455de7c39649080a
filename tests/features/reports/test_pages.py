"""The ledger and the week of a gateway with real runs, on pages and in the command."""

from __future__ import annotations

import html
import io
import json
import re
import time
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path

import yaml

from gateway.cli import main
from gateway.features.reports.week import monday_of
from gateway.steering.experiments import MODES
from steering_gateway_testing import ScriptedUpstream
from steering_gateway_testing.control_plane import LoopingAgent, client_of
from tests.api.conftest import Start
from tests.api.conftest import start as start
from tests.features.pages.test_pages import page_of


def reported(path: Path, *options: str) -> str:
    config = path.with_name("report.yaml")
    config.write_text(yaml.safe_dump({"storage": {"path": str(path)}}))
    with redirect_stdout(io.StringIO()) as out:
        assert main(["report", "--config", str(config), *options]) == 0
    return out.getvalue()


def words(page: str) -> str:
    return " ".join(html.unescape(re.sub("<[^>]+>", " ", page)).split())


def test_an_experiment_in_the_ledger_and_the_week(
    start: Start, upstream: ScriptedUpstream, tmp_path: Path
) -> None:
    """On the first page, on that of the week, in the command, and in a file that loads nothing."""
    path, today = tmp_path / "gateway.db", time.strftime("%Y-%m-%d", time.gmtime())
    arms = {"id": "half", "arms": {"on": 0.5, "shadow": 0.5}}
    server = start(storage={"path": str(path)}, experiment=arms)
    with client_of(server) as client:
        for number in range(30):
            agent = LoopingAgent(client, upstream, f"Task {number}")
            for _ in range(6 if number % 3 else 2):
                agent.step()
            agent.answer(**{"x-gateway-outcome": "success" if number % 2 else "failure"})
        runs = client.get("/api/runs?limit=100").json()["runs"]
    rows = {row["act"]: row for row in json.loads(reported(path, "--json"))["savings"]}
    found = rows["steering in half"]
    cost = {arm: [r["totals"]["cost_usd"] for r in runs if r["arm"] == arm] for arm in arms["arms"]}
    mean = {arm: sum(costs) / len(costs) for arm, costs in cost.items()}
    assert found["runs"] == len(cost["on"])
    assert abs(found["saved_usd"] - (mean["shadow"] - mean["on"]) * found["runs"]) < 1e-9
    assert rows["texts that steering added"]["saved_usd"] < 0
    now, week = (words(page_of(server, p)) for p in ("/dashboard", f"/dashboard/week?date={today}"))
    file = tmp_path / "week.html"
    text = " ".join(reported(path, "--week", today, "--html", str(file)).split())
    for shown in (now, week, text, words(file.read_text())):
        assert "steering in half" in shown
        assert "at the mean cost of those in shadow" in shown
    assert "30 runs, 50% of 30 with an outcome solved" in text
    before, after = (int(time.time()) + sign * 7 * 86_400 for sign in (-1, 1))
    linked = page_of(server, f"/dashboard/week?date={today}")
    for monday in (
        monday_of(time.strftime("%Y-%m-%d", time.gmtime(at)), 0) for at in (before, after)
    ):
        assert f'"?date={time.strftime("%Y-%m-%d", time.gmtime(monday))}"' in linked
    with redirect_stderr(io.StringIO()) as err:
        config = str(path.with_name("report.yaml"))
        assert main(["report", "--config", config, "--html", str(file)]) == 2
    assert "--html goes with --week" in err.getvalue()
    assert not re.search(r"<script|<link|src=|url[(]|href=.(?!#)", file.read_text())


def test_words_of_a_new_store(start: Start, tmp_path: Path) -> None:
    """Without runs, and with three whose model has no price, there is no number."""
    path = tmp_path / "gateway.db"
    server = start(storage={"path": str(path)})
    assert reported(path).count("no number") == 2
    with client_of(server) as client:
        for number in range(3):
            task = [{"role": "user", "content": f"Task {number}"}]
            body = {"model": "own-model", "messages": task}
            client.post("/v1/chat/completions", json=body).raise_for_status()
    for shown in (reported(path), words(page_of(server, "/dashboard"))):
        assert "no comparison: run gateway pilot start" in shown.replace("`", "")
        assert "3 runs (3 calls) without all prices left out" in shown
        assert shown.count("no number") == 2


def test_an_experiments_page_tells_the_report(start: Start, upstream: ScriptedUpstream) -> None:
    """Arms, comparison, and what stands against it."""
    server = start(experiment={"id": "routing/2", "arms": {"on": 1, "off": 1}})
    with client_of(server) as client:
        for number in range(16):
            agent = LoopingAgent(client, upstream, f"Task {number}")
            agent.step()
            agent.answer(**{"x-gateway-outcome": "success" if number % 3 else "failure"})
    listed = page_of(server, "/dashboard/experiments")
    assert "routing/2" in listed
    assert [f">{arm}</th>" in listed for arm in MODES] == [True] * 3
    page = page_of(server, "/dashboard/experiments/routing%2F2")
    for words in ("on against off", "Before you draw conclusions", "Sample ratio"):
        assert words in page
    page_of(server, "/dashboard/experiments/none", status=404)
    page_of(server, "/dashboard/experiments/routing%2F2?colour=x", status=400)
