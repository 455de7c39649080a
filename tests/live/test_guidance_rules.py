"""Recorded runs get only what the rules allow: caps, allowances, order, look-ups."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx
import pytest

from steering_gateway_testing import AppServer, ScriptedUpstream
from tests.control import CONTROL
from tests.live.agents import Run, read_runs, recorded_replies
from tests.live.audit import Audit
from tests.live.client import GUIDING, run_log
from tests.live.test_recorded_runs import DEVELOPMENT, SAMPLE
from tests.patience import DEADLINE_MS

# Low gates, so that there is much guidance to check.
EAGER = {
    "steering": {"deadline_ms": DEADLINE_MS},
    "etraces": {"e2_gate": 0.3, "recall_threshold": 0.0},
    "learning": {"interval_s": 0.01},  # it reads runs beside the calls, and embeds what it finds
}
NEAR_MANY = {
    "tier": "e1",
    "gate_threshold": 0.0,
    "fields": {"situation": "get_user_details and get_order_details again", "unlock": "ask"},
}

Start = Callable[..., AppServer]


async def audited(
    start: Start,
    upstream: ScriptedUpstream,
    runs: list[Run],
    path: Path,
    settings: dict[str, Any],
    patch: pytest.MonkeyPatch,
) -> Audit:
    upstream.default = recorded_replies(runs)
    upstream.requests = deque(maxlen=1)
    server = start({**settings, "storage": {"path": str(path)}})
    url = f"{server.url}/api/patterns?tenant=default"
    await asyncio.to_thread(httpx.post, url, json=NEAR_MANY, headers=CONTROL)
    audit = Audit(server, upstream, patch)
    await audit(runs)
    async with run_log(path) as log:
        await audit.gates(log)
    print(dict(audit.seen))
    return audit


async def test_the_rules_hold_at_every_call_of_recorded_runs(
    gateway_server: Start,
    upstream: ScriptedUpstream,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """With the reference's monitors, which fire at almost every step."""
    runs = read_runs(SAMPLE)[::18]
    settings = {**GUIDING, "etraces": EAGER["etraces"]}
    audit = await audited(gateway_server, upstream, runs, tmp_path / "a.db", settings, monkeypatch)
    assert audit.wrong == []
    seen = ("e3", "e1", "e2", "monitor", "FAST", "retries", "e1 searches", "e2 searches")
    assert [name for name in seen if not audit.seen[name]] == []


@pytest.mark.parametrize(("file", "every"), [(SAMPLE, 36), DEVELOPMENT], ids=["sample", "all"])
@pytest.mark.parametrize("eager", [False, True])
async def test_the_rules_hold_with_the_shipped_monitors(
    gateway_server: Start,
    upstream: ScriptedUpstream,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    file: Path,
    every: int,
    eager: bool,
) -> None:
    """With the shipped settings, and with low gates."""
    settings = EAGER if eager else {"steering": {"deadline_ms": DEADLINE_MS}}
    runs = read_runs(file)[::every]
    audit = await audited(gateway_server, upstream, runs, tmp_path / "a.db", settings, monkeypatch)
    assert audit.wrong == []
