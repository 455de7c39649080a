"""The model that reads what people type: on a running gateway, over kills, within its budget."""

from __future__ import annotations

import asyncio
import json
import time
from collections import Counter
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import httpx
import pytest

from gateway.backends import Stores
from gateway.features.learning.reader.reader import RESERVED_INPUT, RESERVED_OUTPUT
from gateway.features.learning.worker import Learner
from gateway.stores.filters import RunFilter
from gateway.stores.learning import JOBS, READER
from gateway.stores.lists import PageRequest
from steering_gateway_testing import AppServer, ReceivedRequest, ScriptedUpstream
from steering_gateway_testing.agents import TOOLS
from steering_gateway_testing.processes import GatewayProcess
from steering_gateway_testing.store_conformance import records
from steering_gateway_testing.values import Fault, FaultKind, Reply, ToolCall
from tests.features.learning.reader.planted import POISON
from tests.features.learning.reader.reading import (
    MODEL,
    TASK,
    TOKENS,
    USED,
    WRONG,
    answering,
    asked,
    finished,
    jobs_of,
    opened,
    settings,
    typed,
)

Start = Callable[..., AppServer]
TENANT = "acme"
TITLE = "Right cart totals with vouchers"


def agent(request: ReceivedRequest) -> Reply:
    """The agent's model and the reader's."""
    if request.json["model"] == MODEL:
        return answering(request)
    if request.messages[-1]["role"] == "tool":
        return Reply("Done, the totals are right.")
    return Reply("", tool_calls=(ToolCall("bash", {"command": "make"}, id="call_a1"),))


async def talk(http: httpx.AsyncClient, url: str, *said: str) -> list[str]:
    """A conversation; the ids of its runs are those of the conversation with a number."""
    messages: list[dict[str, Any]] = []
    name = ""
    for words in said:
        messages.append({"role": "user", "content": words})
        for _ in range(2):
            body = {"model": "m", "messages": messages, "tools": TOOLS}
            answer = await http.post(f"{url}/chat/completions", json=body)
            name = answer.raise_for_status().headers["x-gateway-conversation-id"]
            message = answer.json()["choices"][0]["message"]
            messages.append(message)
            for call in message.get("tool_calls") or ():
                done = {"role": "tool", "tool_call_id": call["id"], "content": "ok"}
                messages.append(done)
    return [f"{name}.{number}" for number in range(len(said))]


async def test_kinds_and_titles_are_read_beside_the_runs(
    gateway_server: Start, upstream: ScriptedUpstream, tmp_path: Path
) -> None:
    """A message that the model calls wrong makes the run before it a failure; titles are on pages
    and in lists. It is asked with its own key, unsteered, on the tenant's budget, and what it cost
    is the gateway's and no run's."""
    upstream.default = agent
    config = settings(upstream, str(tmp_path / "runs.db"))
    config["default_upstream"] = {"api_base": upstream.base_url, "api_key": "sk-any"}
    config["budgets"] = [{"name": "own", "scope": "tenant", "limits": {"tokens": 100_000}}]
    gateway = gateway_server(config)
    async with opened(path=config["storage"]["path"]) as stores, httpx.AsyncClient() as http:
        http.timeout = httpx.Timeout(60)
        first, second = await talk(http, gateway.base_url, TASK, WRONG)
        await finished(stores, 3)
        jobs = await jobs_of(stores)
        runs = (await stores.runs.list_runs(RunFilter(), PageRequest())).runs
        listed = {run.id: run for run in runs}
        rows = [r for r in await stores.learning.outcomes(None, second) if r.source == READER]
        metrics = ""
        while 'gateway_reader_jobs_total{result="read"} 3.0' not in metrics:
            metrics = (await http.get(f"{gateway.url}/metrics")).text
        pages = [
            (await http.get(f"{gateway.url}/dashboard/{path}")).text
            for path in ("lessons", "runs", f"runs/{second}")
        ]
    assert Counter(str(job.payload["question"]) for job in jobs) == {"kind": 1, "title": 2}
    assert (listed[first].outcome, listed[first].outcome_source) == ("failure", "derived")
    assert listed[first].title == TITLE
    assert {row.metric: row.comment for row in rows} == {"kind 0": "fix", "title": TITLE}
    assert "3 done" in pages[0]
    assert f"{3 * TOKENS:,} of 100,000 tokens" in pages[0]
    assert all(TITLE in page for page in pages[1:])
    assert "read as: what the agent delivered is wrong" in pages[2]
    own = asked(upstream.requests)
    assert {request.header("authorization") for request in own} == {"Bearer sk-own"}
    assert all("STEERING" not in request.body.decode() for request in own)
    calls = sum(run.totals.calls for run in runs)
    assert (calls, len(upstream.requests)) == (4, 4 + 3)
    assert all(TITLE not in r.body.decode() for r in upstream.requests if r not in own)


