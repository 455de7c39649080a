"""Storage of a gateway: conversations, the run log, patterns and their vectors, keys.

`protocols` and `patterns` say what a store must do, `records`, `queries` and `totals` define the
values it takes and returns, `guard` keeps answers from waiting for a store, `sqlite` is the store
that ships. `gateway.backends` opens it.
"""
