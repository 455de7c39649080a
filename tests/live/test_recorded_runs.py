"""Recorded runs through a live gateway: the right conversation, the same readings as offline."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from steering_gateway_testing import AppServer, ScriptedUpstream
from steering_gateway_testing.patience import DEADLINE_MS
from steering_gateway_testing.recorded_agents import Drive, Run, read_runs, recorded_replies

DEVELOPMENT_RUNS = Path(__file__).parents[3] / "shared/data/trajectories-dev.jsonl.gz"
SAMPLE = Path(__file__).parents[1] / "replays/sample.jsonl.gz"
DEVELOPMENT = pytest.param(
    DEVELOPMENT_RUNS,
    1,
    marks=[
        pytest.mark.nightly,
        pytest.mark.skipif(
            not DEVELOPMENT_RUNS.exists(), reason="the development runs are not here"
        ),
    ],
)
"""A file of runs, of which every `n`th is taken."""
STEERING = {"steering": {"deadline_ms": DEADLINE_MS}}

Start = Callable[..., AppServer]


def synthetic_runs(count: int, steps: int) -> list[Run]:
    """Runs that share their system prompt and their first user message."""
    runs: list[Run] = []
    for number in range(count):
        messages: list[dict[str, Any]] = [
            {"role": "system", "content": "You repair programs. " * 20},
            {"role": "user", "content": "The test suite fails. Repair it."},
        ]
        for step in range(steps):
            call = {"name": "bash", "arguments": f'{{"command": "run {number * step % 5}"}}'}
            call_id = f"call_{number}_{step}"
            messages.append(
                {
                    "role": "assistant",
                    "content": f"Run {number}, step {step}: maybe the error is in module {step}.",
                    "tool_calls": [{"id": call_id, "type": "function", "function": call}],
                }
            )
            result = "FAILED test_a - AssertionError" if step % 3 else "ok, nothing to report"
            messages.append({"role": "tool", "tool_call_id": call_id, "content": result})
        messages.append({"role": "assistant", "content": f"Run {number} is done."})
        runs.append({"id": f"run-{number}", "messages": messages})
    return runs


async def test_interleaved_runs_keep_their_conversations(
    gateway_server: Start, upstream: ScriptedUpstream
) -> None:
    """Runs with one opening and no id separate at their first replies; readings are as offline."""
    runs = synthetic_runs(12, 6)
    upstream.default = recorded_replies(runs)
    server = gateway_server(STEERING)
    report = await Drive(lambda: f"{server.url}/v1")(runs)
    assert report.wrong == []
    assert (report.merges, report.splits) == ([], [])


async def test_readings_survive_the_loss_of_the_database(
    gateway_server: Start, upstream: ScriptedUpstream
) -> None:
    """Another gateway with an empty database continues with the same steps, scores and states."""
    runs = synthetic_runs(6, 8)
    upstream.default = recorded_replies(runs)
    servers = [gateway_server(STEERING), gateway_server(STEERING)]
    drive = Drive(lambda: f"{servers[drive.report.requests > 30].url}/v1")
    report = await drive(runs)
    assert report.requests > 40
    assert report.wrong == []
    assert report.merges == []


async def test_restart_continues_conversations(
    gateway_server: Start, upstream: ScriptedUpstream, tmp_path: Path
) -> None:
    """A gateway restarted on its database finds every conversation again."""
    runs = synthetic_runs(6, 6)
    upstream.default = recorded_replies(runs)
    storage = {**STEERING, "storage": {"path": str(tmp_path / "kept.db")}}
    first = gateway_server(storage)
    half = [{**run, "messages": run["messages"][:8]} for run in runs]
    before = await Drive(lambda: f"{first.url}/v1")(half)
    await asyncio.to_thread(first.stop)
    second = gateway_server(storage)
    after = await Drive(lambda: f"{second.url}/v1", first_call=3)(runs)
    assert before.wrong == after.wrong == []
    for run in runs:
        assert before.homes[run["id"]] == after.homes[run["id"]]


@pytest.mark.parametrize(("file", "every"), [(SAMPLE, 12), DEVELOPMENT], ids=["sample", "all"])
async def test_recorded_runs_read_as_offline(
    gateway_server: Start, upstream: ScriptedUpstream, file: Path, every: int
) -> None:
    """Recorded runs, eight at a time, half streaming: no wrong merge, split or reading."""
    runs = read_runs(file)[::every]
    upstream.default = recorded_replies(runs)
    upstream.requests = deque(maxlen=0)  # they would take more than a gigabyte
    server = gateway_server(STEERING)
    report = await Drive(lambda: f"{server.url}/v1")(runs)
    print(f"{report.requests} requests, identities {dict(report.identities)}")
    assert report.wrong == []
    assert report.splits == []
    assert report.merges == []
