"""The recipe for a monitor in `docs/architecture.md`, followed in a copy of the package."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.recipes.conftest import ScratchCopy

TABLE = "gateway/core/monitors/table.json"
MODULE = "gateway/core/monitors/politeness.py"
TEXT = "You thank the user in every step{evidence}. Work on the task instead."

CLASS = '''"""Politeness: the thoughts thank the user instead of working."""

from __future__ import annotations

from gateway.core.ledger.ledger import LedgerStep
from gateway.core.monitors.settings import RobustSettings


class Politeness:
    """Share of the last three thoughts that thank somebody."""

    __slots__ = ("_thanks",)

    def __init__(self, settings: RobustSettings) -> None:
        self._thanks: list[bool] = []

    def push(self, step: LedgerStep) -> None:
        """Look for thanks in the step's thought."""
        self._thanks = [*self._thanks, "thanks" in step.facts.vocabulary][-3:]

    def reading(self) -> tuple[float, str]:
        """Share in [0, 1]."""
        thanks = sum(self._thanks)
        return thanks / 3, f"{thanks} of 3 thoughts thank" if thanks else ""
'''

ROW = {
    "name": "politeness",
    "failure_type": "politeness",
    "weights": {"coding": 0.20, "pr_review": 0.0, "qa": 0.10},
    "classes": {"robust": ".politeness:Politeness"},
}

CONFIG = """
monitors: {weights: {politeness: 0.9}}
"""

EVALUATE = """
import json
from gateway.core.ledger.ledger import Ledger
from gateway.core.monitors import PROFILES, MonitorSettings, make_suite
from gateway.steering.evidence.action_facts import describe
from gateway.steering.transcript.steps import steps_from_records

def evaluate(steps, settings=MonitorSettings()):
    suite = make_suite(settings)
    ledger = Ledger(describe)
    for step in steps_from_records(steps):
        suite.push(ledger.observe(step))
    return suite.readings()

"""

PRINT_READINGS = (
    EVALUATE
    + """
steps = [{"action": f"read_{n}", "thought": "many thanks for the hint"} for n in range(4)]
robust = evaluate(steps)
reference = evaluate(steps, MonitorSettings(suite="reference"))
print(json.dumps({
    "score": robust.scores["politeness"],
    "evidence": robust.evidence["politeness"],
    "failure_type": robust.failure_type,
    "composite": robust.composite,
    "in_reference": "politeness" in reference.scores,
    "coding": PROFILES["coding"]["politeness"],
}))
"""
)

PRINT_GUIDANCE = (
    EVALUATE
    + """
from gateway.core.acting import ActionSignal
from gateway.core.fsm import FSMState
from gateway.core.guidance_state import Moment
from gateway.core.guidance_plan import plan
from gateway.core.guidance_settings import EtraceSettings, Gates, InjectionSettings
from gateway.core.guidance_state import GuidanceState

steps = [{"action": f"read_{n}", "thought": "many thanks for the hint"} for n in range(4)]
planned = plan(
    GuidanceState(),
    Moment(step=4, signal=ActionSignal(state=FSMState.NORMAL, readings=evaluate(steps))),
    EtraceSettings(),
    InjectionSettings(),
    Gates(e1=0.5, e2=0.5),
)
print(json.dumps([planned.monitor and planned.monitor.text, planned.reasons]))
"""
)


def follow(scratch: ScratchCopy, *texts: str) -> None:
    """One module and one row."""
    scratch.write(MODULE, CLASS)
    rows = json.loads((scratch.root / TABLE).read_text(encoding="utf-8"))
    scratch.write(TABLE, json.dumps([*rows, {**ROW, "texts": texts}]))


def replayed(scratch: ScratchCopy) -> list[dict[str, Any]]:
    """The steps of a polite run, replayed under CONFIG."""
    steps = [{"action": f"read_{n}", "thought": "many thanks for the hint"} for n in range(4)]
    scratch.write("run.jsonl", json.dumps({"id": "polite", "steps": steps}) + "\n")
    scratch.write("own.yaml", CONFIG)
    ended = scratch.run("-m", "gateway", "replay", "--json", "--config", "own.yaml", "run.jsonl")
    found: list[dict[str, Any]] = json.loads(ended.stdout)["steps"]
    return found


def sources(steps: list[dict[str, Any]]) -> set[str]:
    """Where the guidance of a replay comes from."""
    return {given["source"] for step in steps for given in step.get("guidance", ())}


@pytest.fixture
def with_text(scratch: ScratchCopy) -> ScratchCopy:
    """The copy with the monitor and its text."""
    follow(scratch, TEXT)
    return scratch


@pytest.mark.slow
def test_a_monitor_is_one_module_and_one_row(with_text: ScratchCopy) -> None:
    """It is scored, weighed and names its failure; the suite without it does not list it."""
    assert with_text.changed() == {MODULE, TABLE}
    found = json.loads(with_text.run("-c", PRINT_READINGS).stdout)
    assert found == {
        "score": 1.0,
        "evidence": "3 of 3 thoughts thank",
        "failure_type": "politeness",
        "composite": found["composite"],
        "in_reference": False,
        "coding": 0.2,
    }
    assert found["composite"] >= 0.2


@pytest.mark.slow
def test_a_new_monitor_is_replayed_and_guides(with_text: ScratchCopy) -> None:
    """A replay shows its score under a configured weight, and the text that the agent gets."""
    steps = replayed(with_text)
    assert steps[-1]["fired"] == ["politeness"]
    assert steps[-1]["composite"] >= 0.9
    assert "monitor" in sources(steps)
    text, _ = json.loads(with_text.run("-c", PRINT_GUIDANCE).stdout)
    assert text == TEXT.replace("{evidence}", " (3 of 3 thoughts thank)")


@pytest.mark.slow
def test_a_monitor_without_texts_is_silent(scratch: ScratchCopy) -> None:
    """It fires and is recorded; there is no text, a reason is given, and nothing raises."""
    follow(scratch)
    steps = replayed(scratch)
    assert steps[-1]["fired"] == ["politeness"]
    assert not sources(steps) & {"monitor"}
    text, reasons = json.loads(scratch.run("-c", PRINT_GUIDANCE).stdout)
    assert text is None
    assert "monitor: no text for politeness" in reasons
