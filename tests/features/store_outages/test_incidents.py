"""A store that is locked, full, read-only, deleted or replaced costs no answer and no record."""

from __future__ import annotations

import asyncio
import io
import json
import re
import threading
import time
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest

from gateway.calls import recorder
from gateway.config import LoggingSettings
from gateway.observability.logging import configure_logging
from gateway.stores.protocols import StoreCorrupt, VersionConflict
from gateway.stores.records import CallRecord
from steering_gateway_testing import AppServer, ScriptedUpstream
from steering_gateway_testing.agents import (
    GUIDING,
    PLAIN,
    Agent,
    Answer,
    opening,
    run_log,
    trace,
    worker,
)
from steering_gateway_testing.outages import (
    copy,
    cut,
    delete,
    fault,
    locked,
    moved,
    overwrite,
    replace,
)
from steering_gateway_testing.patience import ANSWER_S, readiness, until_async, until_ready
from steering_gateway_testing.store_conformance.keys import kept_keys

Start = Callable[..., AppServer]
QUICK = {"probe_interval_s": 0.05, "busy_timeout_ms": 200, "commit_limit_ms": 250}
# On a busy machine a commit of a store that works takes longer than the quick limit.
PATIENT = {"commit_limit_ms": 60_000}
BEGAN, ENDED = "the store is degraded", "the store works again"


@pytest.fixture
def path(upstream: ScriptedUpstream, tmp_path: Path) -> Path:
    """The database of a gateway before a model that calls its tool nine times."""
    upstream.default = worker(9)
    return tmp_path / "runs.db"


def settings(path: Path, **storage: Any) -> dict[str, Any]:
    return {**GUIDING, "storage": {"path": str(path), **QUICK, **storage}}


def places(answers: Sequence[Answer]) -> list[tuple[str | None, ...]]:
    """What was decided, without what differs between two conversations."""
    return [(*answer.place, answer.gateway("guidance")) for answer in answers]


async def metric(http: httpx.AsyncClient, server: AppServer, name: str) -> float:
    text = (await http.get(f"{server.url}/metrics")).text
    return sum(float(value) for value in re.findall(rf"^{name}(?:{{.*}})? (\S+)$", text, re.M))


@asynccontextmanager
async def logged() -> AsyncIterator[Callable[..., list[dict[str, Any]]]]:
    """The log lines so far whose event begins with a text; for gateways started after this."""
    stream = io.StringIO()
    configure_logging(LoggingSettings(format="json"), stream)

    def lines(*begins: str) -> list[dict[str, Any]]:
        found = [json.loads(line) for line in stream.getvalue().splitlines()]
        return [line for line in found if line["event"].startswith(begins)]

    yield lines
    configure_logging(LoggingSettings(level="error", format="json"))


async def calls_of(path: Path, answer: Answer) -> tuple[list[int], int, int]:
    """The steps of an answer's run that have a call, and its total calls and retries."""
    run = await trace(path, answer.conversation)
    made = [step.step_index for step in run.steps if step.call is not None]
    return made, run.run.totals.calls, run.run.totals.retries


