"""What two gateways know of one run is joined, each part of it."""

from __future__ import annotations

from msgspec.structs import replace

from gateway.core.fsm import FSMState
from gateway.core.guidance_state import GuidanceState, Injection
from gateway.core.routing import ModelPin, RunChoice
from gateway.core.steer import RunMemory
from gateway.core.trouble import Trouble

GIVEN = GuidanceState(
    fired_step=3,
    monitor_count=2,
    monitor_step=3,
    severities={"loop": 2},
    e1_count=1,
    e2_counts={"loop": 1},
    e3_done=True,
    pattern_ids=("p",),
    decided_step=4,
    injections=(Injection(step=3, place="system", offset=0, text="t"),),
    lesson_steps={"l": 4},
    lessons=1,
    summary_asked=True,
    rules_due=True,
)
KEPT = RunMemory(
    guidance=GIVEN,
    pinned_model=ModelPin(model="m", state=FSMState.SLOW, since_step=2),
    tokens=9,
    choice=RunChoice(model="m", default="d"),
    trouble=Trouble(advised={"e": 2}, acted={"e": 5}, routed=5),
)


def test_every_part_is_joined() -> None:
    """Nothing of one side is lost to an empty other one; a new field needs a value here."""
    for full, empty in ((GIVEN, GuidanceState()), (KEPT, RunMemory())):
        for name in full.__struct_fields__:
            assert getattr(full, name) != getattr(empty, name), name
    assert GIVEN.merged(GuidanceState()) == GIVEN
    assert GuidanceState().merged(GIVEN) == GIVEN
    assert KEPT.merged(RunMemory(), further=KEPT, tokens=0) == KEPT
    assert RunMemory().merged(KEPT, further=KEPT, tokens=0) == KEPT


def test_the_newest_counts_hold() -> None:
    """Two gateways that counted differently."""
    other = replace(KEPT, tokens=20)
    assert KEPT.merged(other, further=other, tokens=5).tokens == 25
