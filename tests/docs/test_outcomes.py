"""The contract of docs/outcomes.md: its examples run as they are written, and report outcomes."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Callable
from pathlib import Path

import httpx
import pytest

from steering_gateway_testing import AppServer, Reply, ScriptedUpstream
from steering_gateway_testing.control_plane import CONTROL, client_of
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


@pytest.mark.slow
@pytest.mark.parametrize(("check", "outcome"), [("exit 0", "success"), ("exit 1", "failure")])
def test_hooks_of_agents_report_outcomes(
    check: str,
    outcome: str,
    gateway_server: Callable[..., AppServer],
    upstream: ScriptedUpstream,
    tmp_path: Path,
) -> None:
    """The commands of both configs as the agents run them: the JSON on stdin, or as the last word;
    the session's newest run gets the outcome of the check."""
    database = tmp_path / "gateway.db"
    server = gateway_server({"storage": {"path": str(database)}})
    upstream.default = Reply("Done.")
    (tmp_path / "pytest").write_text(f"#!/bin/sh\n{check}\n")
    (tmp_path / "pytest").chmod(0o755)
    path = (str(tmp_path), str(Path(sys.executable).parent), os.environ["PATH"])
    environment = os.environ | {"PATH": os.pathsep.join(path)}
    environment["GATEWAY_STORAGE__PATH"] = str(database)
    ((hook,),) = (json.loads(text)["hooks"]["SessionEnd"] for text in blocks(PAGE, "json"))
    (config,) = blocks(PAGE, "toml")
    session = "0199a213-81c0-7800-8aa1-bbab2a035a53"
    ended = {"session_id": session, "hook_event_name": "SessionEnd", "reason": "exit", "cwd": "/x"}
    turn = {"type": "agent-turn-complete", "thread-id": session[::-1], "input-messages": ["\"Do'"]}
    sent: tuple[tuple[str, str, list[str], dict[str, str]], ...] = (
        ("x-claude-code-session-id", session, ["sh", "-c", hook["hooks"][0]["command"]], ended),
        ("thread-id", session[::-1], [*tomllib.loads(config)["notify"], json.dumps(turn)], {}),
    )
    with client_of(server) as client:
        for header, name, command, payload in sent:
            body = {"model": "m", "messages": [{"role": "user", "content": f"Do {header}."}]}
            url = f"{server.base_url}/chat/completions"
            httpx.post(url, json=body, headers={header: name}, timeout=120).raise_for_status()
            said = json.dumps(payload)
            subprocess.run(command, input=said, text=True, env=environment, check=True)
            (run, *_) = client.get("/api/runs", headers=CONTROL).json()["runs"]
            assert (run["outcome"], run["outcome_source"]) == (outcome, "cli")
            assert header in run["identity_source"]
