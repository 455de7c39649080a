"""Rights, limits, expiry and rotation of stored keys, through the API, the page and commands."""

from __future__ import annotations

import json
import re
import time
from pathlib import Path
from typing import Any
from unittest import mock

import httpx
import pytest

from gateway.cli import main
from gateway.features.keys.keyring import key_budgets, make_key
from gateway.features.keys.records import KeyTerms
from steering_gateway_testing import AppServer, ScriptedUpstream
from steering_gateway_testing.control_plane import client_of
from steering_gateway_testing.patience import DEADLINE_MS, until
from steering_gateway_testing.receiver import Receiver
from tests.api.conftest import Start, with_pages
from tests.examples import by_day

ADMIN = "gw-admin-of-this-test-0123456789abcdef"
HELLO = [{"role": "user", "content": "hi"}]
BODY = {"model": "m", "messages": HELLO}


@pytest.fixture
def server(start: Start, tmp_path: Path) -> AppServer:
    """A gateway with an admin key and a database in a file."""
    auth = {"admin_key": ADMIN, "poll_s": 0.1}
    steering = {"mode": "on", "deadline_ms": DEADLINE_MS}
    return start(storage={"path": str(tmp_path / "keys.db")}, auth=auth, steering=steering)


@pytest.fixture
def admin(server: AppServer) -> Any:
    with client_of(server, ADMIN) as client:
        yield client


def made(admin: httpx.Client, **body: Any) -> Any:
    answer = admin.post("/api/keys", json={"tenant": "acme", **body})
    assert answer.status_code == 200, answer.text
    return answer.json()


def ask(server: AppServer, key: str, path: str = "/v1/chat/completions", **more: Any) -> Any:
    with client_of(server, key) as client:
        return client.post(path, json={**BODY, **more})


def test_a_key_is_made_changed_and_revoked(server: AppServer, admin: httpx.Client) -> None:
    """Its text is in one answer; each change is in force with the answer to it."""
    key = made(admin, name="builder", owner="ada", team="web", models=["m"], usd=5, per="day")
    assert (key["owner"], key["models"], key["state"]) == ("ada", ["m"], "valid")
    listed = admin.get("/api/keys").json()["keys"]
    assert [each["id"] for each in listed] == [key["id"]]
    assert key["key"] not in json.dumps(listed)
    assert ask(server, key["key"]).status_code == 200
    changed = admin.patch(f"/api/keys/{key['id']}", json={"models": ["other"]}).json()
    assert (changed["models"], changed["owner"]) == (["other"], "ada")
    assert ask(server, key["key"]).status_code == 403
    assert admin.delete(f"/api/keys/{key['id']}").json() == {"revoked": key["id"]}
    assert ask(server, key["key"]).status_code == 401
    assert admin.delete(f"/api/keys/{key['id']}").status_code == 404
    assert admin.patch(f"/api/keys/{key['id']}", json={"team": "x"}).status_code == 404


@pytest.mark.parametrize(
    ("body", "named"),
    by_day(
        [
            ({"usd": -1}, "usd"),
            ({"per": "year"}, "per"),
            ({"routes": ["/v1/chat"]}, "routes"),
            ({"tags": {"A b": "c"}}, "A b"),
            ({"owner": "a\x1b[31m"}, "owner"),
            ({"tenant": ""}, "tenant"),
            ({"tenant": "t" * 121}, "tenant"),
            ({"name": "n" * 121}, "name"),
            ({"replaces": "key-1"}, "replaces"),
            ({"usdd": 1}, "usdd"),
        ],
        4,
    ),
)
def test_a_wrong_value_is_named(admin: httpx.Client, body: dict[str, Any], named: str) -> None:
    """Nothing is stored."""
    answer = admin.post("/api/keys", json={"tenant": "acme", **body})
    assert answer.status_code == 400
    assert named in answer.json()["error"]["message"]
    assert admin.get("/api/keys").json()["keys"] == []


