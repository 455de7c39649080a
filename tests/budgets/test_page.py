"""The buttons of a run's page, and the budgets' part of the control plane and the commands."""

from __future__ import annotations

import json
from collections.abc import Callable

import httpx
import pytest

from gateway.cli import main
from steering_gateway_testing import AppServer, Reply, ScriptedUpstream, ToolCall
from tests.budgets.test_holds import MAIN, ask
from tests.control import CONTROL

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
    assert "Stopped" in press(action="stop", subject=run_id, reason="<loops>").text
    assert ask(server, MAIN, 2).json()["error"]["code"] == "run_stopped"
    assert "&lt;loops&gt;" in httpx.get(page).text
    assert "Stopped" not in press(action="resume", subject=run_id).text
    assert press(action="raise", **account, metric="calls", limit="-1").status_code == 400
    assert press(action="lift", **account).status_code == 200
    assert ask(server, MAIN, 2).status_code == 200


def test_limits_from_a_terminal_the_api_and_a_header(
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
    assert ask(server, {**asked, "x-gateway-budget": "calls=2"}, 1).status_code == 403
    assert ask(server, {**asked, **admin, "x-gateway-budget": "no"}, 1).status_code == 400
    ordered = ask(server, {**asked, **admin, "x-gateway-budget": "calls=3"}, 1)
    assert ordered.status_code == 200
    assert not upstream.last.header("x-gateway-budget")
    assert ask(server, asked, 2).status_code == 200
    assert ask(server, asked, 3).status_code == 429

    monkeypatch.setenv("GATEWAY_STORAGE__PATH", server.app.runtime.settings.storage.path)
    monkeypatch.setenv("GATEWAY_BUDGETS", json.dumps([PER_RUN, tenant]))
    assert main(["budgets", "raise", "per-run", run_id, "--calls", "4"]) == 0
    assert "limits: 4 calls" not in capsys.readouterr().err
    assert main(["budgets", "raise", "per-tenant", "acme", "--calls", "20"]) == 0
    assert ask(server, asked, 3).status_code == 200
    assert main(["budgets", "lift", "per-run", run_id]) == 0
    assert ask(server, asked, 4).status_code == 200
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
