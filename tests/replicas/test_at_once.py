"""Two gateways that serve and save the same conversation at the same moment."""

from __future__ import annotations

from pathlib import Path

import pytest

from gateway.config import settings_from_dict
from steering_gateway_testing import ScriptedUpstream
from steering_gateway_testing.fleet import Fleet
from steering_gateway_testing.recorded_agents import read_runs
from tests.live.test_recorded_runs import DEVELOPMENT, SAMPLE
from tests.postgres import shared_server
from tests.replicas.config import one, shared
from tests.replicas.drives import FRAME, RetryingDrive, TwinDrive, bodies_of
from tests.replicas.patterns import EAGER, store_patterns
from tests.replicas.run_log import all_calls, given, recorded


@pytest.mark.nightly
@pytest.mark.parametrize(("file", "every"), [(SAMPLE, 3), DEVELOPMENT], ids=["sample", "all"])
async def test_two_at_once_are_one(
    upstream: ScriptedUpstream, tmp_path: Path, postgres_url: str, file: Path, every: int
) -> None:
    """Every call at both: each sends what one gateway sends, so that no cap is exceeded and nothing
    is said twice; every step is stored once; no statement waits in a circle."""
    runs = read_runs(file)[::every]
    policy = settings_from_dict(one(upstream, tmp_path)).policy()
    config = {**one(upstream, tmp_path), **EAGER}
    store_patterns(tmp_path, config)
    with Fleet(tmp_path, config, 1) as fleet:
        url = fleet.gateways[0].base_url
        expected = await bodies_of(upstream, runs, RetryingDrive(lambda: url, policy=policy))
    begun = shared_server().log.stat().st_size
    (directory := tmp_path / "shared").mkdir()
    config = {**shared(upstream, postgres_url), **EAGER}
    store_patterns(directory, config)
    with Fleet(directory, config, 2) as fleet:
        drive = TwinDrive(lambda: "", policy=policy)
        drive.twins = (fleet.gateways[0].base_url, fleet.gateways[1].base_url)
        found = await bodies_of(upstream, runs, drive)
    calls = recorded(shared_server(), postgres_url)
    pieces = given(shared_server(), postgres_url)
    print(f"{drive.report.requests} calls at two gateways, {len(calls)} steps, given {pieces}")
    assert {"e1", "e2", "e3", "monitor"} <= pieces.keys()
    assert len([body for bodies in expected.values() for body in bodies if FRAME in body]) > 20
    assert [which for which in expected if set(found[which]) != set(expected[which])] == []
    # Replies that follow each other directly are one step, which has the calls of both.
    assert all_calls(shared_server(), postgres_url) == 2 * drive.report.requests
    assert "deadlock" not in shared_server().log.read_text()[begun:]
