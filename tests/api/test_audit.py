"""The audit log: who changed what, by which way in, and why."""

from __future__ import annotations

import csv
import io
import json
from typing import Any

import httpx
import pytest

from gateway.cli import main
from steering_gateway_testing import AppServer, ScriptedUpstream
from steering_gateway_testing.control_plane import LoopingAgent, client_of
from steering_gateway_testing.patience import ANSWER_S
from tests.api.conftest import Start, with_budgets, with_keys, with_pages

ADMIN, ACME = "the-admin-key-of-this-test", "acme-key"
pytestmark = [with_keys, with_budgets]

AUTH = {"admin_key": ADMIN, "gateway_keys": {"acme": ACME}}
LOOK = "sk-ant-api03-" + "Ab3" * 31


@pytest.fixture
def server(start: Start, tmp_path: Any) -> AppServer:
    budget = {"name": "per-task", "scope": "run", "limits": {"calls": 50}}
    storage = {"path": str(tmp_path / "gateway.db")}
    return start(auth=AUTH, budgets=[budget], storage=storage)


def operator(server: AppServer, author: str = "") -> httpx.Client:
    """A client with the admin key and a stated name."""
    headers = {"x-gateway-key": ADMIN} | ({"x-gateway-author": author} if author else {})
    return httpx.Client(base_url=server.url, headers=headers, timeout=ANSWER_S)


def acts(server: AppServer, **filters: str) -> list[dict[str, Any]]:
    """The log, newest first."""
    with operator(server) as client:
        answer = client.get("/api/audit", params=filters)
    assert answer.status_code == 200, answer.text
    return list(answer.json()["acts"])


def a_run(server: AppServer, upstream: ScriptedUpstream) -> str:
    """A run of acme's agent."""
    with client_of(server, ACME) as client:
        agent = LoopingAgent(client, upstream, "Mend the parser.")
        agent.step()
        agent.answer()
    return agent.run_id


def test_acts_of_the_api_are_kept_with_name_and_reason(
    server: AppServer, upstream: ScriptedUpstream
) -> None:
    """Two people with one key can be told apart; what fails or only reads is not listed."""
    run = a_run(server, upstream)
    with operator(server, "ann") as ann, operator(server, "bob") as bob:
        ann.post(f"/api/runs/{run}/stop", json={"reason": "it loops"}).raise_for_status()
        assert bob.get("/api/held").json()["held"][0]["author"] == "ann"
        bob.post(f"/api/runs/{run}/resume").raise_for_status()
        raised = {"budget": "per-task", "subject": run, "limits": {"calls": 90}}
        bob.post("/api/budgets/raise", json=raised).raise_for_status()
        ann.post(f"/api/runs/{run}/comments", json={"comment": "Ask Eve."}).raise_for_status()
        ann.post(f"/api/runs/{run}/outcome", json={"outcome": "success"}).raise_for_status()
        pattern = {"tier": "e3", "fields": {"instruction": f"Never print {LOOK}."}}
        ann.post("/api/patterns", json=pattern).raise_for_status()
        assert ann.post("/api/runs/none/stop").status_code == 404
        assert ann.post("/api/runs/none/comments", json={"comment": "x"}).status_code == 404
    names = ("kind", "act", "author", "reason")
    listed = [tuple(act[name] for name in names) for act in reversed(acts(server))]
    assert listed == [
        ("run", "stop", "ann", "it loops"),
        ("run", "resume", "bob", ""),
        ("budget", "raise", "bob", ""),
        ("comment", "comment", "ann", "Ask Eve."),
        ("outcome", "report", "ann", ""),
        ("pattern", "add", "ann", ""),
    ]
    assert acts(server, kind="budget")[0]["changed"]["limits"] == {"calls": 90}
    assert {act["subject"] for act in acts(server, subject=run)} == {run}
    assert len(acts(server, author="bob")) == 2
    assert [act["reason"] for act in acts(server, text="ASK eve")] == ["Ask Eve."]
    assert acts(server, until="2026-01-01T00:00:00Z") == []
    assert LOOK not in json.dumps(acts(server))
    assert ADMIN not in json.dumps(acts(server))