@pytest.mark.parametrize(
    ("kind", "streamed"), [("busy", True), ("full", False), ("read_only", True)]
)
async def test_a_store_that_cannot_be_written(
    gateway_server: Start,
    http: httpx.AsyncClient,
    tmp_path: Path,
    path: Path,
    kind: str,
    streamed: bool,
) -> None:
    """Answers and decisions are the same; every call is recorded once when the store works again.

    `/readyz` says what is wrong, and the log has one line for the beginning and one for the end.
    """
    undisturbed = gateway_server(settings(tmp_path / "other.db"))
    expected = places(await Agent(http, undisturbed.base_url).run(7, "x" * 50_000))
    async with logged() as lines:
        server = gateway_server(settings(path, **PATIENT))
        agents = [Agent(http, server.base_url, stream=streamed) for _ in range(2)]
        agents[1].messages = opening("Another task.")
        answers = [await agent.run(2, "x" * 50_000) for agent in agents]
        with fault(kind, server, path):
            for agent, known in zip(agents, answers, strict=True):
                known += await agent.run(4, "x" * 50_000)
            body = await until_ready(http, server.url, kind=kind)
            assert (body["status"], body["waiting"]) == ("degraded", 8)
            assert str(tmp_path) not in json.dumps(body)
            assert re.match(r"\d{4}-\d\d-\d\dT", body["since"])
            page = (await http.get(f"{server.url}/dashboard/health")).text
            assert f"({kind.replace('_', ' ')})" in page
            assert "8 calls wait to be recorded" in page
            assert await metric(http, server, "gateway_store_degraded") == 1
            assert await metric(http, server, "gateway_store_waiting_records") == 8
        await until_ready(http, server.url)
        for agent, known in zip(agents, answers, strict=True):
            known += await agent.run(1)
        (began,), (ended,) = lines(BEGAN), lines(ENDED)
    assert [answer.status for known in answers for answer in known] == [200] * 14
    assert places(answers[0]) == expected
    assert (began["level"], ended["written"], ended["dropped"]) == ("error", 8, 0)
    for known in answers:
        assert await calls_of(path, known[-1]) == (list(range(7)), 7, 0)
    assert await metric(http, server, "gateway_store_waiting_bytes") == 0


async def test_a_start_while_the_file_is_locked(
    gateway_server: Start, http: httpx.AsyncClient, path: Path
) -> None:
    """A gateway needs no write to start on its own file: it serves, and records what it served."""
    first = gateway_server(settings(path))
    agent = Agent(http, first.base_url)
    await agent.run(2)
    first.stop()
    with locked(path):
        server = gateway_server(settings(path))
        agent.url = server.base_url
        answers = await agent.run(2)
        assert [answer.status for answer in answers] == [200, 200]
        await until_ready(http, server.url, kind="busy")
    await until_ready(http, server.url)
    assert [answer.gateway("step") for answer in answers] == ["2", "3"]
    assert await calls_of(path, answers[-1]) == ([0, 1, 2, 3], 4, 0)


async def test_a_deleted_file_is_made_again(
    gateway_server: Start, http: httpx.AsyncClient, path: Path
) -> None:
    """It is noticed without any request; the next calls, patterns and keys are in the new file."""
    async with logged() as lines:
        server = gateway_server(settings(path, **PATIENT))
        agent = Agent(http, server.base_url)
        await agent.run(2)
        delete(path)
        async with asyncio.timeout(ANSWER_S):
            while not lines(ENDED):  # noqa: ASYNC110 - no event of this loop
                await asyncio.sleep(0.05)
        (began,), (ended,) = lines(BEGAN), lines(ENDED)
        answers = await agent.run(3)
        assert [answer.gateway("step") for answer in answers] == ["2", "3", "4"]
    assert (began["kind"], ended["reopened"]) == ("replaced", True)
    assert await calls_of(path, answers[-1]) == ([2, 3, 4], 3, 0)
    patterns = (await http.get(f"{server.url}/api/patterns")).json()
    assert patterns["patterns"]
    assert await metric(http, server, "gateway_store_reopened_total") == 1


async def test_a_file_deleted_under_load(
    gateway_server: Start, upstream: ScriptedUpstream, http: httpx.AsyncClient, tmp_path: Path
) -> None:
    """Every call that was answered after the file was deleted is in the new one, once."""
    upstream.default = worker(40)
    path = tmp_path / "runs.db"
    server = gateway_server(settings(path))
    agents = [Agent(http, server.base_url, opening(f"Task {n}.")) for n in range(4)]
    for agent in agents:
        await agent.turn()
    work = asyncio.gather(*(agent.run(8) for agent in agents))
    await asyncio.sleep(0.05)
    delete(path)
    for agent in agents:
        agent.body = dict(agent.body)
    await work
    after = [await agent.run(2) for agent in agents]
    await until_ready(http, server.url)
    for answers in after:
        made, calls, retries = await calls_of(path, answers[-1])
        first = made[0]
        assert made == list(range(first, 11))
        assert (calls, retries) == (len(made), 0)