@with_pages
def test_an_agents_key_changes_no_key(server: AppServer, admin: httpx.Client) -> None:
    """Not even its own, nor does it see the list; the page is the operator's, too."""
    key = made(admin)
    with client_of(server, key["key"]) as agent:
        assert agent.get("/api/keys").status_code == 403
        assert agent.post("/api/keys", json={"tenant": "acme"}).status_code == 403
        for method, path in (("PATCH", ""), ("DELETE", ""), ("POST", "/rotate")):
            url = f"/api/keys/{key['id']}{path}"
            assert agent.request(method, url, json={}).status_code == 403
        assert agent.get("/dashboard/keys").status_code == 403
        form = {"action": "revoke", "subject": key["id"]}
        assert agent.post("/dashboard/keys", data=form).status_code == 403
    assert len(admin.get("/api/keys").json()["keys"]) == 1


POSTS = [
    ("/v1/chat/completions", {}),
    ("/v1/responses", {"input": "hi"}),
    ("/v1/messages", {"max_tokens": 9}),
    ("/v1/embeddings", {"input": "hi"}),
    ("/v1beta/models/m:generateContent", {"contents": [{"parts": [{"text": "hi"}]}]}),
]


@pytest.mark.parametrize(("path", "body"), POSTS)
def test_rights_hold_on_every_route(
    server: AppServer,
    admin: httpx.Client,
    upstream: ScriptedUpstream,
    path: str,
    body: dict[str, Any],
) -> None:
    """A model and a route that the key does not give are refused before anything is sent."""
    of_models = made(admin, models=["gpt-*"])["key"]
    of_routes = made(admin, routes=["/models"])["key"]
    for key in (of_models, of_routes):
        answer = ask(server, key, path, **body)
        assert answer.status_code == 403, answer.text
        assert "this key may not use" in answer.text
    assert not upstream.requests


@pytest.mark.parametrize("path", ["/v1/realtime?model=m", "/v1/responses"])
def test_rights_hold_on_websockets(server: AppServer, admin: httpx.Client, path: str) -> None:
    """The handshake is refused."""
    key = made(admin, routes=["/chat/*"])["key"]
    upgrade = {"connection": "Upgrade", "upgrade": "websocket", "sec-websocket-version": "13"}
    with client_of(server, key) as client:
        headers = {**upgrade, "sec-websocket-key": "dGhlIHNhbXBsZSBub25jZQ=="}
        assert client.get(path, headers=headers).status_code == 403


def test_rights_of_the_config_and_of_the_key_both_hold(start: Start, tmp_path: Path) -> None:
    """A key of the config beside a stored one: each has its own limits."""
    rights = {"acme": {"models": ["m", "n"]}}
    of_config = {"gateway_keys": {"acme": "a-key-of-the-config"}, "rights": rights}
    storage = {"path": str(tmp_path / "keys.db")}
    server = start(storage=storage, auth={"admin_key": ADMIN, **of_config})
    with client_of(server, ADMIN) as admin:
        key = made(admin, models=["m", "o"])["key"]
    allowed = {
        (name, model): ask(server, text, model=model).status_code == 200
        for name, text in (("stored", key), ("config", "a-key-of-the-config"))
        for model in "mno"
    }
    assert [pair for pair, fine in allowed.items() if fine] == [
        ("stored", "m"),
        ("config", "m"),
        ("config", "n"),
    ]


def test_a_key_expires(server: AppServer, admin: httpx.Client) -> None:
    """Only its holder reads when; a later end makes it valid again."""
    key = made(admin, expires_at=time.time() + 3600)
    assert ask(server, key["key"]).status_code == 200
    url = f"/api/keys/{key['id']}"
    assert admin.patch(url, json={"expires_at": time.time() - 1}).json()["state"] == "expired"
    refused = ask(server, key["key"])
    assert refused.status_code == 401
    assert re.search(r"expired on \d{4}-\d\d-\d\d \d\d:\d\d UTC", refused.text)
    with client_of(server, key["key"]) as client:
        assert "expired on" in client.get("/api/runs").text
    assert "expired" not in ask(server, key["key"] + "x").text
    admin.patch(url, json={"expires_at": None})
    assert ask(server, key["key"]).status_code == 200


