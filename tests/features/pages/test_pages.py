"""The pages as a browser gets them: what is on them, and what cannot be done with them."""

from __future__ import annotations

import html
import re
from html.parser import HTMLParser

import httpx
import pytest

from steering_gateway_testing import AppServer, Fault, FaultKind, Reply, ScriptedUpstream, ToolCall
from steering_gateway_testing.control_plane import (
    LoopingAgent,
    a_finished_run,
    client_of,
    operator_of,
)
from steering_gateway_testing.patience import until
from tests.api.conftest import Start

ADMIN, ACME = "the-admin-key", "acme-key"
HOSTILE = (
    "<script>alert(1)</script><img src=x onerror=alert(1)>\x1b[31m\x1b]0;t\x07\u202e"
    "</pre></script>\"'><svg onload=alert(1)>{{ 7*7 }}\x00"
)
PAGES = (
    "/dashboard",
    "/dashboard/runs",
    "/dashboard/time",
    "/dashboard/health",
    "/dashboard/patterns",
    "/dashboard/patterns/read-the-error",
    "/dashboard/login",
)


class Tags(HTMLParser):
    """Every element of a page that was not text."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.found: list[tuple[str, dict[str, str | None]]] = []
        self.feed(page)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.found.append((tag, dict(attrs)))

    def named(self, tag: str) -> list[dict[str, str | None]]:
        return [attributes for name, attributes in self.found if name == tag]


@pytest.fixture
def server(start: Start) -> AppServer:
    return start()


def page_of(server: AppServer, path: str, status: int = 200) -> str:
    answer = httpx.get(f"{server.url}{path}", follow_redirects=True)
    assert answer.status_code == status, path
    return answer.text


@pytest.mark.parametrize("path", PAGES)
def test_pages_run_nothing_but_their_own_script(server: AppServer, path: str) -> None:
    """A strict policy, and nothing on the page that it would have to forbid."""
    answer = httpx.get(f"{server.url}{path}")
    policy = answer.headers["content-security-policy"]
    assert "default-src 'none'" in policy
    assert "unsafe" not in policy
    assert answer.headers["x-content-type-options"] == "nosniff"
    assert answer.headers["cache-control"] == "no-store"
    tags = Tags(answer.text)
    for attributes in tags.named("script"):
        own = str(attributes.get("src", "")).startswith("/dashboard/static/")
        assert own or attributes.get("type") == "application/json"
    assert not tags.named("style")
    for tag, attributes in tags.found:
        assert not [name for name in attributes if name.startswith("on") or name == "style"], tag
        for name in ("src", "href", "action"):
            assert str(attributes.get(name) or "/").startswith(("/", "?", "#")), attributes


def test_files_may_be_kept_and_pages_may_not(server: AppServer) -> None:
    """A file's address changes with its content."""
    page = page_of(server, "/dashboard")
    (style,) = (a for a in Tags(page).named("link") if a.get("rel") == "stylesheet")
    answer = httpx.get(f"{server.url}{style['href']}")
    assert answer.headers["content-type"].startswith("text/css")
    assert "immutable" in answer.headers["cache-control"]
    assert httpx.get(f"{server.url}/dashboard/static/..%2fpages.py").status_code == 404


