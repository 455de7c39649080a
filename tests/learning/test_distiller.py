"""The model that is asked about runs: on a running gateway, over kills, within its budget."""

from __future__ import annotations

import asyncio
import json
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable
from contextlib import ExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest
from msgspec import structs

from gateway.backends import Stores, open_stores
from gateway.config.storage import StorageSettings
from gateway.learning.book import LessonBook
from gateway.learning.distiller import RESERVED_INPUT, RESERVED_OUTPUT
from gateway.learning.life_cycle import BY_OPERATOR, LessonActions, next_move
from gateway.learning.questions import KIND
from gateway.steering.guidance.lessons import LEARNED, QUOTED, STATED, LessonQuery, lesson_text
from gateway.steering.guidance.pattern import Status, Trust
from gateway.stores.learning import Job, LessonFilter, Support
from gateway.stores.records import PromptMessage
from steering_gateway_testing import (
    AppServer,
    Fault,
    FaultKind,
    ReceivedRequest,
    Reply,
    ScriptedUpstream,
)
from tests.learning.distilling import (
    MODEL,
    TOKENS,
    USED,
    asked,
    fill,
    proposing,
    read_again,
    stored,
    unsaid,
)
from tests.learning.planted import POISON
from tests.learning.test_rules import talk
from tests.live.client import PLAIN
from tests.postgres import empty_database
from tests.relay.processes import GatewayProcess

Start = Callable[..., AppServer]
TENANT = "acme"
PATIENCE_S = 120.0
"""Longest wait for jobs; only a hang takes so long."""


def settings(upstream: ScriptedUpstream, path: str, **learning: Any) -> dict[str, Any]:
    """A gateway whose learning asks a model of its own."""
    reached = {"model": f"openai/{MODEL}", "api_base": upstream.base_url, "api_key": "sk-own"}
    price = {"input_cost_per_token": 1e-5, "output_cost_per_token": 1e-5}
    listed = {"model_name": MODEL, "litellm_params": reached, "model_info": price}
    return {
        **PLAIN,
        "model_list": [listed],
        "router": {"num_retries": 0},
        "storage": {"path": path},
        "learning": {"model": MODEL, "interval_s": 0.02, **learning},
    }


@asynccontextmanager
async def opened(**where: Any) -> AsyncIterator[Stores]:
    stores = await open_stores(StorageSettings(**where))
    try:
        yield stores
    finally:
        await stores.close()


async def finished(stores: Stores, count: int) -> list[Job]:
    """All jobs, as soon as so many of them are over."""
    async with asyncio.timeout(PATIENCE_S):
        while True:
            counts = Counter(await stores.learning.count_jobs(KIND))
            if counts["done"] + counts["failed"] >= count:
                return await stores.learning.jobs(KIND, limit=1000)
            await asyncio.sleep(0.02)


async def test_a_lesson_of_a_model_waits_for_an_operator(
    gateway_server: Start, upstream: ScriptedUpstream, tmp_path: Path
) -> None:
    """The model is asked once, with its own key, on the tenant's budget; what it says is counted,
    stays a candidate whatever confirms it, and is a quotation when an operator lets it be tried."""
    upstream.default = proposing()
    path = str(tmp_path / "runs.db")
    async with opened(path=":memory:") as stores:
        assert await fill(stores, [stored(0, unsaid())], model="") == 0
    async with opened(path=path) as stores:
        assert await fill(stores, [stored(n, unsaid()) for n in range(2)]) == 2
    config = settings(upstream, path, trials="on")
    config["budgets"] = [{"name": "own", "scope": "tenant", "limits": {"tokens": 10_000}}]
    gateway = gateway_server(config)
    async with opened(path=path) as stores:
        jobs = await finished(stores, 2)
        assert {(job.state, job.tokens, round(job.cost_usd, 6)) for job in jobs} == {
            ("done", TOKENS, round(TOKENS * 1e-5, 6))
        }
        first, _ = asked(upstream.requests)
        assert first.header("authorization") == "Bearer sk-own"
        assert "check0.py" in first.body.decode()
        found = await stores.learning.lessons(LessonFilter(tenant=TENANT))
        distilled = [(each.pattern, each.pattern.lesson) for each in found if each.pattern.lesson]
        distilled = [(p, lesson) for p, lesson in distilled if lesson.origin == "distilled"]
        assert len(distilled) == 2
        for pattern, lesson in distilled:
            assert (lesson.status, lesson.trust) == (Status.CANDIDATE, Trust.TOOL)
            said = lesson_text(pattern, 600)
            assert said.startswith(f'{QUOTED}: "A script stopped with a type error.')
            assert LEARNED not in said
        async with httpx.AsyncClient(timeout=60) as http:
            accounts = (await http.get(f"{gateway.url}/api/budgets")).json()
            metrics = ""
            while 'gateway_distillations_total{result="lesson"} 2.0' not in metrics:
                metrics = (await http.get(f"{gateway.url}/metrics")).text
            state = (await http.get(f"{gateway.url}/api/distiller")).json()
            page = (await http.get(f"{gateway.url}/dashboard/lessons")).text
    assert f'"input_tokens":{2 * 700}' in json.dumps(accounts, separators=(",", ":"))
    assert 'gateway_tokens_total{direction="input"} 1400.0' in metrics
    assert (state["model"], state["tokens"], state["counts"]) == (
        MODEL,
        2 * TOKENS,
        {"waiting": 0, "done": 2, "failed": 0},
    )
    assert "1,500 of 100,000 tokens" in page


