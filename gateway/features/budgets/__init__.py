"""Budgets: the limits of calls, and the actions when they are reached.

`which_apply` and `texts` are pure. `expected_use` estimates a call, `guard` reserves and settles
it, `leases` keeps accounts in the store, or in memory while that fails; `accounting` has all of
them for a process, and the gateway's own calls."""

OFFERS = (
    "accounting:accounting_of",
    "accounts:Account",
    "accounts:AccountKey",
    "settings:BudgetControl",
    "settings:BudgetLimits",
    "settings:BudgetMatch",
    "settings:BudgetSettings",
    "settings:Budgets",
    "settings:LadderStep",
    "settings:control_of",
)
