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


def test_what_a_client_asks_for_itself_is_no_session(
    start: Start, upstream: ScriptedUpstream
) -> None:
    """A quota probe, a title and a topic without a relative are side calls, a question is not."""
    server = start()
    title = "Generate a concise title of this conversation for the user's first message."
    topic = "Analyze if this message indicates a new conversation topic. Answer in JSON."
    with client_of(server) as client:
        for system, said in (("", "quota"), (title, "Fix it."), (topic, "Fix it.")):
            messages = [{"role": "system", "content": system}, {"role": "user", "content": said}]
            body = {"model": "gpt-4o", "messages": messages[not system :]}
            assert client.post("/v1/chat/completions", json=body).status_code == 200
        assert client.get("/api/sessions?count=true").json()["total"] == 0
        aside = client.get("/api/sessions?side=true&count=true").json()
        assert aside["total"] == len(aside["sessions"]) == 3
        assert all(session["title"] for session in aside["sessions"])
        messages = [{"role": "user", "content": "What is the capital of France?"}]
        client.post("/v1/chat/completions", json={"model": "gpt-4o", "messages": messages})
        (session,) = client.get("/api/sessions").json()["sessions"]
        assert (session["title"], session["steps"]) == ("What is the capital of France?", 1)


def test_a_title_request_belongs_to_its_session(start: Start, upstream: ScriptedUpstream) -> None:
    """Whether it comes first or later: a client's own id joins them in one row, under the words of
    the person."""
    server = start()
    tools = [{"type": "function", "function": {"name": "bash", "parameters": {}}}]
    title = {"role": "system", "content": "You are a title generator. Generate a title."}
    task = {"role": "user", "content": "Fix the parser."}
    with client_of(server) as client:
        for name, first in (("one", True), ("two", False)):
            headers = {"x-session-id": name}
            asides = {"model": "gpt-4o", "messages": [title, task]}
            main = {"model": "gpt-4o", "messages": [task], "tools": tools}
            for body in (asides, main) if first else (main, asides):
                answer = client.post("/v1/chat/completions", json=body, headers=headers)
                assert answer.status_code == 200
        rows = client.get("/api/sessions").json()["sessions"]
        assert [row["title"] for row in rows] == ["Fix the parser."] * 2
        assert client.get("/api/sessions?side=true").json()["sessions"] == []


def test_the_title_is_what_the_person_says_after_the_agent(
    start: Start, upstream: ScriptedUpstream
) -> None:
    """An agent that speaks first has no task yet; the person's first words are the title."""
    server = start()
    with client_of(server) as client:
        messages = [
            {"role": "system", "content": "You serve customers."},
            {"role": "assistant", "content": "How can I help you?"},
        ]
        for said in ("I want to return a lamp.", "The blue one."):
            messages.append({"role": "user", "content": said})
            body = {"model": "gpt-4o", "messages": messages}
            reply = client.post("/v1/chat/completions", json=body).json()
            messages.append(reply["choices"][0]["message"])
        (session,) = client.get("/api/sessions").json()["sessions"]
    assert session["title"] == "I want to return a lamp."
