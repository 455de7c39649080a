"""A session read from disk has the readings of the same session played through the gateway."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path

import pytest

from gateway.history.find import identify
from gateway.history.log_file import LogFile
from gateway.history.reading import outcomes_of
from gateway.history.session import Session
from gateway.steering.policy import Policy
from steering_gateway_testing import AppServer, ScriptedUpstream
from tests.history.live_readings import Reading, play, replies, stored

LOGS = Path(__file__).parent / "logs/claude_code/cut"
DEVELOPMENT_LOGS = Path(__file__).parents[3] / "shared/data/session-logs/claude-code"


def sessions_in(path: Path) -> list[Session]:
    """The sessions of one file that are no sub-agents."""
    found = list(identify(path).sessions(LogFile(path)))
    return [session for session in found if not session.parent]


def read_from_disk(session: Session) -> list[Reading]:
    """The readings of the session's scored steps."""
    outcomes, _ = outcomes_of(session, Policy())
    return [
        (o.run, o.index, o.difficulty, o.risk.probability, o.state.value, tuple(o.readings.fired))
        for o in outcomes
    ]


async def compare(
    path: Path, gateway_server: Callable[..., AppServer], upstream: ScriptedUpstream
) -> int:
    """Compare all steps of a log that a request of its session completed; their number."""
    (session,) = sessions_in(path)
    upstream.default = replies(session)
    server = await asyncio.to_thread(gateway_server, {"steering": {"mode": "shadow"}})
    await play(server, session)
    live = await stored(server)
    disk = read_from_disk(session)
    # What follows the last answer was never sent.
    last = {(run, index) for run, index, *_ in live}
    assert [each for each in disk if each[:2] in last] == live
    return len(live)


@pytest.mark.parametrize("path", sorted(LOGS.glob("*.jsonl")), ids=lambda p: p.name[:8])
async def test_a_cut_of_a_log_agrees_with_live(
    path: Path, gateway_server: Callable[..., AppServer], upstream: ScriptedUpstream
) -> None:
    """The same of the parts of four of them that are kept with the tests; one has a compaction."""
    assert await compare(path, gateway_server, upstream) > 3


@pytest.mark.nightly
@pytest.mark.parametrize("path", sorted(DEVELOPMENT_LOGS.glob("*.gz")), ids=lambda p: p.name[:8])
async def test_every_development_log_agrees_with_live(
    path: Path, gateway_server: Callable[..., AppServer], upstream: ScriptedUpstream
) -> None:
    """Difficulty, risk, state and monitors of every step are those that the gateway stored."""
    assert await compare(path, gateway_server, upstream) > 10