async def test_without_a_reader_nothing_is_asked_and_the_pages_say_so(
    gateway_server: Start, upstream: ScriptedUpstream, tmp_path: Path
) -> None:
    """Titles are the beginning of the task, words that correct say nothing."""
    upstream.default = agent
    path = str(tmp_path / "runs.db")
    async with opened(path=path) as stores, httpx.AsyncClient(timeout=120) as http:
        await typed(stores, 0, TASK, WRONG)
        config = {**settings(upstream, path, model="")}
        gateway = gateway_server(config)
        learner = Learner(stores.learning, stores.runs, lambda: gateway_settings(gateway).learning)
        for number in range(2):
            await learner.read(f"c0000.{number}", None)
        runs = (await stores.runs.list_runs(RunFilter(), PageRequest())).runs
        pages = [
            (await http.get(f"{gateway.url}/dashboard/{where}")).text
            for where in ("lessons", "runs/c0000.0")
        ]
        assert await stores.learning.count_jobs(JOBS) == {}
    assert {run.outcome for run in runs} == {None}
    assert {run.title for run in runs} == {TASK, WRONG}
    assert all("<code>reader.model</code> is not set" in page for page in pages)
    assert asked(upstream.requests) == []


def gateway_settings(gateway: AppServer) -> Any:
    return gateway.app.runtime.settings


@pytest.mark.parametrize("answer", [*POISON[:5], "", "fix\u202e", '{"kind": "fix"}', "x" * 10_000])
async def test_an_answer_may_contain_anything(
    gateway_server: Start, upstream: ScriptedUpstream, tmp_path: Path, answer: str
) -> None:
    """What is in another form is unknown: it changes no outcome and is no kind; nothing of it
    reaches an agent, whose next run in the conversation gets the same bytes as without."""

    def obeying(request: ReceivedRequest) -> Reply:
        return Reply(answer, usage=USED) if request.json["model"] == MODEL else agent(request)

    upstream.default = obeying
    config = settings(upstream, str(tmp_path / "runs.db"))
    config["learning"]["trials"] = "on"
    config["default_upstream"] = {"api_base": upstream.base_url, "api_key": "sk-any"}
    gateway = gateway_server(config)
    async with opened(path=config["storage"]["path"]) as stores, httpx.AsyncClient() as http:
        http.timeout = httpx.Timeout(60)
        first, second = await talk(http, gateway.base_url, TASK, WRONG)
        await finished(stores, 3)
        await talk(http, gateway.base_url, TASK, WRONG, "And now?")
        found = [await stores.learning.outcomes(None, run) for run in (first, second)]
        run = await stores.runs.get_run(first, tenant=None)
    assert not [row for rows in found for row in rows if row.metric.startswith("kind")]
    assert run is not None
    assert run.run.outcome is None
    if answer:
        steered = [r for r in upstream.requests if r.json["model"] != MODEL]
        assert not any(answer[:20] in json.dumps(r.json, ensure_ascii=False) for r in steered)