def test_the_log_is_paged_exported_and_for_operators(
    server: AppServer, upstream: ScriptedUpstream
) -> None:
    """Pages join without gaps; both exports hold every act; no method removes one."""
    run = a_run(server, upstream)
    with operator(server, "ann") as ann:
        for number in range(5):
            ann.post(f"/api/runs/{run}/comments", json={"comment": f"={number}"})
        first = ann.get("/api/audit", params={"limit": "3"}).json()
        more = {"limit": "3", "cursor": first["next_cursor"]}
        rest = ann.get("/api/audit", params=more).json()
        assert [a["reason"] for a in first["acts"] + rest["acts"]] == ["=4", "=3", "=2", "=1", "=0"]
        assert rest["next_cursor"] is None
        lines = ann.get("/api/audit", params={"format": "jsonl"}).text.splitlines()
        assert [json.loads(line)["author"] for line in lines] == ["ann"] * 5
        table = ann.get("/api/audit", params={"format": "csv"})
        rows = list(csv.reader(io.StringIO(table.text)))
        assert rows[0] == ["id", "at", "kind", "subject", "author", "reason", "act", "changed"]
        assert len(rows) == 6
        for method in ("POST", "PUT", "PATCH", "DELETE"):
            assert ann.request(method, "/api/audit").status_code == 405
    with client_of(server, ACME) as agent:
        assert agent.get("/api/audit").status_code == 403
        assert agent.post(f"/api/runs/{run}/comments", json={"comment": "me"}).status_code == 403
        assert agent.post(f"/api/runs/{run}/outcome", json={"outcome": "failure"}).is_success
    assert len(acts(server)) == 5


@with_pages
def test_forms_are_kept_and_the_run_page_shows_them(
    server: AppServer, upstream: ScriptedUpstream
) -> None:
    """The name at the login is that of the acts; several runs are marked at once."""
    runs = [a_run(server, upstream) for _ in range(2)]
    with httpx.Client(base_url=server.url, timeout=ANSWER_S, follow_redirects=True) as browser:
        browser.headers["origin"] = server.url
        browser.post("/dashboard/login", data={"key": ADMIN, "name": "Zo\u00eb"})
        control = f"/dashboard/runs/{runs[0]}/control"
        browser.post(control, data={"action": "stop", "subject": runs[0], "reason": "a <b>loop"})
        said = browser.post(control, data={"action": "comment", "comment": "Look at step 1."})
        assert said.status_code == 200, said.text
        page = browser.get(f"/dashboard/runs/{runs[0]}").text
        assert "of people and the gateway" in page
        assert "a &lt;b&gt;loop" in page
        assert "Look at step 1." in page, acts(server)
        ticked = {f"run.{run}": "on" for run in runs}
        marked = browser.post("/dashboard/runs?agent=", data={**ticked, "outcome": "failure"})
        assert marked.status_code == 200
        for run in runs:
            assert browser.get(f"/api/runs/{run}").json()["run"]["outcome"] == "failure"
        log = browser.get("/dashboard/audit?kind=comment").text
        assert "Look at step 1." in log
        assert "a &lt;b&gt;loop" not in log
    found = [(act["kind"], act["act"], act["author"]) for act in reversed(acts(server))]
    assert found[:2] == [("run", "stop", "Zo\u00eb"), ("comment", "comment", "Zo\u00eb")]
    assert found[2:] == [("outcome", "report", "Zo\u00eb")] * 2
    with httpx.Client(base_url=server.url, follow_redirects=True) as other:
        other.post("/dashboard/login", data={"key": ACME})
        assert other.get("/dashboard/audit").status_code == 403
        assert "/dashboard/audit" not in other.get("/dashboard/runs").text


