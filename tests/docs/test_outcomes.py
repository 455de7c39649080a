"""The contract of docs/outcomes.md: its examples run as they are written, and report outcomes."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from steering_gateway_testing import AppServer, Reply, ScriptedUpstream
from tests.api.conftest import client_of
from tests.control import CONTROL
from tests.docs.test_examples import ROOT, blocks

PAGE = ROOT / "docs" / "outcomes.md"


@pytest.mark.skipif(shutil.which("curl") is None, reason="the examples need curl")
def test_the_examples_report_outcomes(
    gateway_server: Callable[..., AppServer], upstream: ScriptedUpstream, tmp_path: Path
) -> None:
    """Header, API and command, each after the other; each replaces the report before."""
    database = tmp_path / "gateway.db"
    server = gateway_server({"storage": {"path": str(database)}})
    upstream.default = Reply("I renamed the helper.")
    with client_of(server) as client:

        def runs() -> list[tuple[str, str, str]]:
            found = client.get("/api/runs", headers=CONTROL).json()["runs"]
            return [(run["id"], run["outcome"], run["outcome_source"]) for run in found]

        examples = list(blocks(PAGE, "bash"))
        assert len(examples) == 3
        environment = os.environ | {
            "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
            "GATEWAY": server.url,
            "KEY": CONTROL["x-gateway-key"],
            "GATEWAY_STORAGE__PATH": str(database),
        }
        expected = [("success", "header"), ("failure", "api"), ("success", "cli")]
        for example, (outcome, source) in zip(examples, expected, strict=True):
            environment["RUN"] = runs()[0][0] if runs() else ""
            subprocess.run(["bash", "-ec", example], env=environment, check=True, cwd=tmp_path)
            ((run, *reported),) = runs()
            assert reported == [outcome, source]
        verdicts = client.get(f"/api/runs/{run}/outcomes", headers=CONTROL).json()["outcomes"]
        told = [(row["source"], row["verdict"], row["comment"]) for row in verdicts]
        assert ("told_api", "failure", "2 of 5 checks failed") in told
        assert ("told_cli", "success", "merged") in told
