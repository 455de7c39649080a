"""Sessions over HTTP and on the command line: trees of conversations."""

from __future__ import annotations

from steering_gateway_testing import ScriptedUpstream
from steering_gateway_testing.control_plane import LoopingAgent, client_of
from tests.api.conftest import Start


def test_a_session_is_one_row_with_its_runs(start: Start, upstream: ScriptedUpstream) -> None:
    """The list and the page of a session name the same id, its runs and sums."""
    server = start()
    with client_of(server) as client:
        agent = LoopingAgent(client, upstream, "Find the file and read it to me.")
        for _ in range(3):
            agent.step()
        listed = client.get("/api/sessions", params={"count": "true"}).json()
        run = client.get(f"/api/runs/{agent.run_id}").json()["run"]
        (session,) = listed["sessions"]
        assert listed["total"] == 1
        assert session["title"] == "Find the file and read it to me."
        assert session["id"] == run["session_id"] == run["conversation_id"]
        assert session["calls"] == 3
        assert [each["id"] for each in session["runs"]] == [agent.run_id]
        for name in (session["id"], agent.run_id):
            tree = client.get(f"/api/sessions/{name}").json()
            assert tree["session"] == session
            (member,) = tree["members"]
            assert (member["role"], member["runs"]) == ("main", [agent.run_id])
        assert client.get("/api/sessions/c-none").status_code == 404
        assert client.get("/api/sessions?cursor=x").status_code == 400
        assert client.get("/api/sessions?side=true").json()["sessions"] == []
