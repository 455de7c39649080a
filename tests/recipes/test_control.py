"""The recipe for a budget action, followed in a copy."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.recipes.conftest import ScratchCopy

SETTINGS, BUDGETS = (
    "gateway/features/budgets/settings.py",
    "gateway/features/budgets/which_apply.py",
)

EFFECT = '''def _finish(found: Sequence[BudgetStatus]) -> Advice:
    """Ask the agent to hand over its work, on the smallest model."""
    if any(each.step("finish") for each in found):
        return Advice(wrap_up="budget: finish now", cheaper="gpt-4o-mini")
    return NO_ADVICE


ACTIONS: Mapping['''

ASK = """
import json
import httpx
from gateway.app import build_app
from gateway.config import settings_from_dict
from steering_gateway_testing import AppServer, Reply, ScriptedUpstream, ToolCall

budget = {"name": "all", "scope": "run", "limits": {"calls": 2}}
budget["ladder"] = [{"at": 0.5, "do": "finish"}]
with ScriptedUpstream() as upstream:
    upstream.default = Reply("Look.", tool_calls=(ToolCall("ls", {}),))
    settings = settings_from_dict(
        {
            "default_upstream": {"api_base": upstream.base_url},
            "budgets": [budget],
            "steering": {"deadline_ms": 30000, "max_wait_ms": 30000},
            "storage": {"path": ":memory:"},
            "embedding": {"embedder": "hashing"},
        }
    )
    with AppServer(build_app(settings)) as server:
        messages = [{"role": "user", "content": "List the files."}]
        headers = {}
        for _ in range(2):
            answer = httpx.post(
                f"{server.url}/v1/chat/completions",
                json={"model": "gpt-4o", "messages": messages},
                headers={"x-session-id": "s"},
                timeout=120,
            )
            said = answer.json()["choices"][0]["message"]
            done = {"role": "tool", "tool_call_id": said["tool_calls"][0]["id"], "content": "a b"}
            messages += [said, done]
        page = httpx.get(f"{server.url}/api/budgets", timeout=120).json()
    print(
        json.dumps(
            {
                "models": [request.model for request in upstream.requests],
                "header": answer.headers.get("x-gateway-budget"),
                "step": page["accounts"][0]["step"],
            }
        )
    )
"""


def last_line(scratch: ScratchCopy, script: str) -> Any:
    """The JSON in the last line that a script prints in the copy."""
    return json.loads(scratch.run("-c", script).stdout.splitlines()[-1])


@pytest.mark.slow
def test_a_budget_action_is_a_name_and_a_row(scratch: ScratchCopy) -> None:
    """The config takes it, calls get its model, and header and API name it as the step."""
    scratch.replace(
        SETTINGS,
        'StepAction = Literal["warn", "wrap_up", "ask", "stop"]',
        'StepAction = Literal["warn", "wrap_up", "finish", "ask", "stop"]',
    )
    scratch.replace(BUDGETS, "ACTIONS: Mapping[", EFFECT)
    scratch.replace(BUDGETS, '    "stop": None,\n', '    "finish": _finish,\n    "stop": None,\n')
    found = last_line(scratch, ASK)
    assert found["models"] == ["gpt-4o", "gpt-4o-mini"]
    assert found["header"].endswith("step=finish")
    assert found["step"] == "finish"
    assert scratch.changed() == {SETTINGS, BUDGETS}
