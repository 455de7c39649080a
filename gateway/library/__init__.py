"""The pattern library: a store and an embedder joined, and the patterns that ship."""

from gateway.library.catalogue import ImportReport, PatternLibrary
from gateway.library.gates import gates_for
from gateway.library.starter import starter_patterns
from gateway.library.tally import PatternTally, judged_by

__all__ = [
    "ImportReport",
    "PatternLibrary",
    "PatternTally",
    "gates_for",
    "judged_by",
    "starter_patterns",
]
