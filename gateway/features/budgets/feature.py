"""The row of this feature in the table of hooks."""

from gateway.hooks import Feature

FEATURE = Feature(
    parts={
        "store": "store:SQLBudgetStore",
        "metrics": "metrics:BudgetMetrics",
        "accounting": "accounting:BudgetAccounting",
        "key_budget": "settings:key_budget",
        "agreed": "raised_limits:agreed",
        "check": "settings:check",
        "lost": "settings:lost",
        "named_models": "settings:named_models",
        "doubts": "config_warnings:doubts",
        "operations": "api:OPERATIONS",
    },
    settings={"budgets": "settings:Budgets"},
    adds={"control": "settings:BudgetControl"},
    commands={"budgets": "commands:add_budgets"},
)
