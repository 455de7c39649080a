"""Hostile and private runs through a running gateway: what is learned of them, and who is told."""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator, Callable, Sequence
from pathlib import Path
from typing import Any

import httpx
import orjson
import pytest

from gateway.backends import open_stores
from gateway.config.storage import StorageSettings
from gateway.steering.guidance.lessons import QUOTED, STATED
from steering_gateway_testing import AppServer, ReceivedRequest, Reply, ScriptedUpstream, ToolCall
from tests.features.learning.runs import state
from tests.features.learning.test_rules import pusher, sent, taught
from tests.hostile.runs import Call, Hostile, hostile_runs, private_runs
from tests.live.client import PLAIN

Start = Callable[..., AppServer]
ADMIN, ACME, OTHER = "the-admin-key", "acme-key", "other-key"
CUSTOMERS = ("shop", "clinic", "bank")
NOT_THERE = ("bash", {"command": "mvn test"}, "bash: mvn: command not found")
HELPFUL = Hostile(
    "helpful",
    (NOT_THERE, ("bash", {"command": "gradle test"}, "ok")),
    (),
    False,
)
"""A run of the project with a rule, so that a gate which refuses everything is noticed."""
TASKS = ("Repair the parser", "Write the manual", "Answer the letter")
MOST_AT_ONCE = 6


class Stage:
    """The agents of several customers, whose model makes the calls of the run that a task names."""

    def __init__(self, http: httpx.AsyncClient, url: str, upstream: ScriptedUpstream) -> None:
        self._http, self._url, self._upstream = http, url, upstream
        self._scripts: list[tuple[Hostile, Sequence[Call]]] = []
        self._turns = asyncio.Semaphore(MOST_AT_ONCE)
        self.sent: dict[str, list[dict[str, Any]]] = {}
        self.customers: list[str] = []
        upstream.default = self._reply

    def _reply(self, request: ReceivedRequest) -> Reply:
        number, turn = _number(request.messages), _turn(request.messages)
        case, calls = self._scripts[number]
        if turn >= len(calls):
            return Reply("That is done.")
        tool, arguments, _ = calls[turn]
        return Reply(case.thought, tool_calls=(ToolCall(tool, arguments, id=f"c{turn}"),))

    async def play(
        self, case: Hostile, calls: Sequence[Call], key: str, customer: str, outcome: str
    ) -> None:
        """One run to its answer."""
        self._scripts.append((case, calls))
        self.customers.append(customer)
        name = f"run-{len(self._scripts) - 1}"
        messages: list[dict[str, Any]] = [
            {"role": "system", "content": f"Working directory: /home/ann/{customer}"},
            {"role": "user", "content": f"{TASKS[len(self._scripts) % 3]} as {name} says."},
        ]
        tools = [
            {"type": "function", "function": {"name": tool, "parameters": {"type": "object"}}}
            for tool in dict.fromkeys(tool for tool, *_ in calls)
        ]
        async with self._turns:
            for turn in range(len(calls) + 1):
                headers = {"x-conversation-id": name, "x-gateway-key": key}
                if turn == len(calls):
                    headers["x-gateway-outcome"] = outcome
                body = {"model": "m", "messages": messages, "tools": tools}
                answer = await self._http.post(
                    f"{self._url}/chat/completions", json=body, headers=headers
                )
                self.sent.setdefault(name, []).append(body | {"messages": list(messages)})
                messages.append(answer.raise_for_status().json()["choices"][0]["message"])
                if turn < len(calls):
                    result = {"role": "tool", "tool_call_id": f"c{turn}", "content": calls[turn][2]}
                    messages.append(result)
                if turn == 0 and case.said:
                    messages.append({"role": "user", "content": case.said})

    def added(self) -> list[tuple[Hostile, str, str]]:
        """What the gateway wrote into bodies, beside the client's own words: for which case, in
        the project of which customer."""
        found = []
        for request in self._upstream.requests:
            number = _number(request.messages)
            own = self.sent[f"run-{number}"][_turn(request.messages)]["messages"]
            for theirs, mine in zip(request.messages, own, strict=True):
                before, after = str(theirs.get("content")), str(mine.get("content"))
                if before != after:
                    text = before.replace(after, "")
                    found.append((self._scripts[number][0], self.customers[number], text))
        return found


def _number(messages: Sequence[dict[str, Any]]) -> int:
    found = re.search(r"run-(\d+)", str(messages[1]["content"]))
    assert found
    return int(found[1])


def _turn(messages: Sequence[dict[str, Any]]) -> int:
    return sum(message["role"] == "assistant" for message in messages)


async def lessons(http: httpx.AsyncClient, api: str, status: str, **how: str) -> list[Any]:
    """The lessons of a status, as the key of an agent may read them."""
    headers = {"x-gateway-key": how.get("key", ACME)}
    path = f"{api}/api/lessons?limit=1000&status={status}"
    return list((await http.get(path, headers=headers)).raise_for_status().json()["lessons"])


def told(lesson: dict[str, Any]) -> str:
    """The text of a lesson, without its ids."""
    return orjson.dumps({k: v for k, v in lesson.items() if not k.endswith("id")}).decode()


