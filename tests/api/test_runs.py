"""The run log over HTTP: what a live run leaves in it, pages, filters, outcomes."""

from __future__ import annotations

import httpx
import pytest

from steering_gateway_testing import Fault, FaultKind, ScriptedUpstream
from steering_gateway_testing.control_plane import (
    LoopingAgent,
    a_finished_run,
    client_of,
    operator_of,
)
from steering_gateway_testing.patience import until
from tests.api.conftest import Start, with_keys

LIKE_EVERY_STEP = {
    "tier": "e2",
    "pattern_id": "look-again",
    "gate_threshold": 0,
    "fields": {
        "trigger_state": {
            "trajectory_description": "Let me look again. bash ls Error: no such file",
            "causes": ["path_missing"],
        },
        "intervention": "Ask where the file is.",
    },
}


def test_a_trace_shows_the_run(start: Start, upstream: ScriptedUpstream) -> None:
    """Each step has its state, scores, guidance with text and place, call and texts."""
    server = start()
    with client_of(server) as client:
        agent = LoopingAgent(client, upstream, "Find the file and read it to me.")
        states = [agent.step() for _ in range(9)]
        trace = client.get(f"/api/runs/{agent.run_id}").json()
    run, steps = trace["run"], trace["steps"]
    assert run["task_preview"] == "Find the file and read it to me."
    assert run["totals"]["calls"] == 9
    assert run["composite_mean"] <= run["totals"]["composite_peak"] <= 1
    assert [step["step_index"] for step in steps] == list(range(9))
    assert [step["state"] for step in steps] == states
    first, last = steps[0], steps[-1]
    assert first["difficulty"] is None
    assert 0 <= last["difficulty"] <= 1
    assert set(last["scores"]) >= {"streak", "hedge"}
    assert last["content"]["actions"][0]["observation"] == "Error: no such file"
    assert last["call"]["model_asked"] == last["call"]["model_requested"] == "gpt-4o"
    assert last["call"]["cost_usd"] > 0
    assert last["call"]["overhead_ms"] > 0
    assert "test_repeat" in {name for step in steps for name in step["fired"]}
    assert any("failed in the same way" in alarm for step in steps for alarm in step["alarms"])
    assert "fail" in last["reason"]
    given = [row for step in steps for row in step["guidance"]]
    assert {"e3", "monitor"} <= {row["source"] for row in given}
    assert all(row["text"] and row["placement"] and row["applied"] for row in given)
    assert trace["policy_in_force"] is True
    assert trace["thresholds"]["slow"] == 0.6


def test_a_trace_comes_in_parts(start: Start, upstream: ScriptedUpstream) -> None:
    """A part says where the next begins; without content there are no texts."""
    server = start()
    run_id = a_finished_run(server, upstream)
    with client_of(server) as client:
        path = f"/api/runs/{run_id}"
        part = client.get(path, params={"limit": 2, "content": "false"}).json()
        assert [step["step_index"] for step in part["steps"]] == [0, 1]
        assert part["steps"][0]["content"] is None
        rest = client.get(path, params={"after_step": part["next_after_step"]}).json()
        assert [step["step_index"] for step in rest["steps"]] == [2, 3]
        assert rest["next_after_step"] is None


def test_pages_hold_every_run_once(start: Start, upstream: ScriptedUpstream) -> None:
    """Walking the cursor gives the same runs as one large page, in the same order."""
    server = start()
    ids = [a_finished_run(server, upstream, task=f"Task {n}") for n in range(5)]
    with client_of(server) as client:
        for sort in ("started_at", "updated_at", "steps", "tokens", "cost", "peak"):
            for order in ("asc", "desc"):
                ask = {"sort": sort, "order": order}
                whole = client.get("/api/runs", params={**ask, "count": "1"}).json()
                assert whole["total"] == 5
                walked, cursor = [], None
                while True:
                    more: dict[str, str] = {"cursor": cursor} if cursor else {}
                    page = client.get("/api/runs", params={**ask, "limit": 2, **more}).json()
                    walked += [run["id"] for run in page["runs"]]
                    if (cursor := page["next_cursor"]) is None:
                        break
                assert walked == [run["id"] for run in whole["runs"]]
                assert sorted(walked) == sorted(ids)


