"""Guard of a store: answers do not wait for a database that is away or slow."""
