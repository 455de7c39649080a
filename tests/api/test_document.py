"""The OpenAPI document agrees with the answers."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import httpx
import pytest

from gateway.api.field_comments import field_comments
from gateway.api.routes import operations
from steering_gateway_testing import AppServer, ScriptedUpstream
from steering_gateway_testing.control_plane import a_finished_run, client_of
from tests.api.conftest import Start


@pytest.fixture
def server(start: Start, upstream: ScriptedUpstream) -> AppServer:
    running = start(experiment={"id": "e"})
    a_finished_run(running, upstream)
    return running


def test_every_operation_is_described(start: Start) -> None:
    """By its path and method, with its answers and errors."""
    with client_of(start()) as client:
        document = client.get("/api/openapi.json").json()
    assert document["openapi"].startswith("3.1")
    for operation in operations():
        described = document["paths"][operation.path][operation.method.lower()]
        assert described["operationId"] == operation.name
        assert {"401", "403", "503"} <= set(described["responses"])


def test_keys_of_answers_are_described(start: Start) -> None:
    """By the comment at the field, its own and those of the values that it shows; `None` is null to
    whoever reads JSON."""
    with client_of(start()) as client:
        schemas = client.get("/api/openapi.json").json()["components"]["schemas"]
    described = {
        (kind, key): schemas[kind]["properties"][key].get("description", "")
        for kind, key in (
            ("RunTotals", "latency_s"),
            ("RunTotals", "cost_usd"),
            ("Run", "tokens"),
            ("Run", "tenant"),
            ("SumsView", "runs"),
            ("SumsView", "cached_share"),
        )
    }
    assert all(described.values()), described
    assert described["RunTotals", "latency_s"].startswith("seconds")
    assert described["RunTotals", "cost_usd"].endswith("null without any")


def test_comments_at_fields_are_read() -> None:
    """At the end of the line, or above it on several lines; without one there is none."""
    assert field_comments(Commented) == {
        "at": "epoch seconds",
        "name": "a long comment, which goes on",
        "level": "in [0, 1]",
    }
    assert field_comments(int) == {}


class Level:
    level: float = 0.0  # in [0, 1]


class Commented(Level):
    """A class with every form of comment."""

    at: float  # epoch seconds
    # a long comment,
    # which goes on
    name: str = "#"
    other: int = 0

    def method(self, of: int) -> int:  # nothing about a field
        return of


@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE", "OPTIONS", "TRACE"])
def test_other_methods_are_refused(start: Start, method: str) -> None:
    """With the methods that are not."""
    answer = httpx.request(method, f"{start().url}/api/runs")
    assert answer.status_code == 405
    assert answer.headers["allow"] == "GET, HEAD"


def test_head_is_get_without_a_body(start: Start) -> None:
    """As HTTP has it."""
    answer = httpx.head(f"{start().url}/api/runs")
    assert (answer.status_code, answer.content) == (200, b"")


@pytest.mark.parametrize(
    ("phases", "examples"),
    [
        pytest.param("fuzzing", 1, marks=pytest.mark.slow),
        pytest.param("examples,coverage,fuzzing,stateful", 40, marks=pytest.mark.nightly),
    ],
    ids=["few", "many"],
)
def test_generated_requests_find_nothing_undocumented(
    server: AppServer, tmp_path: Path, phases: str, examples: int
) -> None:
    """Hundreds of requests made from the document: no server error, no undocumented status, media
    type or shape, nothing wrong accepted.

    A request that fits the schema may still be refused: an unknown cursor, a pattern without text.
    """
    command = Path(sys.executable).with_name("st")
    arguments = [
        "run",
        f"{server.url}/api/openapi.json",
        "--exclude-path=/api/events",  # never ends
        "--exclude-operation-id=importPatterns",  # no generator for its media type
        "--exclude-checks=positive_data_acceptance",
        f"--phases={phases}",
        f"--max-examples={examples}",
        "--generation-deterministic",
        "--no-color",
    ]
    done = subprocess.run(
        [command, *arguments], capture_output=True, text=True, timeout=300, cwd=tmp_path
    )
    assert done.returncode == 0, done.stdout[-5000:]
