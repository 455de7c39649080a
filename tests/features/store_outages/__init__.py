"""Tests of the guard: a store that fails, and what waits for it."""
