"""Real runs through a live gateway: the right conversation, and the same readings as offline."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from pathlib import Path

import pytest

from gateway.testing import AppServer, ScriptedUpstream
from tests.live.agents import Drive, Run, read_runs, recorded_replies

DEVELOPMENT_RUNS = Path(__file__).parents[3] / "shared/data/trajectories-dev.jsonl.gz"
# The deadline is a limit on latency; a busy test machine must not turn it into a wrong reading.
STEERING = {"steering": {"deadline_ms": 10_000}}

Start = Callable[..., AppServer]


def synthetic_runs(count: int, steps: int) -> list[Run]:
    """Runs that share their system prompt and their first user message."""
    runs = []
    for number in range(count):
        messages = [
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
    """Headerless runs of one opening separate at their first replies, and read as offline."""
    runs = synthetic_runs(12, 6)
    upstream.default = recorded_replies(runs)
    server = gateway_server(STEERING)
    report = await Drive(lambda: f"{server.url}/v1")(runs)
    assert report.wrong == []
    assert (report.merges, report.splits) == ([], [])


async def test_readings_survive_the_loss_of_the_database(
    gateway_server: Start, upstream: ScriptedUpstream
) -> None:
    """Another gateway with an empty database goes on with the same steps, scores and states."""
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
    """A gateway restarted on its database knows every conversation again."""
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


@pytest.mark.slow
@pytest.mark.skipif(not DEVELOPMENT_RUNS.exists(), reason="the development runs are not here")
async def test_all_development_runs(gateway_server: Start, upstream: ScriptedUpstream) -> None:
    """All recorded runs, eight at a time, half streaming: no wrong merge, split or reading."""
    runs = read_runs(DEVELOPMENT_RUNS)
    upstream.default = recorded_replies(runs)
    upstream.requests = deque(maxlen=0)  # more than a gigabyte, and nobody asks for it
    server = gateway_server(STEERING)
    report = await Drive(lambda: f"{server.url}/v1")(runs)
    print(f"{report.requests} requests, identities {dict(report.identities)}")
    assert report.wrong == []
    assert report.splits == []
    assert report.merges == []
