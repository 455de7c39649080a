"""Experiments over HTTP."""

from __future__ import annotations

import pytest

from steering_gateway_testing import ScriptedUpstream
from steering_gateway_testing.control_plane import LoopingAgent, client_of
from tests.api.conftest import Start
from tests.api.conftest import start as start
from tests.api.test_tenants import ACME, ADMIN, GLOBEX, House
from tests.api.test_tenants import house as house

EXPERIMENT = {"id": "routing/2", "arms": {"on": 1, "off": 1}}


def test_assigned_runs_make_a_report(start: Start, upstream: ScriptedUpstream) -> None:
    """Units are drawn, their runs recorded under their arms, and the report compares them."""
    server = start(experiment=EXPERIMENT)
    with client_of(server) as client:
        for number in range(12):
            agent = LoopingAgent(client, upstream, f"Task {number}")
            agent.step()
            agent.answer(**{"x-gateway-outcome": "success" if number % 3 else "failure"})
        (listed,) = client.get("/api/experiments").json()["experiments"]
        assert (listed["id"], listed["running"]) == ("routing/2", True)
        assert sum(listed["runs"].values()) == 12
        found = client.get("/api/experiments/routing%2F2/report").json()
    assert found["runs"] == 12
    assert {arm["arm"]: arm["runs"] for arm in found["arms"]} == {
        arm: count for arm, count in listed["runs"].items() if count
    }
    assert sum(arm["success"]["successes"] for arm in found["arms"]) == 8
    assert found["sample_ratio"]["suspicious"] is False
    assert "few_runs" in {caveat["code"] for caveat in found["caveats"]}
    assert "on" in {c["arm"] for c in found["comparisons"]}


def test_the_running_experiment_is_known_before_its_first_run(start: Start) -> None:
    """It is listed, and its report is empty; another is not found."""
    with client_of(start(experiment=EXPERIMENT)) as client:
        (listed,) = client.get("/api/experiments").json()["experiments"]
        assert listed["runs"] == {"on": 0, "shadow": 0, "off": 0}
        assert client.get("/api/experiments/routing%2F2/report").json()["runs"] == 0
        assert client.get("/api/experiments/other/report").status_code == 404


@pytest.mark.parametrize("arm", ["on", "off"])
def test_a_unit_keeps_its_arm(start: Start, upstream: ScriptedUpstream, arm: str) -> None:
    """Runs of one unit are of one arm, whatever conversation they come in."""
    server = start(experiment={"id": "e", "arms": {arm: 1}})
    with client_of(server) as client:
        for number in range(2):
            LoopingAgent(client, upstream, f"Task {number}").answer(
                **{"x-gateway-experiment-unit": "unit-7"}
            )
        found = client.get("/api/experiments/e/report").json()
    assert [(a["arm"], a["runs"], a["units"]) for a in found["arms"]] == [(arm, 2, 1)]


def test_runs_of_another_tenant_are_in_no_report(house: House) -> None:
    """The running experiment is everybody's, its runs are their owner's and the operator's."""
    path = "/api/experiments/secret-zanzibar/report"
    with client_of(house.server, ACME) as client:
        (listed,) = client.get("/api/experiments").json()["experiments"]
        assert listed["runs"] == {"on": 0, "shadow": 0, "off": 0}
        report = client.get(path).json()
        assert (report["runs"], report["arms"]) == (0, [])
        page = client.get("/dashboard/experiments", params={"tenant": "globex"})
        assert page.status_code == 403
    for key in (GLOBEX, ADMIN):
        with client_of(house.server, key) as client:
            assert client.get(path).json()["runs"] == 1
