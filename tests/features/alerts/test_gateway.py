"""Alerts of whole gateways: noticed, sent once, and never in a request's way."""

from __future__ import annotations

import io
import json
import time
from contextlib import redirect_stdout
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import yaml

from gateway.cli import main
from gateway.hooks import features
from steering_gateway_testing import AppServer, ScriptedUpstream
from steering_gateway_testing.control_plane import LoopingAgent, client_of
from steering_gateway_testing.patience import until
from steering_gateway_testing.receiver import Receiver, alerting
from tests.api.conftest import Start
from tests.api.conftest import start as start
from tests.severity_words import check_words


def test_a_looping_run_is_reported_once_by_two_gateways(
    start: Start, upstream: ScriptedUpstream, receiver: Receiver, tmp_path: Path
) -> None:
    """On one store; the receiver fails, then hangs: requests are answered meanwhile, and in the
    end it has one alert, which API, page and events have, too."""
    alerts = alerting(receiver, rules={"trouble": False})
    shared = {"alerts": alerts, "storage": {"path": str(tmp_path / "shared.db")}}
    first, second = start(**shared), start(**shared)
    receiver.status, receiver.waits_for_us = 500, True
    with client_of(first) as client:
        agent = LoopingAgent(client, upstream, "Find the secret file")
        for _ in range(12):
            agent.step()
        assert receiver.arrived.acquire(timeout=120)
        receiver.hold.clear()
        assert receiver.arrived.acquire(timeout=120)
        for _ in range(3):  # while the receiver holds its answer back
            agent.step()
        assert not receiver.hold.is_set()
        receiver.status = 200
        receiver.hold.set()
        until(lambda: receiver.messages)
        (listed,) = until(lambda: _delivered(first))
        text = client.get("/metrics").text
    assert listed["rule"] == "run_stuck"
    assert check_words([listed, receiver.messages]) <= {"warn", "danger"}
    assert listed["severity_word"] in ("at-risk", "in-trouble")
    assert listed["facts"]["run_id"] == agent.run_id
    assert listed["deliveries"][0]["attempts"] >= 1
    assert "secret file" not in json.dumps(receiver.messages)
    assert len(receiver.titles()) == 1
    assert _delivered(second) == [listed] or _delivered(second)[0]["id"] == listed["id"]
    assert 'gateway_alerts_total{rule="run_stuck"}' in text + _metrics(second)


@pytest.mark.skipif("reports" not in features(), reason="the reports are not there")
def test_the_week_is_reported_once_by_all_gateways(
    start: Start, receiver: Receiver, tmp_path: Path
) -> None:
    """Also by one that starts later; with its lines, and a link to the page."""
    alerts = alerting(receiver, rules={"weekly_report": True}, base_url="http://gateway.test")
    shared = {"alerts": alerts, "storage": {"path": str(tmp_path / "shared.db")}}
    first, second = start(**shared), start(**shared)
    until(lambda: _delivered(first))
    third = start(**{**shared, "alerts": {**alerts, "cooldown_s": 0}})
    with client_of(third) as client:
        (alert,) = receiver.messages[0]["alerts"]
        page = client.get(alert["link"].removeprefix("http://gateway.test"))
        time.sleep(0.5)  # several looks at the rules
    assert page.status_code == 200
    assert alert["title"] in page.text
    assert alert["rule"] == "weekly_report"
    assert alert["facts"]["lines"][-1] == "saved: no number"
    assert len(alert["facts"]["lines"]) == 5
    assert len(receiver.titles()) == len(_delivered(second)) == 1


def _delivered(server: AppServer) -> list[dict[str, Any]]:
    with client_of(server) as client:
        found: list[dict[str, Any]] = client.get("/api/alerts").json()["alerts"]
    return [one for one in found if all(d["done_at"] for d in one["deliveries"])]


def _metrics(server: AppServer) -> str:
    with client_of(server) as client:
        return client.get("/metrics").text


