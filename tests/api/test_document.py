"""The OpenAPI document agrees with the answers."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import httpx
import pytest

from gateway.api.routes import operations
from steering_gateway_testing import AppServer, ScriptedUpstream
from tests.api.conftest import Start, a_finished_run, client_of


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