async def test_equal_texts_are_asked_about_once(
    gateway_server: Start, upstream: ScriptedUpstream, tmp_path: Path
) -> None:
    """Ten people type the same task: one call, and each of their runs has the title."""
    upstream.default = answering
    path = str(tmp_path / "runs.db")
    async with opened(path=path) as stores:
        for number in range(10):
            await typed(stores, number, TASK)
        gateway_server(settings(upstream, path))
        jobs = await finished(stores, 10)
        runs = (await stores.runs.list_runs(RunFilter(), PageRequest())).runs
    assert len(asked(upstream.requests)) == 1
    assert sum(job.tokens for job in jobs) == TOKENS
    assert {run.title for run in runs} == {TITLE}


async def test_a_forgotten_run_is_not_read(
    gateway_server: Start, upstream: ScriptedUpstream, tmp_path: Path
) -> None:
    """What was read of it goes with it, and a job about it shows a model nothing."""
    upstream.default = answering
    path = str(tmp_path / "runs.db")
    async with opened(path=path) as stores:
        await typed(stores, 0, TASK, WRONG)
        gateway_server(settings(upstream, path))
        await finished(stores, 3)
        assert await stores.learning.forget(None, "c0000.1", records.START) == []
        assert await stores.learning.outcomes(None, "c0000.1") == []
        runs = (await stores.runs.list_runs(RunFilter(), PageRequest())).runs
        assert {run.title for run in runs} == {TITLE, WRONG}
        assert [job.payload["run"] for job in await jobs_of(stores)] == ["c0000.0"]


@pytest.mark.parametrize("limit", ["tokens", "usd"])
async def test_the_budget_is_exceeded_by_one_call_at_most(
    gateway_server: Start, upstream: ScriptedUpstream, tmp_path: Path, limit: str
) -> None:
    """With room for three calls and a half, four are made by two gateways, and no other."""
    upstream.default = answering
    path, room = str(tmp_path / "runs.db"), 3 * TOKENS + TOKENS // 2
    limits: dict[str, dict[str, Any]] = {
        "tokens": {"tokens_per_day": room},
        "usd": {"usd_per_day": room * 1e-5},
    }
    async with opened(path=path) as stores:
        for number in range(8):
            await typed(stores, number, f"{TASK} Case {number}.")
        config = settings(upstream, path, **limits[limit])
        gateway_server(config)
        gateway_server(config)
        await finished(stores, 4)
        looks = 10  # of both gateways, after which none would have claimed a further job
        for _ in range(looks):
            await asyncio.sleep(0.05)
        assert await stores.learning.count_jobs(JOBS) == {"done": 4, "waiting": 4}
    assert len(asked(upstream.requests)) == 4


async def test_a_model_that_fails_is_asked_again(
    gateway_server: Start, upstream: ScriptedUpstream, tmp_path: Path
) -> None:
    """An error costs nothing and the job waits; an answer of no use ends it, and is paid."""
    upstream.script(Fault(FaultKind.SERVER_ERROR), Reply("", usage=USED))
    path = str(tmp_path / "runs.db")
    async with opened(path=path) as stores:
        await typed(stores, 0, TASK)
        gateway_server(settings(upstream, path, timeout_s=2))
        (job,) = await finished(stores, 1)
    assert (job.state, job.attempts, job.tokens) == ("failed", 2, TOKENS)
    assert job.error == "the answer is not in the form asked for"


