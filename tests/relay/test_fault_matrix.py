"""Whatever the upstream does, what arrives without the gateway arrives with it."""

from __future__ import annotations

import pytest

from bench.fault_matrix import DIALECTS, LANES, MODES, run, table
from steering_gateway_testing import FaultKind

# One that the upstream refuses, one that it ends early, one whose answer arrives whole.
_FEW = [FaultKind.CONTENT_FILTER, FaultKind.OVERLOADED, FaultKind.WRONG_CONTENT_TYPE]


@pytest.mark.parametrize(
    "kinds",
    [
        pytest.param(_FEW, marks=pytest.mark.slow),
        pytest.param(list(FaultKind), marks=pytest.mark.nightly),
    ],
    ids=["few", "all"],
)
def test_no_fault_harms_a_request(kinds: list[FaultKind]) -> None:
    """Each fault in three dialects, as a stream and whole, off, in shadow and on, in both lanes."""
    found = run(kinds, LANES)
    assert len(found) == len(kinds) * len(DIALECTS) * 2 * len(MODES) * len(LANES)
    assert "x" not in found.values(), table(found)
