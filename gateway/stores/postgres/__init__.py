"""The stores in PostgreSQL: one database for several gateways.

`database` is the entrance: it connects, migrates the schema and lends connections; `writer` commits
calls in groups. The store classes are in `states`, `runs`, `patterns` and `keys`. Imported by
`gateway.backends` only. Imports allowed: `gateway.stores`, `gateway.steering`, asyncpg.
"""
