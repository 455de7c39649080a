"""The stores in SQLite: one file, or one in-memory database, for all of them.

`database` is the entrance: it opens the connections, migrates the schema and runs work on its
threads. The store classes are in `states`, `runs`, `patterns` and `keys`. Imported by
`gateway.backends` only. Imports allowed: `gateway.stores`, `gateway.steering`, apsw, sqlite-vec.
"""
