"""Budgets, and holds on runs: what a call may still use, and what happens when that is nothing.

rules       which budgets apply to a call, how far each is used, what its ladder says. PURE
estimate    what a call is expected to use, before it is sent
ledger      accounts and reservations: in the store, or in memory while that fails
guard       one call from its reservation to its settlement
holds       runs that an operator has stopped or paused
own_calls   calls to a judge or an embedder, which the gateway makes itself
texts       what clients, agents and operators are told. PURE
"""
