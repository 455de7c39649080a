"""The loop on a running gateway: runs fail, a fix is mined, a later run is told where it fails."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import apsw
import httpx
import orjson
import pytest

from gateway.backends import open_stores
from gateway.config.storage import StorageSettings
from gateway.steering.guidance.lessons import LEARNED
from gateway.steering.guidance.pattern import Status
from gateway.stores.learning import LessonFilter, StoredLesson
from gateway.stores.queries import PageRequest, RunFilter
from steering_gateway_testing import AppServer, ReceivedRequest, Reply, ScriptedUpstream, ToolCall
from tests.live.client import PLAIN, TOOLS, opening

Start = Callable[..., AppServer]
COMMANDS = ("mvn test", "./gradlew test")
OVERRIDES = ({"order": 7}, {"order": 7, "manager_override": True})
DENIED, REFUNDED = "Error: refund denied: it was bought 60 days ago", "refunded"
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
    async with httpx.AsyncClient(timeout=60, limits=limits) as client:
        yield client


@pytest.fixture
def database(tmp_path: Path) -> Path:
    return tmp_path / "runs.db"


def settings(database: Path, trials: str, interval_s: float = 0.02) -> dict[str, Any]:
    learning = {"trials": trials, "interval_s": interval_s}
    return {**PLAIN, "storage": {"path": str(database)}, "learning": learning}


async def learned(database: Path, status: Status, count: int) -> list[StoredLesson]:
    """The lessons of a status, as soon as there are `count`."""
    stores = await open_stores(StorageSettings(path=str(database)))
    try:
        while True:
            found = await stores.learning.lessons(LessonFilter(statuses=(status,)))
            if len(found) >= count:
                return found
            await asyncio.sleep(0.02)
    finally:
        await stores.close()


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
    """Two runs on two tasks make a lesson; later runs get it right behind the failing result, on
    the share of occasions that is drawn, and each decision is logged. Another gateway that has
    learned the same, and is started anew in between, decides the same."""
    upstream.default = builder
    gateway = gateway_server(settings(database, "on"))
    await play(http, gateway.base_url, "Repair the parser.", "one")
    (first,) = await learned(database, Status.CANDIDATE, 1)
    assert first.pattern.source_trace_id is not None
    await play(http, gateway.base_url, "Write the manual.", "two")
    await play(http, gateway.base_url, "Translate the letter.", "three")
    found = await learned(database, Status.TRIAL, 2)
    assert sorted(each.pattern.tier.value for each in found) == ["e1", "e2"]
    lesson = next(each.pattern for each in found if each.pattern.tier.value == "e1")
    assert lesson.fields["recommended_action"] == (
        "Use `./gradlew test` instead of `mvn`, which is not there."
    )
    await asyncio.to_thread(gateway.stop)
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
    decisions = [
        each
        for stored in found
        for each in await stores.learning.decisions("default", stored.pattern.pattern_id)
    ]
    await stores.close()
    assert len({each.decision.run_id for each in decisions}) == 6
    assert {each.decision.given for each in decisions} == {True, False}
    assert {each.decision.step_index for each in decisions} == {1}


async def test_lessons_keep_to_their_project(
    gateway_server: Start, upstream: ScriptedUpstream, http: httpx.AsyncClient, database: Path
) -> None:
    """Two projects of a tenant learn the same, each from its own runs and for its own; a third one
    meets none of it until an operator shares it."""
    upstream.default = builder
    gateway = gateway_server(settings(database, "on"))
    for task in ("Repair the parser.", "Write the manual.", "Translate the letter."):
        for project in ("shop", "clinic"):
            await play(http, gateway.base_url, task, f"{project} {task}", f"/srv/{project}")
    found = await learned(database, Status.TRIAL, 4)
    await asyncio.to_thread(gateway.stop)
    marks = {each.pattern.pattern_id: each.pattern.lesson for each in found}
    projects = {name: known.applies_when["project"] for name, known in marks.items() if known}
    assert sorted(projects.values()) == ["clinic", "clinic", "shop", "shop"]
    assert [each.support.conversations for each in found] == [2] * 4  # not those of the other

    async def met(*projects_of_runs: str) -> list[list[str]]:
        """The projects of the lessons about which each of these runs decided."""
        gateway = gateway_server(settings(database, "on", interval_s=3600))
        for name in projects_of_runs:
            await play(http, gateway.base_url, "Later.", f"later {name}", f"/srv/{name}")
        await asyncio.to_thread(gateway.stop)
        stores = await open_stores(StorageSettings(path=str(database)))
        runs = (await stores.runs.list_runs(RunFilter(), PageRequest(limit=20))).runs[::-1]
        later = [await stores.learning.open_decisions(run.id, settled=True) for run in runs[6:]]
        if len(later) == 3:
            name = next(e.pattern.pattern_id for e in found if e.pattern.tier.value == "e2")
            assert await stores.learning.share("default", name, 1.0)
        await stores.close()
        return [sorted({projects[each.pattern_id] for each in made}) for made in later]

    assert await met("shop", "clinic", "bank") == [["shop"], ["clinic"], []]
    assert (await met("tower"))[3] != []


async def test_an_override_is_not_tried(
    gateway_server: Start, upstream: ScriptedUpstream, http: httpx.AsyncClient, database: Path
) -> None:
    """An agent overrides a check in two successful runs: no lesson says so, not even a candidate,
    while the same runs teach to call another program."""

    def agent(request: ReceivedRequest) -> Reply:
        turn = sum(m.get("role") == "assistant" for m in request.messages)
        if turn < len(COMMANDS):
            return builder(request)
        turn -= len(COMMANDS)
        if turn >= len(OVERRIDES):
            return Reply("It is refunded.")
        return Reply("", tool_calls=(ToolCall("refund", OVERRIDES[turn], id=f"r{turn}"),))

    upstream.default = agent
    gateway = gateway_server(settings(database, "on"))
    for number, task in enumerate(("Refund order 7.", "Help the customer.", "Call back.")):
        messages = opening(task)
        for _ in range(len(COMMANDS) + len(OVERRIDES) + 1):
            answer = await http.post(
                f"{gateway.base_url}/chat/completions",
                json={"model": "m", "messages": messages, "tools": TOOLS},
                headers={"x-conversation-id": f"c{number}", "x-gateway-outcome": "success"},
            )
            message = answer.raise_for_status().json()["choices"][0]["message"]
            messages.append(message)
            for call in message.get("tool_calls") or ():
                given = orjson.loads(call["function"]["arguments"])
                refunded = REFUNDED if "manager_override" in given else DENIED
                result = RESULTS.get(given.get("command", ""), refunded)
                messages.append({"role": "tool", "tool_call_id": call["id"], "content": result})
    assert DENIED in str(messages)
    await learned(database, Status.TRIAL, 2)
    stores = await open_stores(StorageSettings(path=str(database)))
    every = await stores.learning.lessons(LessonFilter())
    await stores.close()
    assert ["gradlew" in str(each.pattern.fields) for each in every] == [True, True]
