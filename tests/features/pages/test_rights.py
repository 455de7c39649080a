"""Who may change what: every route of the control plane and the dashboard, by every caller."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from itertools import chain
from pathlib import Path
from typing import Any

import httpx
import pytest

from gateway.api.routes import operations
from gateway.auth.authenticator import process_key
from gateway.hooks import given
from steering_gateway_testing import AppServer, ReceivedRequest, Reply, ScriptedUpstream, ToolCall
from steering_gateway_testing.control_plane import client_of
from tests.examples import by_day

ADMIN, ACME, OTHER = "gw-admin-1234567890", "gw-acme-1234567890", "gw-other-1234567890"
REPORTS = {
    ("POST", "/api/runs/{run_id}/outcome"),
    ("POST", "/dashboard/runs/{run_id}"),
    ("POST", "/dashboard/runs"),
}
OPEN_FORMS = {"/dashboard/login", "/dashboard/logout"}
# Whoever has its signed link may send it: tests/features/budgets/test_ask.py.
PAGES = tuple(chain.from_iterable(given("pages")))
OPEN_FORMS |= {page.path for page in PAGES if page.path.startswith("/dashboard/answer/")}
CHANGES = sorted(
    {(o.method, o.path) for o in operations() if o.method != "GET"}
    | {("POST", page.path) for page in PAGES if page.change and page.path not in OPEN_FORMS}
)
Start = Callable[..., AppServer]
ROOT = Path(__file__).parents[2]


@pytest.fixture
def guarded(start: Start) -> AppServer:
    return start(auth={"admin_key": ADMIN, "gateway_keys": {"acme": ACME, "other": OTHER}})


def addresses() -> Iterator[tuple[str, str, bool]]:
    """(method, a path of the route, whether any key may send it)."""
    for method, path in CHANGES:
        filled = re.sub(r"\{[^}]*\}", "some-id", path)
        yield method, filled, (method, path) in REPORTS


def status(client: httpx.Client, method: str, path: str) -> int:
    form = {"data": {"outcome": "failure"}} if path.startswith("/dashboard") else {"json": {}}
    return client.request(method, path, **form).status_code  # type: ignore[arg-type]


def test_an_agents_key_changes_nothing(guarded: AppServer) -> None:
    """Of its own tenant neither; it may report how its runs ended."""
    with client_of(guarded, ACME) as agent, client_of(guarded, ADMIN) as operator:
        for method, path, reports in addresses():
            assert (status(agent, method, path) == 403) is not reports, (method, path)
            assert status(operator, method, path) != 403, (method, path)
    assert len(CHANGES) > 20


def test_without_a_key_an_open_gateway_is_read_only(start: Start) -> None:
    """On loopback anybody may look; changing needs the key that the process made."""
    server = start()
    with httpx.Client(base_url=server.url, timeout=120) as nobody:
        for method, path, reports in addresses():
            assert (status(nobody, method, path) == 403) is not reports, (method, path)
        assert nobody.get("/api/runs").status_code == 200
        assert "gateway dashboard" in nobody.post("/api/patterns", json={}).text
    with client_of(server, process_key()) as operator:
        for method, path, _ in addresses():
            assert status(operator, method, path) != 403, (method, path)


def test_a_session_has_the_rights_of_its_key(guarded: AppServer) -> None:
    """A browser that logged in with an agent's key may look."""
    for key, forbidden in ((ACME, True), (ADMIN, False)):
        with httpx.Client(base_url=guarded.url, timeout=120) as browser:
            browser.post("/dashboard/login", data={"key": key})
            assert (status(browser, "POST", "/dashboard/keys") == 403) is forbidden


def test_no_form_is_sent_from_elsewhere(guarded: AppServer) -> None:
    """A page of another site that makes the operator's browser send a form changes nothing."""
    with httpx.Client(base_url=guarded.url, timeout=120) as browser:
        browser.post("/dashboard/login", data={"key": ADMIN})
        forms = [path for _, path, _ in addresses() if path.startswith("/dashboard")]
        for path in forms:
            assert status(browser, "POST", path) != 403, path
            for header in ({"origin": "https://evil.example"}, {"sec-fetch-site": "cross-site"}):
                answer = browser.post(path, data={"action": "approve"}, headers=header)
                assert answer.status_code == 403, path
    assert any("lessons" in path for path in forms)


@pytest.mark.parametrize("value", ["lift", "usd=1000"])
@pytest.mark.parametrize("has_keys", [False, True])
def test_a_header_lifts_no_budget(
    start: Start, upstream: ScriptedUpstream, value: str, has_keys: bool
) -> None:
    """Neither on an open gateway, nor with the agent's key, nor with the admin key."""
    upstream.default = Reply("ok")
    auth = {"gateway_keys": {"acme": ACME}} if has_keys else {}
    budget = {"name": "b", "scope": "tenant", "limits": {"calls": 1}}
    server = start(auth=auth, budgets=[budget])
    body = {"model": "m", "messages": [{"role": "user", "content": "hi"}]}
    with httpx.Client(base_url=server.url, timeout=120) as client:
        own = {"x-gateway-key": ACME} if has_keys else {}
        headers = own | {"x-gateway-budget": value}
        assert client.post("/v1/chat/completions", json=body, headers=own).status_code == 200
        admin = {} if has_keys else {"x-gateway-key": process_key()}
        for more in ({}, admin):
            answer = client.post("/v1/chat/completions", json=body, headers=headers | more)
            assert answer.status_code == 429


def calling(request: ReceivedRequest, said: Callable[[str], str] = str) -> Reply:
    turn = sum(m.get("role") == "assistant" for m in request.messages)
    return Reply(said(f"Turn {turn}."), tool_calls=(ToolCall("bash", "{}", id=f"c{turn}"),))