async def test_a_restored_backup_is_used(
    gateway_server: Start, http: httpx.AsyncClient, path: Path
) -> None:
    """A file put in the place of the database is opened, and runs that it knows go on in it."""
    backup = path.with_name("backup.db")
    server = gateway_server(settings(path))
    agent = Agent(http, server.base_url)
    await agent.run(2)
    copy(path, backup)
    await agent.run(1)
    replace(path, backup)
    await asyncio.sleep(0)
    answers = await agent.run(3)
    await until_ready(http, server.url)
    answers += await agent.run(1)
    assert [answer.gateway("step") for answer in answers] == ["3", "4", "5", "6"]
    made, calls, retries = await calls_of(path, answers[-1])
    # Step 2 was recorded in the file that is gone; the step itself may be known from the history.
    assert (made, calls, retries) == ([0, 1, 3, 4, 5, 6], 6, 0)


@pytest.mark.parametrize("harm", ["copied over", "cut off"])
async def test_a_damaged_file_is_kept_and_said(
    gateway_server: Start,
    upstream: ScriptedUpstream,
    http: httpx.AsyncClient,
    tmp_path: Path,
    harm: str,
) -> None:
    """Under calls: what is answered from then on is recorded once, in a sound file; `/readyz`, the
    pages, the metric and the log name what is kept."""
    upstream.default = worker(40)
    path, backup = tmp_path / "runs.db", tmp_path / "backup.db"
    async with logged() as lines:
        server = gateway_server(settings(path, **PATIENT))
        agents = [Agent(http, server.base_url, opening(f"Task {n}.")) for n in range(4)]
        for agent in agents:
            await agent.run(2, "x" * 5_000)
        copy(path, backup)
        for agent in agents:
            await agent.run(2, "x" * 5_000)
        moved(path)
        for agent in agents:
            await agent.run(1, "x" * 5_000)
        overwrite(path, backup.read_bytes()) if harm == "copied over" else cut(path)
        after = [await agent.run(4) for agent in agents]

        async def said() -> bool:
            body = await readiness(http, server.url)
            return body["status"] == "ready" and bool(body.get("damaged"))

        await until_async(said)
        (line,) = lines("the log of the database" if harm == "copied over" else "the database is")
    (name,) = (await readiness(http, server.url))["damaged"]
    assert Path(line["kept"]).name == name
    assert name in (await http.get(f"{server.url}/dashboard")).text
    assert await metric(http, server, "gateway_store_damaged_files") == 1
    for answers in after:
        made, calls, retries = await calls_of(path, answers[-1])
        assert made[-4:] == [5, 6, 7, 8]
        assert (calls, retries) == (len(made), 0)


async def test_a_lost_file_does_not_open_the_gateway(
    gateway_server: Start, http: httpx.AsyncClient, path: Path
) -> None:
    """Keys made with `gateway keys` are required, and accepted, after their file was deleted."""
    from gateway.backends import open_stores
    from gateway.config.storage import StorageSettings
    from gateway.features.keys.keyring import make_key

    stores = await open_stores(StorageSettings(path=str(path)))
    key = make_key("acme")
    await kept_keys(stores).add_key(key.record)
    await stores.close()
    server = gateway_server(settings(path))
    agent = Agent(http, server.base_url, headers={"x-gateway-key": key.text})
    assert (await agent.turn()).status == 200
    delete(path)
    assert (await agent.turn()).status == 200
    await until_ready(http, server.url)
    assert (await agent.turn()).status == 200
    assert (await Agent(http, server.base_url).turn()).status == 401
    stores = await open_stores(StorageSettings(path=str(path)))
    assert [record.id for record in await kept_keys(stores).list_keys()] == [key.record.id]
    await stores.close()


