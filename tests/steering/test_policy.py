"""The policy and its digest."""

from __future__ import annotations

import dataclasses
import enum
import subprocess
import sys
from dataclasses import dataclass
from typing import Any

import pytest

from gateway.core.decision_settings import Policy
from gateway.core.fsm import FSMSettings
from gateway.core.monitors import MonitorSettings
from gateway.core.scoring.scorer import DifficultySettings


@pytest.mark.parametrize(
    "other",
    [
        Policy(fsm=FSMSettings(slow_window=4)),
        Policy(difficulty=DifficultySettings(scorer="heuristic")),
        Policy(monitors=MonitorSettings(weights={"streak": 0.3})),
        Policy(monitors=MonitorSettings(monitors=())),
        Policy(run_boundary="never"),
    ],
)
def test_every_value_changes_the_digest(other: Policy) -> None:
    """Two policies that may decide differently have different digests."""
    assert other.digest() != Policy().digest()


def test_equal_policies_have_equal_digests() -> None:
    """The order of a mapping and the type of a number do not matter."""
    one = Policy(monitors=MonitorSettings(weights={"streak": 1, "hedge": 0.5}))
    two = Policy(monitors=MonitorSettings(weights={"hedge": 0.5, "streak": 1.0}))
    assert one.digest() == two.digest()
    assert len(one.digest()) == 64


def test_the_digest_is_the_same_in_another_process() -> None:
    """Nothing in it depends on hash seeds or addresses."""
    code = "from gateway.core.decision_settings import Policy; print(Policy().digest())"
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert run.stdout.strip() == Policy().digest()


def test_the_digest_takes_values_of_any_plain_kind() -> None:
    """New fields may be enums, sets, lists and nested settings."""

    class Kind(enum.Enum):
        ONE = "one"

    @dataclass(frozen=True, kw_only=True)
    class More(Policy):
        more: Any = None

    values = [Kind.ONE, frozenset({"a", "b"}), {"b", "c"}, ["a", 1], (Kind.ONE, True), None]
    digests = [More(more=value).digest() for value in values]
    assert len(set(digests)) == len(values)
    assert More(more={"b", "a"}).digest() == digests[1]


def test_a_policy_is_a_value() -> None:
    """It cannot be changed in place."""
    with pytest.raises(dataclasses.FrozenInstanceError):
        Policy().run_boundary = "never"  # type: ignore[misc]