def test_rotation_with_an_overlap(server: AppServer, admin: httpx.Client) -> None:
    """Both keys work, with the same rights and as one name; without an overlap the old one ends."""
    old = made(admin, models=["m"], team="web")
    url = f"/api/keys/{old['id']}/rotate"
    new = admin.post(url, params={"overlap": "1h"}).json()
    assert (new["replaces"], new["models"], new["team"]) == (old["id"], ["m"], "web")
    assert new["name"] == old["id"]
    assert {ask(server, key["key"]).status_code for key in (old, new)} == {200}
    assert admin.post(url).status_code == 400  # it is replaced already
    last = admin.post(f"/api/keys/{new['id']}/rotate", params={"overlap": "0m"}).json()
    assert ask(server, new["key"]).status_code == 401
    assert ask(server, last["key"]).status_code == 200
    assert admin.post("/api/keys/key-none/rotate").status_code == 404
    wrong = admin.post(f"/api/keys/{last['id']}/rotate", params={"overlap": "soon"})
    assert wrong.status_code == 400
    names = {run["key_name"] for run in admin.get("/api/runs").json()["runs"]}
    assert names == {old["id"]}


def test_a_budget_of_a_key_holds_over_a_rotation(server: AppServer, admin: httpx.Client) -> None:
    """Two keys, one account; it is listed and raised as any budget."""
    old = made(admin, usd=1e-9)
    free = made(admin)
    until(lambda: ask(server, old["key"]).status_code == 429)
    new = admin.post(f"/api/keys/{old['id']}/rotate").json()
    assert ask(server, new["key"]).status_code == 429
    assert ask(server, free["key"]).status_code == 200
    (account,) = admin.get("/api/budgets").json()["accounts"]
    assert (account["budget"], account["scope"]) == (old["id"], "key")
    admin.patch(f"/api/keys/{new['id']}", json={"usd": 50})
    assert ask(server, new["key"]).status_code == 200


