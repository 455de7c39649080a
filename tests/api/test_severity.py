"""A severity has one set of words, in whatever leaves the gateway."""

from __future__ import annotations

import json
import re
from typing import Any

import httpx
import pytest

from gateway.api.routes import operations
from steering_gateway_testing import ScriptedUpstream
from steering_gateway_testing.control_plane import LoopingAgent, operator_of
from tests.api.conftest import Start
from tests.severity_words import WORDS, check_words, old_names

ENDLESS = "/api/events"


def run_of(client: httpx.Client, upstream: ScriptedUpstream, steps: int) -> str:
    agent = LoopingAgent(client, upstream, f"Look {steps} times.")
    for _ in range(steps):
        agent.step()
    return agent.run_id


def answers(client: httpx.Client, run_id: str) -> dict[str, Any]:
    """Every answer to a GET that needs no id but a run's or a conversation's."""
    names = {"run_id": run_id, "conversation_id": run_id.rpartition(".")[0]}
    found: dict[str, Any] = {}
    for each in operations():
        asked = set(re.findall(r"{(\w+)}", each.path))
        if each.method == "GET" and asked <= set(names) and each.path != ENDLESS:
            path = each.path.format(**names)
            answer = client.get(path)
            if answer.is_success and "json" in answer.headers["content-type"]:
                found[path] = [json.loads(line) for line in answer.text.splitlines()]
    return found


def test_every_answer_has_the_words(start: Start, upstream: ScriptedUpstream) -> None:
    """The names of earlier versions stand in the aliases alone, each with its word beside it."""
    with operator_of(start()) as client:
        runs = [run_of(client, upstream, steps) for steps in (2, 4, 9)]
        said = answers(client, runs[-1])
        found = {
            path: check_words(answer) for path, answer in said.items() if "openapi" not in path
        }
        chosen = {
            word: client.get("/api/runs", params={"severity": word}).json()["runs"]
            for word in WORDS.values()
        }
    assert found["/api/health-summary"] == set(WORDS)
    assert "low" in found["/api/runs"] & found["/api/export"]
    assert {"warn", "danger"} <= found[f"/api/runs/{runs[-1]}"]
    for word, listed in chosen.items():
        assert [run["severity_word"] for run in listed] == [word], word


def test_the_document_calls_the_old_names_aliases(start: Start) -> None:
    """And no other key has them."""
    with operator_of(start()) as client:
        document = client.get("/api/openapi.json").json()
    schemas = dict(document["components"]["schemas"])
    answer = document["paths"]["/api/health-summary"]["get"]["responses"]["200"]
    schemas["Health"] = answer["content"]["application/json"]["schema"]
    properties = {
        (kind, key): about
        for kind, schema in schemas.items()
        for key, about in schema.get("properties", {}).items()
    }
    aliases = {place for place, about in properties.items() if "an alias of" in str(about)}
    assert aliases >= {
        *(("RecentRun", "severity"), ("RunTotals", "severity"), ("Health", "severity")),
        *(("Health", "severity_runs"), ("Thresholds", "warn"), ("Thresholds", "danger")),
    }
    for place, about in properties.items():
        assert place in aliases or not set(WORDS) & set(about.get("enum", ())), place


@pytest.mark.parametrize(
    "said",
    [
        {"state": "danger"},
        {"counts": {"low": 1}},
        {"runs": [{"severity": "warn"}]},
        {"severity": {"danger": 2}, "steps_by_severity": {"at-risk": 2}},
    ],
)
def test_the_search_finds_what_is_wrong(said: dict[str, Any]) -> None:
    """A name at another key, and an alias without its word."""
    assert list(old_names(said))
    with pytest.raises(AssertionError):
        check_words(said)
