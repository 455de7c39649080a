"""The recipes for a budget action, a rule and a receiver of alerts, followed in a copy."""

from __future__ import annotations

import json
from typing import Any

from tests.recipes.conftest import ScratchCopy

SETTINGS, BUDGETS = "gateway/config/budgets.py", "gateway/budgets/rules.py"
ALERT_SETTINGS, RULES, SENDER = (
    "gateway/config/alerts.py",
    "gateway/alerts/rules.py",
    "gateway/alerts/sender.py",
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
                timeout=60,
            )
            said = answer.json()["choices"][0]["message"]
            done = {"role": "tool", "tool_call_id": said["tool_calls"][0]["id"], "content": "a b"}
            messages += [said, done]
        page = httpx.get(f"{server.url}/api/budgets", timeout=60).json()
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

RAISED = """
import json
import time
from gateway.alerts.rules import Signals, findings
from gateway.alerts.sender import KINDS
from gateway.config.alerts import AlertSink, AlertRuleSettings
from gateway.config.schema import convert
from gateway.alerts.rules import CallWindow
from gateway.stores.alerts import AlertRecord

rules = convert(AlertRuleSettings, {"idle": True}, "rules")
found = findings(Signals(window=CallWindow(calls=0)), rules)
sink = convert(AlertSink, {"name": "s", "url": "http://127.0.0.1:1", "kind": "plain"}, "sink")
one = AlertRecord(
    id="a",
    rule=found[0].rule,
    key=found[0].key,
    severity=found[0].severity,
    title=found[0].title,
    tenant=None,
    facts={},
    path="",
    raised_at=time.time(),
)
print(json.dumps([found[0].rule, KINDS[sink.kind]([one], None)]))
"""


def last_line(scratch: ScratchCopy, script: str) -> Any:
    """The JSON in the last line that a script prints in the copy."""
    return json.loads(scratch.run("-c", script).stdout.splitlines()[-1])


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


def test_a_rule_and_a_receiver_of_alerts_are_a_name_and_a_row_each(scratch: ScratchCopy) -> None:
    """The rule's finding is raised, and the receiver gets the message of its kind."""
    scratch.replace(
        ALERT_SETTINGS, '    "weekly_report",\n]', '    "weekly_report",\n    "idle",\n]'
    )
    scratch.replace(
        ALERT_SETTINGS,
        "    window_s: float = 600\n",
        "    idle: bool = False\n    window_s: float = 600\n",
    )
    scratch.replace(ALERT_SETTINGS, '"discord", "apprise")\n', '"discord", "apprise", "plain")\n')
    rule = """def _idle(signals: Signals, settings: AlertRuleSettings) -> Iterator[Finding]:
    if settings.idle and not signals.window.calls:
        yield Finding(rule="idle", subject="calls", severity="warn", title="No calls")


RULES: Final"""
    scratch.replace(RULES, "RULES: Final", rule)
    scratch.replace(RULES, "_resting, _store)", "_resting, _store, _idle)")
    scratch.replace(
        SENDER,
        '    "discord": _discord,\n',
        '    "discord": _discord,\n'
        '    "plain": lambda alerts, _url: {"lines": [alert.title for alert in alerts]},\n',
    )
    assert last_line(scratch, RAISED) == ["idle", {"lines": ["No calls"]}]
    assert scratch.changed() == {ALERT_SETTINGS, RULES, SENDER}