async def test_a_gateway_that_stops_gives_its_job_back(
    gateway_server: Start, upstream: ScriptedUpstream, tmp_path: Path
) -> None:
    """What it was asking stays counted, but no lease has to end and no attempt is lost."""
    answer = Reply(TITLE, usage=USED)
    upstream.script(Reply(answer.content, usage=answer.usage, first_byte_delay_s=30.0))
    upstream.default = answer
    path = str(tmp_path / "runs.db")
    async with opened(path=path) as stores:
        await typed(stores, 0, TASK)
        config = settings(upstream, path)
        first = gateway_server(config)
        await asyncio.to_thread(upstream.wait_for_requests, 1)
        await asyncio.to_thread(first.stop)
        (job,) = await jobs_of(stores)
        assert (job.state, job.attempts, job.tokens) == (
            *("waiting", 0),
            RESERVED_INPUT + RESERVED_OUTPUT,
        )
        assert job.lease_until <= time.time()
        gateway_server(config)
        (job,) = await finished(stores, 1)
        assert (job.state, job.attempts) == ("done", 1)
        assert job.tokens == RESERVED_INPUT + RESERVED_OUTPUT + TOKENS


async def killed(
    where: dict[str, Any], directory: Path, *, jobs: int, kills: int, last: int
) -> None:
    """A gateway does the jobs and is killed amid a call, again and again; `last` do the rest."""
    slow = Reply(TITLE, usage=USED, first_byte_delay_s=0.05)
    room = jobs // 2 * TOKENS + kills * (RESERVED_INPUT + RESERVED_OUTPUT)
    with ScriptedUpstream(default=slow) as upstream:
        config = settings(upstream, "", tokens_per_day=room, usd_per_day=1000)
        config["storage"] = dict(where)
        generous = {**config, "reader": {**config["reader"], "tokens_per_day": 10**9}}
        folders = [directory / name for name in map(str, range(last))]
        for folder in folders:
            folder.mkdir()
        async with opened(**where) as stores:
            for number in range(jobs):
                await typed(stores, number, f"{TASK} Case {number}.")
            cut_off = 0
            for number in range(kills):
                before = len(upstream.requests)
                with GatewayProcess(folders[0], json.dumps(config)) as gateway:
                    await asyncio.to_thread(upstream.wait_for_requests, before + 1 + number % 3)
                    gateway.process.kill()
                    gateway.end()
                cut_off += await end_leases(stores)
            with GatewayProcess(folders[0], json.dumps(config)):
                await used_up(stores, room)
            assert await end_leases(stores) == 0  # a gateway that stops holds nothing
            assert TOKENS * len(upstream.requests) <= room + TOKENS
            with ExitStack() as gateways:
                for folder in folders:
                    gateways.enter_context(GatewayProcess(folder, json.dumps(generous)))
                over = await finished(stores, jobs)
            runs = (await stores.runs.list_runs(RunFilter(), PageRequest(limit=jobs))).runs
        assert Counter(job.state for job in over) == {"done": jobs}
        assert Counter(run.title for run in runs) == {TITLE: jobs}
        # The gateway that was stopped when all was used up may have been amid a call, too.
        assert cut_off <= kills
        assert jobs <= len(upstream.requests) <= jobs + cut_off + 1


async def end_leases(stores: Stores) -> int:
    """Give back what a gateway held that is gone, as time would; how many jobs."""
    jobs = await jobs_of(stores)
    held = [job for job in jobs if job.state == "waiting" and job.lease_until > time.time()]
    for job in held:
        await stores.learning.give_back(job, 0.0)
    return len(held)


async def used_up(stores: Stores, room: int) -> None:
    """Wait until the jobs have used so many tokens, or until all are over."""
    while (await stores.learning.spent(JOBS, TENANT, 0.0))[0] < room:
        if "waiting" not in await stores.learning.count_jobs(JOBS):
            return
        await asyncio.sleep(0.02)


@pytest.mark.slow
async def test_each_job_is_done_once_over_kills(tmp_path: Path) -> None:
    """Every run has its title, every killed call is one call more, the budget holds."""
    await killed({"path": str(tmp_path / "runs.db")}, tmp_path, jobs=4, kills=1, last=1)


@pytest.mark.nightly
async def test_a_hundred_jobs_are_done_once_over_kills(
    either_store: dict[str, str], tmp_path: Path
) -> None:
    """The same with 100 jobs and 20 kills, on both stores."""
    await killed(either_store, tmp_path, jobs=100, kills=20, last=2)
