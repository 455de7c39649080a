"""An alarm that a person calls wrong: its kind is muted for the project, and counted."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import httpx

from steering_gateway_testing import AppServer, ScriptedUpstream
from steering_gateway_testing.control_plane import LoopingAgent, client_of, operator_of
from steering_gateway_testing.patience import until
from tests.api.conftest import Start, with_keys

STEPS = 8


class Tagged(LoopingAgent):
    """An agent whose runs have a project."""

    project = "web"

    def _ask(self, reply: Any, **headers: str) -> str:
        tags = {"x-gateway-tag-project": self.project} if self.project else {}
        return super()._ask(reply, **headers, **tags)


class Untagged(Tagged):
    """An agent whose runs have none."""

    project = ""


class Elsewhere(Tagged):
    """An agent in another project."""

    project = "shop"


def a_loop(
    server: AppServer, upstream: ScriptedUpstream, task: str, kind: type[Tagged] = Tagged
) -> tuple[str, dict[str, Any]]:
    """The id of a run that repeats one failing call, and its trace."""
    with client_of(server) as client:
        agent = kind(client, upstream, task)
        for _ in range(STEPS):
            agent.step()
        trace = client.get(f"/api/runs/{agent.run_id}").json()
    return agent.run_id, trace


def texts(trace: dict[str, Any]) -> list[str]:
    """The monitor texts that a run was given."""
    rows = [row for step in trace["steps"] for row in step["guidance"]]
    return [row["text"] for row in rows if row["source"] == "monitor"]


def fired(trace: dict[str, Any]) -> set[str]:
    return {name for step in trace["steps"] for name in step["fired"]}


def wrong(server: AppServer, run_id: str, **body: Any) -> httpx.Response:
    with operator_of(server) as client:
        return client.post(f"/api/runs/{run_id}/wrong-alarm", json=body)


def test_a_muted_kind_is_recorded_and_nothing_follows(
    start: Start, upstream: ScriptedUpstream
) -> None:
    """In its project only; after undo it is acted on again."""
    server = start()
    first, trace = a_loop(server, upstream, "First.")
    assert texts(trace)
    said = wrong(server, first).json()
    assert (said["project"], said["muted"]) == ("web", True)
    assert said["monitors"]
    _, quiet = a_loop(server, upstream, "Second.")
    assert fired(quiet) >= set(said["monitors"])
    assert not texts(quiet)
    reasons = [r for step in quiet["steps"] if step["call"] for r in step["call"]["reasons"]]
    assert "alarm muted for project 'web'" in reasons
    for kind in (Elsewhere, Untagged):
        assert texts(a_loop(server, upstream, f"Third, {kind.project}.", kind)[1])
    assert wrong(server, first, undo=True).json()["muted"] is False
    assert texts(a_loop(server, upstream, "Fourth.")[1])


def test_other_gateways_on_the_store_follow(
    start: Start, upstream: ScriptedUpstream, tmp_path: Path
) -> None:
    """Without a restart."""
    storage = {"path": str(tmp_path / "shared.db")}
    one, other = start(storage=storage), start(storage=storage)
    first, trace = a_loop(one, upstream, "First.")
    assert texts(trace)
    assert wrong(one, first).is_success
    with operator_of(other) as client:
        until(lambda: [e for e in client.get("/api/held").json()["held"] if e["action"] == "mute"])
    assert not texts(a_loop(other, upstream, "Second.")[1])


@with_keys
def test_only_the_operator_may_and_it_is_in_the_audit_log(
    start: Start, upstream: ScriptedUpstream
) -> None:
    """With the admin key; the log names who, which kinds, and where."""
    keys = {"gateway_keys": {"a": "key-a"}, "admin_key": "admin-key"}
    server = start(auth=keys)
    with client_of(server, "key-a") as client:
        agent = Tagged(client, upstream, "Look.")
        for _ in range(STEPS):
            agent.step()
        path = f"/api/runs/{agent.run_id}/wrong-alarm"
        assert client.post(path, json={}).status_code == 403
    with client_of(server, "admin-key") as client:
        said = client.post(path, json={"reason": "it was paging"}).json()
        listed = client.get("/api/audit", params={"kind": "alarm"}).json()["acts"]
    (change,) = listed
    assert change["subject"] == agent.run_id
    assert (change["act"], change["changed"]["project"]) == ("wrong", "web")
    assert change["changed"]["monitors"] == said["monitors"]


def test_a_run_without_an_alarm_has_none_to_mute(start: Start, upstream: ScriptedUpstream) -> None:
    """It is answered so, and nothing is muted."""
    server = start()
    with client_of(server) as client:
        agent = Tagged(client, upstream, "Look.")
        agent.step()
    for run_id, body in ((agent.run_id, {}), (agent.run_id, {"step": 0}), ("none", {})):
        assert wrong(server, run_id, **body).status_code == 404
    with operator_of(server) as client:
        assert client.get("/api/held").json()["held"] == []