def test_an_agents_text_does_nothing(server: AppServer, upstream: ScriptedUpstream) -> None:
    """Markup, escape codes and template braces of an agent are shown as what they are."""
    with client_of(server) as client:
        agent = LoopingAgent(client, upstream, HOSTILE)
        agent.step(HOSTILE, HOSTILE)
        upstream.default = Reply(
            HOSTILE, tool_calls=(ToolCall(HOSTILE[:60], f'{{"a": "{"b" * 300}"}}{HOSTILE}'),)
        )
        agent.answer(HOSTILE)
    for path in (
        "/dashboard",
        "/dashboard/runs",
        f"/dashboard/runs/{agent.run_id}",
        f"/dashboard/runs/{agent.run_id}/steps",
    ):
        page = page_of(server, path)
        tags = Tags(page)
        assert not tags.named("img")
        assert not [a for a in tags.named("svg") if "onload" in a]
        assert len(tags.named("script")) <= 3
        assert "alert(1)" in html.unescape(page)
        assert "49" not in re.findall(r"\{\{.*?\}\}|49(?=\W*<U)", html.unescape(page))
        assert not set(page) & set("\x1b\x07\x00\u202e")
        assert "<U+202E>" in html.unescape(page)
    text = httpx.get(f"{server.url}/dashboard/runs/{agent.run_id}/steps/1.txt")
    assert text.headers["content-type"].startswith("text/plain")
    assert "sandbox" not in text.headers
    assert "alert(1)" in text.text


def test_a_megabyte_in_one_line_is_cut(server: AppServer, upstream: ScriptedUpstream) -> None:
    """The page shows the beginning; everything is a link away."""
    with client_of(server) as client:
        agent = LoopingAgent(client, upstream, "Read it")
        agent.step(result="x" * 1_000_000)
        agent.step()
        page = page_of(server, f"/dashboard/runs/{agent.run_id}")
        assert len(page) < 200_000
        assert "Everything as plain text" in page
        whole = client.get(f"/dashboard/runs/{agent.run_id}/steps/1.txt")
        assert whole.text.count("x") >= 1_000_000


def test_bytes_that_are_no_text_are_shown(server: AppServer, upstream: ScriptedUpstream) -> None:
    """Half of a pair, as JSON may bring it in, breaks no page."""
    upstream.default = Reply("I see.")
    with client_of(server) as client:
        body = b'{"model": "gpt-4o", "messages": [{"role": "user", "content": "half \\ud800"}]}'
        answer = client.post("/v1/chat/completions", content=body)
        assert answer.status_code == 200
        run_id = f"{answer.headers['x-gateway-conversation-id']}.0"
    assert "half" in page_of(server, "/dashboard/runs")
    page_of(server, f"/dashboard/runs/{run_id}")


def test_a_runs_page_tells_what_the_api_tells(
    server: AppServer, upstream: ScriptedUpstream
) -> None:
    """The table under the drawing holds the API's very numbers."""
    with client_of(server) as client:
        agent = LoopingAgent(client, upstream, "Find it")
        for _ in range(6):
            agent.step()
        steps = client.get(f"/api/runs/{agent.run_id}").json()["steps"]
        page = page_of(server, f"/dashboard/runs/{agent.run_id}")
    rows = [a for a in Tags(page).named("tr") if "data-step" in a]
    told = [(a["data-step"], a["data-state"], a["data-difficulty"]) for a in rows]
    wanted = [(s["step_index"], s["state"], s["difficulty"]) for s in steps]
    assert told == [(str(i), state, "" if d is None else str(d)) for i, state, d in wanted]


def test_the_transcript_comes_in_parts(server: AppServer, upstream: ScriptedUpstream) -> None:
    """Thirty steps at first; those around a step when it is asked for."""
    with client_of(server) as client:
        agent = LoopingAgent(client, upstream, "Find it")
        for number in range(40):
            agent.step(result=f"Nothing in drawer {number}")

        def shown(path: str) -> list[int]:
            page = page_of(server, f"/dashboard/runs/{agent.run_id}{path}")
            articles = Tags(page).named("article")
            return [int(str(a["data-step"])) for a in articles]

        assert shown("") == list(range(30))
        assert shown("?step=35") == list(range(33, 40))
        assert shown("/steps?after=29") == list(range(30, 40))
        assert shown("/steps?after=99") == []
        assert shown("?step=99") != []