def history(turns: int) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = [{"role": "user", "content": "Mend the bridge."}]
    for turn in range(turns):
        call = {
            "id": f"c{turn}",
            "type": "function",
            "function": {"name": "bash", "arguments": "{}"},
        }
        found.append({"role": "assistant", "content": f"Turn {turn}.", "tool_calls": [call]})
        found.append({"role": "tool", "tool_call_id": f"c{turn}", "content": f"swaying {turn}"})
    return found


def spoken(text: str) -> str:
    """A reply as long as those of real agents."""
    return f"{text} {'I look at the bridge from the north and count its cables. ' * 4}"


@pytest.mark.parametrize(
    "headers",
    by_day(
        [
            {},
            {"x-conversation-id": "mine"},
            {"x-conversation-id": "another"},
            {"x-session-id": "new"},
            {"x-gateway-mode": "off"},
            {"x-gateway-mode": "shadow", "x-conversation-id": "third"},
        ],
        3,
    ),
    ids=str,
)
@pytest.mark.parametrize("turns", by_day([2, 3, 5], 1))
def test_a_held_history_stays_held_under_any_id(
    start: Start, upstream: ScriptedUpstream, headers: dict[str, str], turns: int, tmp_path: Path
) -> None:
    """And after a restart; a new task, or the same one begun again, is served."""
    upstream.default = calling
    where = {"storage": {"path": str(tmp_path / "gateway.db")}}
    server = start(**where)
    tools = [{"type": "function", "function": {"name": "bash"}}]
    body = {"model": "m", "tools": tools}
    with httpx.Client(timeout=120) as client:

        def ask(messages: list[dict[str, Any]], **more: str) -> httpx.Response:
            url = f"{server.url}/v1/chat/completions"
            return client.post(url, json={**body, "messages": messages}, headers=more)

        first = {"x-conversation-id": "mine"}
        for turn in range(3):
            answer = ask(history(turn), **first)
        conversation = answer.headers["x-gateway-conversation-id"]
        operator = {"x-gateway-key": process_key()}
        stop = f"{server.url}/api/conversations/{conversation}/stop"
        client.post(stop, json={"reason": "enough"}, headers=operator).raise_for_status()
        assert ask(history(turns), **headers).status_code == 429
        resume = stop.replace("/stop", "/resume")
        assert client.post(resume, json={}).status_code == 403
        server.stop()
        server = start(**where)
        refused = ask(history(turns), **headers)
        assert (refused.status_code, refused.json()["error"]["code"]) == (429, "run_stopped")
        assert ask([{"role": "user", "content": "Paint the bridge."}]).status_code == 200
        again = ask(history(0), **{"x-conversation-id": "fresh"})
        assert again.status_code == 200


def test_a_held_history_stays_held_in_any_form(start: Start, upstream: ScriptedUpstream) -> None:
    """In the other dialects, after a compaction, under another system prompt; another tenant's runs
    are its own."""
    upstream.default = lambda request: calling(request, spoken)
    keys = {"acme": ACME, "other": OTHER}
    server = start(auth={"admin_key": ADMIN, "gateway_keys": keys})
    said: list[dict[str, Any]] = [{"role": "user", "content": "Mend the bridge."}]
    items = list(said)
    for turn in range(5):
        use = {"type": "tool_use", "id": f"c{turn}", "name": "bash", "input": {}}
        text, result = spoken(f"Turn {turn}."), f"swaying {turn}"
        told = {"type": "tool_result", "tool_use_id": f"c{turn}", "content": result}
        blocks = [{"type": "text", "text": text}, use]
        said += [{"role": "assistant", "content": blocks}, {"role": "user", "content": [told]}]
        call = {"type": "function_call", "call_id": f"c{turn}", "name": "bash", "arguments": "{}"}
        output = {"type": "function_call_output", "call_id": f"c{turn}", "output": result}
        items += [{"role": "assistant", "content": text}, call, output]
    spoken_history = [
        {**each, "content": spoken(each["content"])} if each["role"] == "assistant" else each
        for each in history(5)
    ]
    brief = {"role": "user", "content": "Mend the bridge. Summary: it sways."}
    forms: dict[str, tuple[str, dict[str, Any]]] = {
        "messages": ("messages", {"messages": said, "max_tokens": 99}),
        "responses": ("responses", {"input": items}),
        "compacted": ("chat/completions", {"messages": [brief, *spoken_history[-4:]]}),
        "system": (
            "chat/completions",
            {"messages": [{"role": "system", "content": "You are new."}, *spoken_history]},
        ),
        "lifting": ("chat/completions", {"messages": spoken_history}),
    }
    with client_of(server, ACME) as agent, client_of(server, ADMIN) as operator:
        for turn in range(5):
            body = {"model": "m", "messages": spoken_history[: 1 + 2 * turn]}
            answer = agent.post("/v1/chat/completions", json=body)
        conversation = answer.headers["x-gateway-conversation-id"]
        operator.post(f"/api/conversations/{conversation}/stop").raise_for_status()
        for name, (path, body) in forms.items():
            more = {"x-gateway-budget": "lift"} if name == "lifting" else {}
            for own in ({"x-conversation-id": f"new-{name}"}, {}):
                answer = agent.post(f"/v1/{path}", json={"model": "m", **body}, headers=own | more)
                code = answer.json().get("error", {}).get("code")
                assert (answer.status_code, code) == (429, "run_stopped"), (name, own)
    with client_of(server, OTHER) as other:
        body = {"model": "m", "messages": spoken_history}
        assert other.post("/v1/chat/completions", json=body).status_code == 200
