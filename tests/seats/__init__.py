"""Clients that log in to another provider, as they really ask."""