def test_filters_choose(start: Start, upstream: ScriptedUpstream) -> None:
    """Each filter admits the runs it names, and no others."""
    server = start()
    first = a_finished_run(server, upstream, task="Mend the roof")
    second = a_finished_run(server, upstream, task="Paint the door")
    with client_of(server) as client:
        client.post(f"/api/runs/{first}/outcome", json={"outcome": "success"})

        def chosen(**values: str) -> set[str]:
            return {run["id"] for run in client.get("/api/runs", params=values).json()["runs"]}

        assert chosen(task="ROOF") == {first}
        assert chosen(outcome="success") == {first}
        assert chosen(outcome="unfinished") == {second}
        assert chosen(state="END") == {first, second}
        assert chosen(model="gpt-4o") == {first, second}
        assert chosen(model="other") == set()
        assert chosen(conversation_id=second.removesuffix(".0")) == {second}
        assert chosen(since="2999-01-01T00:00:00Z") == set()
        agent = client.get(f"/api/runs/{first}").json()["run"]["agent"]
        assert chosen(agent=agent) == {first, second}


def test_an_outcome_is_stored_and_every_verdict_kept(
    start: Start, upstream: ScriptedUpstream
) -> None:
    """The newest report is the run's outcome; the same again adds nothing; no pattern is judged."""
    server = start()
    with operator_of(server) as client:
        client.post("/api/patterns", json=LIKE_EVERY_STEP)
        run_id = a_finished_run(server, upstream)
        path = f"/api/runs/{run_id}/outcome"
        no_number = {"outcome": "success", "score": False}
        assert client.post(path, json=no_number).status_code == 400
        told = {"outcome": "success", "score": 0.5, "comment": "half of it"}
        for _ in range(2):
            assert client.post(path, json=told).json()["outcome"] == "success"
        client.post(path, json={"outcome": "failure"})
        trace = client.get(f"/api/runs/{run_id}").json()
        assert (trace["run"]["outcome"], trace["run"]["outcome_source"]) == ("failure", "api")
        kept = [
            (row["source"], row["verdict"], row["score"], row["comment"])
            for row in client.get(f"{path}s").json()["outcomes"]
            if row["source"] == "told_api"
        ]
        assert kept == [
            ("told_api", "success", 0.5, "half of it"),
            ("told_api", "failure", None, ""),
        ]
        given = [row["pattern_id"] for step in trace["steps"] for row in step["guidance"]]
        assert "look-again" in given
        (listed,) = client.get("/api/patterns?text=look again").json()["patterns"]
        assert listed["counts"] == {"injected": 1}


@with_keys
def test_an_outcome_by_the_clients_own_id(start: Start, upstream: ScriptedUpstream) -> None:
    """It stands for the newest run of the tenant's own conversation of that id."""
    keys = {"acme": "key-acme-1", "globex": "key-globex-1"}
    server = start(auth={"admin_key": "the-admin-key", "gateway_keys": keys})
    runs = {}
    for name, key in keys.items():
        with client_of(server, key) as client:
            agent = LoopingAgent(client, upstream, f"Look at {name}.")
            agent.answer(**{"x-conversation-id": "ticket-17"})
            runs[name] = agent.run_id
    with client_of(server, keys["globex"]) as client:
        path = "/api/runs/ticket-17/outcome"
        told = until(lambda: client.post(path, json={"outcome": "success"}).json().get("run_id"))
        assert told == runs["globex"]
        theirs = f"/api/runs/{runs['acme']}/outcome"
        assert client.post(theirs, json={"outcome": "failure"}).status_code == 404
    with client_of(server, keys["acme"]) as client:
        assert client.get(f"/api/runs/{runs['acme']}").json()["run"]["outcome"] is None


