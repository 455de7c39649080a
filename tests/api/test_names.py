"""Names of the published descriptions that the gateway follows: each of them is really there."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import httpx

from gateway.core.fsm import FSM_THRESHOLDS, FSMState
from gateway.core.guidance_settings import EtraceSettings
from gateway.core.pattern import ETrace
from gateway.reporting.trace_state import StepAssessment, StepLogEntry
from steering_gateway_testing import ScriptedUpstream
from steering_gateway_testing.control_plane import LoopingAgent, client_of, operator_of
from tests.api.conftest import Start

PAGE = Path(__file__).parents[2].joinpath("docs", "names.md").read_text("utf-8")
OF_ETRACE = (
    *("tier", "similarity", "pattern_id", "fields"),
    *("failure_type", "model_family", "level", "source_trace_id"),
)
STATES = ("INIT", "FAST", "NORMAL", "SLOW", "SKIP", "END")
QUERY = 'Let me look again. bash {"command": "ls"} Error: no such file'
PATTERNS = [
    {
        "tier": "e1",
        "pattern_id": "an-instance",
        "gate_threshold": 0,
        "source_trace_id": "run-before",
        "fields": {
            "task_context_embedding_text": QUERY,
            "observation": "It was elsewhere.",
            "recommended_action": "Ask where the file is.",
        },
    },
    {
        "tier": "e2",
        "pattern_id": "a-kind",
        "gate_threshold": 0,
        "fields": {"situation": QUERY, "intervention": "Ask where the file is."},
    },
]


def traces(start: Start, upstream: ScriptedUpstream) -> tuple[dict[str, Any], dict[str, Any]]:
    """A run's trace, and its line in an export."""
    server = start(etraces={"e2_when": "always"})
    with operator_of(server) as client:
        for pattern in PATTERNS:
            answer = client.post("/api/patterns", params={"tenant": "default"}, json=pattern)
            assert answer.is_success, answer.text
    with client_of(server) as client:
        agent = LoopingAgent(client, upstream, "Find the file and read it to me.")
        for _ in range(7):
            agent.step()
        trace = client.get(f"/api/runs/{agent.run_id}").json()
        lines = client.get("/api/export", params={"format": "jsonl"}).text.splitlines()
    return trace, json.loads(lines[0])


def test_a_trace_and_an_export_have_the_names(start: Start, upstream: ScriptedUpstream) -> None:
    """State, log, steps, assessments and E-traces of a live run, with the meaning described."""
    for trace in traces(start, upstream):
        steps, log = trace["steps"], trace["step_log"]
        assert trace["current_state"] == steps[-1]["state"] == trace["run"]["state"]
        assert steps[0]["state"] == "INIT"
        for step, entry in zip(steps, log, strict=True):
            assert set(entry) == set(StepLogEntry.__struct_fields__)
            assert (entry["step"], entry["fsm_state"]) == (step["step_index"], step["state"])
            assert entry["difficulty"] == step["difficulty"]
            found = step["assessment"]
            assert set(found) == set(StepAssessment.__struct_fields__)
            assert found["monitors_fired"] == entry["monitors_fired"] == step["fired"]
        assert any(entry["monitors_fired"] for entry in log)
        found = [step["assessment"] for step in steps]
        e1 = next(each["e1_match"] for each in found if each["e1_match"])
        others = [match for each in found for match in each["e2_matches"]]
        assert {match["tier"] for match in others} == {"e2", "e3"}
        for match in (e1, *others):
            assert set(match) >= set(OF_ETRACE)
            assert match["level"] == match["tier"]
            assert 0 <= match["similarity"] <= 1
        assert (e1["pattern_id"], e1["source_trace_id"]) == ("an-instance", "run-before")
        assert e1["fields"] == PATTERNS[0]["fields"]
        for each in found:
            similar = [match["similarity"] for match in each["e2_matches"]]
            assert similar == sorted(similar, reverse=True)


def test_a_trace_has_the_thresholds(start: Start, upstream: ScriptedUpstream) -> None:
    """All seven, as they are set."""
    server = start(fsm={"fast_window": 8})
    with client_of(server) as client:
        agent = LoopingAgent(client, upstream, "Look.")
        agent.step()
        told = client.get(f"/api/runs/{agent.run_id}").json()["fsm_thresholds"]
    assert tuple(told) == FSM_THRESHOLDS
    assert (told["fast_window"], told["slow_threshold"]) == (8, 0.6)


def test_the_code_has_the_names() -> None:
    """States by their names, E-traces with all their fields, the threshold of recall."""
    assert tuple(state.value for state in FSMState) == STATES
    assert set(ETrace.__struct_fields__) >= set(OF_ETRACE)
    assert EtraceSettings().recall_threshold == 0.25


def test_the_document_has_the_types(start: Start) -> None:
    """The types of the API are called as in the descriptions."""
    document = httpx.get(f"{start().url}/api/openapi.json").json()
    types = set(document["components"]["schemas"])
    assert {"StepRecord", "StepLogEntry", "StepAssessment", "ETrace"} <= types
    found = document["paths"]["/api/runs/{run_id}"]["get"]["responses"]["200"]
    (answer,) = found["content"].values()
    assert answer["schema"]["title"] == "TraceState"


def test_the_page_has_each_name() -> None:
    """Once in the first column of a table."""
    named = [line.split("|")[1].strip() for line in PAGE.splitlines() if line.startswith("| `")]
    names = {name for each in named for name in each.replace("`", "").split(", ")}
    own = {f"ETrace.{name}" for name in OF_ETRACE}
    own |= {"StepAssessment.e1_match", "StepAssessment.e2_matches", "TraceState.step_log"}
    own |= {"FSMState", "TraceState.current_state", "StepLogEntry", "StepRecord", "ETrace"}
    assert names >= own | {"monitors_fired", "fsm_thresholds", "recall_threshold", "TraceState"}
