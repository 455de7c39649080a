"""The pattern library over HTTP."""

from __future__ import annotations

import json
from typing import Any

import pytest

from steering_gateway_testing.control_plane import operator_of
from tests.api.conftest import Start

RULE = {"tier": "e3", "fields": {"instruction": "Weigh the bridge before crossing it."}}
KNOWN = {
    "tier": "e2",
    "pattern_id": "bridges",
    "failure_type": "loop",
    "fields": {"situation": "The bridge sways.", "intervention": "Walk slowly."},
}


def test_a_pattern_lives_through_its_life(start: Start) -> None:
    """Added, read, listed, edited, removed."""
    with operator_of(start()) as client:
        added = client.post("/api/patterns", json=KNOWN)
        assert (added.status_code, added.json()) == (
            201,
            {"result": "added", "pattern_id": "bridges"},
        )
        assert client.post("/api/patterns", json=KNOWN).json()["result"] == "unchanged"
        found = client.get("/api/patterns", params={"text": "bridge sways"}).json()["patterns"]
        assert [pattern["pattern_id"] for pattern in found] == ["bridges"]
        assert found[0]["indexed"] is True

        news = {"fields": {"anti_pattern": "Jumping.", "intervention": None}}
        edited = client.patch("/api/patterns/bridges", json=news).json()
        assert edited["fields"] == {"situation": "The bridge sways.", "anti_pattern": "Jumping."}
        assert edited["failure_type"] == "loop"

        edited = client.patch("/api/patterns/bridges", json={"failure_type": "budget"})
        assert edited.json()["failure_type"] == "budget"
        assert client.get("/api/patterns/bridges").json() == edited.json()

        assert client.delete("/api/patterns/bridges").status_code == 204
        assert client.get("/api/patterns/bridges").status_code == 404
        assert client.delete("/api/patterns/bridges").status_code == 404


@pytest.mark.parametrize(
    "record",
    [
        {},
        {"tier": "e9", "fields": {"instruction": "x"}},
        {"tier": "e3", "fields": {}},
        {"tier": "e3", "fields": "x"},
        {"tier": "e3", "fields": {"instruction": 1}},
        {"tier": "e3", "fields": {"instruction": "x"}, "gate_threshold": 2},
        {"tier": "e3", "fields": {"instruction": "x"}, "pattern_id": "p" * 200},
        {"tier": "e3", "fields": {"instruction": "x", "a": {"b": {"c": {"d": {"e": {}}}}}}},
        {"tier": "e1", "fields": {"recommended_action": "x"}},
    ],
)
def test_what_is_no_pattern_is_refused(start: Start, record: dict[str, Any]) -> None:
    """The error says which part is wrong; an instance needs a tenant."""
    with operator_of(start()) as client:
        answer = client.post("/api/patterns", json=record)
    assert answer.status_code == 400
    assert answer.json()["error"]["message"]


def test_id_and_tier_stay(start: Start) -> None:
    """An edit that would make another pattern of it is refused."""
    with operator_of(start()) as client:
        client.post("/api/patterns", json=KNOWN)
        for news in ({"tier": "e3"}, {"pattern_id": "other"}):
            answer = client.patch("/api/patterns/bridges", json=news)
            assert answer.status_code == 400
            assert answer.json()["error"]["param"] in news


def test_two_patterns_may_not_say_the_same(start: Start) -> None:
    """An edit that repeats another pattern's content is a conflict."""
    with operator_of(start()) as client:
        client.post("/api/patterns", json=KNOWN)
        client.post("/api/patterns", json={**KNOWN, "pattern_id": "b2", "failure_type": "hedge"})
        answer = client.patch("/api/patterns/b2", json={"failure_type": "loop"})
        assert answer.status_code == 409


def test_what_is_exported_can_be_imported(start: Start) -> None:
    """The lines of one gateway make the same library in another."""
    with operator_of(start()) as client:
        client.post("/api/patterns", json=RULE)
        lines = client.get("/api/patterns.jsonl").text
    assert all("instruction" in json.loads(line)["fields"] or line for line in lines.splitlines())
    with operator_of(start()) as client:
        counts = client.post("/api/patterns.jsonl", content=lines).json()
        assert counts["added"] == 1
        assert counts["unchanged"] == len(lines.splitlines()) - 1
        assert client.get("/api/patterns.jsonl").text.count("\n") == lines.count("\n")


def test_a_wrong_line_is_named(start: Start) -> None:
    """The error names the line."""
    with operator_of(start()) as client:
        answer = client.post("/api/patterns.jsonl", content=f"{json.dumps(RULE)}\n{{}}\n")
        assert answer.status_code == 400
        assert "line 2" in answer.json()["error"]["message"]
        assert client.post("/api/patterns.jsonl", content=b"\xff\xfe").status_code == 400


def test_an_id_with_a_slash_is_an_id(start: Start) -> None:
    """Ids are free text."""
    with operator_of(start()) as client:
        client.post("/api/patterns", json={**RULE, "pattern_id": "a/b ?c"})
        assert client.get("/api/patterns/a%2Fb%20%3Fc").json()["pattern_id"] == "a/b ?c"
        assert client.delete("/api/patterns/a%2Fb%20%3Fc").status_code == 204


def test_without_patterns_there_is_no_library(start: Start) -> None:
    """`etraces.enabled: false` switches these routes off, and says so."""
    with operator_of(start(etraces={"enabled": False})) as client:
        answer = client.get("/api/patterns")
        assert (answer.status_code, answer.json()["error"]["code"]) == (503, "patterns_off")


def test_a_body_beyond_the_limit_is_refused(start: Start) -> None:
    """Five megabytes are enough for a body."""
    with operator_of(start()) as client:
        answer = client.post("/api/patterns", content=b" " * (5 * 2**20 + 1))
        assert answer.status_code == 413
