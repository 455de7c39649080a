"""The reader of steps for the core: facts of calls and results, and the situation in words."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from gateway.core.ledger.ledger import Ledger, LedgerStep
from gateway.core.monitors import MonitorSettings, Readings, make_suite
from gateway.core.reader import Reader, Situation
from gateway.core.step import Step
from gateway.steering.evidence.features import describe
from gateway.steering.guidance.situation import read_situation, restored_edit
from gateway.steering.transcript.steps import steps_from_records


def _situation(recent: Sequence[Step], newest: LedgerStep | None) -> Situation | None:
    if newest is not None and newest.reverts:
        return restored_edit()
    return read_situation(recent, newest.actions if newest is not None else ())


READER = Reader(describe=describe, situation=_situation)
"""The reader that the core is given."""


def evaluate(
    steps: Iterable[Step | Mapping[str, Any]], settings: MonitorSettings | None = None
) -> Readings:
    """The readings over `steps`, which may be records for `steps_from_records`; never raises."""
    suite = make_suite(settings or MonitorSettings())
    ledger = Ledger(describe)
    for step in steps:
        for each in (step,) if isinstance(step, Step) else steps_from_records([step]):
            suite.push(ledger.observe(each))
    return suite.readings()
