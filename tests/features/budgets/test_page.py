"""The buttons of a run's page, and the budgets' part of the control plane and the commands."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from html import unescape
from typing import Any

import httpx
import pytest

from gateway.cli import main
from gateway.stores.stopped_by import STOPPERS
from steering_gateway_testing import AppServer, Reply, ScriptedUpstream, ToolCall
from steering_gateway_testing.control_plane import CONTROL
from steering_gateway_testing.patience import until
from tests.examples import by_day
from tests.holds.test_holds import MAIN, ask, control

Start = Callable[..., AppServer]
PER_RUN = {"name": "per-run", "scope": "run", "limits": {"calls": 1}}


def test_the_buttons_of_a_run(gateway_server: Start, upstream: ScriptedUpstream) -> None:
    """Stop and resume, and a raised limit, from the page; the page says what holds."""
    upstream.default = Reply("Look.", tool_calls=(ToolCall("ls", {}),))
    server = gateway_server({"budgets": [PER_RUN]})
    run_id = f"{ask(server, MAIN).headers['x-gateway-conversation-id']}.0"
    page = f"{server.url}/dashboard/runs/{run_id}"

    def press(**form: str) -> httpx.Response:
        return httpx.post(f"{page}/control", data=form, headers=CONTROL, follow_redirects=True)

    assert ask(server, MAIN, 1).json()["error"]["code"] == "budget_exceeded"
    assert "per-run" in httpx.get(page).text
    account = {"budget": "per-run", "account": run_id}
    assert press(action="raise", **account, metric="calls", limit="2").status_code == 200
    assert ask(server, MAIN, 1).status_code == 200
    stopped = press(action="stop", subject=run_id, reason="<loops>", author="ann").text
    assert "Stopped by the operator (ann)" in stopped
    assert f"gateway runs resume {run_id}" in stopped
    assert ask(server, MAIN, 2).json()["error"]["code"] == "run_stopped"
    assert "&lt;loops&gt;" in httpx.get(page).text
    assert "Stopped by" not in press(action="resume", subject=run_id).text
    assert press(action="raise", **account, metric="calls", limit="-1").status_code == 400
    assert press(action="lift", **account).status_code == 200
    assert ask(server, MAIN, 2).status_code == 200


def test_limits_from_a_terminal_and_the_api(
    gateway_server: Start,
    upstream: ScriptedUpstream,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Each raises, lifts or resets; a tenant's key may only look at its own accounts."""
    upstream.default = Reply("Look.", tool_calls=(ToolCall("ls", {}),))
    auth = {"admin_key": "a" * 40, "gateway_keys": {"acme": "b" * 40, "other": "c" * 40}}
    tenant = {"name": "per-tenant", "scope": "tenant", "limits": {"calls": 1}}
    server = gateway_server({"budgets": [PER_RUN, tenant], "auth": auth})
    own = {"authorization": f"Bearer {'b' * 40}"}
    admin = {"x-gateway-key": "a" * 40}
    asked = {**MAIN, **own}
    run_id = f"{ask(server, asked).headers['x-gateway-conversation-id']}.0"
    api = f"{server.url}/api/budgets"
    listed = httpx.get(api, headers=own).json()["accounts"]
    assert {(each["budget"], each["subject"]) for each in listed} == {
        ("per-run", run_id),
        ("per-tenant", "acme"),
    }
    other = {"authorization": f"Bearer {'c' * 40}"}
    assert httpx.get(api, headers=other).json()["accounts"] == []
    body = {"budget": "per-tenant", "subject": "acme", "limits": {"calls": 9}}
    assert httpx.post(f"{api}/raise", json=body, headers=own).status_code == 403
    raised = httpx.post(f"{api}/raise", json=body, headers=admin).json()
    assert (raised["limits"], raised["spent"]["calls"]) == ({"calls": 9}, 1)

    assert ask(server, asked, 1).status_code == 429
    raised = {"budget": "per-run", "subject": run_id, "limits": {"calls": 3}}
    httpx.post(f"{api}/raise", json=raised, headers=admin).raise_for_status()
    assert ask(server, {**asked, "x-gateway-budget": "lift"}, 1).status_code == 200
    assert not upstream.last.header("x-gateway-budget")
    assert ask(server, asked, 2).status_code == 200
    assert ask(server, asked, 3).status_code == 429

    monkeypatch.setenv("GATEWAY_STORAGE__PATH", server.app.runtime.settings.storage.path)
    monkeypatch.setenv("GATEWAY_ADMIN_KEY", "a" * 40)
    monkeypatch.setenv("GATEWAY_BUDGETS", json.dumps([PER_RUN, tenant]))
    assert main(["budgets", "raise", "per-run", run_id, "--calls", "4"]) == 0
    assert "limits: 4 calls" not in capsys.readouterr().err
    assert main(["budgets", "raise", "per-tenant", "acme", "--calls", "20"]) == 0
    assert ask(server, asked, 3).status_code == 200
    assert main(["budgets", "lift", "per-run", run_id]) == 0
    assert ask(server, asked, 4).status_code == 200
    httpx.get(api, headers=own)  # what the gateway has spent from its lease is reported
    assert main(["budgets", "reset", "per-run", run_id, "--json"]) == 0
    capsys.readouterr()
    assert main(["budgets", "list", "--json"]) == 0
    views = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert {each["budget"]: each["spent"]["calls"] for each in views} == {
        "per-run": 0,
        "per-tenant": 5,
    }
    assert main(["budgets", "list"]) == 0
    assert main(["budgets", "raise", "per-run", "nobody", "--calls", "4"]) == 2