def test_commands_are_kept_and_list_the_log(
    server: AppServer,
    upstream: ScriptedUpstream,
    tmp_path: Any,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """The author is the user of the machine, or the one that is named."""
    run = a_run(server, upstream)
    monkeypatch.setenv("GATEWAY_STORAGE__PATH", str(tmp_path / "gateway.db"))
    monkeypatch.setenv("USER", "root-of-all")
    monkeypatch.setenv("GATEWAY_ADMIN_KEY", ADMIN)
    assert main(["runs", "stop", run, "--reason", "enough"]) == 0
    assert main(["runs", "resume", run, "--author", "eve", "--reason", "mended"]) == 0
    assert main(["budgets", "raise", "per-task", run, "--calls", "70"]) == 0
    assert main(["keys", "create", "beta", "--name", "ci"]) == 0
    key = capsys.readouterr().out.split("gk-")[-1].split()[0]
    said = [(a["kind"], a["act"], a["author"], a["reason"]) for a in reversed(acts(server))]
    assert said == [
        ("run", "stop", "root-of-all", "enough"),
        ("run", "resume", "eve", "mended"),
        ("budget", "raise", "root-of-all", ""),
        ("key", "create", "root-of-all", ""),
    ]
    assert key not in json.dumps(acts(server))
    assert main(["audit", "--author", "eve"]) == 0
    assert "mended" in capsys.readouterr().out
    assert main(["audit", "--json", "--kind", "run"]) == 0
    assert len(capsys.readouterr().out.splitlines()) == 2
    assert main(["audit", "--csv"]) == 0
    assert capsys.readouterr().out.startswith("id,at,kind")
    assert main(["audit", "--since", "yesterday"]) != 0
    assert "since" in capsys.readouterr().err


def test_what_the_gateway_stops_is_its_own_act(start: Start, upstream: ScriptedUpstream) -> None:
    """A budget that ends a run is in the log, by the gateway."""
    budget = {"name": "per-task", "scope": "run", "limits": {"calls": 1}}
    server = start(auth=AUTH, budgets=[budget])
    with client_of(server, ACME) as client:
        agent = LoopingAgent(client, upstream, "Mend the parser.")
        agent.step()
        with pytest.raises(httpx.HTTPStatusError):
            agent.step()
    (act,) = acts(server, kind="budget")
    assert (act["act"], act["author"], act["changed"]["budget"]) == ("stop", "gateway", "per-task")


@with_pages
def test_keys_and_answers_are_kept_once(
    server: AppServer, upstream: ScriptedUpstream, tmp_path: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Forms of keys and commands: one act each, about the id of the key, by the name that was
    given. A form that names no known act does nothing, and a comment is not empty."""
    run = a_run(server, upstream)
    with operator(server, "ann") as ann:
        page = "/dashboard/keys"
        assert ann.post(page, data={"action": "create", "tenant": "acme"}).status_code == 200
        (key,) = ann.get("/api/keys").json()["keys"]
        named = {"subject": key["id"]}
        assert ann.post(page, data={"action": "remove", **named}).status_code == 400
        assert ann.post(page, data={"action": "rotate", **named}).status_code == 200
        assert ann.post(page, data={"action": "revoke", **named}).status_code == 303
        for text in ("", " \n", "x" * 501):
            said = {"action": "comment", "comment": text}
            assert ann.post(f"/dashboard/runs/{run}/control", data=said).status_code == 400
            sent = ann.post(f"/api/runs/{run}/comments", json={"comment": text})
            assert sent.status_code == 400
    config = tmp_path / "config.yaml"
    config.write_text(json.dumps({"storage": {"path": str(tmp_path / "gateway.db")}}))
    about = ["--author", "bob", "--config", str(config)]
    monkeypatch.setenv("GATEWAY_ADMIN_KEY", ADMIN)
    assert main(["keys", "create", "acme", *about]) == 0
    made = acts(server)[0]["subject"]
    assert made.startswith("key-")
    assert main(["keys", "set", made, "--team", "web", *about]) == 0
    assert main(["keys", "rotate", made, *about]) == 0
    found = [(act["kind"], act["act"], act["subject"], act["author"]) for act in acts(server)]
    by_page = [("key", act, key["id"], "ann") for act in ("create", "rotate", "revoke")]
    by_command = [("key", act, made, "bob") for act in ("create", "set", "rotate")]
    assert found[::-1] == by_page + by_command
