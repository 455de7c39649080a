"""The token budget: always tracked, and acted on only when configured."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import httpx
import pytest

from steering_gateway_testing import AppServer, Reply, ScriptedUpstream, Usage
from steering_gateway_testing.agents import RETRIED

Start = Callable[..., AppServer]


def _run(url: str) -> httpx.Response:
    """The last of three calls of one run."""
    messages: list[dict[str, Any]] = [{"role": "user", "content": "count the files"}]
    for number in range(3):
        body = {"model": "m", "messages": messages}
        answer = httpx.post(f"{url}/v1/chat/completions", json=body)
        call = {"name": "ls", "arguments": "{}"}
        calls = [{"id": f"c{number}", "type": "function", "function": call}]
        messages.append({"role": "assistant", "content": f"look {number}", "tool_calls": calls})
        messages.append({"role": "tool", "tool_call_id": f"c{number}", "content": f"{number}"})
    return answer


@pytest.mark.parametrize(("action", "directives"), [("none", [0, 0, 0]), ("wrap_up", [0, 0, 1])])
def test_a_spent_budget(
    action: str, directives: list[int], gateway_server: Start, upstream: ScriptedUpstream
) -> None:
    """From the first call after the budget is spent, the model is asked to wrap up."""
    upstream.default = Reply("look", usage=Usage(prompt_tokens=60, completion_tokens=10))
    budget = {"token_budget": 100, "budget_action": action}
    server = gateway_server({"steering": budget})
    _run(server.url)
    start = "WRAP UP: budget token_budget: "
    assert [request.body.decode().count(start) for request in upstream.requests] == directives


def test_the_directive_is_in_the_run_log(gateway_server: Start, upstream: ScriptedUpstream) -> None:
    """The directive is recorded with its place, once even when the call is made again."""
    upstream.default = Reply("look", usage=Usage(prompt_tokens=60, completion_tokens=10))
    budget = {"token_budget": 100, "budget_action": "wrap_up"}
    server = gateway_server({"steering": budget, "etraces": {"e3_when": "always"}})
    last = _run(server.url)
    url = f"{server.url}/v1/chat/completions"
    again = httpx.post(url, content=last.request.content, headers=RETRIED)
    assert last.headers["x-gateway-guidance"].split(",")[0] == "skip:directive"
    run_id = f"{again.headers['x-gateway-conversation-id']}.0"
    trace = httpx.get(f"{server.url}/api/runs/{run_id}").json()
    (row,) = [g for step in trace["steps"] for g in step["guidance"] if g["source"] == "skip"]
    assert row["text"].startswith("WRAP UP: budget token_budget: 140 of 100 tokens used. Bring ")
    assert row["applied"]
    assert row["placement"] == "result"
    assert trace["steps"][-1]["guidance"][0] == row
    metrics = httpx.get(f"{server.url}/metrics").text
    assert 'gateway_injections_total{source="skip"} 1.0' in metrics
    assert 'gateway_injections_total{source="e3"} 1.0' in metrics
    assert trace["run"]["totals"]["injections"] == 2
