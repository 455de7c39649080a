"""The patterns that ship with the gateway, for stores that are still empty."""

from __future__ import annotations

from pathlib import Path

from gateway.steering.etrace.codec import read_lines
from gateway.steering.etrace.pattern import Pattern

STARTER_FILE = Path(__file__).parent / "starter.jsonl"


def starter_patterns() -> list[Pattern]:
    """Universal rules and failure patterns for coding, tool-use and research agents."""
    with STARTER_FILE.open(encoding="utf-8") as lines:
        return list(read_lines(lines))