def test_filters_and_pages_work_without_a_script(
    server: AppServer, upstream: ScriptedUpstream
) -> None:
    """They are links and a form."""
    for number in range(3):
        a_finished_run(server, upstream, task=f"Task number {number}")
    page = page_of(server, "/dashboard/runs?limit=2&task=&state=")
    assert "Task number 2" in page
    assert "Task number 0" not in page
    (older,) = (a for a in Tags(page).named("a") if a.get("rel") == "next")
    assert "Task number 0" in page_of(server, f"/dashboard/runs{older['href']}")
    page = page_of(server, "/dashboard/runs?task=number+1")
    assert "Task number 1" in page
    assert "Task number 2" not in page
    assert "No sessions here" in page_of(server, "/dashboard/runs?task=elephant")
    page = page_of(server, "/dashboard/runs?search=NUMBER+%221%22&severity=warn&period=today&tag=")
    assert "Task number 1" in page
    assert "Task number 2" not in page
    assert "median duration" in page
    links = {str(a["href"]) for a in Tags(page).named("a")}
    (csv,) = (link for link in links if "format=csv" in link)
    with client_of(server) as client:
        assert "Task number 1" in client.get(csv).text
        assert "Task number 2" not in client.get(csv).text
        found = client.get("/api/runs?search=number&count=true").json()
    assert (found["total"], found["spread"]["runs"], found["spread"]["p95"]["calls"]) == (3, 3, 4)
    for link in links:
        if link.startswith("?"):
            page_of(server, f"/dashboard/runs{link}")
    page_of(server, "/dashboard/runs?period=hour&outcome=unfinished&sort=cost&order=asc")
    page_of(server, "/dashboard/runs?sort=colour", status=400)
    page_of(server, "/dashboard/runs?cursor=zzz", status=400)


def test_an_outcome_can_be_said(server: AppServer, upstream: ScriptedUpstream) -> None:
    """By a form on the run's page."""
    run_id = a_finished_run(server, upstream)
    with client_of(server) as client:
        answer = client.post(f"/dashboard/runs/{run_id}", data={"outcome": "failure"})
        assert (answer.status_code, answer.headers["location"]) == (
            303,
            f"/dashboard/runs/{run_id}",
        )
        assert client.get(f"/api/runs/{run_id}").json()["run"]["outcome"] == "failure"
        head = page_of(server, f"/dashboard/runs/{run_id}").partition('class="run-grid"')[0]
        assert "reported here or by the API, <time" in head
        assert 'value="failure" class="small" aria-pressed="true"' in head
        assert 'value="success" class="small">' in head
        wrong = client.post(f"/dashboard/runs/{run_id}", data={"outcome": "won"})
        assert wrong.status_code == 400


def test_a_pattern_is_read(server: AppServer) -> None:
    """With all its fields, found by its words, and as the line that the command takes."""
    with operator_of(server) as client:
        fields = {"situation": "The bridge sways.", "intervention": "Walk slowly.", "tags": ["a<"]}
        new = {"tier": "e2", "pattern_id": "bridges", "fields": fields}
        client.post("/api/patterns", json=new).raise_for_status()
        page = html.unescape(client.get("/dashboard/patterns/bridges").text)
        assert "Walk slowly." in page
        assert '["a' in page
        assert '"pattern_id":"bridges"' in page.replace(": ", ":")
        assert "Walk slowly." in client.get("/dashboard/patterns", params={"text": "sways"}).text


def test_logging_in_and_out(start: Start, upstream: ScriptedUpstream) -> None:
    """A page asks for a key and then leads back; the session ends with the log-out."""
    server = start(auth={"admin_key": ADMIN, "gateway_keys": {"acme": ACME}})
    a_finished_run(server, upstream, key=ACME, task="Acme's task")
    with client_of(server) as client:
        away = client.get("/dashboard/health?state=SLOW")
        assert away.headers["location"] == "/dashboard/login?next=/dashboard/health%3Fstate%3DSLOW"
        form = Tags(client.get(away.headers["location"]).text).named("input")
        assert {"type": "hidden", "name": "next", "value": "/dashboard/health?state=SLOW"} in form
        wrong = client.post("/dashboard/login", data={"key": "guess"})
        assert wrong.status_code == 401
        back = client.post(
            "/dashboard/login", data={"key": ADMIN, "next": "/dashboard/health?state=SLOW"}
        )
        assert back.headers["location"] == "/dashboard/health?state=SLOW"
        cookie = back.headers["set-cookie"]
        assert "HttpOnly" in cookie
        assert "SameSite=Strict" in cookie
        assert ADMIN not in cookie
        assert client.get("/dashboard").status_code == 200
        assert client.get("/api/runs").status_code == 200
        client.post("/dashboard/logout")
        assert client.get("/dashboard").status_code == 303


