"""Guard of a store: answers do not wait for a database that is away or slow.

`guarded` is the store that the gateway talks to, `breaker` decides when the one behind it counts as
unavailable, `spool` and `disk_spool` keep the records that wait, and `recovery` writes them later.
"""
