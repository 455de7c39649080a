"""Calls of the gateway's own, to a judge or an embedder, counted on budgets."""

from gateway.budget_interface import (
    NOTHING,
    Amounts,
    CallBody,
    CallSubject,
    OwnCall,
    OwnCalls,
    Refused,
)
from gateway.features.budgets.guard import Admission, BudgetGuard, amounts_of
from gateway.tasks import spawn
from gateway.values import Fields


class BudgetOwnCalls(OwnCalls):
    """Counts them on the budgets of `guard`, which each config replaces."""

    def __init__(self) -> None:
        self.guard: BudgetGuard | None = None
        self.binding = True  # False: nothing is refused

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
        guard = self.guard
        if guard is None:
            return OwnCall()
        subject = CallSubject(tenant=tenant, model=model, root=root, run=run)
        body = CallBody(fields={}, raw=asked.encode("utf-8", "replace"), answers=answers, calls=0)
        try:
            admission = await guard.admit(subject, model, body, binding=self.binding)
        except Refused:
            return None
        return OwnCall() if admission is None else ReservedCall(guard, admission)


class ReservedCall(OwnCall):
    """A call of the gateway's own that has reserved its estimate."""

    def __init__(self, guard: BudgetGuard, admission: Admission):
        self._guard = guard
        self._admission = admission

    def settle(self, usage: Fields | None) -> None:
        used: Amounts | None = None if usage is None else NOTHING
        unpriced = False
        if usage:
            used, unpriced = amounts_of(
                self._admission.estimate.model, usage, self._guard.cost, calls=0
            )
        # Nobody waits for it: a slow store would cost the run its time for steering.
        spawn(self._guard.settle(self._admission, used, unpriced=unpriced))
