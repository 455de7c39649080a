"""Several gateways on one PostgreSQL database, behind a balancer that knows no conversations."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator

import pytest

from gateway.testing import AppServer, ScriptedUpstream
from tests.live.agents import Drive, recorded_replies
from tests.live.test_recorded_runs import STEERING, synthetic_runs
from tests.postgres import empty_database

Start = Callable[..., AppServer]


@pytest.fixture
def database() -> Iterator[str]:
    """The URL of an empty database."""
    with empty_database() as url:
        yield url


async def test_replicas_share_conversations(
    gateway_server: Start, upstream: ScriptedUpstream, database: str
) -> None:
    """Each call goes to the next of two gateways: no wrong merge, split or reading."""
    runs = synthetic_runs(8, 5)
    upstream.default = recorded_replies(runs)
    settings = {**STEERING, "storage": {"url": database, "commit_limit_ms": 60_000}}
    turns = itertools.cycle([gateway_server(settings), gateway_server(settings)])
    report = await Drive(lambda: f"{next(turns).url}/v1")(runs)
    assert report.requests > 40
    assert report.wrong == []
    assert (report.merges, report.splits) == ([], [])
