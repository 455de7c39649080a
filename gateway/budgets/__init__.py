"""Budgets, and holds on runs: the limits of calls, and the actions when they are reached.

rules       budgets that apply to a call, the use of each, the steps of its ladder. PURE
estimate    expected use of a call before it is sent
ledger      accounts and reservations: in the store, or in memory while that fails
guard       one call from its reservation to its settlement
holds       runs that an operator has stopped or paused
accounting  ledger, holds and notices of the process; the gateway's calls to a judge or embedder
texts       texts for clients, agents and operators. PURE
"""