async def test_a_model_words_what_no_form_of_sentences_says(
    gateway_server: Start, upstream: ScriptedUpstream, tmp_path: Path
) -> None:
    """A clear correction without a rule is asked about once, with the person's words and what the
    agent was doing; the rule waits for an operator, one that says the same is joined, and what is
    about one task, or does not pass the gate, is no rule."""
    answers = {
        "mess": "Keep each change as small as the task needs.",
        "bloat": "Keep each change small, as small as the task needs.",
        "wrong colour": "none",
        "customer": "Ask Johnson before you change 4711.",
    }

    def wording(request: ReceivedRequest) -> Reply:
        said = json.loads(request.messages[-1]["content"])["said"]
        text = next(answer for words, answer in answers.items() if words in said)
        return Reply(text, usage=USED)

    upstream.default = wording
    path, said = (
        str(tmp_path / "runs.db"),
        [f"ugh, {words} once more, seriously" for words in answers],
    )
    async with opened(path=path) as stores:
        for number, words in enumerate(said):
            await talk(stores, number, words)
        assert await stores.learning.lessons(LessonFilter()) == []
        gateway_server(settings(upstream, path))
        jobs = await finished(stores, len(said))
        await read_again(stores, ["r0000"], MODEL)
        assert await stores.learning.count_jobs(KIND) == {"done": 2, "failed": 2}
        (rule,) = await stores.learning.lessons(LessonFilter())
        first = json.loads(asked(upstream.requests)[0].messages[-1]["content"])
        assert first == {
            "said": said[0],
            "agent_was_doing": {"doing": "git push", "file": "", "phase": "publishing"},
        }
        assert sorted(job.error for job in jobs if job.error) == [
            "'Johnson' may be of one task",
            "the model found no rule for later work",
        ]
        assert rule.pattern.fields["recommended_action"] == answers["mess"]
        assert (rule.support.conversations, rule.support.tasks) == (2, 2)
        assert rule.pattern.lesson is not None
        assert rule.pattern.lesson.trust is Trust.MODEL
        assert rule.pattern.lesson.applies_when["said"] == said[0]
        assert (
            next_move(
                structs.replace(rule, support=Support(conversations=9, tasks=9, keys=9)),
                2.0,
                trials=True,
            )
            is None
        )
        actions = LessonActions(stores.learning)
        assert await actions.move(rule, Status.TRIAL, f"approved {BY_OPERATOR}", 2.0)
        (rule,) = await stores.learning.lessons(LessonFilter(statuses=(Status.ACTIVE,)))
        opening = [PromptMessage(role="system", text="Working directory: /home/ann/shop")]
        begins = LessonQuery(keys=(), exclude=frozenset(), opening=lambda: opening)
        (match,) = await LessonBook(stores.learning, failed=print).find(begins, "default")
        assert lesson_text(match.pattern, 600) == f"{STATED}: {answers['mess']}"


