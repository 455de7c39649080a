"""The run's bookkeeping: JSON, next run, compaction."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from gateway.core.guidance_state import GuidanceState, Injection, from_json, to_json

COUNTS = st.dictionaries(st.text(max_size=8), st.integers(0, 9))
INJECTIONS = st.builds(
    Injection,
    step=st.integers(-1, 99),
    place=st.sampled_from(["system", "message"]),
    offset=st.integers(0, 999),
    text=st.text(max_size=20),
)
STATES = st.builds(
    GuidanceState,
    fired_step=st.none() | st.integers(0, 99),
    monitor_count=st.integers(0, 9),
    monitor_step=st.none() | st.integers(0, 99),
    severities=COUNTS,
    e1_count=st.integers(0, 9),
    e2_counts=COUNTS,
    e3_done=st.booleans(),
    pattern_ids=st.lists(st.text(max_size=8), max_size=3).map(tuple),
    decided_step=st.none() | st.integers(-1, 99),
    injections=st.lists(INJECTIONS, max_size=4).map(tuple),
)


@given(STATES)
def test_any_state_survives_json(state: GuidanceState) -> None:
    """Writing and reading gives the same state; values are plain JSON."""
    assert from_json(json.loads(json.dumps(to_json(state)))) == state


def test_a_fork_has_the_blocks_that_were_sent_before_it() -> None:
    """That at its first own message, too; the head of the prompt is the parent's."""
    blocks = [
        Injection(step=0, place="system", offset=9, text="head"),
        Injection(step=1, place="message", offset=3, text="at"),
        Injection(step=2, place="message", offset=4, text="after"),
    ]
    state = GuidanceState(injections=tuple(blocks), decided_step=2)
    assert state.up_to(3) == GuidanceState(injections=tuple(blocks[:2]))


def test_a_fresh_state_is_small() -> None:
    """Defaults are not written."""
    assert to_json(GuidanceState()) == {"v": 1}


@pytest.mark.parametrize(
    "record",
    [
        {},
        {"v": 2},
        {"v": 1, "monitor_count": "x"},
        {"v": 1, "severities": [1]},
        {"v": 1, "injections": [[1, 2]]},
        {"v": 1, "injections": [[0, "roof", 0, "t"]]},
        {"v": 1, "fired_steps": 3},
    ],
)
def test_a_damaged_record_is_refused(record: dict[str, Any]) -> None:
    """Another version or a wrong shape raises ValueError, nothing else."""
    with pytest.raises(ValueError, match="guidance state"):
        from_json(record)


def test_compaction_keeps_caps_and_what_stands_in_front() -> None:
    """Only blocks between messages go with the history they stood in."""
    front = Injection(step=-1, place="system", offset=0, text="rules")
    between = Injection(step=3, place="message", offset=7, text="note")
    state = GuidanceState(monitor_count=2, e1_count=1, injections=(front, between))
    assert state.compacted(summed_up=False).injections == (front,)
    assert state.compacted(summed_up=False).monitor_count == 2
    kept = replace(front, step=-2)
    assert state.next_run() == GuidanceState(injections=(kept,))
    assert state.next_run().next_run() == GuidanceState(injections=(kept,))
    later = replace(front, step=2)
    assert GuidanceState(injections=(later,)).next_run() == GuidanceState()