def test_the_account_of_a_key_is_alerted_about_and_raised(
    start: Start,
    receiver: Receiver,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """As that of a budget of the config; the command shows its limits."""
    sinks = [{"name": "ops", "url": receiver.url}]
    alerts = {"sinks": sinks, "check_interval_s": 0.1, "group_wait_s": 0}
    storage = {"path": str(tmp_path / "keys.db")}
    server = start(storage=storage, auth={"admin_key": ADMIN}, alerts=alerts)
    with client_of(server, ADMIN) as admin:
        key = made(admin, name="ci", usd=1e-9, per="total")
        priced = {"model": "gpt-4o-mini"}
        assert ask(server, key["key"], **priced).status_code in (200, 429)
        until(lambda: [title for title in receiver.titles() if key["id"] in title])
        (account,) = admin.get("/api/budgets").json()["accounts"]
    monkeypatch.setenv("GATEWAY_STORAGE__PATH", storage["path"])
    monkeypatch.setenv("GATEWAY_ADMIN_KEY", ADMIN)
    account = [account["budget"], account["subject"]]
    for act, more, shown in (
        ("reset", [], "$"),
        ("raise", ["--usd", "9"], "$9.00"),
    ):
        capsys.readouterr()
        assert main(["budgets", act, *account, *more]) == 0
        assert shown in capsys.readouterr().out.partition("limits: ")[2]


def test_rates_and_team_of_a_key(start: Start, tmp_path: Path) -> None:
    """Each key has its own rates; a team's budget counts all its keys, whatever a tag claims."""
    settings = {
        "storage": {"path": str(tmp_path / "keys.db")},
        "auth": {"admin_key": ADMIN},
        "budgets": [{"name": "team", "scope": "team", "per": "month", "limits": {"calls": 3}}],
    }
    server = start(**settings)
    with client_of(server, ADMIN) as admin:
        slow, fast = made(admin, rpm=1, tpm=10**6, team="web"), made(admin, team="web")
        other, free = made(admin, team="shop"), made(admin)
        at = time.time() // 60 * 60 + 30
        with mock.patch("gateway.features.budgets.guard.time.time", return_value=at):
            assert ask(server, slow["key"]).status_code == 200
            refused = ask(server, slow["key"])
            assert (refused.status_code, refused.headers["retry-after"]) == (429, "31")
            statuses = [ask(server, fast["key"]).status_code for _ in range(3)]
        assert statuses == [200, 200, 429]
        assert ask(server, fast["key"]).json()["error"]["code"] == "budget_exceeded"
        assert ask(server, other["key"]).status_code == 200
        with client_of(server, free["key"]) as client:
            headers = {"x-gateway-tag-team": "web"}
            assert client.post("/v1/chat/completions", json=BODY, headers=headers).is_success
        found = {a["budget"]: a for a in admin.get("/api/budgets").json()["accounts"]}
        assert {f"{slow['id']}.rpm", f"{slow['id']}.tpm", "team"} <= set(found)
        for wrong in ({"rpm": 0}, {"tpm": -1}, {"per": "year"}):
            url = f"/api/keys/{slow['id']}"
            assert admin.patch(url, json=wrong).status_code == 400


def test_budgets_of_keys_go_by_name() -> None:
    """The newer of two keys decides; keys without limits have none."""
    old = make_key("t", "n", KeyTerms(usd=1.0)).record
    new = make_key("t", "n", KeyTerms(usd=2.0, replaces=old.id)).record
    found = key_budgets([old, new, make_key("t").record])
    assert list(found) == [("t", "n")]
    (budget,) = found["t", "n"]
    assert (budget.name, budget.limits.usd) == (old.id, 2.0)


def test_tags_of_a_key_are_those_of_its_runs(server: AppServer, admin: httpx.Client) -> None:
    """A header sets a tag that the key only proposes, and never its team or its owner."""
    key = made(admin, team="web", owner="ada", tags={"project": "shop", "env": "ci"})["key"]
    claimed = {"team": "other", "owner": "eve", "env": "prod"}
    headers = {f"x-gateway-tag-{name}": value for name, value in claimed.items()}
    with client_of(server, key) as client:
        assert client.post("/v1/chat/completions", json=BODY, headers=headers).status_code == 200
        until(lambda: client.get("/api/runs").json()["runs"])
        (run,) = client.get("/api/runs").json()["runs"]
    assert run["tags"] == {"team": "web", "owner": "ada", "project": "shop", "env": "prod"}


def test_a_change_reaches_the_other_gateway(start: Start, tmp_path: Path) -> None:
    """Within `auth.poll_s`: a new key, its change, its end."""
    settings = {
        "storage": {"path": str(tmp_path / "keys.db")},
        "auth": {"admin_key": ADMIN, "poll_s": 0.1},
    }
    one, other = start(**settings), start(**settings)
    with client_of(one, ADMIN) as admin:
        key = made(admin)
        until(lambda: ask(other, key["key"]).status_code == 200)
        admin.patch(f"/api/keys/{key['id']}", json={"models": ["n"]})
        until(lambda: ask(other, key["key"]).status_code == 403)
        admin.delete(f"/api/keys/{key['id']}")
        until(lambda: ask(other, key["key"]).status_code == 401)


def test_commands(
    server: AppServer,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """`create` with rights, `set`, `rotate`; a running gateway follows."""
    monkeypatch.setenv("GATEWAY_STORAGE__PATH", str(tmp_path / "keys.db"))
    monkeypatch.setenv("GATEWAY_ADMIN_KEY", ADMIN)

    def shell(*words: str) -> Any:
        capsys.readouterr()
        assert main(["keys", *words, "--json"]) == 0
        return json.loads(capsys.readouterr().out)

    words = "create acme --owner ada --team web --tag env=ci --tag project=shop --model m*"
    key = shell(
        *words.split(), *["--route", "/chat/*", "--expires", "30d", "--usd", "20", "--per", "day"]
    )
    assert key["tags"] == {"env": "ci", "project": "shop"}
    assert (key["models"], key["routes"], key["usd"]) == (["m*"], ["/chat/*"], 20)
    assert 29 * 86400 < key["expires_at"] - time.time() <= 30 * 86400
    until(lambda: ask(server, key["key"]).status_code == 200)
    changed = shell("set", key["id"], "--model", "n", "--expires", "never")
    assert (changed["models"], changed["expires_at"], changed["owner"]) == (["n"], None, "ada")
    until(lambda: ask(server, key["key"]).status_code == 403)
    assert shell("rotate", key["id"], "--overlap", "0m")["replaces"] == key["id"]
    until(lambda: "expired on" in ask(server, key["key"]).text)
    for wrong in (["set", key["id"]], ["rotate", "key-none"], ["create", "t", "--expires", "soon"]):
        capsys.readouterr()
        assert main(["keys", *wrong]) == 2
        assert capsys.readouterr().err.startswith("gateway: ")
    assert main(["keys", "list"]) == 0
    assert key["key"] not in capsys.readouterr().out


@with_pages
def test_the_page(server: AppServer, admin: httpx.Client) -> None:
    """Makes a key and shows it once; a wrong value is named, and what was typed stays."""
    form = {"action": "create", "tenant": "acme", "owner": "ada", "models": "m, n", "expires": "1d"}
    wrong = admin.post("/dashboard/keys", data={**form, "usd": "much"})
    assert wrong.status_code == 400
    assert "usd" in wrong.text
    assert 'value="m, n"' in wrong.text
    shown = admin.post("/dashboard/keys", data={**form, "usd": ""}).text
    text = re.search(r"<code>(gw-[\w-]{40,})</code>", shown)
    assert text is not None
    assert ask(server, text[1]).status_code == 200
    assert text[1] not in admin.get("/dashboard/keys").text
    (key,) = admin.get("/api/keys").json()["keys"]
    assert (key["models"], key["owner"]) == (["m", "n"], "ada")
    rotated = admin.post("/dashboard/keys", data={"action": "rotate", "subject": key["id"]})
    assert rotated.status_code == 200
    revoked = admin.post("/dashboard/keys", data={"action": "revoke", "subject": key["id"]})
    assert revoked.status_code == 303
    states = [each["state"] for each in admin.get("/api/keys").json()["keys"]]
    assert states == ["revoked", "valid"]
    assert ask(server, text[1]).status_code == 401
    acts = admin.get("/api/audit", params={"kind": "key"}).json()["acts"]
    named = [(act["act"], act["subject"]) for act in reversed(acts)]  # each once
    assert [act for act, _ in named] == ["create", "rotate", "revoke"]
    assert named[0][1] == named[2][1] == key["id"]


@with_pages
def test_the_key_is_in_no_file(server: AppServer, admin: httpx.Client, tmp_path: Path) -> None:
    """Neither the database nor the list of acts of people holds it."""
    form = {"action": "create", "tenant": "acme"}
    shown = admin.post("/dashboard/keys", data=form).text
    text = re.search(r"<code>(gw-[\w-]{40,})</code>", shown)
    assert text is not None
    texts = [text[1], made(admin)["key"]]
    kept = b"".join(file.read_bytes() for file in tmp_path.glob("keys.db*"))
    assert [key for key in texts if key.encode() in kept] == []