@pytest.mark.parametrize("ending", by_day(["error", "answer"], 1))
@pytest.mark.parametrize("kind", ["budget", "runs", "conversations", "pause"])
def test_a_stopped_run_is_shown_as_stopped(
    gateway_server: Start,
    upstream: ScriptedUpstream,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    kind: str,
    ending: str,
) -> None:
    """With why and by whom, and not as in progress, on every page, by API and in a terminal; until
    it may go on."""
    upstream.default = Reply("Look.", tool_calls=(ToolCall("ls", {}),))
    budgets = [{**PER_RUN, "stop_with": ending}] if kind == "budget" else []
    held = {"stop_with": ending, "pause_wait_s": 0}
    server = gateway_server({"budgets": budgets, "control": held})
    conversation = ask(server, MAIN).headers["x-gateway-conversation-id"]
    run_id = f"{conversation}.0"
    shown, by = "stopped by the operator: it loops", "operator"
    if kind == "budget":
        shown, by = "stopped by budget per-run: 1 of the 1-call budget is used.", "budget"
        assert "in progress" in httpx.get(f"{server.url}/dashboard/runs/{run_id}").text
    elif kind == "pause":
        shown = "paused by the operator: it loops"
        control(server, conversation, "pause")
    else:
        control(server, conversation if kind == "conversations" else run_id, "stop", kind)
    assert ask(server, MAIN, 1).is_success is (ending == "answer" and kind != "pause")
    words, _, why = shown.partition(": ")

    def run() -> Any:
        return httpx.get(f"{server.url}/api/runs/{run_id}").json()["run"]

    until(lambda: run()["totals"]["calls"] == 2)  # recorded behind its answer
    stop = run()["stopped"]
    assert (stop["action"], stop["by"]) == ("pause" if kind == "pause" else "stop", by)
    go_on = f"gateway runs resume {run_id if kind == 'runs' else conversation}"
    if kind == "budget":
        go_on = f"gateway budgets raise per-run {run_id} --calls 2"
    assert (stop["why"], stop["go_on"]) == (why, go_on)
    assert stop["at"] == pytest.approx(time.time(), abs=600)
    assert httpx.get(f"{server.url}/api/runs").json()["runs"][0]["stopped"] == stop
    assert run()["totals"]["unpriced_calls"] == 1  # that which was sent
    for asked in ("yes", by, *STOPPERS):
        listed = httpx.get(f"{server.url}/api/runs", params={"stopped": asked, "count": "1"}).json()
        assert listed["total"] == len(listed["runs"]) == (asked in ("yes", by)), asked
    row = httpx.get(f"{server.url}/api/export", params={"format": "csv", "stopped": by}).text
    assert f"{words}," in row
    assert why in row
    for path in ("", "/runs?stopped=yes", f"/runs/{run_id}"):
        page = httpx.get(f"{server.url}/dashboard{path}").text
        assert words in page.replace("Stopped by", "stopped by").replace("Paused", "paused"), path
        assert not any(text in page for text in ("in progress", ">running<")), path
        assert why in unescape(page), path
        assert path.startswith("/runs?") or go_on in unescape(page), path

    monkeypatch.setenv("GATEWAY_STORAGE__PATH", server.app.runtime.settings.storage.path)
    monkeypatch.setenv("COLUMNS", "200")
    assert main(["runs", "list"]) == 0
    assert words in capsys.readouterr().out
    assert main(["runs", "list", "--stopped", by, "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["stopped"] == stop
    assert main(["runs", "list", "--stopped", "on_trouble"]) == 0
    assert capsys.readouterr().out == "no runs\n"
    assert main(["runs", "show", run_id]) == 0
    told = capsys.readouterr().out.replace("\n", " ")
    assert f"{words} " in told
    assert f": {why} to let it go on: {go_on} " in told

    if kind == "budget":
        account = {"budget": "per-run", "subject": run_id, "limits": {"calls": 9}}
        httpx.post(f"{server.url}/api/budgets/raise", json=account, headers=CONTROL)
        assert ask(server, MAIN, 1).is_success
        until(lambda: run()["totals"]["calls"] == 3)
    else:
        control(server, run_id if kind == "runs" else conversation, "resume")
    assert run()["stopped"] is None