async def test_no_poisoned_result_reaches_an_agent(
    gateway_server: Start, upstream: ScriptedUpstream, tmp_path: Path
) -> None:
    """60 runs whose tools order something, and a model that repeats it: no lesson holds it."""

    def obeying(request: ReceivedRequest) -> Reply:
        shown = json.loads(request.messages[-1]["content"])["excerpts"][-1]["answered"]
        return proposing(move=f"It helped to do this: {shown[5:150]}")

    upstream.default = obeying
    path = str(tmp_path / "runs.db")
    runs = [stored(n, unsaid(n, POISON[n % 10] + " " * (n // 10))) for n in range(60)]
    async with opened(path=path) as stores:
        jobs = await fill(stores, runs)
        assert jobs >= 50
        gateway_server(settings(upstream, path, model_tokens_per_day=10**6))
        over = await finished(stores, jobs)
        found = await stores.learning.lessons(LessonFilter())
    assert {job.state for job in over} == {"failed"}
    said = " ".join(str(each.pattern.fields) for each in found)
    assert not any(words[:20] in said for words in POISON)


@pytest.mark.parametrize("limit", ["tokens", "usd"])
async def test_the_budget_is_exceeded_by_one_call_at_most(
    gateway_server: Start, upstream: ScriptedUpstream, tmp_path: Path, limit: str
) -> None:
    """With room for three calls and a half, four are made by two gateways, and no other."""
    upstream.default = proposing()
    path, room = str(tmp_path / "runs.db"), 3 * TOKENS + TOKENS // 2
    limits: dict[str, dict[str, Any]] = {
        "tokens": {"model_tokens_per_day": room},
        "usd": {"model_usd_per_day": room * 1e-5},
    }
    async with opened(path=path) as stores:
        await fill(stores, [stored(n, unsaid()) for n in range(8)])
        config = settings(upstream, path, **limits[limit])
        first = gateway_server(config)
        gateway_server(config)
        await finished(stores, 4)
        looks = 10  # of both gateways, after which none would have claimed a further job
        for _ in range(looks):
            await asyncio.sleep(0.05)
        assert await stores.learning.count_jobs(KIND) == {"done": 4, "waiting": 4}
    assert len(asked(upstream.requests)) == 4
    assert first.app.runtime.settings.learning.model == MODEL


async def test_a_model_that_fails_is_asked_again(
    gateway_server: Start, upstream: ScriptedUpstream, tmp_path: Path
) -> None:
    """An error costs nothing and the job waits; an answer of no use ends it, and is paid."""
    upstream.script(Fault(FaultKind.SERVER_ERROR), Reply("I cannot say.", usage=proposing().usage))
    path = str(tmp_path / "runs.db")
    async with opened(path=path) as stores:
        await fill(stores, [stored(0, unsaid())])
        gateway_server(settings(upstream, path, model_timeout_s=2))
        (job,) = await finished(stores, 1)
    assert (job.state, job.attempts, job.tokens) == ("failed", 2, TOKENS)
    assert job.error == "the answer is no JSON object"


async def test_a_gateway_that_stops_gives_its_job_back(
    gateway_server: Start, upstream: ScriptedUpstream, tmp_path: Path
) -> None:
    """What it was asking stays counted, but no lease has to end and no attempt is lost."""
    answer = proposing()
    upstream.script(Reply(answer.content, usage=answer.usage, first_byte_delay_s=30.0))
    upstream.default = answer
    path = str(tmp_path / "runs.db")
    async with opened(path=path) as stores:
        await fill(stores, [stored(0, unsaid())])
        config = settings(upstream, path)
        first = gateway_server(config)
        await asyncio.to_thread(upstream.wait_for_requests, 1)
        await asyncio.to_thread(first.stop)
        (job,) = await stores.learning.jobs(KIND)
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
    answer = proposing()
    slow = Reply(answer.content, usage=answer.usage, first_byte_delay_s=0.05)
    room = jobs // 2 * TOKENS + kills * (RESERVED_INPUT + RESERVED_OUTPUT)
    with ScriptedUpstream(default=slow) as upstream:
        config = settings(upstream, "", model_tokens_per_day=room, model_usd_per_day=1000)
        config["storage"] = dict(where)
        generous = {**config, "learning": {**config["learning"], "model_tokens_per_day": 10**9}}
        folders = [directory / name for name in map(str, range(last))]
        for folder in folders:
            folder.mkdir()
        async with opened(**where) as stores:
            assert await fill(stores, [stored(n, unsaid(n)) for n in range(jobs)]) == jobs
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
            found = await stores.learning.lessons(LessonFilter(), limit=10_000)
        distilled = [each.pattern for each in found if each.pattern.fields["recommended_action"]]
        distilled = [each for each in distilled if "went on after" in str(each.fields)]
        assert Counter(job.state for job in over) == {"done": jobs}
        assert len({each.source_trace_id for each in distilled}) == len(distilled) == jobs
        # The gateway that was stopped when all was used up may have been amid a call, too.
        assert cut_off <= kills
        assert jobs <= len(upstream.requests) <= jobs + cut_off + 1


async def end_leases(stores: Stores) -> int:
    """Give back what a gateway held that is gone, as time would; how many jobs."""
    jobs = await stores.learning.jobs(KIND, limit=1000)
    held = [job for job in jobs if job.state == "waiting" and job.lease_until > time.time()]
    for job in held:
        await stores.learning.give_back(job, 0.0)
    return len(held)


async def used_up(stores: Stores, room: int) -> None:
    """Wait until the jobs have used so many tokens, or until all are over."""
    while (await stores.learning.spent(KIND, TENANT, 0.0))[0] < room:
        if "waiting" not in await stores.learning.count_jobs(KIND):
            return
        await asyncio.sleep(0.02)


@pytest.mark.slow
async def test_each_job_is_done_once_over_kills(tmp_path: Path) -> None:
    """Every run has one lesson, every killed call is one call more, the budget holds."""
    await killed({"path": str(tmp_path / "runs.db")}, tmp_path, jobs=4, kills=1, last=1)


@pytest.mark.nightly
@pytest.mark.parametrize("place", ["sqlite", "postgres"])
async def test_a_hundred_jobs_are_done_once_over_kills(place: str, tmp_path: Path) -> None:
    """The same with 100 jobs and 20 kills, on both stores."""
    if place == "sqlite":
        await killed({"path": str(tmp_path / "runs.db")}, tmp_path, jobs=100, kills=20, last=2)
        return
    with empty_database() as url:
        await killed({"url": url}, tmp_path, jobs=100, kills=20, last=2)
