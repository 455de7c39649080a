"""The situation of a run when a call is decided."""

from __future__ import annotations

from collections.abc import Sequence

from msgspec import Struct

from gateway.steering.evidence.observation import ObservedCalls, Trouble
from gateway.steering.fsm import FSMState
from gateway.steering.guidance.situation import Situation, read_situation, restored_edit
from gateway.steering.monitors import Readings
from gateway.steering.transcript.steps import Step


class Moment(Struct, frozen=True, kw_only=True):
    """The situation of a run when a call is decided.

    `step` = index of the newest scored step of the run, None on its first call; `state` = the state
    after that step; `readings` = the monitors on it, None when none is configured; `recent` = the
    newest steps, oldest first; `model` = the routed model's name; `at_risk` = whether to act on
    this step, when something other than the readings decides that; None = the readings do.
    `calls`, `trouble`, `repairing`: of the newest step, see `StepOutcome`. `tools`: the names of
    the tools that the request offers. `every_alarm`: a text for each alarm, also where the newest
    step is no part of the trouble; the suite `reference` fires on what steps do not show.
    """

    step: int | None
    state: FSMState
    readings: Readings | None = None
    recent: Sequence[Step] = ()
    model: str = ""
    at_risk: bool | None = None
    calls: ObservedCalls = ()
    trouble: Trouble | None = None
    repairing: bool = False
    tools: Sequence[str] = ()
    every_alarm: bool = False

    def situation(self) -> Situation | None:
        """What the newest step is stuck on, None when it brings something new."""
        if self.trouble == "reverted edit":
            return restored_edit()
        return read_situation(self.recent, self.calls)
