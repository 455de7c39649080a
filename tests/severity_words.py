"""Finds the names that severities had in earlier versions, in anything that a gateway says."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

WORDS = {"low": "no-alarm", "warn": "at-risk", "danger": "in-trouble"}

ALIASES = {
    "severity": ("severity_word", "steps_by_severity"),
    "severity_runs": ("runs_by_severity",),
    "thresholds": ("thresholds",),
}
"""Keys that keep the old names, each with the keys that have the words."""


def old_names(said: Any, key: str = "") -> Iterator[tuple[str, str]]:
    """(key, name) of each old name below a key, as a text or as a key itself. The ends of an
    interval are called low and high: they are none."""
    if isinstance(said, dict):
        for name, value in said.items():
            if name in WORDS and "high" not in said:
                yield key, name
            yield from old_names(value, name)
    elif isinstance(said, list):
        for each in said:
            yield from old_names(each, key)
    elif said in WORDS:
        yield key, said


def words_at(said: Any, keys: tuple[str, ...]) -> set[str]:
    """The words of severities below these keys."""
    found: set[str] = set()
    if isinstance(said, list):
        for each in said:
            found |= words_at(each, keys)
    if isinstance(said, dict):
        for name, value in said.items():
            if name in keys:
                texts = value if isinstance(value, dict) else [value]
                found |= {each.replace("_", "-") for each in texts if isinstance(each, str)}
            else:
                found |= words_at(value, keys)
    return found


def check_words(said: Any) -> set[str]:
    """The old names of an answer, each of which stands in an alias, with its word beside it."""
    found = list(old_names(said))
    for key, name in found:
        assert key in ALIASES, f"{name} at {key!r}"
        assert WORDS[name] in words_at(said, ALIASES[key]), f"{name} at {key!r} without its word"
    return {name for _, name in found}
