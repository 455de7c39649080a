"""The pattern library: a store and an embedder joined, and the patterns that ship."""

from gateway.library.catalogue import ImportReport, PatternLibrary
from gateway.library.gates import gates_for
from gateway.library.starter import starter_patterns

__all__ = ["ImportReport", "PatternLibrary", "gates_for", "starter_patterns"]
