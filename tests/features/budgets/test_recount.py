"""The sums of a thousand calls, counted again from what the provider reported."""

from __future__ import annotations

import asyncio
import csv
import io
import json
import random
import time
from collections import defaultdict
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import pytest

from gateway.config.storage import StorageSettings
from gateway.stores.sql.runs import RunStore
from gateway.stores.sqlite.database import Database
from gateway.stores.sqlite.engine import SQLiteEngine
from gateway.stores.usage import UsagePoint, UsageQuery
from steering_gateway_testing import AppServer, ReceivedRequest, ScriptedUpstream
from steering_gateway_testing.values import Reply, ToolCall, Usage
from tests.features.budgets.test_attribution import ADMIN, KEYS, get
from tests.holds.test_holds import ask

TREES = 50
CALLS = {"main": 12, "sub": 8}
"""Calls of the agent of a tree, and of its sub-agent: 1,000 in all."""
TEAMS = ("red", "blue", "green")
INPUT, CACHED, OUTPUT = 0.15e-6, 0.075e-6, 0.6e-6
"""US dollars a token of gpt-4o-mini, by LiteLLM's price list."""

pytestmark = pytest.mark.nightly


@dataclass(frozen=True, slots=True)
class Reported:
    """What the provider reported of one call."""

    session: str
    usage: Usage

    @property
    def tokens(self) -> int:
        return self.usage.prompt_tokens + self.usage.completion_tokens

    @property
    def cost_usd(self) -> float:
        usage = self.usage
        fresh = usage.prompt_tokens - usage.cached_tokens
        return fresh * INPUT + usage.cached_tokens * CACHED + usage.completion_tokens * OUTPUT


def summed(calls: Iterable[Reported]) -> tuple[int, int, int, Any]:
    """(calls, tokens, cached tokens, dollars)."""
    listed = list(calls)
    return (
        len(listed),
        sum(call.tokens for call in listed),
        sum(call.usage.cached_tokens for call in listed),
        pytest.approx(sum(call.cost_usd for call in listed), abs=1e-9),
    )


def the_model(log: list[Reported]) -> Callable[[ReceivedRequest], Reply]:
    """A model that reports an odd usage with each answer, and notes it."""
    chance = random.Random(5)

    def reply(request: ReceivedRequest) -> Reply:
        prompt = chance.randint(1_000, 90_000)
        usage = Usage(
            prompt_tokens=prompt,
            completion_tokens=chance.randint(1, 3_000),
            cached_tokens=chance.randint(0, prompt),
        )
        log.append(Reported(request.header("x-session-id") or "", usage))
        return Reply("Look.", tool_calls=(ToolCall("ls", {}),), usage=usage)

    return reply


def serve_tree(server: AppServer, number: int) -> None:
    """The calls of one tree: its agent's and its sub-agent's, of one key and one team."""
    key = list(KEYS.values())[number % 2]
    shared = {"authorization": f"Bearer {key}", "x-gateway-tag-team": TEAMS[number % 3]}
    sub = {"x-session-id": f"sub-{number}", "x-parent-session-id": f"main-{number}"}
    for headers, calls in (
        ({**shared, "x-session-id": f"main-{number}"}, CALLS["main"]),
        ({**shared, **sub}, CALLS["sub"]),
    ):
        for step in range(calls):
            assert ask(server, headers, step, model="gpt-4o-mini").status_code == 200


async def series(storage: StorageSettings, query: UsageQuery) -> list[UsagePoint]:
    """The time series, read by a store of its own."""
    database = await Database.open(storage)
    try:
        return await RunStore(SQLiteEngine(database)).usage(query)
    finally:
        await database.close()


def test_every_sum_is_that_of_the_calls(
    gateway_server: Callable[..., AppServer], upstream: ScriptedUpstream
) -> None:
    """Trees, tags, keys, the time series, and both exports, over 1,000 calls of odd usage."""
    log: list[Reported] = []
    upstream.default = the_model(log)
    server = gateway_server({"auth": {"admin_key": ADMIN["x-gateway-key"], "gateway_keys": KEYS}})
    began = time.time()
    with ThreadPoolExecutor(8) as threads:
        list(threads.map(lambda number: serve_tree(server, number), range(TREES)))
    assert len(log) == TREES * sum(CALLS.values())
    by_session = defaultdict[str, list[Reported]](list)
    for call in log:
        by_session[call.session].append(call)

    rows = list(csv.DictReader(io.StringIO(get(server, "export", format="csv"))))
    lines = [json.loads(line) for line in get(server, "export").splitlines()]
    assert len(rows) == len(lines) == 2 * TREES
    exported = [
        (int(r["calls"]), int(r["input_tokens"]) + int(r["output_tokens"]), float(r["cost_usd"]))
        for r in rows
    ]
    whole = summed(log)
    assert tuple(map(sum, zip(*exported, strict=True))) == (whole[0], whole[1], whole[3])
    calls = [step["call"] for line in lines for step in line["steps"]]
    assert len(calls) == whole[0]
    assert sum(each["input_tokens"] + each["output_tokens"] for each in calls) == whole[1]
    assert sum(each["cached_tokens"] for each in calls) == whole[2]
    assert sum(each["cost_usd"] for each in calls) == whole[3]

    for number in range(0, TREES, 7):
        (conversation,) = get(server, "conversations", external_key=f"main-{number}")[
            "conversations"
        ]
        total = get(server, f"sessions/{conversation['id']}")["session"]
        expected = summed(by_session[f"main-{number}"] + by_session[f"sub-{number}"])
        assert (total["calls"], total["tokens"], total["cached_tokens"], total["cost_usd"]) == (
            expected
        )

    def group(name: str, of: Callable[[int], str]) -> None:
        found = {each["value"]: each["sums"] for each in get(server, "usage", by=name)["groups"]}
        wanted = defaultdict[str, list[Reported]](list)
        for call in log:
            wanted[of(int(call.session.split("-")[1]))].append(call)
        assert found.keys() == wanted.keys()
        for value, sums in found.items():
            got = (sums["calls"], sums["tokens"], sums["cached_tokens"], sums["cost_usd"])
            assert got == summed(wanted[value])

    group("tag:team", lambda number: TEAMS[number % 3])
    group("key", lambda number: list(KEYS)[number % 2])

    query = UsageQuery(since=began - 86_400, until=time.time() + 86_400, bucket="hour")
    points = asyncio.run(series(server.app.runtime.settings.storage, query))
    assert sum(point.calls for point in points) == whole[0]
    assert sum(point.tokens for point in points) == whole[1]
    assert sum(point.cost_usd or 0.0 for point in points) == whole[3]
