"""Acknowledged commits survive `kill -9`, and the next process continues from them."""

from __future__ import annotations

import random
import subprocess
import sys
import time
from pathlib import Path

import pytest

from gateway.config.storage import StorageSettings
from gateway.stores.sql.runs import RunStore
from gateway.stores.sql.states import SQLStateStore
from gateway.stores.sqlite.database import Database
from gateway.stores.sqlite.engine import SQLiteEngine
from steering_gateway_testing.store_conformance.records import TENANT, history


def _killed_after(path: Path, round_number: int, seconds: float) -> list[tuple[str, int, int]]:
    """The (run, step, version) that a committer acknowledged before it was killed."""
    command = [sys.executable, "-m", "tests.stores.committer", str(path), str(round_number)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as child:
        assert child.stdout is not None
        lines = [child.stdout.readline()]
        time.sleep(seconds)
        child.kill()
        lines += child.stdout.readlines()
    # The kill may cut the last line short; what it said was not read by anyone.
    whole = [line.split() for line in lines if line.endswith("\n")]
    return [(run_id, int(step), int(version)) for run_id, step, version in whole]


async def _kill_and_look(path: Path, rounds: int, draw: random.Random) -> None:
    acknowledged: dict[str, tuple[int, int]] = {}
    for number in range(rounds):
        for run_id, step, version in _killed_after(path, number, draw.uniform(0, 0.2)):
            acknowledged[run_id] = (step, version)
        database = await Database.open(StorageSettings(path=str(path)))
        states, runs = SQLStateStore(SQLiteEngine(database)), RunStore(SQLiteEngine(database))
        assert await database.read(lambda c: c.pragma("integrity_check")) == "ok"
        for run_id, (step, version) in acknowledged.items():
            conversation_id = run_id.replace("r", "c")
            conversation = await states.load(TENANT, conversation_id)
            trace = await runs.get_run(run_id, tenant=TENANT)
            assert conversation is not None
            assert trace is not None
            assert conversation.version >= version
            # Whole steps only: as many as there are versions, none doubled, all counted.
            indices = [row.step_index for row in trace.steps]
            assert indices == list(range(1, conversation.version + 1))
            assert indices[step - 1] == step
            assert trace.run.totals.calls == len(indices)
            longest = history(conversation_id, 2 * conversation.version)
            heads = await states.find_prefix_hashes(TENANT, longest)
            assert heads[0].digest == longest[-1] == conversation.served_head
        await database.close()
    assert len(acknowledged) > rounds


@pytest.mark.slow
async def test_kill_loses_nothing_acknowledged(tmp_path: Path) -> None:
    """After three processes killed at random moments, every acknowledged step is stored."""
    await _kill_and_look(tmp_path / "gateway.db", 3, random.Random())


@pytest.mark.nightly
async def test_fifty_kills_lose_nothing_acknowledged(tmp_path: Path) -> None:
    """After fifty processes killed at random moments, every acknowledged step is stored."""
    await _kill_and_look(tmp_path / "gateway.db", 50, random.Random())