def test_failed_calls_are_counted_and_cost_nothing(
    start: Start, upstream: ScriptedUpstream
) -> None:
    """A call that the provider refused is a failed call, not one of unknown price."""
    with client_of(start()) as client:
        agent = LoopingAgent(client, upstream, "Look.")
        agent.step()
        # With guidance, and once more as the client wrote it.
        upstream.script(Fault(FaultKind.BAD_REQUEST), Fault(FaultKind.BAD_REQUEST))
        with pytest.raises(httpx.HTTPStatusError):
            agent.step()
        path = f"/api/runs/{agent.run_id}"
        totals = until(
            lambda: (
                found if (found := client.get(path).json()["run"]["totals"])["calls"] == 2 else None
            )
        )
        summary = client.get("/api/health-summary").json()
        metrics = client.get("/metrics").text
    assert (totals["errors"], totals["unpriced_calls"]) == (1, 0)
    assert (summary["errors"], summary["unpriced_calls"]) == (1, 0)
    assert "gateway_unpriced_calls_total 0.0" in metrics


@pytest.mark.parametrize("body", ["", "[]", '"success"', '{"outcome": "won"}', "{}", "\x00"])
def test_what_is_no_outcome_is_refused(start: Start, body: str) -> None:
    """The error says what an outcome is."""
    with client_of(start()) as client:
        answer = client.post("/api/runs/x/outcome", content=body)
        assert answer.status_code == 400
        assert answer.json()["error"]["message"]


def test_what_there_is_not_is_not_found(start: Start) -> None:
    """An unknown run, and an unknown path below /api."""
    with client_of(start()) as client:
        assert client.get("/api/runs/none").status_code == 404
        assert client.post("/api/runs/none/outcome", json={"outcome": "other"}).status_code == 404
        assert client.get("/api/walks").status_code == 404


def test_a_cursor_of_another_list_is_refused(start: Start) -> None:
    """As is a cursor that no list made."""
    with client_of(start()) as client:
        for path in ("/api/runs", "/api/conversations", "/api/patterns"):
            assert client.get(path, params={"cursor": "zzz"}).status_code == 400, path


def test_health_sums_the_runs_chosen(start: Start, upstream: ScriptedUpstream) -> None:
    """Totals follow the filters."""
    server = start()
    a_finished_run(server, upstream, task="Mend the roof")
    a_finished_run(server, upstream, task="Paint the door")
    with client_of(server) as client:
        everything = client.get("/api/health-summary").json()
        roof = client.get("/api/health-summary", params={"task": "roof"}).json()
    assert (everything["total_runs"], roof["total_runs"]) == (2, 1)
    assert everything["calls"] == 2 * roof["calls"] == 8


def test_conversations_name_their_runs(start: Start, upstream: ScriptedUpstream) -> None:
    """A conversation is found by the id its client gave it."""
    server = start()
    run_id = a_finished_run(server, upstream)
    with client_of(server) as client:
        (found,) = client.get("/api/conversations").json()["conversations"]
        assert run_id == f"{found['id']}.0"
        assert found["runs"] == 1
        ask = {"external_key": "nobody's"}
        assert client.get("/api/conversations", params=ask).json()["conversations"] == []


def test_without_stored_content_no_text_is_shown(start: Start, upstream: ScriptedUpstream) -> None:
    """`store_content: false` keeps lengths and digests instead of texts."""
    server = start(storage={"store_content": False})
    run_id = a_finished_run(server, upstream, task="My secret is in the kitchen.")
    with client_of(server) as client:
        text = client.get(f"/api/runs/{run_id}").text
    assert "kitchen" not in text
    assert "no such file" not in text
    assert "omitted" in text
