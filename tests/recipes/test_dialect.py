"""The documented change: a new dialect is one module of `gateway/dialects` and one row."""

from __future__ import annotations

import json

import pytest

from tests.recipes.conftest import ScratchCopy

MODULE = '''"""Agents: chat completions whose messages are called turns."""

from gateway.dialects.chat import ChatDialect


class AgentsDialect(ChatDialect):
    """`POST /v1/agents/chat/completions`."""

    name = "agents"
    path = "/agents/chat/completions"
    routes = ("/v1/agents/chat/completions", "/agents/chat/completions")
    list_key = "turns"
    route = "agents"
    litellm = None


AGENTS = AgentsDialect()
'''

PROGRAM = """
import json

import httpx

from gateway.app import build_app
from gateway.config import settings_from_dict
from steering_gateway_testing import AppServer, Reply, ScriptedUpstream, ToolCall

DOUBTFUL = Reply(
    "Maybe the cache is stale, I am not sure. Wait, let me run the test again.",
    tool_calls=(ToolCall("bash", {"command": "pytest tests/test_parser.py"}),),
)
TOOLS = [{"type": "function", "function": {"name": "bash", "parameters": {"type": "object"}}}]

with ScriptedUpstream(DOUBTFUL) as upstream:
    settings = settings_from_dict(
        {
            "default_upstream": {"api_base": upstream.base_url},
            "model_list": [
                {
                    "model_name": "chat-only",
                    "dialects": ["chat"],
                    "litellm_params": {"model": "openai/x", "api_base": upstream.base_url},
                },
                {
                    "model_name": "listed",
                    "dialects": ["agents"],
                    "litellm_params": {"model": "openai/y", "api_base": upstream.base_url},
                },
            ],
            "storage": {"path": "scratch.db"},
            "steering": {"deadline_ms": 10_000},
        }
    )
    server = AppServer(build_app(settings))
    with server, httpx.Client(base_url=server.url, timeout=120) as client:
        turns = [{"role": "user", "content": "Make the test pass."}]
        for _ in range(8):
            body = {"model": "m", "turns": turns, "tools": TOOLS}
            answer = client.post("/v1/agents/chat/completions", json=body)
            reply = answer.raise_for_status().json()["choices"][0]["message"]
            turns.append(reply)
            turns += [
                {"role": "tool", "tool_call_id": call["id"], "content": "1 failed"}
                for call in reply["tool_calls"]
            ]
        sent = upstream.requests[-1]

        def status(model, path="/v1/agents/chat/completions"):
            body = {"model": model, "turns": turns[:1]}
            return client.post(path, json=body).status_code

        runs = client.get("/api/runs").json()["runs"]
        trace = client.get(f"/api/runs/{runs[0]['id']}").json()
        wrong = client.post("/agents/chat/completions", json={"model": "m", "turns": "none"})
        found = {
            "path": sent.path,
            "guided": "[STEERING GUIDANCE]" in json.dumps(sent.fields["turns"]),
            "runs": len(runs),
            "steps": [step["step_index"] for step in trace["steps"]],
            "fired": sorted({name for step in trace["steps"] for name in step["fired"]}),
            "counted": 'route="agents"' in client.get("/metrics").text,
            "refused": (wrong.status_code, wrong.json()["error"]["param"]),
            "statuses": {name: status(name) for name in ("chat-only", "listed")},
        }
print(json.dumps(found))
"""


@pytest.mark.slow
def test_a_dialect_is_one_module_and_one_row(scratch: ScratchCopy) -> None:
    """It is routed, steered, recorded and counted; who does not speak it is not asked in it."""
    scratch.write("gateway/dialects/agents.py", MODULE)
    scratch.replace(
        "gateway/dialects/__init__.py",
        "from gateway.dialects.base import",
        "from gateway.dialects.agents import AGENTS\nfrom gateway.dialects.base import",
    )
    scratch.replace(
        "gateway/dialects/__init__.py", "MESSAGES, BEDROCK,", "MESSAGES, AGENTS, BEDROCK,"
    )
    assert scratch.changed() == {"gateway/dialects/agents.py", "gateway/dialects/__init__.py"}
    found = json.loads(scratch.run("-c", PROGRAM).stdout.splitlines()[-1])
    assert found.pop("fired")
    assert found == {
        "path": "/v1/agents/chat/completions",
        "guided": True,
        "runs": 1,
        "steps": list(range(len(found["steps"]))),
        "counted": True,
        "refused": [400, "turns"],
        "statuses": {"chat-only": 404, "listed": 200},
    }
    assert len(found["steps"]) >= 7