async def test_a_run_dropped_from_memory_continues_from_what_waits(
    gateway_server: Start, http: httpx.AsyncClient, path: Path
) -> None:
    """With room for one conversation, three take turns while nothing can be stored."""
    few = {**PLAIN["steering"], "max_conversations_in_memory": 1}
    server = gateway_server({**PLAIN, "steering": few, "storage": {"path": str(path), **QUICK}})
    agents = [
        Agent(http, server.base_url, opening("One.")),
        Agent(http, server.base_url, opening("Two."), headers={"x-session-id": "two"}),
        Agent(http, server.base_url, opening("Three."), stream=True),
    ]
    with locked(path):
        rounds = [[await agent.turn() for agent in agents] for _ in range(4)]
    await until_ready(http, server.url)
    for each in zip(*rounds, strict=True):
        assert [answer.gateway("step") for answer in each] == list("0123")
        assert len({answer.conversation for answer in each}) == 1
        assert await calls_of(path, each[-1]) == ([0, 1, 2, 3], 4, 0)


async def test_what_does_not_fit_is_dropped_and_said_once(
    gateway_server: Start, http: httpx.AsyncClient, path: Path
) -> None:
    """Records beyond `storage.spool_records` are counted; their steps are stored later."""
    async with logged() as lines:
        server = gateway_server(settings(path, spool_records=3))
        agent = Agent(http, server.base_url)
        answers = await agent.run(2, "x" * 50_000)
        with fault("full", server, path):
            answers += await agent.run(6, "x" * 50_000)
            assert (await readiness(http, server.url))["dropped"] == 3
        await until_ready(http, server.url)
        answers += await agent.run(1)
        (_,), (ended,) = lines("records are dropped"), lines(ENDED)
        assert not lines("call not recorded")
    assert [answer.gateway("step") for answer in answers] == list("012345678")
    assert (ended["written"], ended["dropped"]) == (3, 3)
    assert await metric(http, server, "gateway_store_dropped_total") == 3
    made, calls, _ = await calls_of(path, answers[-1])
    assert (made, calls) == ([0, 1, 2, 3, 4, 8], 6)
    run = await trace(path, answers[-1].conversation)
    assert [step.step_index for step in run.steps] == list(range(9))