def stated(lesson: dict[str, Any]) -> bool:
    """Whether a person said it: a candidate in plain prose, whatever its words are."""
    return str(lesson["key"]).startswith("said|")


@pytest.fixture
async def http() -> AsyncIterator[httpx.AsyncClient]:
    """A client that keeps no connection open, so that a gateway may stop."""
    limits = httpx.Limits(max_keepalive_connections=0)
    async with httpx.AsyncClient(timeout=120, limits=limits) as client:
        yield client


async def teach(stage: Stage, api: str, http: httpx.AsyncClient, cases: Sequence[Hostile]) -> None:
    """Two or three conversations of one customer for each case, which are read as they end, and
    one rule that a person stated, which an operator approves."""
    for place, case in enumerate(cases):
        customer, runs = CUSTOMERS[place % 2], range(2 + place % 2)
        await asyncio.gather(
            *(stage.play(case, case.calls, ACME, customer, "success") for _ in runs)
        )
    for _ in range(3):
        await stage.play(HELPFUL, HELPFUL.calls, ACME, CUSTOMERS[0], "success")
    (helpful,) = await lessons(http, api, "candidate")
    approved = await http.patch(
        f"{api}/api/lessons/{helpful['pattern_id']}",
        json={"status": "trial"},
        headers={"x-gateway-key": ADMIN},
    )
    approved.raise_for_status()


async def attack(
    start: Start, upstream: ScriptedUpstream, http: httpx.AsyncClient, folder: Path, count: int
) -> list[str]:
    """What is wrong after so many hostile and private cases."""
    learning = {"trials": "on", "interval_s": 0.02, "per_run": 50}
    stores = await open_stores(StorageSettings(path=str(folder / "runs.db")))
    await state(stores, 0, "Use gradle, not maven.", tenant="acme", project=CUSTOMERS[0])
    await stores.close()
    server = start(
        {
            **PLAIN,
            "storage": {"path": str(folder / "runs.db")},
            "learning": learning,
            "auth": {"gateway_keys": {"acme": ACME, "other": OTHER}, "admin_key": ADMIN},
        }
    )
    stage = Stage(http, server.base_url, upstream)
    cases = [*hostile_runs(count), *private_runs(count)]
    await teach(stage, server.url, http, cases)
    wrong = []
    for status in ("trial", "active", "candidate"):
        for key in (ACME, ADMIN):
            for lesson in await lessons(http, server.url, status, key=key):
                text = told(lesson)
                wrong += [
                    f"{status} of {case.name}: {word!r}: {lesson['advice']}"
                    for case in cases
                    if status != "candidate" or (case.private and not stated(lesson))
                    if case.private is (key == ACME) and (word := case.held(text))
                ]
    for place, case in enumerate((*cases, *[HELPFUL] * 8)):
        await stage.play(case, case.victim, ACME, CUSTOMERS[place % 3], "failure")
        if place % 3 == 0:
            await stage.play(case, case.victim, OTHER, CUSTOMERS[place % 2], "failure")
    added = stage.added()
    # Only the first two customers' runs taught something, and what is useful only the first one's.
    assert {customer for _, customer, text in added if "gradle" in text} == {CUSTOMERS[0]}
    wrong += [f"given to the third customer: {text}" for _, who, text in added if who == "bank"]
    for met, _, text in added:
        wrong += [
            f"given to {met.name}: {word!r} of {case.name}: {text}"
            for case in cases
            if (word := case.held(text))
        ]
    return wrong


@pytest.mark.parametrize("count", [12, pytest.param(200, marks=pytest.mark.nightly)])
async def test_hostile_and_private_runs_teach_nothing(
    gateway_server: Start,
    upstream: ScriptedUpstream,
    http: httpx.AsyncClient,
    tmp_path: Path,
    count: int,
) -> None:
    """No lesson that is given holds what needs a person's approval; none, not even a candidate
    that the keys of agents may read, holds another customer's words."""
    wrong = await attack(gateway_server, upstream, http, tmp_path, count)
    assert not wrong, "\n".join(dict.fromkeys(wrong))


async def test_an_approved_act_is_a_quotation(
    gateway_server: Start, upstream: ScriptedUpstream, tmp_path: Path
) -> None:
    """What deletes, and an operator approved, is given between quotation marks, in one frame."""
    path, said = (
        tmp_path / "runs.db",
        ("Always delete the branch after a merge.", "Use pnpm, not npm."),
    )
    await taught(path, said)
    learning, upstream.default = {"trials": "on", "interval_s": 3600}, pusher
    server = gateway_server({**PLAIN, "storage": {"path": str(path)}, "learning": learning})
    seen = []
    for number in range(6):
        name, here = f"run-{number}", "Working directory: /home/ann/shop"
        first, _ = await sent(upstream, server.base_url, name, here)
        seen += str(first["messages"][0]["content"]).splitlines()
    (quoted,) = {line for line in seen if "delete the branch" in line}
    assert quoted.startswith(f'{QUOTED}: "')
    assert quoted.endswith('"')
    assert any(line.startswith(f"{STATED}: Use pnpm") for line in seen)
