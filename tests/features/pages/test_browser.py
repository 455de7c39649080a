"""The dashboard in a real Chromium; skipped by name where there is none.

What a screen reader, a keyboard and weak eyes need of a page, checked in the page itself.

Named controls, regions and columns, unique ids, no key that leads to what is hidden, one main
heading, no skipped heading level, no positive tabindex, and text with the contrast of WCAG 2.1 AA
(4.5 to 1; 3 to 1 for large text) on the colour behind it.
"""

from __future__ import annotations

import asyncio
import contextlib
import gzip
import itertools
import os
import time
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from msgspec.structs import replace

from gateway.auth.authenticator import process_key
from gateway.cli import main
from gateway.features.pages import pages
from gateway.offline.playback import ReplayPolicy
from gateway.offline.replay import Work
from gateway.stores.sql import runs as stored_runs
from lab import replay_page
from steering_gateway_testing import AppServer, ScriptedUpstream
from steering_gateway_testing.browser import Tab, chromium, new_tab, running
from steering_gateway_testing.claude_code_sessions import looping, smooth, write_all
from steering_gateway_testing.control_plane import (
    LoopingAgent,
    a_finished_run,
    client_of,
    operator_of,
)
from steering_gateway_testing.many_runs import write_runs
from steering_gateway_testing.recorded_agents import Drive, read_runs, recorded_replies
from tests.api.conftest import Start
from tests.features.pages.test_session import call, kept, one, tokens
from tests.postgres import empty_database

AUDIT = (Path(__file__).parent / "audit.js").read_text(encoding="utf-8").partition("\n")[2]


DEVELOPMENT_RUNS = Path(__file__).parents[4] / "shared/data/trajectories-dev.jsonl.gz"
SHOTS = os.environ.get("GATEWAY_SCREENSHOTS")
"""A folder to put pictures of each page into; none are taken without it."""

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(chromium() is None, reason="there is no Chromium here"),
]


@pytest.fixture(scope="module")
def port(tmp_path_factory: pytest.TempPathFactory) -> Iterator[int]:
    """Where one browser for all of these tests listens."""
    with running(tmp_path_factory.mktemp("browser")) as listening:
        yield listening


@pytest.fixture
async def tab(port: int) -> AsyncIterator[Tab]:
    async with new_tab(port) as opened:
        await opened.look(width=1440)
        yield opened


async def quiet(tab: Tab, server: AppServer) -> None:
    """Nothing went wrong in the page, and nothing was asked of anybody else."""
    assert tab.problems == []
    assert tab.foreign(server.url) == []
    assert tab.requested


_READOUT = "document.querySelector('#readout').textContent"


async def steps_of(agent: LoopingAgent, count: int) -> None:
    for _ in range(count):
        await asyncio.to_thread(agent.step)


async def looping_agent(
    client: httpx.Client, upstream: ScriptedUpstream, steps: int
) -> LoopingAgent:
    """An agent that has looked for a file for so many steps."""
    agent = LoopingAgent(client, upstream, "Find the file")
    await steps_of(agent, steps)
    return agent


async def open_live(tab: Tab, url: str) -> None:
    """The page, once it is renewed by itself."""
    await tab.open(url)
    await tab.until("document.querySelector('#live').dataset.state === 'on'")


