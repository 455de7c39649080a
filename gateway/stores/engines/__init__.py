"""The engines of `gateway.stores.sql`: what differs between the databases.

Imported by `gateway.backends` only, each when its database is used.
"""