@pytest.mark.parametrize(
    "address",
    [
        "https://evil.example",
        "//evil.example",
        "/\\evil.example",
        "/dashboardx",
        "/dashboard/\r\nX",
    ],
)
def test_one_is_led_to_our_own_pages_only(start: Start, address: str) -> None:
    """Whatever the link to the form said."""
    server = start(auth={"admin_key": ADMIN})
    answer = httpx.post(f"{server.url}/dashboard/login", data={"key": ADMIN, "next": address})
    assert answer.headers["location"] == "/dashboard"


def test_a_tenant_logs_in_to_its_own(start: Start, upstream: ScriptedUpstream) -> None:
    """With its gateway key it sees its runs, and may not change what is shared."""
    server = start(
        auth={"admin_key": ADMIN, "gateway_keys": {"acme": ACME, "globex": "globex-key"}}
    )
    a_finished_run(server, upstream, key=ACME, task="Acme's task")
    a_finished_run(server, upstream, key="globex-key", task="Globex's task")
    with client_of(server) as client:
        client.post("/dashboard/login", data={"key": ACME})
        page = html.unescape(client.get("/dashboard").text)
        assert "Acme's task" in page
        assert "Globex's task" not in page


def test_another_site_cannot_log_anybody_in_or_out(start: Start) -> None:
    """Nor change a key where none is asked for."""
    server = start()
    foreign = {"origin": "https://evil.example"}
    for path in ("/dashboard/login", "/dashboard/logout", "/dashboard/keys"):
        answer = httpx.post(f"{server.url}{path}", data={"key": "x"}, headers=foreign)
        assert answer.status_code == 403, path


def test_a_secure_connection_gets_a_secure_cookie(start: Start) -> None:
    """Behind a proxy that ends TLS."""
    server = start(auth={"admin_key": ADMIN})
    answer = httpx.post(
        f"{server.url}/dashboard/login", data={"key": ADMIN}, headers={"x-forwarded-proto": "https"}
    )
    assert "Secure" in answer.headers["set-cookie"]


def test_the_transcript_holds_what_was_asked(server: AppServer, upstream: ScriptedUpstream) -> None:
    """System and user messages stand where they came, on the page and in a step's plain text."""
    messages = [
        {"role": "system", "content": "You are a <careful> agent."},
        {"role": "user", "content": "Mend the fence & the gate."},
    ]
    answer = httpx.post(
        f"{server.base_url}/chat/completions", json={"model": "m", "messages": messages}
    )
    run_id = f"{answer.headers['x-gateway-conversation-id']}.0"
    page = page_of(server, f"/dashboard/runs/{run_id}/steps")
    assert "You are a &lt;careful&gt; agent." in page
    assert "Mend the fence &amp; the gate." in page
    text = page_of(server, f"/dashboard/runs/{run_id}/steps/0.txt")
    assert "=== user message\nMend the fence & the gate." in text