async def test_what_is_being_counted_comes_by_itself(
    start: Start, tab: Tab, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Into the live part of a page, or with the page; no call has to tell of a change."""
    monkeypatch.setattr(stored_runs, "SPREAD_RUNS", 10)
    monkeypatch.setattr(pages, "_ANSWERED_S", 5)
    path = str(tmp_path / "many.db")
    await write_runs(path, runs=25, steps=2, now=time.time())
    server = start(storage={"path": path, "retention_days": 0})
    for page, shown in {
        "": ".ledger",
        "/experiments/routing-2": ".title-row",
        "/health?every=true": ".facts",
    }.items():
        await tab.open(f"{server.url}/dashboard{page}")
        await tab.until(
            f"document.querySelector('{shown}') && !document.querySelector('[data-again]')"
        )
    await quiet(tab, server)


@contextlib.asynccontextmanager
async def a_followed_run(
    start: Start, upstream: ScriptedUpstream, tab: Tab
) -> AsyncIterator[tuple[AppServer, LoopingAgent]]:
    """A run of three steps in progress; the tab shows its page, which is renewed by itself."""
    server = start()
    with client_of(server) as client:
        agent = await looping_agent(client, upstream, 3)
        await open_live(tab, f"{server.url}/dashboard/runs/{agent.run_id}")
        yield server, agent
    await quiet(tab, server)


async def test_the_list_follows_a_run(start: Start, upstream: ScriptedUpstream, tab: Tab) -> None:
    """A run appears by itself, and its steps count up while it is in progress."""
    server = start()
    await open_live(tab, f"{server.url}/dashboard/runs")
    assert await tab.js("document.querySelectorAll('tr[data-run]').length") == 0
    with client_of(server) as client:
        agent = await looping_agent(client, upstream, 1)
        await tab.until("document.querySelectorAll('tr[data-run]').length === 1")
        for more in (3, 5):
            await steps_of(agent, 2)
            await tab.until(
                f"document.querySelector('tr[data-run] .c-steps').textContent === '{more}'"
            )
        await asyncio.to_thread(agent.answer)
        await tab.until("document.querySelector('tr[data-run] .state-pill').textContent === 'END'")
    await quiet(tab, server)


async def test_a_run_page_follows_its_run(
    start: Start, upstream: ScriptedUpstream, tab: Tab
) -> None:
    """Chart and transcript grow with the run; what was opened stays open."""
    async with a_followed_run(start, upstream, tab) as (_, agent):
        await tab.js("document.querySelector('.about').open = true")
        assert await tab.js("document.querySelectorAll('article.step').length") == 3
        await steps_of(agent, 2)
        await tab.until("document.querySelectorAll('article.step').length === 5")
        await tab.until(
            "JSON.parse(document.querySelector('#steps-data').textContent).length === 5"
        )
        assert await tab.js("document.querySelector('.about').open") is True
        order = "[...document.querySelectorAll('article.step')].map(a => +a.dataset.step)"
        assert await tab.js(order) == [0, 1, 2, 3, 4]


async def steps_on_the_page(tab: Tab) -> list[list[Any]]:
    return await tab.js(
        "[...document.querySelectorAll('table.steps tbody tr')].map(r => [+r.dataset.step, "
        "r.dataset.state, r.dataset.difficulty === '' ? null : +r.dataset.difficulty, "
        "r.dataset.composite === '' ? null : +r.dataset.composite])"
    )


async def heights_of_the_curve(tab: Tab) -> list[float]:
    return await tab.js(
        "[...document.querySelector('path.curve').getAttribute('d')"
        ".matchAll(/[ML][\\d.]+ ([\\d.]+)/g)].map(m => +m[1])"
    )


async def check_run_page(tab: Tab, server: AppServer, run_id: str) -> None:
    """The numbers in the page, and the heights of the curve, are the API's."""
    with client_of(server) as client:
        trace = client.get(f"/api/runs/{run_id}", params={"content": "false"}).json()
    await tab.open(f"{server.url}/dashboard/runs/{run_id}")
    wanted = [
        [s["step_index"], s["state"], s["difficulty"], s["composite"]] for s in trace["steps"]
    ]
    assert await steps_on_the_page(tab) == wanted
    scores = [s["difficulty"] for s in trace["steps"] if s["difficulty"] is not None]
    drawn = [1 - (y - 4) / (190 - 8) for y in await heights_of_the_curve(tab)]
    assert drawn == pytest.approx(scores, abs=0.005)
    flags = await tab.js("[...document.querySelectorAll('a.marker')].map(a => +a.dataset.step)")
    assert flags == [s["step_index"] for s in trace["steps"] if s["guidance"]]


async def test_the_curve_is_the_runs(start: Start, upstream: ScriptedUpstream, tab: Tab) -> None:
    """For a run of our own, at any time."""
    server = start()
    with client_of(server) as client:
        agent = await looping_agent(client, upstream, 14)
        await check_run_page(tab, server, agent.run_id)
    await quiet(tab, server)


@pytest.mark.nightly
@pytest.mark.skipif(not DEVELOPMENT_RUNS.exists(), reason="the development runs are not here")
async def test_the_curve_of_recorded_runs(
    start: Start, upstream: ScriptedUpstream, tab: Tab
) -> None:
    """For recorded runs too, long ones with failures among them."""
    runs = sorted(read_runs(DEVELOPMENT_RUNS), key=lambda run: -len(run["messages"]))[3:60:19]
    upstream.default = recorded_replies(runs)
    server = start(model_routing={"FAST": "small", "SLOW": "large"})
    report = await Drive(lambda: f"{server.url}/v1")(runs)
    assert report.requests
    with client_of(server) as client:
        ids = [run["id"] for run in client.get("/api/runs").json()["runs"]]
    for run_id in ids[:3]:
        await check_run_page(tab, server, run_id)
    await quiet(tab, server)


async def test_keys_lead_through_a_run(start: Start, upstream: ScriptedUpstream, tab: Tab) -> None:
    """Arrows choose steps, `g` goes to the next guidance and shows its text, Tab reaches all."""
    server = start()
    with client_of(server) as client:
        agent = await looping_agent(client, upstream, 9)
        trace = client.get(f"/api/runs/{agent.run_id}").json()
    numbers = [s["step_index"] for s in trace["steps"]]
    given = [s for s in trace["steps"] if s["guidance"]]
    await tab.open(f"{server.url}/dashboard/runs/{agent.run_id}")
    await tab.js("document.querySelector('#step-slider').focus()")
    for key, slot in (("ArrowRight", 0), ("ArrowRight", 1), ("ArrowRight", 2), ("ArrowLeft", 1)):
        await tab.key(key)
        await tab.until(f"{_READOUT}.startsWith('Step {numbers[slot]} ')")
    now = int(await tab.js("document.querySelector('#step-slider').ariaValueNow"))
    assert now == numbers[1]
    following = next(s for s in given if s["step_index"] > now)
    await tab.key("g")
    card = f"document.querySelector('#step-{following['step_index']}')"
    await tab.until(f"{card}.classList.contains('chosen')")
    text = await tab.js(f"{card}.querySelector('.guidance pre').textContent")
    assert text.strip() == following["guidance"][0]["text"].strip()
    place = await tab.js(f"{card}.querySelector('.guidance-head').textContent")
    assert "at the end of a message" in place
    reached = set()
    await tab.js("document.activeElement.blur()")
    for _ in range(30):
        await tab.key("Tab")
        reached.add(await tab.js("document.activeElement.outerHTML.slice(0, 160)"))
    assert len(reached) > 12
    await quiet(tab, server)


async def test_a_page_that_is_renewed_keeps_focus_and_choice(
    start: Start, upstream: ScriptedUpstream, tab: Tab
) -> None:
    """While a run goes on, its page and the list are renewed under the hands of the reader."""
    async with a_followed_run(start, upstream, tab) as (server, agent):
        with client_of(server) as client:
            first = client.get(f"/api/runs/{agent.run_id}").json()["steps"][0]["step_index"]
        await tab.js("document.querySelector('#step-slider').focus()")
        await tab.key("ArrowRight")
        await tab.until(f"{_READOUT}.startsWith('Step {first} ')")
        await steps_of(agent, 1)
        await tab.until("JSON.parse(document.querySelector('#steps-data').textContent).length > 3")
        assert await tab.js("document.activeElement.id") == "step-slider"
        assert (await tab.js(_READOUT)).startswith(f"Step {first} ")
        await open_live(tab, f"{server.url}/dashboard/runs")
        await tab.js("document.querySelector('tr[data-run] a').focus()")
        before = await tab.js("document.querySelector('tr[data-run]').dataset.key")
        await steps_of(agent, 1)
        await tab.until(f"document.querySelector('tr[data-run]').dataset.key !== '{before}'")
        assert await tab.js("document.activeElement.closest('tr').dataset.run") == agent.run_id


async def test_filters_choose_at_once(start: Start, upstream: ScriptedUpstream, tab: Tab) -> None:
    """A choice in a list filters the runs; clearing it shows all again."""
    server = start()
    runs = [a_finished_run(server, upstream, task=f"Task {n}") for n in range(3)]
    with client_of(server) as client:
        client.post(f"/api/runs/{runs[1]}/outcome", json={"outcome": "failure"})
    await tab.open(f"{server.url}/dashboard/runs")
    rows = "[...document.querySelectorAll('tr[data-run]')].map(r => r.dataset.run)"
    assert sorted(await tab.js(rows)) == sorted(runs)
    await tab.following(
        "const s = document.querySelector('select[name=outcome]'); s.value = 'failure';"
        "s.dispatchEvent(new Event('change', {bubbles: true}))"
    )
    assert await tab.js(rows) == [runs[1]]
    assert await tab.js("location.search") == "?outcome=failure"
    await tab.following("document.querySelector('.filters a.button').click()")
    assert sorted(await tab.js(rows)) == sorted(runs)
    await tab.open(f"{server.url}/dashboard/runs?search=task+1")
    assert await tab.js(rows) == [runs[1]]
    await tab.js("prompt = () => 'Mine'; document.querySelector('#save-view').click()")
    await tab.open(f"{server.url}/dashboard/runs")
    await tab.following("document.querySelector('#views a.kept').click()")
    assert await tab.js(rows) == [runs[1]]
    await tab.js("document.querySelector('#views button.kept').click()")
    assert await tab.js("document.querySelector('#views .kept')") is None
    await quiet(tab, server)


async def test_a_stuck_run_is_found_and_stopped_with_the_keyboard(
    start: Start, upstream: ScriptedUpstream, tab: Tab
) -> None:
    """On *Now*, Tab leads to the run in trouble and to the button that stops it; its next call is
    refused, and the page says that it is stopped."""
    server = start()
    with client_of(server) as client:
        agent = await looping_agent(client, upstream, 12)
        await tab.log_in(server.url, process_key())
        await tab.open(f"{server.url}/dashboard")
        await tab.js("window.confirm = () => true")
        reached = []
        for _ in range(40):
            await tab.key("Tab")
            reached.append(await tab.js("document.activeElement.textContent.trim()"))
            if reached[-1] == "Stop this run":
                break
        assert "Find the file" in reached
        assert reached[-1] == "Stop this run"
        await tab.js("document.activeElement.click()")
        await tab.until("location.pathname.startsWith('/dashboard/runs/')")
        await tab.until("document.querySelector('.notice.bad').textContent.includes('Stopped')")
        body = {"model": "gpt-4o", "messages": agent._messages}
        refused = await asyncio.to_thread(client.post, "/v1/chat/completions", json=body)
        assert refused.status_code == 429
    await tab.open(f"{server.url}/dashboard")
    assert "Find the file" in await tab.js("document.querySelector('section.stops').textContent")
    await quiet(tab, server)


async def test_keys_lead_through_a_list(start: Start, upstream: ScriptedUpstream, tab: Tab) -> None:
    """`j` and `k` move through the rows, Enter opens one, `/` searches, `?` tells so; in a field
    they are letters, and they can be turned off."""
    server = start()
    with client_of(server) as client:
        for task in ("Mend one", "Mend two", "Mend three"):
            await asyncio.to_thread(LoopingAgent(client, upstream, task).step)
    at = "document.activeElement.textContent.trim()"
    await tab.open(f"{server.url}/dashboard/runs")
    titles = await tab.js("[...document.querySelectorAll('a.task')].map(a => a.textContent.trim())")
    assert len(titles) == 3
    for key, expected in (("j", 0), ("j", 1), ("j", 2), ("j", 2), ("k", 1)):
        await tab.key(key)
        assert await tab.js(at) == titles[expected], key
    await tab.key("?")
    assert await tab.js("document.querySelector('#keys').open") is True
    assert await tab.js(AUDIT) == []
    await tab.key("Escape")
    assert await tab.js("document.querySelector('#keys').open") is False
    await tab.key("/")
    assert await tab.js("document.activeElement.name") == "search"
    await tab.key("j")
    assert await tab.js("document.activeElement.value") == "j"
    await tab.js("document.activeElement.value = ''; document.activeElement.blur()")
    await tab.js("document.querySelector('#keys-on').click()")
    await tab.key("j")
    assert await tab.js("document.activeElement === document.body") is True
    await tab.open(f"{server.url}/dashboard/runs")
    await tab.key("/")
    assert await tab.js("document.activeElement === document.body") is True
    await tab.js("document.querySelector('#keys-on').click()")
    await tab.key("j")
    await tab.following("document.activeElement.click()")
    assert "/dashboard/sessions/" in await tab.js("location.pathname")
    await tab.following("location.assign('/dashboard')")
    await tab.key("/")
    await tab.until("document.activeElement && document.activeElement.name === 'search'")
    await quiet(tab, server)


async def test_a_chart_over_time_is_read_zoomed_and_followed(
    start: Start, upstream: ScriptedUpstream, tab: Tab
) -> None:
    """The pointer reads a bucket on every chart, a drag shows a part until a button shows all, and
    a click lists the sessions that began then."""
    server = start()
    a_finished_run(server, upstream, task="Draw a chart")
    with client_of(server) as client:
        [run] = client.get("/api/runs").json()["runs"]
    await tab.look(width=1440)
    await tab.open(f"{server.url}/dashboard/time?bucket=hour&by=model")
    await tab.until("document.querySelectorAll('.panel canvas').length === 9")

    async def mouse(kind: str, share: float) -> None:
        """At a share of the width of the chart of calls."""
        at = await tab.js(
            "(() => { const b = document.querySelectorAll('.u-over')[2].getBoundingClientRect();"
            f"return [b.left + b.width * {share}, b.top + b.height / 2]; }})()"
        )
        await tab.send(
            "Input.dispatchMouseEvent", type=kind, x=at[0], y=at[1], button="left", clickCount=1
        )

    newest = 47.5 / 48  # the middle of the last of 48 hours
    foot = "document.querySelectorAll('.panel-foot')[{}].textContent"
    await mouse("mouseMoved", newest)
    calls = run["totals"]["calls"]
    await tab.until(f"{foot.format(2)}.endsWith(': gpt-4o {calls}')")
    assert await tab.js(f"{foot.format(7)}.endsWith('gpt-4o 0')")  # another chart, the same hour

    await mouse("mousePressed", 0.5)
    await mouse("mouseMoved", 0.99)
    await mouse("mouseReleased", 0.99)
    await tab.until("document.querySelector('#time-all').checkVisibility()")
    await mouse("mouseMoved", 0.01)
    from_the_middle = await tab.js(foot.format(2))
    await tab.js("document.querySelector('#time-all').click()")
    assert await tab.js("document.querySelector('#time-all').checkVisibility()") is False
    await mouse("mouseMoved", 0.01)
    await tab.until(f"{foot.format(2)} < '{from_the_middle}'")

    await mouse("mouseMoved", newest)
    for kind in ("mousePressed", "mouseReleased"):
        await mouse(kind, newest)
    await tab.until("location.pathname === '/dashboard/runs' && !!document.querySelector('h1')")
    assert "since=" in await tab.js("location.search")
    assert "Draw a chart" in await tab.js("document.querySelector('main').innerText")
    await quiet(tab, server)


async def test_the_menu_of_a_phone_needs_no_script(start: Start, tab: Tab) -> None:
    """Every page is one tap away at 390 pixels, and nothing of the menu is cut."""
    server = start()
    await tab.send("Emulation.setScriptExecutionDisabled", value=True)
    await tab.look(width=390)
    await tab.open(f"{server.url}/dashboard/runs")
    box = await tab.js(
        "(() => { const b = document.querySelector('.menu > summary').getBoundingClientRect();"
        "return [b.left + b.width / 2, b.top + b.height / 2]; })()"
    )
    for kind in ("mousePressed", "mouseReleased"):
        await tab.send(
            "Input.dispatchMouseEvent", type=kind, x=box[0], y=box[1], button="left", clickCount=1
        )
    links = await tab.js(
        "[...document.querySelectorAll('header nav a')].filter(a => a.checkVisibility())"
        ".map(a => [a.textContent.trim(), a.getBoundingClientRect()])"
        ".map(([name, b]) => [name, b.left >= 0 && b.right <= 390 && b.height >= 44])"
    )
    assert len(links) > 5
    assert all(whole for _, whole in links)
    assert {name for name, _ in links} >= {"Now", "Sessions", "Health", "Patterns"}
    if SHOTS:
        await tab.picture(Path(SHOTS) / "menu-390.png")


async def test_a_phone_shows_which_sub_agent_it_was(start: Start, tab: Tab, tmp_path: Path) -> None:
    """Kind, task and cost of the dearest one are in sight beside its marks, at 390 pixels; a title
    without a blank makes no page wider, and one in Hebrew is read from the right."""
    title, hebrew = "x" * 300, "תקן את parser.py בבקשה"
    costly = replace(call(30.0, **tokens(0, cost_usd=21.0)), composite=0.9)
    main = one(1, [call(10.0, **tokens(0)), replace(costly, composite=0.95, step_index=1)])
    storage = await kept(
        tmp_path,
        replace(main, runs=tuple([replace(run, task_preview=title) for run in main.runs])),
        one(2, [costly], agent_kind="general-purpose", task="Make the fuzz test pass"),
        one(3, [call(31.0, **tokens(0))], agent_kind="general-purpose", task=hebrew),
    )
    server = start(storage=storage)
    await tab.look(width=390)
    await tab.open(f"{server.url}/dashboard/sessions/c0001")
    assert await tab.js("document.documentElement.scrollWidth") <= 390
    task, cost = await tab.js(
        "[...document.querySelectorAll('.lane-row:nth-child(2) :is(.lane-head a, .end b)')]"
        ".map(each => each.getBoundingClientRect()).map(b => [b.left, b.right, b.width])"
    )
    assert task[2] > 150
    assert 0 < task[0] < task[1] <= 390
    assert cost[1] <= 390
    places = await tab.js(
        "(() => { const range = document.createRange();"
        "const text = document.querySelector('.lane-row:nth-child(3) .lane-head a').firstChild;"
        "return [0, text.length - 1].map(at => { range.setStart(text, at);"
        "range.setEnd(text, at + 1); return range.getBoundingClientRect().left; }); })()"
    )
    assert places[0] > places[1]
    await quiet(tab, server)


async def test_a_link_within_a_sentence_is_more_than_a_colour(
    start: Start, upstream: ScriptedUpstream, tab: Tab
) -> None:
    """As that to the login on the page of a stopped run."""
    server = start(budgets=[{"name": "few", "scope": "tree", "limits": {"calls": 2}}])
    with client_of(server) as client:
        agent = await looping_agent(client, upstream, 2)
        with contextlib.suppress(httpx.HTTPStatusError):
            await steps_of(agent, 1)
    await tab.open(f"{server.url}/dashboard/runs/{agent.run_id}")
    lines = "[...document.querySelectorAll('.stopped p a')].map(a => getComputedStyle(a))"
    assert await tab.js(f"{lines}.map(style => style.textDecorationLine)") == ["underline"]
    await quiet(tab, server)


async def test_what_people_may_do_fits_a_phone(
    start: Start, upstream: ScriptedUpstream, tab: Tab
) -> None:
    """The page of a stopped run is no wider than 390 pixels while its acts are shown."""
    key = "sk-an-admin-key-of-a-test"
    few = {"name": "few", "scope": "tree", "limits": {"calls": 2}}
    server = start(budgets=[few], auth={"admin_key": key})
    with client_of(server) as client:
        agent = await looping_agent(client, upstream, 2)
        with contextlib.suppress(httpx.HTTPStatusError):
            await steps_of(agent, 1)
    await tab.look(width=390)
    await tab.log_in(server.url, key)
    await tab.open(f"{server.url}/dashboard/runs/{agent.run_id}")
    await tab.js("document.querySelector('.acts-menu').open = true")
    assert await tab.js("document.querySelectorAll('.acts-card td').length")
    assert await tab.js("document.documentElement.scrollWidth") <= 390
    await quiet(tab, server)


async def test_an_experiment_is_read(start: Start, upstream: ScriptedUpstream, tab: Tab) -> None:
    """From the list to the report, whose numbers are the API's."""
    server = start(experiment={"id": "routing/2", "arms": {"on": 1, "off": 1}})
    with client_of(server) as client:
        for number in range(24):
            agent = LoopingAgent(client, upstream, f"Task {number}")
            await steps_of(agent, 1)
            agent.answer(**{"x-gateway-outcome": "success" if number % 3 else "failure"})
        report = client.get("/api/experiments/routing%2F2/report").json()
    await tab.open(f"{server.url}/dashboard/experiments")
    await tab.following("document.querySelector('table.experiments a.task').click()")
    drawn = await tab.js("document.querySelector('.forest tr').innerText")
    estimate = report["comparisons"][0]["success"]["estimate"]
    assert f"{100 * estimate:+.1f} points" in drawn
    shown = await tab.js("[...document.querySelectorAll('.caveat')].map(c => c.textContent)")
    assert shown == [caveat["message"] for caveat in report["caveats"]]
    await quiet(tab, server)


async def test_a_thousand_steps_are_no_burden(
    start: Start, upstream: ScriptedUpstream, tab: Tab, tmp_path: Path
) -> None:
    """The page of a run of 1,000 steps is drawn whole, its transcript in parts."""
    import random
    import time

    from gateway.config.storage import StorageSettings
    from gateway.stores.sql.states import SQLStateStore
    from gateway.stores.sqlite.database import Database
    from gateway.stores.sqlite.engine import SQLiteEngine
    from steering_gateway_testing.many_runs import one_run

    path = str(tmp_path / "long.db")
    database = await Database.open(StorageSettings(path=path))
    call = one_run(random.Random(3), 1, 1000, time.time() - 12_000)
    await SQLStateStore(SQLiteEngine(database)).commit(call)
    await database.close()
    server = start(storage={"path": path})
    await check_run_page(tab, server, call.runs[0].id)
    assert await tab.js("document.querySelectorAll('article.step').length") == 30
    await tab.open(f"{server.url}/dashboard/runs/{call.runs[0].id}?step=700#step-700")
    await tab.until("document.querySelector('#step-700').classList.contains('chosen')")
    await tab.js("document.querySelector('[data-more=before]').click()")
    await tab.until("document.querySelector('#step-690') !== null")
    await tab.js("document.querySelector('[data-more=after]').click()")
    await tab.until("document.querySelector('#step-740') !== null")
    order = await tab.js("[...document.querySelectorAll('article.step')].map(a => +a.dataset.step)")
    assert order == sorted(set(order))
    if SHOTS:
        await tab.picture(Path(SHOTS) / "thousand-steps.png")
    await quiet(tab, server)


@pytest.fixture(params=["file", pytest.param("postgres", marks=pytest.mark.nightly)])
def place(request: pytest.FixtureRequest) -> Iterator[dict[str, Any]]:
    """Settings of a store."""
    if request.param == "file":
        yield {}
        return
    with empty_database() as url:
        yield {"url": url}


async def test_pages_fit_their_window(
    start: Start, upstream: ScriptedUpstream, tab: Tab, place: dict[str, Any]
) -> None:
    """At 1440 and at 390 pixels, light and dark, no page is wider than its window, and each has
    what a keyboard, a screen reader and weak eyes need."""
    budgets = [{"name": "daily", "scope": "day", "limits": {"calls": 11}}]
    server = start(
        experiment={"id": "e", "arms": {"on": 1}}, storage={"raw_mb": 4, **place}, budgets=budgets
    )
    with client_of(server) as client:
        agent = LoopingAgent(client, upstream, "A task with-a-very-long-word-" + "x" * 120)
        await steps_of(agent, 9)
    with operator_of(server) as client:
        said = {"comment": "c" * 500}
        client.post(f"/api/runs/{agent.run_id}/comments", json=said).raise_for_status()
        terms = {"tenant": "default", "name": "n" * 120, "owner": "o" * 120, "expires_at": 9e9}
        client.post("/api/keys", json=terms).raise_for_status()
        view = {"name": "v" * 60, "query": "severity=in-trouble"}
        assert client.post("/dashboard/views", data=view).status_code == 303
    await tab.log_in(server.url, process_key())
    pages = {
        "now": "/dashboard",
        "runs": "/dashboard/runs",
        "filtered": "/dashboard/runs?search=task&until=2100-01-01T10:00&period=week",
        "time": "/dashboard/time",
        "run": f"/dashboard/runs/{agent.run_id}",
        "session": f"/dashboard/sessions/{agent.run_id}",
        "raw": f"/dashboard/runs/{agent.run_id}/steps/2/raw",
        "no-runs": "/dashboard?tenant=nobody",
        "health": "/dashboard/health",
        "patterns": "/dashboard/patterns",
        "pattern": "/dashboard/patterns/read-the-error",
        "experiments": "/dashboard/experiments",
        "experiment": "/dashboard/experiments/e",
        "pilot": "/dashboard/pilot",
        "keys": "/dashboard/keys",
        "audit": "/dashboard/audit?kind=comment",
        "week": f"/dashboard/week?date={time.strftime('%Y-%m-%d', time.gmtime())}",
        "login": "/dashboard/login",
    }
    wrong: list[str] = []
    for name, path in pages.items():
        for width in (1440, 390):
            await tab.look(width=width)
            await tab.open(f"{server.url}{path}")
            for dark in (False, True):
                await tab.look(width=width, dark=dark)
                # `innerWidth` of a phone grows with the page
                over = await tab.js("document.documentElement.scrollWidth") - width
                if over > 0:
                    wrong.append(f"{name} at {width}: {over} pixels too wide")
                wrong += [f"{name} at {width}: {found}" for found in await tab.js(AUDIT)]
                if SHOTS:
                    kind = "dark" if dark else "light"
                    await tab.picture(Path(SHOTS) / f"{name}-{width}-{kind}.png")
    assert sorted(set(wrong)) == []
    background = "getComputedStyle(document.body).backgroundColor"
    night = await tab.js(background)
    await tab.js("document.querySelector('#theme').click()")
    assert await tab.js(background) != night
    await quiet(tab, server)


async def test_the_audit_finds_what_is_wrong(start: Start, tab: Tab) -> None:
    """Each of its rules, on a page that was broken for it."""
    await tab.open(f"{start().url}/dashboard/login")
    assert await tab.js(AUDIT) == []
    await tab.js(
        "const add = (tag, text) => { const node = document.createElement(tag);"
        "node.textContent = text; document.querySelector('main').append(node); return node; };"
        "add('input', ''); add('p', 'one').id = 'key'; add('h4', 'deep');"
        "const pale = add('p', 'pale'); pale.style.color = 'rgba(120, 120, 120, .4)';"
        "add('h1', 'again'); add('a', 'x').tabIndex = 3; add('th', '');"
        "const mark = add('p', ''); mark.ariaHidden = 'true'; mark.append(add('button', 'y'));"
        "for (const _ of [1, 2]) add('section', '').ariaLabel = 'Same';"
    )
    found = " | ".join(await tab.js(AUDIT))
    for words in ("no name: input", "id twice: key", "not one h1", "heading skipped", "tabindex"):
        assert words in found
    for words in ("a key leads to it: button", "empty th", "region twice: Same"):
        assert words in found
    assert "contrast" in found
    assert '"pale"' in found


async def looks_at(tab: Tab, page: Path) -> AsyncIterator[str]:
    """The name of each look at a file in which the tab now shows it: wide and narrow, light and
    dark. It fits the window in all of them."""
    for width, dark in itertools.product((1440, 390), (False, True)):
        await tab.look(width=width, dark=dark)
        await tab.open(page.as_uri())
        over = await tab.js("document.documentElement.scrollWidth") - width
        assert over <= 0, width
        look = f"{page.stem}-{width}-{'dark' if dark else 'light'}"
        if SHOTS:
            await tab.picture(Path(SHOTS) / f"{look}.png")
        yield look


@pytest.mark.parametrize("every", [6, pytest.param(1, marks=pytest.mark.nightly)])
async def test_a_replay_page_fits_its_window_and_loads_nothing(
    tab: Tab, tmp_path: Path, every: int
) -> None:
    """The page of `python -m lab replay`, in the dashboard's style, is complete by itself."""
    page, runs = tmp_path / "replay.html", tmp_path / "runs.jsonl"
    sample = Path(__file__).parents[2] / "replays/sample.jsonl.gz"
    longest_first = sorted(gzip.decompress(sample.read_bytes()).splitlines(), key=len, reverse=True)
    runs.write_bytes(b"\n".join(longest_first[::every]))
    assert replay_page.write_page([runs], Work(policy=ReplayPolicy()), page) == 0
    async for _ in looks_at(tab, page):
        pass
    assert await tab.js("document.querySelectorAll('.replay-run path.curve').length") > 0
    radius = "getComputedStyle(document.querySelector('.card')).borderRadius"
    assert await tab.js(radius) == "8px"
    assert set(tab.requested) == {page.as_uri()}
    assert tab.problems == []


@pytest.mark.parametrize("width", [1440, 390])
async def test_an_alarm_is_called_wrong_by_a_key_or_a_click(
    start: Start, upstream: ScriptedUpstream, tab: Tab, width: int
) -> None:
    """At the step that is chosen; the page says that the kind is muted, and takes it back."""
    server = start()
    await tab.look(width=width)
    with client_of(server) as client:
        agent = await looping_agent(client, upstream, 8)
    await tab.log_in(server.url, process_key())
    await tab.open(f"{server.url}/dashboard/runs/{agent.run_id}?step=7#step-7")
    assert await tab.js("document.body.scrollWidth") <= width
    await tab.key("ArrowLeft")
    await tab.key("ArrowRight")
    if SHOTS:
        await tab.picture(Path(SHOTS, f"alarm-{width}.png"))
    before = "document.querySelector('#step-7 [data-wrong]').value"
    assert await tab.js(before) == "wrong"
    await tab.key("w")
    await tab.until(f"{before} === 'right'")
    assert "muted in" in await tab.js("document.querySelector('#step-7 header').textContent")
    if SHOTS:
        await tab.picture(Path(SHOTS, f"alarm-muted-{width}.png"))
    await tab.following("document.querySelector('#step-7 [data-wrong]').click()")
    await tab.until(f"{before} === 'wrong'")
    await quiet(tab, server)


async def test_a_page_of_a_history_fits_its_window_and_loads_nothing(
    tab: Tab, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The page of `gateway history --html`, wide and narrow, light and dark, and printed."""
    write_all([looping(), smooth()], tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path))
    page = tmp_path / "history.html"
    assert main(["history", "--html", str(page), "--with-words"]) == 0
    async for look in looks_at(tab, page):
        assert await tab.js(AUDIT) == [], look
    await tab.send("Emulation.setEmulatedMedia", media="print")
    assert await tab.js("getComputedStyle(document.querySelector('.top')).display") == "none"
    assert await tab.js("getComputedStyle(document.documentElement).colorScheme") == "light"
    assert set(tab.requested) == {page.as_uri()}
    assert tab.problems == []
