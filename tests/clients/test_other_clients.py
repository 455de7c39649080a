"""Clients with environments of their own: langchain-openai, the LiteLLM SDK, `openai` for Node.

Each runs as a program in its own process. `TEST_LANGCHAIN_PYTHON` and `TEST_LITELLM_PYTHON` name a
Python that has the package, `TEST_NODE_MODULES` a directory whose `node_modules` has `openai`;
without them this environment's Python is tried, and a client that is not there is skipped by name.
"""

from __future__ import annotations

import importlib.util
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from steering_gateway_testing import AppServer, Fault, FaultKind, Reply, ScriptedUpstream, ToolCall
from steering_gateway_testing.received import ReceivedRequest
from steering_gateway_testing.text import echo, last_user_text

PROGRAMS = Path(__file__).parent / "programs"
CITIES = ("Oslo", "Lima", "Bonn", "Kyiv")

pytestmark = pytest.mark.slow


def model(request: ReceivedRequest) -> Reply | Fault:
    """The scripted model: calls a tool four times, twice at once, or fails, as it is asked to."""
    text = last_user_text(request)
    if text == "what is the weather":
        done = sum(m.get("role") == "tool" for m in request.messages)
        if done == len(CITIES):
            return Reply("All looked up.")
        return Reply(tool_calls=(ToolCall("look_up", {"city": CITIES[done]}),))
    if text == "two":
        return Reply(tool_calls=tuple(ToolCall("look_up", {"city": c}) for c in CITIES[:2]))
    return Fault(FaultKind.RATE_LIMIT, retry_after="7") if text == "fail" else echo(request)


def python_with(package: str, variable: str) -> str:
    """A Python that has the package; skips the test when there is none."""
    chosen = os.environ.get(variable)
    if chosen:
        return chosen
    if importlib.util.find_spec(package) is None:
        pytest.skip(f"{package} is not installed: set {variable} to a Python that has it")
    return sys.executable


def ran(*command: str) -> Any:
    """What a program reports."""
    env = {"PATH": os.environ["PATH"], "HOME": os.environ.get("HOME", "/")}
    ended = subprocess.run(
        command, env=env, capture_output=True, text=True, timeout=120, check=False
    )
    assert ended.returncode == 0, ended.stderr[-3000:]
    return json.loads(ended.stdout.splitlines()[-1])


def assert_as_without_a_gateway(report: Any, upstream: ScriptedUpstream, error: str) -> None:
    """Everything the client was asked to do worked."""
    assert report["loop"] == {"cities": list(CITIES), "final": "All looked up."}
    assert report["parallel"] == list(CITIES[:2])
    assert report["chat"] == "You said: one two"
    assert report["stream"] == "You said: three four"
    assert report["structured"]["city"] == "text"
    assert report["embedding"] == 8
    assert report["failure"] == [error, 429, "7"]
    assert {r.header("authorization") for r in upstream.requests} == {"Bearer sk-mine"}


def test_langchain_openai(gateway: AppServer, upstream: ScriptedUpstream) -> None:
    """LangChain's chat model and embeddings."""
    python = python_with("langchain_openai", "TEST_LANGCHAIN_PYTHON")
    upstream.default = model
    report = ran(python, str(PROGRAMS / "langchain_client.py"), gateway.base_url)
    # LangChain has a subclass of its own for some errors of OpenAI's client.
    assert report["failure"][0].endswith("RateLimitError")
    assert_as_without_a_gateway(report, upstream, report["failure"][0])


@pytest.mark.nightly
def test_the_litellm_sdk(gateway: AppServer, upstream: ScriptedUpstream) -> None:
    """LiteLLM as a client."""
    python = python_with("litellm", "TEST_LITELLM_PYTHON")
    upstream.default = model
    report = ran(python, str(PROGRAMS / "litellm_client.py"), gateway.base_url)
    assert_as_without_a_gateway(report, upstream, "RateLimitError")


def test_openai_for_node(gateway: AppServer, upstream: ScriptedUpstream) -> None:
    """OpenAI's own package for Node."""
    node, modules = shutil.which("node"), os.environ.get("TEST_NODE_MODULES")
    if node is None or modules is None:
        pytest.skip(
            "openai for Node: set TEST_NODE_MODULES to a directory with node_modules/openai"
        )
    upstream.default = model
    report = ran(node, str(PROGRAMS / "openai_client.mjs"), gateway.base_url, modules)
    assert_as_without_a_gateway(report, upstream, "RateLimitError")
