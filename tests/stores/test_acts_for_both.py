"""The version before reads the acts of runs that this one has written, and the other way round."""

from __future__ import annotations

import json

from gateway.stores.codec import totals_of, totals_row
from gateway.stores.totals import RunTotals


def test_a_risk_stands_beside_the_acts_for_the_version_before() -> None:
    """It is below 0, as for a run without scores; this version takes it for no act."""
    acted = RunTotals(acts={"guidance": 7.5})
    row = totals_row(acted)
    assert json.loads(row[-1])["acts"] == {"guidance": 7.5, "risk": -1.0}
    assert totals_of(row) == acted
    assert json.loads(totals_row(RunTotals())[-1])["acts"] == {}
