"""Hooks of agents: the same core where no proxy can be (docs/hooks.md)."""
