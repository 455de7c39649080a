"""Two gateways that serve and save the same conversation at the same moment."""

from __future__ import annotations

from pathlib import Path

import pytest

from gateway.config import settings_from_dict
from gateway.testing import ScriptedUpstream
from tests.live.agents import read_runs
from tests.live.test_recorded_runs import DEVELOPMENT, SAMPLE
from tests.postgres import shared_server
from tests.replicas.config import one, shared
from tests.replicas.drives import FRAME, RetryingDrive, TwinDrive, bodies_of
from tests.replicas.fleet import Fleet
from tests.replicas.run_log import recorded


@pytest.mark.nightly
@pytest.mark.parametrize(("file", "every"), [(SAMPLE, 3), DEVELOPMENT], ids=["sample", "all"])
async def test_two_at_once_are_one(
    upstream: ScriptedUpstream, tmp_path: Path, database: str, file: Path, every: int
) -> None:
    """Every call at both: each sends what one gateway sends, so that no cap is exceeded and nothing
    is said twice; every step is stored once; no statement waits in a circle."""
    runs = read_runs(file)[::every]
    policy = settings_from_dict(one(upstream, tmp_path)).policy()
    with Fleet(tmp_path, one(upstream, tmp_path), 1) as fleet:
        url = fleet.gateways[0].base_url
        expected = await bodies_of(upstream, runs, RetryingDrive(lambda: url, policy=policy))
    begun = shared_server().log.stat().st_size
    (directory := tmp_path / "shared").mkdir()
    with Fleet(directory, shared(upstream, database), 2) as fleet:
        drive = TwinDrive(lambda: "", policy=policy)
        drive.twins = (fleet.gateways[0].base_url, fleet.gateways[1].base_url)
        found = await bodies_of(upstream, runs, drive)
    calls = recorded(shared_server(), database)
    print(f"{drive.report.requests} calls at two gateways, {len(calls)} recorded steps")
    assert len([body for bodies in expected.values() for body in bodies if FRAME in body]) > 20
    assert [which for which in expected if set(found[which]) != set(expected[which])] == []
    assert len(calls) == drive.report.requests
    assert "deadlock" not in shared_server().log.read_text()[begun:]
