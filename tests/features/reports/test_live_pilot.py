"""A pilot on real gateways: declared in the store, drawn, judged, applied, without a restart."""

from __future__ import annotations

import argparse
import asyncio
import json
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx
import pytest

from gateway.features.reports.commands import add_pilot
from steering_gateway_testing import AppServer, ScriptedUpstream
from steering_gateway_testing.agents import GUIDING, Agent, opening, trace, worker
from steering_gateway_testing.patience import until_async

Start = Callable[..., AppServer]


@pytest.fixture
def config(tmp_path: Path, upstream: ScriptedUpstream) -> dict[str, Any]:
    """Guidance from the first steps on; without universal rules, which every run is given."""
    upstream.default = worker(20)
    return {
        **GUIDING,
        "steering": {**GUIDING["steering"], "mode": "off"},
        "etraces": {"e3_max": 0},
        "routing": {"refresh_s": 0.05},
        "storage": {"path": str(tmp_path / "runs.db")},
    }


async def pilot(database: Path, *words: str) -> dict[str, Any]:
    """`gateway pilot --json` with these words."""
    parser = argparse.ArgumentParser()
    add_pilot(parser.add_subparsers())
    path = database.with_name("pilot.yaml")
    path.write_text(json.dumps({"storage": {"path": str(database)}}))
    verb, *options = words or ("",)
    args = parser.parse_args(
        ["pilot", *([verb] if verb else []), "--json", "--config", str(path), *options]
    )
    said = list[str]()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("gateway.features.reports.commands.say", said.append)
        assert await asyncio.to_thread(args.run, args) == 0
    found: dict[str, Any] = json.loads(said[-1])
    return found


async def followed(http: httpx.AsyncClient, server: AppServer, **state: Any) -> None:
    """Wait until a gateway knows this state of the pilot."""

    async def known() -> bool:
        answer = await http.get(f"{server.url}/api/pilot")
        found = answer.json().get("pilot", {})
        return all(found.get(name) == value for name, value in state.items())

    await until_async(known)


