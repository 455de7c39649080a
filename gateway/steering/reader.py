"""The reader of steps for the core: facts of calls and results, and the situation in words."""

from collections.abc import Sequence

from gateway.core.ledger.ledger import LedgerStep
from gateway.core.reader import Reader, Situation
from gateway.core.step import Step
from gateway.steering.evidence.action_facts import describe
from gateway.steering.guidance.situation import read_situation, restored_edit


def _situation(recent: Sequence[Step], newest: LedgerStep | None) -> Situation | None:
    if newest is not None and newest.reverts:
        return restored_edit()
    return read_situation(recent, newest.actions if newest is not None else ())


# The reader that the core is given.
READER = Reader(describe=describe, situation=_situation)
