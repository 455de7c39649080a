"""The pattern library: a pattern store searched by text, and the patterns that ship.

`catalogue` joins a store and an embedder, `gates` holds the calibrated similarity gates, `tally`
counts what became of patterns. Imports allowed: `gateway.embedding`, `gateway.stores`,
`gateway.steering`.
"""

from gateway.library.catalogue import (
    ImportReport,
    PatternLibrary,
    PatternTally,
    gates_for,
    starter_patterns,
)

__all__ = ["ImportReport", "PatternLibrary", "PatternTally", "gates_for", "starter_patterns"]
