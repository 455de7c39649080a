"""The token budget: tracked always, acted upon only when the config says so."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import httpx
import pytest

from gateway.steering.etrace.guidance import SKIP_DIRECTIVE
from gateway.testing import AppServer, Reply, ScriptedUpstream, Usage

Start = Callable[..., AppServer]


def _run(url: str) -> None:
    """Three calls of one run."""
    messages: list[dict[str, Any]] = [{"role": "user", "content": "count the files"}]
    for number in range(3):
        httpx.post(f"{url}/v1/chat/completions", json={"model": "m", "messages": messages})
        call = {"name": "ls", "arguments": "{}"}
        calls = [{"id": f"c{number}", "type": "function", "function": call}]
        messages.append({"role": "assistant", "content": f"look {number}", "tool_calls": calls})
        messages.append({"role": "tool", "tool_call_id": f"c{number}", "content": f"{number}"})


@pytest.mark.parametrize(("action", "told"), [("none", [0, 0, 0]), ("wrap_up", [0, 0, 1])])
def test_a_spent_budget(
    action: str, told: list[int], gateway_server: Start, upstream: ScriptedUpstream
) -> None:
    """A run is told to hand over from the call on that finds its budget used up."""
    upstream.default = Reply("look", usage=Usage(prompt_tokens=60, completion_tokens=10))
    budget = {"token_budget": 100, "budget_action": action}
    server = gateway_server({"steering": budget})
    _run(server.url)
    start = SKIP_DIRECTIVE[:40]
    assert [request.body.decode().count(start) for request in upstream.requests] == told