def test_the_command_tests_and_lists(tmp_path: Path, receiver: Receiver) -> None:
    """`gateway alerts test` says who took the message, and fails if one did not."""
    config = tmp_path / "config.yaml"
    sinks = [{"name": "ops", "url": receiver.url}, {"name": "chat", "url": receiver.url}]
    storage = {"path": str(tmp_path / "gateway.db")}
    config.write_text(yaml.safe_dump({"alerts": {"sinks": sinks}, "storage": storage}))

    def run(*arguments: str) -> tuple[int, str]:
        with redirect_stdout(io.StringIO()) as out:
            status = main(["alerts", *arguments, "--config", str(config)])
        return status, out.getvalue()

    assert run("test") == (0, "ops: sent\nchat: sent\n")
    assert run("test", "--sink", "nobody")[0] == 2
    receiver.status = 404
    status, text = run("test", "--sink", "ops", "--json")
    assert (status, json.loads(text)["error"]) == (1, "status 404")
    assert run("list")[0] == 2  # there is no database yet
    assert main(["migrate", "--config", str(config)]) == 0
    assert run("list") == (0, "no alerts\n")


def _told(receiver: Receiver, words: str) -> list[str]:
    return [title for title in receiver.titles() if words in title]


def test_a_budget_is_reported_at_each_share(
    start: Start, upstream: ScriptedUpstream, receiver: Receiver
) -> None:
    """Once at each, and *Now* shows how far it is used."""
    upstream_budget = {"name": "daily", "scope": "day", "limits": {"calls": 10}}
    server = start(alerts=alerting(receiver), budgets=[upstream_budget])
    with client_of(server) as client:
        for number in range(10):
            agent = LoopingAgent(client, upstream, f"Task {number}")
            agent.answer()
            if number in (4, 7, 9):
                share = {4: "50%", 7: "80%", 9: "100%"}[number]
                until(partial(_told, receiver, share))
        page = client.get("/dashboard").text
    told = [title for title in receiver.titles() if "daily" in title]
    assert len(told) == 3
    assert "daily" in page
    assert "100%" in page


def test_a_test_of_alerts_needs_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """It reads the config, and makes no database."""
    monkeypatch.chdir(tmp_path)
    assert main(["alerts", "test"]) == 2
    assert "names no receiver" in capsys.readouterr().err
    assert main(["check-config"]) == 0
    assert not list(tmp_path.iterdir())


def test_what_is_stored_is_read_without_the_keys_of_receivers(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The section is left out of what a command reads that sends nothing."""
    storage = f"storage: {{path: {tmp_path / 'one.db'}}}\n"
    sinks = "alerts: {sinks: [{name: a, url: '${NOT_SET}'}]}\n"
    config = tmp_path / "own.yaml"
    config.write_text(storage)
    assert main(["migrate", "--config", str(config)]) == 0
    config.write_text(storage + sinks)
    assert main(["migrate", "--config", str(config)]) == 2
    assert "'NOT_SET' is not set" in capsys.readouterr().err
    assert main(["alerts", "list", "--config", str(config)]) == 0


def test_links_use_the_address_of_an_operators_browser(
    start: Start, upstream: ScriptedUpstream, receiver: Receiver
) -> None:
    """Neither a Host that a stranger or a key of the control plane sends, nor that of a login that
    fails, is believed; that of a session is."""
    budget = {"name": "daily", "scope": "day", "limits": {"calls": 1}}
    shared = {
        "alerts": alerting(receiver),
        "budgets": [budget],
        "auth": {"admin_key": "s3cret-key"},
    }
    server = start(**shared)
    forged = {"host": "evil.example"}
    with client_of(server, "s3cret-key") as client:
        LoopingAgent(client, upstream, "A task").answer()
        client.get("/dashboard", headers=forged)
        (alert,) = until(lambda: client.get("/api/alerts", headers=forged).json()["alerts"][:1])
        assert alert["link"].startswith("http://127.0.0.1:")
    with client_of(server) as browser:
        for key in ("wrong", "s3cret-key"):
            browser.get("/dashboard", headers=forged)
            form = {"key": key}
            browser.post("/dashboard/login", data=form)
        browser.get("/dashboard", headers={"host": "ops.example", "x-forwarded-proto": "https"})
        (alert,) = browser.get("/api/alerts").json()["alerts"][:1]
    assert alert["link"].startswith("https://ops.example/dashboard")