async def test_nobody_chooses_an_arm(
    gateway_server: Start,
    http: httpx.AsyncClient,
    config: Any,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Conversations of one named unit are drawn each for itself, by what no key reads; one that
    changes its mode after an act stays in its arm; other tenants' modes are not shown."""
    keys = {"acme": "sk-acme-key-0123456789", "globex": "sk-globex-key-0123456789"}
    admin = "admin-key-of-this-test-0123456789"
    monkeypatch.setenv("GATEWAY_ADMIN_KEY", admin)
    auth = {"admin_key": admin, "gateway_keys": keys}
    server = gateway_server({**config, "auth": auth})
    database = Path(config["storage"]["path"])
    await pilot(database, "start", "--yes", "--tenant", "globex")
    await pilot(database, "apply", "on")
    name = (await pilot(database, "start", "--yes", "--runs", "40"))["pilot"]["id"]
    mine = {"x-gateway-key": keys["acme"]}

    async def seen() -> Any:
        answer = await http.get(f"{server.url}/api/pilot", headers=mine)
        return answer.json().get("pilot", {}) if answer.status_code == 200 else {}

    async def known() -> bool:
        return bool((await seen()).get("id") == name)

    await until_async(known)
    assert (await seen()).get("applied", []) == []
    assert not (await seen()).get("salt")
    assert (await http.get(f"{server.url}/api/pilot")).status_code == 401
    unit, found = {"x-gateway-experiment-unit": "good", **mine}, Counter[str]()
    for number in range(20):
        agent = Agent(http, server.base_url, opening(f"task {number}"), headers=unit)
        answers = await agent.run(6)
        found[answers[-1].gateway("arm") or ""] += 1
        if number == 0:
            arm = answers[-1].gateway("arm")
            agent.headers = {**unit, "x-gateway-mode": "off"}
            await agent.run(1)
            run = (await trace(database, answers[-1].conversation)).run
            assert (run.experiment, run.arm) == (name, arm)
            assert {"guidance", "own_mode"} <= run.totals.acts.keys()
    assert set(found) == {"on", "shadow"}
    shown = await pilot(database)
    assert shown["runs"] == 20
    assert sum(shown["parts"][0]["units"].values()) == 20


async def one(http: httpx.AsyncClient, url: str, task: str, **headers: str) -> Any:
    """A conversation of six turns; its last answer."""
    agent = Agent(http, url, opening(task), headers={"user-agent": "cli/1.2", **headers})
    return (await agent.run(6))[-1]


@pytest.mark.slow
async def test_a_pilot_on_two_gateways(
    gateway_server: Start, upstream: ScriptedUpstream, http: httpx.AsyncClient, config: Any
) -> None:
    """Both arms occur, the same everywhere; what would have been done is known of either; a mode
    that is applied holds for the next run; a client that sets its own mode takes no part."""
    database = Path(config["storage"]["path"])
    first, second = gateway_server(config), gateway_server(config)
    assert (await one(http, first.base_url, "before")).gateway("mode") == "off"
    begun = await pilot(database, "start", "--yes", "--runs", "12", "--client", "cli")
    name = begun["pilot"]["id"]
    for server in (first, second):
        await followed(http, server, id=name)
    arms, runs = Counter[str](), dict[str, str]()
    for number in range(12):
        server = (first, second)[number % 2]
        session = {"x-session-id": f"s{number}"}
        answer = await one(http, server.base_url, f"task {number}", **session)
        arm, run = answer.gateway("arm") or "", f"{answer.conversation}.0"
        assert answer.gateway("mode") == arm
        arms[arm] += 1
        runs[run] = arm
        found = (await trace(database, answer.conversation)).run
        assert (found.experiment, found.arm, found.mode) == (name, arm, arm)
        assert found.totals.acts.keys() == {"guidance"}
        assert bool(found.totals.injections) is (arm == "on")
        if number == 5:
            await asyncio.to_thread(first.stop)
            first = gateway_server(config)
            child = {"x-session-id": "child", "x-parent-session-id": f"s{number}"}
            again = await one(http, first.base_url, "again", **child)
            assert again.gateway("arm") == arm
    assert set(arms) == {"on", "shadow"}
    await one(http, second.base_url, "own mode", **{"x-gateway-mode": "on"})
    other = await one(http, second.base_url, "other client", **{"user-agent": "other"})
    assert (other.gateway("arm"), other.gateway("mode")) == (None, "off")
    for run, arm in runs.items():
        verdict = {"outcome": "success" if arm == "on" else "failure"}
        await http.post(f"{first.url}/api/runs/{run}/outcome", json=verdict)
    shown = await pilot(database)
    assert (shown["runs"], shown["judged"]) == (13, 12)
    assert shown["parts"][0]["units"] == dict(sorted(arms.items()))
    assert shown["parts"][0]["verdict"]["name"] == "more runs needed"

    async def ended() -> bool:
        return (await pilot(database))["pilot"]["windows"][-1][1] is not None

    await until_async(ended)  # a gateway has seen that enough is known
    shadow = (await pilot(database))["pilot"]
    for server in (first, second):
        await followed(http, server, windows=shadow["windows"])
    later = await one(http, first.base_url, "later")
    assert (later.gateway("arm"), later.gateway("mode")) == (None, "shadow")
    applied = await pilot(database, "apply", "on")
    for server in (first, second):
        await followed(http, server, applied=applied["pilot"]["applied"])
        answer = await one(http, server.base_url, f"after {server.url}")
        assert (answer.gateway("arm"), answer.gateway("mode")) == (None, "on")
    page = (await http.get(f"{first.url}/dashboard/pilot")).text
    assert "Applied: runs of client cli are steered." in page
    assert "more runs needed" in page
    await asyncio.to_thread(second.stop)
    third = gateway_server(config)
    assert (await one(http, third.base_url, "restarted")).gateway("mode") == "on"
