"""The recipes for a rule and a receiver of alerts, followed in a copy."""

from __future__ import annotations

import pytest

from tests.recipes.conftest import ScratchCopy
from tests.recipes.conftest import scratch as scratch
from tests.recipes.test_control import last_line

ALERT_SETTINGS = "gateway/features/alerts/settings.py"
RULES = "gateway/features/alerts/rules.py"
SENDER = "gateway/features/alerts/sender.py"

RAISED = """
import json
import time
from gateway.features.alerts.rules import Observations, findings
from gateway.features.alerts.sender import KINDS
from gateway.features.alerts.settings import AlertSink, AlertRuleSettings
from gateway.config.keys_and_types import convert
from gateway.features.alerts.records import AlertRecord

rules = convert(AlertRuleSettings, {"idle": True}, "rules")
found = findings(Observations(), rules)
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


@pytest.mark.slow
def test_a_rule_and_a_receiver_of_alerts_are_a_name_and_a_row_each(scratch: ScratchCopy) -> None:
    """The rule's finding is raised, and the receiver gets the message of its kind."""
    scratch.replace(ALERT_SETTINGS, '    "weekly_report",\n', '    "weekly_report",\n    "idle",\n')
    scratch.replace(
        ALERT_SETTINGS,
        "    weekly_report: bool = False",
        "    idle: bool = False\n    weekly_report: bool = False",
    )
    scratch.replace(ALERT_SETTINGS, '"discord", "apprise")\n', '"discord", "apprise", "plain")\n')
    rule = """def _idle(signals: Observations, settings: AlertRuleSettings) -> Iterator[Finding]:
    if settings.idle and not signals.live:
        yield Finding(rule="idle", subject="calls", severity="warn", title="No calls")


RULES: tuple"""
    scratch.replace(RULES, "RULES: tuple", rule)
    scratch.replace(RULES, "    _prompts,\n)", "    _prompts,\n    _idle,\n)")
    scratch.replace(
        SENDER,
        '    "discord": _discord,\n',
        '    "discord": _discord,\n'
        '    "plain": lambda alerts, _url: {"lines": [alert.title for alert in alerts]},\n',
    )
    assert last_line(scratch, RAISED) == ["idle", {"lines": ["No calls"]}]
    assert scratch.changed() == {ALERT_SETTINGS, RULES, SENDER}