def test_a_failed_call_is_seen(server: AppServer, upstream: ScriptedUpstream) -> None:
    """In the list, in the run's figures and at its step."""
    upstream.script(Fault(FaultKind.BAD_REQUEST))
    body = {"model": "m", "messages": [{"role": "user", "content": "Try."}]}
    answer = httpx.post(f"{server.base_url}/chat/completions", json=body)
    run_id = f"{answer.headers['x-gateway-conversation-id']}.0"
    until(lambda: httpx.get(f"{server.url}/api/runs/{run_id}").status_code == 200)
    assert "1 failed call" in page_of(server, "/dashboard/runs")
    page = page_of(server, f"/dashboard/runs/{run_id}")
    assert "1 call, 1 failed" in page
    assert "This call failed: status 400." in page


def test_what_there_is_not_has_a_page_too(server: AppServer) -> None:
    """With the way back."""
    for path in ("runs/none", "patterns/none", "static/none", "none", "runs/none/none"):
        assert "Back to the sessions" in page_of(server, f"/dashboard/{path}", status=404)
    refused = httpx.post(f"{server.url}/dashboard/health")
    assert (refused.status_code, refused.headers["allow"]) == (405, "GET, HEAD")
    assert httpx.get(f"{server.url}/dashboard/runs/none/steps/x.txt").status_code == 400


def test_the_list_leads_to_sessions(server: AppServer, upstream: ScriptedUpstream) -> None:
    """A row is a session and its title leads to its page, which is a page of *Sessions*; a run is
    one more link."""
    run_id = a_finished_run(server, upstream, task="Only me")
    session = f"/dashboard/sessions/{run_id.partition('.')[0]}"
    links = {link["href"]: link for link in Tags(page_of(server, "/dashboard/runs")).named("a")}
    assert links[session]["class"] == "task"
    assert f"/dashboard/runs/{run_id}" in links
    for path in ("/dashboard/runs", f"/dashboard/runs/{run_id}", session):
        page = page_of(server, path)
        assert re.search(r'href="/dashboard/runs" aria-current="page">Sessions</a>', page), path
        assert ">Runs<" not in page.partition("<main")[0]


def test_every_page_counts_the_same_steps(server: AppServer, upstream: ScriptedUpstream) -> None:
    """A list, the pages of a session and of a run, and the API: answers of the agent, the final one
    too."""
    run_id = a_finished_run(server, upstream, task="Only me")
    session = run_id.partition(".")[0]
    found = httpx.get(f"{server.url}/api/sessions/{session}").json()["session"]
    assert found["steps"] == 4
    assert 'class="num c-steps">4<' in page_of(server, "/dashboard/runs")
    for path in (f"/dashboard/sessions/{session}", f"/dashboard/runs/{run_id}"):
        page = page_of(server, path)
        assert re.search(r"<dt>Steps</dt><dd>4<", page), path
    page = page_of(server, f"/dashboard/sessions/{session}")
    assert "4 steps \u00b7" in " ".join(page.split())
    page = page_of(server, f"/dashboard/runs/{run_id}/steps/1/raw?other={run_id}")
    assert page.count("4 steps,") == 2


def test_the_list_is_refreshed_in_part(server: AppServer, upstream: ScriptedUpstream) -> None:
    """A script asks for the rows alone."""
    a_finished_run(server, upstream, task="Only me")
    part = page_of(server, "/dashboard/runs?fragment=1")
    assert "<html" not in part
    assert "Only me" in part
    assert "<html" not in page_of(server, "/dashboard/health?fragment=1")


def test_without_patterns_the_page_says_so(start: Start) -> None:
    """503, with the setting."""
    server = start(etraces={"enabled": False})
    assert "etraces.enabled" in page_of(server, "/dashboard/patterns", status=503)


def test_live_pages_see_a_revoked_session_end(start: Start) -> None:
    """The stream of events asks for the session as the pages do."""
    server = start(auth={"admin_key": ADMIN})
    with client_of(server) as client:
        client.post("/dashboard/login", data={"key": ADMIN})
        with client.stream("GET", "/api/events") as answer:
            assert answer.status_code == 200
        client.cookies.clear()
        assert client.get("/api/events").status_code == 401
    until(lambda: not server.app.runtime.events.subscribers)
