"""The pattern library: a pattern store searched by text, its counts, and the patterns that ship.

Imports allowed: `gateway.embedding`, `gateway.stores`, `gateway.steering`."""

from gateway.library.catalogue import PatternLibrary, PatternTally, starter_patterns
