"""The gateway's own calls to a judge or an embedder, counted on the budgets of whom they serve."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from gateway.budgets.estimate import Cost
from gateway.budgets.guard import Admission, BudgetGuard, CallBody, Refused
from gateway.budgets.rules import CallSubject
from gateway.budgets.spending import amounts_of
from gateway.stores.budgets import NOTHING, Amounts
from gateway.tasks import spawn


class OwnCalls:
    """Counts tokens and dollars of the gateway's own calls, not the calls: those are the agents'.

    Lives as long as the process; `use` gives it the budgets of each config.
    """

    def __init__(self) -> None:
        self._guard: BudgetGuard | None = None
        self._cost: Cost = lambda _model, _usage: None
        self._binding = True

    def use(self, guard: BudgetGuard | None, cost: Cost, *, binding: bool) -> None:
        """Count on the budgets of `guard`; `binding` False: nothing is refused."""
        self._guard, self._cost, self._binding = guard, cost, binding

    async def admit(
        self,
        model: str,
        asked: str,
        *,
        answers: bool = True,
        tenant: str = "",
        root: str = "",
        run: str = "",
    ) -> OwnCall | None:
        """A call that may be made; None when a budget has not enough left for it.

        `answers`: the model writes an answer. Without a tenant the call is everybody's, and counts
        on the budgets of a day alone.
        """
        guard = self._guard
        if guard is None:
            return OwnCall()
        subject = CallSubject(tenant=tenant, model=model, root=root, run=run)
        body = CallBody(fields={}, raw=asked.encode("utf-8", "replace"), answers=answers, calls=0)
        try:
            admission = await guard.admit(subject, model, body, binding=self._binding)
        except Refused:
            return None
        return OwnCall() if admission is None else _Counted(guard, admission, self._cost)


class OwnCall:
    """A call that counts on no budget."""

    def settle(self, usage: Mapping[str, Any] | None) -> None:
        """Note the end of the call.

        `usage`: as its answer says; None when that is not known, so that the estimate counts; empty
        for a call that failed.
        """


class _Counted(OwnCall):
    def __init__(self, guard: BudgetGuard, admission: Admission, cost: Cost) -> None:
        self._guard = guard
        self._admission = admission
        self._cost = cost

    def settle(self, usage: Mapping[str, Any] | None) -> None:
        used: Amounts | None = None if usage is None else NOTHING
        unpriced = False
        if usage:
            model = self._admission.estimate.model
            used, unpriced = amounts_of(model, usage, self._cost, calls=0)
        # Nobody waits for it: a slow store would cost the run its time for steering.
        spawn(self._guard.settle(self._admission, used, unpriced=unpriced))
