"""A run with everything recorded of it."""

from gateway.stores.records import InjectionRow, StepRow
from gateway.stores.totals import RunRecord
from gateway.values import Value


class RunTrace(Value):
    """One run with its steps and guidance."""

    run: RunRecord  # description and totals
    steps: tuple[StepRow, ...]  # in their order, from step 0
    injections: tuple[InjectionRow, ...]  # in the order of steps, then of their place in the call
