"""The recipe for a steering setting in `docs/architecture.md`, followed in a copy."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.recipes.conftest import ROOT, ScratchCopy

CHECK = Path("tests/config/test_documented.py")
PYTEST = ("-m", "pytest", "-q", "-p", "no:cacheprovider", "--disable-plugin-autoload")
SETTINGS, DECISION = "gateway/core/acting.py", "gateway/core/steer.py"
FIELD = (
    "    token_budget: int | None = None"
    "  # tokens a run is expected to need, at least 1; None = unknown\n"
)
REASONS = "        reasons=(*act.reasons, "
LINE = "  deadline_ms: "

DECIDE = """
from gateway.config import load_settings
from gateway.core.fsm import FSMState
from gateway.core.steer import CallFacts, RunMemory, RunPosition, propose

rules = load_settings("own.yaml", {}).rules()
position = RunPosition(run=0, step=0, state=FSMState.INIT)
print(propose(rules, RunMemory(), position, CallFacts(requested="m")).reasons[0])
"""


@pytest.mark.slow
def test_a_steering_setting_is_a_field_its_use_and_a_line(scratch: ScratchCopy) -> None:
    """Three files: the decision reads the field of the section, which needs no copy elsewhere."""
    scratch.replace(SETTINGS, FIELD, FIELD + '    motto: str = "none"\n')
    scratch.replace(DECISION, REASONS, REASONS.replace("(", "(rules.acting.motto, "))
    line = next(each for each in scratch.read("config.yaml").splitlines() if LINE in each)
    scratch.replace("config.yaml", line, f"{line}\n  motto: none # the first reason of each call")
    scratch.write(str(CHECK), (ROOT / CHECK).read_text())
    scratch.run(*PYTEST, str(CHECK))
    scratch.write("own.yaml", "steering: {motto: festina lente}\n")
    assert scratch.run("-c", DECIDE).stdout == "festina lente\n"
    assert scratch.changed() == {SETTINGS, DECISION}
