"""Pages over a long run log do no more work than over a short one: the steps that the database's
machine takes are counted, not the time."""

from __future__ import annotations

import asyncio
import html
import re
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import httpx
import pytest

from gateway.features.pages import health as health_page
from gateway.features.pages import pages
from gateway.features.pages import runs as list_page
from gateway.stores.sql import runs as stored_runs
from gateway.stores.sqlite import engine
from steering_gateway_testing.many_runs import write_runs
from tests.api.conftest import Start

ADMIN = "gw-admin-1234567890"
MOST = 10
"""What the pages read at most in these tests."""
PAGES = (
    "/dashboard/runs?fragment=1&limit=5",
    "/dashboard/runs?fragment=1&limit=5&severity=at-risk",
    "/dashboard/runs?fragment=1&limit=5&state=NORMAL",
    "/dashboard/health?fragment=1",
)


async def work_of(
    runs: int, start: Start, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> dict[str, tuple[int, int]]:
    """Of each page its statements, and the hundreds of steps that they took."""
    path = str(folder / f"{runs}.db")
    await write_runs(path, runs=runs, steps=4, now=time.time())
    statements: list[str] = []
    hundreds: list[int] = []
    plain = engine._rows

    def one_hundred() -> bool:
        hundreds.append(1)
        return False  # go on

    def counted(statement: str, values: Any, connection: Any) -> Sequence[Any]:
        if " runs AS r" not in statement:
            return plain(statement, values, connection)
        statements.append(statement)
        connection.set_progress_handler(one_hundred, 100, id="work")
        try:
            return plain(statement, values, connection)
        finally:
            connection.set_progress_handler(None, id="work")

    # Learning reads runs of its own accord, and more of them while a slow page is read.
    server = start(storage={"path": path, "retention_days": 0}, learning={"interval_s": 3600})
    found = {}
    with monkeypatch.context() as patched:
        patched.setattr(engine, "_rows", counted)
        for page in PAGES:
            seen = []
            for _ in range(3):  # the gateway reads for itself once, when it has started
                statements.clear()
                hundreds.clear()
                answer = await asyncio.to_thread(httpx.get, f"{server.url}{page}")
                assert answer.status_code == 200, page
                assert "of the newest 10" in answer.text.lower(), page
                seen.append((len(statements), len(hundreds)))
            found[page] = min(seen)
    return found


async def test_a_page_of_many_runs_reads_no_more_than_one_of_few(
    start: Start, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Four times as many runs: as many statements, and about as many steps of the database."""
    monkeypatch.setattr(stored_runs, "SPREAD_RUNS", MOST)
    monkeypatch.setattr(health_page, "SHOWN_RUNS", MOST)
    monkeypatch.setattr(list_page, "_COUNTED", MOST)
    few = await work_of(150, start, tmp_path, monkeypatch)
    many = await work_of(600, start, tmp_path, monkeypatch)
    for page, (statements, steps) in many.items():
        assert statements == few[page][0], page
        assert steps < 1.5 * few[page][1], (page, few[page][1], steps)


def all_of(url: str, address: str) -> list[str]:
    """The sessions on a page of the list and on those that it leads on to."""
    found = []
    while address:
        page = httpx.get(f"{url}/dashboard/runs{address}").text
        found += re.findall(r'href="/dashboard/sessions/(c-[0-9]+)"', page)
        more = re.search(r'rel="next"\s+href="([^"]+)"', page)
        address = html.unescape(more[1]) if more else ""
    return found


def test_a_bounded_page_leads_on_to_all_that_match(
    start: Start, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A list that reads the newest runs says so, and its links reach every other one; what it does
    not count it counts when it is asked to."""
    monkeypatch.setattr(stored_runs, "SPREAD_RUNS", MOST)
    monkeypatch.setattr(health_page, "SHOWN_RUNS", MOST)
    monkeypatch.setattr(list_page, "_COUNTED", MOST)
    path = str(tmp_path / "many.db")
    asyncio.run(write_runs(path, runs=45, steps=4, now=time.time()))
    server = start(storage={"path": path, "retention_days": 0})
    for query in ("?search=the&limit=4", "?state=NORMAL&limit=4", "?limit=4", "?sort=cost&limit=4"):
        total = httpx.get(f"{server.url}/api/sessions{query}&count=true").json()["total"]
        assert total > 3 * MOST, query
        assert len(set(all_of(server.url, query))) == total, query
        page = httpx.get(f"{server.url}/dashboard/runs{query}").text
        assert re.search("(more than|at least) <strong", page), query
        counted = httpx.get(f"{server.url}/dashboard/runs{query}&every=true").text
        assert f'<strong\n  id="total">{total}</strong>' in counted, query
        assert not re.search("more than|at least", counted), query
    assert "all of them" in httpx.get(f"{server.url}/dashboard/health").text
    health_of_all = counted_at(server.url, "/dashboard/health?every=true")
    assert "more match" not in health_of_all


COUNTING = "Being counted"


def counted_at(url: str, page: str) -> str:
    """The page, when it has been counted."""
    until = time.monotonic() + 120
    while COUNTING in (text := httpx.get(f"{url}{page}").text):
        assert time.monotonic() < until, page
        time.sleep(0.02)
    return text


def figures(page: str) -> list[str]:
    """The words with a digit; of the first page those of the ledger, where no rate changes."""
    _, _, text = page.partition("What it saved" if "now-grid" in page else "<main")
    plain = re.sub(r"<time.*?</time>|<[^>]+>", " ", text)
    return [word for word in plain.split() if re.search("[0-9]", word)]


@pytest.mark.parametrize(
    "page",
    [
        "/dashboard",
        "/dashboard/week?date={today}",
        "/dashboard/experiments/routing-2",
        "/dashboard/health?every=true",
    ],
)
def test_no_page_waits_for_a_count_of_many_runs(
    page: str, start: Start, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It says that it is being counted, and leads on; what comes is what few runs are told at once,
    and later looks are shown it until it is counted again."""
    path = str(tmp_path / "many.db")
    asyncio.run(write_runs(path, runs=45, steps=4, now=time.time()))
    server = start(storage={"path": path, "retention_days": 0})
    monkeypatch.setattr(pages, "_KEPT_S", time.time() * 1.5)  # no second window begins
    page = page.format(today=time.strftime("%Y-%m-%d", time.gmtime()))
    at_once = httpx.get(f"{server.url}{page}").text
    assert COUNTING not in at_once
    assert figures(at_once)
    httpx.post(f"{server.url}/dashboard/logout", data={"from": "test"})  # nothing is kept any more
    monkeypatch.setattr(stored_runs, "SPREAD_RUNS", MOST)
    first = httpx.get(f"{server.url}{page}").text
    assert COUNTING in first
    assert '<a href="">Look again</a>' in first
    assert figures(counted_at(server.url, page)) == figures(at_once)
    monkeypatch.setattr(pages, "_KEPT_S", pages._KEPT_S / 2)  # the next window has begun
    monkeypatch.setattr(pages, "_ANSWERED_S", 3600)
    assert COUNTING not in httpx.get(f"{server.url}{page}").text


REPORTS = {
    "/dashboard/week": "GROUP BY r.agent",
    "/dashboard/experiments/routing-2": "Columns of one run as reports read it",
    "/dashboard/runs": "newest AS MATERIALIZED",
    "/dashboard/runs?sort=cost": "GROUP BY 1 HAVING",
    "/dashboard/time": "FROM usage_by_hour",
}
"""Pages with a part that is read once for all who look, and words of its statement."""


def test_a_report_is_read_once_for_all_who_look_until_somebody_changes_something(
    start: Start, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A second look reads nothing of it; after a form was sent it is read again."""
    path = str(tmp_path / "many.db")
    asyncio.run(write_runs(path, runs=20, steps=4, now=time.time()))
    server = start(storage={"path": path, "retention_days": 0}, auth={"admin_key": ADMIN})
    monkeypatch.setattr(pages, "_KEPT_S", 1e12)
    statements: list[str] = []
    plain = engine._rows

    def counted(statement: str, values: Any, connection: Any) -> Sequence[Any]:
        statements.append(statement)
        return plain(statement, values, connection)

    monkeypatch.setattr(engine, "_rows", counted)
    view = {"name": "mine", "query": "", "action": "save"}
    with httpx.Client(base_url=server.url, headers={"x-gateway-key": ADMIN}) as admin:
        for page, words in REPORTS.items():
            reads = []
            for look in range(3):
                if look == 2:
                    assert admin.post("/dashboard/views", data=view).status_code == 303
                statements.clear()
                assert admin.get(page).status_code == 200
                reads.append(sum(words in statement for statement in statements))
            assert reads[0] > 0, page
            assert reads == [reads[0], 0, reads[0]], page