async def test_a_store_that_hangs(
    gateway_server: Start,
    http: httpx.AsyncClient,
    path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Commits that do not return hold no answer; they are not made twice when they do."""
    server = gateway_server(settings(path, commit_limit_ms=50))
    agent = Agent(http, server.base_url)
    await agent.turn()
    store = server.app.runtime.store._store
    commit, returns = store.commit, asyncio.Event()
    loop: list[asyncio.AbstractEventLoop] = []

    async def hangs(call: Any) -> int:
        loop[:] = [asyncio.get_running_loop()]
        await returns.wait()
        version: int = await commit(call)
        return version

    monkeypatch.setattr(store, "commit", hangs)
    answers = await agent.run(3)
    body = await readiness(http, server.url)
    assert (body["status"], body["kind"], body["waiting"]) == ("degraded", "slow", 3)
    loop[0].call_soon_threadsafe(returns.set)
    await until_ready(http, server.url)
    assert [answer.gateway("step") for answer in answers] == ["1", "2", "3"]
    assert await calls_of(path, answers[-1]) == ([0, 1, 2, 3], 4, 0)


async def test_a_history_that_cannot_be_looked_up(
    gateway_server: Start, http: httpx.AsyncClient, path: Path
) -> None:
    """Its id names its conversation all the same: it is steered, and joined with what is stored."""
    first = gateway_server(settings(path))
    agent = Agent(http, first.base_url, headers={"x-session-id": "s"})
    before = (await agent.run(3))[-1]
    await asyncio.to_thread(first.stop)
    server = gateway_server(settings(path))
    agent.url = server.base_url

    async def unreadable(*_args: Any) -> Any:
        raise StoreCorrupt("the file is damaged")

    with pytest.MonkeyPatch.context() as patch:
        for name in ("find_prefix_hashes", "branches", "load"):
            patch.setattr(type(server.app.runtime.store._store), name, unreadable)
        apart = await agent.turn()
    after = await agent.turn()
    assert (apart.status, apart.gateway("step")) == (200, "3")
    assert apart.conversation == before.conversation
    assert (after.conversation, after.gateway("step")) == (before.conversation, "4")
    await until_ready(http, server.url)
    async with asyncio.timeout(ANSWER_S):  # what waited is stored behind that
        while await calls_of(path, after) != ([0, 1, 2, 3, 4], 5, 0):  # noqa: ASYNC110
            await asyncio.sleep(0.05)
    run = await trace(path, after.conversation)
    (call,) = [step.call for step in run.steps if step.step_index == 3]
    assert call is not None
    assert "store: degraded (corrupt), not asked" in call.reasons
    async with run_log(path) as log:
        listed = (await log.list_conversations(tenant=None, external_key="s")).conversations
    assert {found.id: found.parent_id for found in listed} == {
        before.conversation: None,
    }


async def test_stopping_writes_what_waits_or_says_what_is_lost(
    gateway_server: Start, http: httpx.AsyncClient, path: Path
) -> None:
    """A gateway that ends during an incident tries once more; the next one stores the rest."""
    async with logged() as lines:
        server = gateway_server(settings(path))
        agent = Agent(http, server.base_url)
        with locked(path):
            await agent.run(3)
            await asyncio.to_thread(server.stop)
        (kept,) = lines("records wait on disk")
        assert (kept["records"], lines("records are lost")) == (3, [])
        again = gateway_server(settings(path))
        await until_async(lambda: _recorded(again, http, 3))


async def _recorded(server: AppServer, http: httpx.AsyncClient, steps: int) -> bool:
    """Whether the run log has one run with so many calls."""
    listed = (await http.get(f"{server.url}/api/runs")).json().get("runs", [])
    return [run["totals"]["calls"] for run in listed] == [steps]


async def test_a_jump_of_the_clock_costs_no_run(
    gateway_server: Start, http: httpx.AsyncClient, path: Path
) -> None:
    """After 400 days in no time, runs are there and go on; the log says that they were spared."""
    async with logged() as lines:
        earlier = gateway_server(settings(path))
        idle = (await Agent(http, earlier.base_url, opening("Before.")).run(2))[-1]
        await asyncio.to_thread(earlier.stop)
        server = gateway_server(settings(path, retention_interval_s=0.02))
        agent = Agent(http, server.base_url)
        live = (await agent.run(2))[-1]
        now = time.time
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(time, "time", lambda: now() + 400 * 86_400)

            async def noticed() -> bool:
                return bool(lines("the clock jumped"))

            await until_async(noticed)
            await asyncio.sleep(0.2)  # a few more passes
            after = (await agent.run(2))[-1]
        assert not lines("old runs removed")
    assert (after.conversation, after.gateway("step")) == (live.conversation, "3")
    assert await calls_of(path, after) == ([0, 1, 2, 3], 4, 0)
    assert await calls_of(path, idle) == ([0, 1], 2, 0)


@pytest.mark.parametrize("what", ["history", "join", "client"])
async def test_an_answered_call_is_recorded_whatever_fails(
    gateway_server: Start,
    http: httpx.AsyncClient,
    path: Path,
    monkeypatch: pytest.MonkeyPatch,
    what: str,
) -> None:
    """Its answer is not applied to its history, it is not joined with what another gateway has
    stored, or its client leaves before it is committed."""
    server = gateway_server(settings(path, **PATIENT))
    agent = Agent(http, server.base_url)
    (first,) = await agent.run(1)
    store = server.app.runtime.store
    commit, may_end = store.commit, threading.Event()
    begun: list[str] = []

    def broken(*_: Any, **__: Any) -> Any:
        raise LookupError("broken")

    async def met(call: CallRecord) -> int:
        begun.append(call.conversation.id)
        if what == "client":
            await asyncio.to_thread(may_end.wait)
        elif len(begun) == 1 and what == "join":
            raise VersionConflict(call.conversation.id, expected=1, actual=1)
        return await commit(call)

    with monkeypatch.context() as patched:
        patched.setattr(store, "commit", met)
        if what != "client":
            patched.setattr(recorder, {"history": "apply_reply", "join": "merge"}[what], broken)
            await agent.turn()
        else:
            call = asyncio.ensure_future(agent.turn())
            await until_async(lambda: begun)
            call.cancel()
            await asyncio.wait([call])
            await until_async(lambda: not server.app._in_flight)
            may_end.set()

        async def recorded() -> bool:
            return (await calls_of(path, first))[0] == [0, 1]

        await until_async(recorded)
