"""`steering.stop_above`: a run that is likely to fail is asked to deliver, then stopped."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import httpx

from gateway.steering.guidance.texts import SKIP_DIRECTIVE
from steering_gateway_testing import AppServer, Reply, ScriptedUpstream, ToolCall
from tests.budgets.test_holds import until
from tests.patience import DEADLINE_MS

Start = Callable[..., AppServer]
LOOPING = Reply(
    "Maybe the cache is stale, I am not sure. Let me run the test again.",
    tool_calls=(ToolCall("bash", {"command": "pytest tests/test_parser.py"}, id="c"),),
)
MOST = 20


def loop(server: AppServer, **headers: str) -> list[httpx.Response]:
    """The answers of a run that repeats its command until it is stopped."""
    messages: list[dict[str, Any]] = [{"role": "user", "content": "Repair the parser."}]
    answers: list[httpx.Response] = []
    for number in range(MOST):
        body = {"model": "m", "messages": messages, "tools": []}
        url = f"{server.base_url}/chat/completions"
        answers.append(httpx.post(url, json=body, headers=headers, timeout=60))
        if answers[-1].status_code != 200:
            break
        message = answers[-1].json()["choices"][0]["message"]
        call = {**message["tool_calls"][0], "id": f"c{number}"}
        messages.append({**message, "tool_calls": [call]})
        result = "FAILED tests/test_parser.py::test_empty - AssertionError"
        messages.append({"role": "tool", "tool_call_id": f"c{number}", "content": result})
    return answers


def listed(server: AppServer) -> dict[str, Any]:
    """The newest run."""
    return dict(httpx.get(f"{server.url}/api/runs").json()["runs"][0])


def test_two_strikes_stop_a_run(gateway_server: Start, upstream: ScriptedUpstream) -> None:
    """The call after the first strike asks for the work; two steps later the run is stopped, with
    the reason in its log. In shadow mode it goes on, and in the log is what would have been."""
    upstream.default = LOOPING
    server = gateway_server({"steering": {"stop_above": 0.5, "deadline_ms": DEADLINE_MS}})
    answers = loop(server, **{"x-session-id": "looping"})
    asked = [SKIP_DIRECTIVE[:40] in r.body.decode() for r in upstream.requests]
    error = answers[-1].json()["error"]
    assert (answers[-1].status_code, error["code"]) == (429, "run_stopped")
    assert "stop_above: second strike" in error["message"]
    first = asked.index(True)
    assert len(answers) - 1 - first == 2
    print(f"first strike at step {first}, stopped at step {len(answers) - 1}")
    assert float(answers[first].headers["x-gateway-risk"]) >= 0.5
    run_id = f"{answers[0].headers['x-gateway-conversation-id']}.0"
    trace = httpx.get(f"{server.url}/api/runs/{run_id}").json()
    reasons = [reason for step in trace["steps"] for reason in step["call"]["reasons"]]
    assert any(reason.startswith("stop: first strike, risk 0.") for reason in reasons)
    until(lambda: listed(server)["stopped"] is not None)
    stop = listed(server)["stopped"]
    assert (stop["action"], stop["by"]) == ("stop", "steering")
    assert "second strike" in stop["why"]

    shadow = {"x-gateway-mode": "shadow", "x-session-id": "shadow"}
    unheld = loop(server, **shadow)
    assert len(unheld) == MOST
