"""The consequence of a yes to the question whether a budget is raised."""

import time

from gateway.backends import Stores
from gateway.features.budgets.accounts import AccountKey
from gateway.features.budgets.store import SQLBudgetStore
from gateway.stores.controls import Control


async def agreed(stores: Stores, asked: Control) -> list[Control]:
    """Raise the limits of the account to those of the question; the questions of other runs about
    the same account. Raises: StoreError."""
    question = asked.question
    accounts = stores.of(SQLBudgetStore)
    if question is None or not question.budget or accounts is None or stores.controls is None:
        return []
    key = AccountKey(budget=question.budget, subject=question.account)
    found = await accounts.accounts([key])
    known = found[0].limits_of({}) if found else {}
    limits = {name: max(known.get(name, 0.0), to) for name, to in question.limits.items()}
    await accounts.allow(key, at=time.time(), limits=limits, lifted=None)
    pairs = [(e, e.question) for e in await stores.controls.list_controls() if e.action == "ask"]
    same = (question.budget, question.account)
    return [e for e, q in pairs if q and e != asked and (q.budget, q.account) == same]
