"""The first page, the pages over time, and the way there."""

from __future__ import annotations

import html
import re
import time

import httpx

from steering_gateway_testing import Reply, ScriptedUpstream, ToolCall
from steering_gateway_testing.control_plane import LoopingAgent, a_finished_run, client_of
from tests.api.conftest import Start
from tests.api.conftest import start as start
from tests.features.pages.test_pages import Tags, page_of


def test_now_tells_which_run_is_stuck(start: Start, upstream: ScriptedUpstream) -> None:
    """Worst first: for how many steps, why, what it was told last, what it costs; the rules that
    every run is given are no guidance. Links to the old list lead to it."""
    server = start()
    with client_of(server) as client:
        fresh = LoopingAgent(client, upstream, "Look around")
        fresh.step()
        stuck = LoopingAgent(client, upstream, "Mend the fence")
        for _ in range(14):
            stuck.step()
        trace = client.get(f"/api/runs/{stuck.run_id}").json()
    page = html.unescape(page_of(server, "/dashboard"))
    order = [str(a["data-run"]) for a in Tags(page).named("article")]
    assert order == [stuck.run_id, fresh.run_id]
    steps = trace["steps"]
    calm = max(s["step_index"] for s in steps if not {*s["fired"]} - {"call_count"})
    stuck_for = steps[-1]["step_index"] - calm
    assert stuck_for >= 5
    assert f"stuck for {stuck_for} steps" in page
    told = [g for s in steps for g in s["guidance"] if g["source"] != "e3"]
    assert told[-1]["text"][:60] in page
    newest = steps[-1]
    assert all(newest["evidence"][name][:60] in page for name in newest["fired"])
    totals = trace["run"]["totals"]
    assert totals["injections"] == sum(totals["guidance"].values())
    row = page_of(server, "/dashboard/runs?task=fence")
    (shown,) = re.findall(r'c-guidance">(\d+)<', row)
    assert int(shown) == len(told) < totals["injections"]
    assert "<html" not in page_of(server, "/dashboard?fragment=1")
    moved = httpx.get(f"{server.url}/dashboard?task=fence")
    assert moved.headers["location"] == "/dashboard/runs?task=fence"


def test_now_shows_twenty_and_a_number(start: Start, upstream: ScriptedUpstream) -> None:
    """The worst runs under way; the others are one link, to a list that has all of them."""
    upstream.default = Reply("Look.", tool_calls=(ToolCall("ls", {}),))
    server = start()
    with client_of(server) as client:
        for number in range(23):
            task = [{"role": "user", "content": f"Mend fence {number}"}]
            body = {"model": "gpt-4o", "messages": task}
            client.post("/v1/chat/completions", json=body).raise_for_status()
    page = Tags(page_of(server, "/dashboard"))
    assert len(page.named("article")) == 20
    assert "23 runs" in page_of(server, "/dashboard")
    (link,) = [str(a["href"]) for a in page.named("a") if "outcome=unfinished" in str(a["href"])]
    assert 'id="total">23<' in page_of(server, link)


def test_now_leads_from_a_sub_agent_to_its_session(
    start: Start, upstream: ScriptedUpstream
) -> None:
    """By a link at its run, and at no other."""
    upstream.default = Reply("Look.", tool_calls=(ToolCall("ls", {}),))
    server = start()
    with client_of(server) as client:
        task = {"model": "gpt-4o", "messages": [{"role": "user", "content": "Mend the fence"}]}
        for name, above in (("main", ""), ("sub", "main"), ("alone", "")):
            headers = {"x-session-id": name} | ({"x-parent-session-id": above} if above else {})
            client.post("/v1/chat/completions", json=task, headers=headers).raise_for_status()
    page = page_of(server, "/dashboard")
    assert page.count(">of a session<") == 1


def test_an_empty_page_shows_how_to_connect(start: Start) -> None:
    """With the address by which the browser came, for each kind of client; and a browser at the
    root is led there, which no client of the API is."""
    server = start()
    page = html.unescape(page_of(server, "/dashboard"))
    assert f"OPENAI_BASE_URL={server.url}/v1" in page
    assert f"ANTHROPIC_BASE_URL={server.url}" in page
    browser = {"accept": "text/html,application/xhtml+xml"}
    led = httpx.get(server.url, headers=browser)
    assert (led.status_code, led.headers["location"]) == (303, "/dashboard")
    for request in (httpx.get(server.url), httpx.post(server.url, headers=browser, json={})):
        assert request.status_code == 404
        assert request.json()["error"]["type"] == "invalid_request_error"


def test_a_failed_run_is_not_called_fine(start: Start, upstream: ScriptedUpstream) -> None:
    """Nothing green stands next to a failure: neither its severity nor what routing saved."""
    server = start(model_routing={"NORMAL": "gpt-4o-mini"})
    run_id = a_finished_run(server, upstream)
    with client_of(server) as client:
        client.post(f"/api/runs/{run_id}/outcome", json={"outcome": "failure"})
    page = page_of(server, "/dashboard/runs")
    assert "saved $" in page
    assert "sub good" not in page
    assert "Clean" not in page_of(server, "/dashboard/health")


def test_sums_over_time_are_the_logs(start: Start, upstream: ScriptedUpstream) -> None:
    """Recounted from the steps of every run, by hour and model; filters work as a form."""
    server = start(model_routing={"NORMAL": "gpt-4o-mini"})
    for number in range(3):
        run_id = a_finished_run(server, upstream, task=f"Task {number}")
    with client_of(server) as client:
        client.post(f"/api/runs/{run_id}/outcome", json={"outcome": "success"})
        runs = [run["id"] for run in client.get("/api/runs").json()["runs"]]
        steps = [s for run in runs for s in client.get(f"/api/runs/{run}").json()["steps"]]
        page = client.get("/dashboard/time", params={"bucket": "hour", "by": "model"}).text
    calls = [step["call"] for step in steps]
    rows = re.findall(r'<tr data-start="(\d+)">(.*?)</tr>', page, re.DOTALL)
    found: dict[str, list[int]] = {}
    for start_s, row in rows:
        assert time.time() - 7200 < int(start_s) <= time.time()
        model, _, count = re.findall(r"<td[^>]*>(.*?)</td>", row)[:3]
        found.setdefault(model, []).append(int(count))
    wanted = {model: sum(c["model_asked"] == model for c in calls) for model in found}
    assert {model: sum(counts) for model, counts in found.items() if sum(counts)} == {
        model: count for model, count in wanted.items() if count
    }
    assert sum(wanted.values()) == len(calls)
    with client_of(server) as client:
        for team in ("web", "data", "web"):
            tagged = {"x-gateway-tag-team": team}
            LoopingAgent(client, upstream, f"Task of {team}").answer(**tagged)
        page = client.get("/dashboard/time", params={"by": "tag:team"}).text
    rows = re.findall(
        r"<tr data-start.*?<td>(.*?)</td>\s*<td[^>]*>.*?</td>\s*<td[^>]*>(\d+)<", page, re.DOTALL
    )
    assert dict(rows) == {"(none)": str(len(calls)), "data": "1", "web": "2"}
    assert 'value="tag:team" selected' in page
    only = page_of(server, "/dashboard/time?bucket=day&model=gpt-4o-mini")
    assert f">{wanted['gpt-4o-mini']}<" in only.replace(",", "")
    for wrong in ("bucket=year", "by=colour"):
        page_of(server, f"/dashboard/time?{wrong}", status=400)
