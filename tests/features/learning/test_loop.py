"""Lessons on a running gateway: a run is told where it fails, in its own project."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import apsw
import httpx
import orjson
import pytest
from msgspec import structs

from gateway.backends import open_stores
from gateway.config.storage import StorageSettings
from gateway.core.pattern import Pattern, Tier, Trust
from gateway.features.learning.context import project_of
from gateway.steering.guidance.lessons import LEARNED
from gateway.stores.filters import RunFilter
from gateway.stores.lists import PageRequest
from gateway.stores.records import PromptMessage
from steering_gateway_testing import AppServer, ReceivedRequest, Reply, ScriptedUpstream, ToolCall
from steering_gateway_testing.agents import PLAIN, TOOLS, opening
from tests.features.learning.runs import lessons_of, run, shell

Start = Callable[..., AppServer]
COMMANDS = ("mvn test", "./gradlew test")
RESULTS = {"mvn test": "bash: mvn: command not found", "./gradlew test": "BUILD SUCCESSFUL in 3s"}


def builder(request: ReceivedRequest) -> Reply:
    """Runs the two commands in order, then answers."""
    turn = sum(m.get("role") == "assistant" for m in request.messages)
    if turn >= len(COMMANDS):
        return Reply("It builds.")
    return Reply("", tool_calls=(ToolCall("bash", {"command": COMMANDS[turn]}, id=f"c{turn}"),))


async def play(
    http: httpx.AsyncClient, url: str, task: str, name: str, folder: str = ""
) -> list[list[Any]]:
    """One run to its final answer; the messages of each request as sent."""
    messages, sent = opening(task), []
    if folder:
        messages[0] = {"role": "system", "content": f"Working directory: {folder}"}
    for _ in range(len(COMMANDS) + 1):
        body = {"model": "m", "messages": messages, "tools": TOOLS}
        answer = await http.post(
            f"{url}/chat/completions", json=body, headers={"x-conversation-id": name}
        )
        answer.raise_for_status()
        sent.append(list(messages))
        message = answer.json()["choices"][0]["message"]
        messages.append(message)
        for call in message.get("tool_calls") or ():
            command = orjson.loads(call["function"]["arguments"])["command"]
            result = {"role": "tool", "tool_call_id": call["id"], "content": RESULTS[command]}
            messages.append(result)
    return sent


@pytest.fixture
async def http() -> AsyncIterator[httpx.AsyncClient]:
    """A client that keeps no connection open, so that a gateway may stop."""
    limits = httpx.Limits(max_keepalive_connections=0)
    async with httpx.AsyncClient(timeout=120, limits=limits) as client:
        yield client


@pytest.fixture
def database(tmp_path: Path) -> Path:
    return tmp_path / "runs.db"


def settings(database: Path, trials: str, interval_s: float = 0.02) -> dict[str, Any]:
    learning = {"trials": trials, "interval_s": interval_s}
    return {**PLAIN, "storage": {"path": str(database)}, "learning": learning}


async def teach(database: Path, folder: str = "", tier: Tier = Tier.E1) -> Pattern:
    """Store an operator's lesson in trial about the first command, for the project of a folder."""
    prompts = [PromptMessage(role="system", text=opening()[0]["content"])]
    if folder:
        prompts = [PromptMessage(role="system", text=f"Working directory: {folder}")]
    source = replace(
        run([shell(COMMANDS[0], RESULTS[COMMANDS[0]])], tenant="default"),
        project=project_of(prompts),
    )
    (lesson,) = lessons_of(source)
    assert lesson.lesson is not None
    approved = structs.replace(lesson.lesson, trust=Trust.OPERATOR)
    lesson = structs.replace(lesson, tier=tier, lesson=approved)
    stores = await open_stores(StorageSettings(path=str(database)))
    await stores.learning.learn([(lesson, [source.evidence(lesson.pattern_id, 1)])])
    await stores.close()
    return lesson


async def told(upstream: ScriptedUpstream, http: httpx.AsyncClient, url: str, number: int) -> bool:
    """Play one later run; whether it is told, at the end of the failing result and with the same
    bytes in every later call."""
    before = len(upstream.requests)
    await play(http, url, f"Task {number}.", f"later-{number}")
    first_call, second, third = [r.json["messages"] for r in list(upstream.requests)[before:]]
    assert LEARNED not in str(first_call)
    assert (LEARNED in str(second)) == (LEARNED in second[-1]["content"])
    assert second[-1]["content"].startswith(RESULTS[COMMANDS[0]])
    assert third[: len(second)] == second
    return LEARNED in str(second)


async def test_a_later_run_is_told_where_it_fails(
    gateway_server: Start, upstream: ScriptedUpstream, http: httpx.AsyncClient, database: Path
) -> None:
    """Runs get a lesson right behind the failing result, on the share of occasions that is drawn,
    and each decision is logged. Another gateway with the same lessons, and started again in
    between, decides the same."""
    upstream.default = builder
    lesson = await teach(database)
    copy = database.with_name("copy.db")
    connection = apsw.Connection(str(database))
    connection.execute("VACUUM INTO ?", (str(copy),))
    connection.close()
    # What comes of these decisions moves the next ones: nothing is read until all are made.
    gateway = gateway_server(settings(database, "on", interval_s=3600))
    here = [await told(upstream, http, gateway.base_url, number) for number in range(6)]
    assert any(here)
    there = []
    for numbers in (range(3), range(3, 6)):
        other = gateway_server(settings(copy, "on", interval_s=3600))
        there += [await told(upstream, http, other.base_url, number) for number in numbers]
        await asyncio.to_thread(other.stop)
    assert there == here
    stores = await open_stores(StorageSettings(path=str(database)))
    decisions = await stores.learning.decisions("default", lesson.pattern_id)
    await stores.close()
    assert len({each.decision.run_id for each in decisions}) == 6
    assert {each.decision.given for each in decisions} == {True, False}
    assert {each.decision.step_index for each in decisions} == {1}


async def test_lessons_keep_to_their_project(
    gateway_server: Start, upstream: ScriptedUpstream, http: httpx.AsyncClient, database: Path
) -> None:
    """Lessons of two projects that answer the same failure are given each in its own; a third one
    meets none of them."""
    upstream.default = builder
    shop = await teach(database, "/srv/shop", Tier.E2)
    clinic = await teach(database, "/srv/clinic")
    projects = {shop.pattern_id: "shop", clinic.pattern_id: "clinic"}

    async def met(*projects_of_runs: str) -> list[list[str]]:
        """The projects of the lessons about which each of these runs decided."""
        gateway = gateway_server(settings(database, "on", interval_s=3600))
        for name in projects_of_runs:
            await play(http, gateway.base_url, "Later.", f"later {name}", f"/srv/{name}")
        await asyncio.to_thread(gateway.stop)
        stores = await open_stores(StorageSettings(path=str(database)))
        runs = (await stores.runs.list_runs(RunFilter(), PageRequest(limit=20))).runs[::-1]
        later = [await stores.learning.open_decisions(run.id, settled=True) for run in runs]
        await stores.close()
        return [sorted({projects[each.pattern_id] for each in made}) for made in later]

    assert await met("shop", "clinic", "bank") == [["shop"], ["clinic"], []]
