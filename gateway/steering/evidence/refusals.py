"""Results that say no without being an error: nothing was found, or the request was turned down.

Of a look-up only an answer without content counts, of an action only a short answer that says no:
the words of a document, a status or a policy that was asked for say nothing about the call. Shells
are left out, where no output often means success.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any

from gateway.steering.evidence.outcomes import is_empty
from gateway.steering.short_cache import remembered

EMPTY = "empty"
"""The kind of a look-up that found nothing."""
REFUSED = "refused"
"""The kind of a request that was turned down."""

_MOST_CHARS = 300
"""A longer answer has content."""
_LOOK_UP = re.compile(
    r"(?:^|[_.\W])(?:search|find|list|get|query|look_?up|fetch|retrieve|select|check|grep|glob"
    r"|browse|read|show|view|describe|status|can|is|has)(?:$|[_.\W])"
    r"|(?-i:^(?:search|find|list|get|query|lookup|fetch|retrieve|check|read|show|view|can|is|has)"
    r"[A-Z])",
    re.IGNORECASE,
)
_NOTHING = re.compile(
    r"(?:no|zero|0) (?:[\w-]+ ){0,4}?(?:found|matche[sd]|matching|results?|records?|available)\b"
    r"|(?:[\w-]+ ){0,4}not found\b|nothing (?:was )?(?:found|matche[sd])\b",
    re.IGNORECASE,
)
_COUNTS = frozenset({"total", "count", "total_count", "total_results", "num_results", "found"})
_DENIALS = r"denied|declined|rejected|refused|ineligible|not[ _]eligible|forbidden|disallowed"
_TURNED_DOWN = re.compile(
    rf"\b(?:{_DENIALS})\b"
    r"|\bnot (?:allowed|permitted|authori[sz]ed|possible|valid|enough|sufficient)\b"
    r"|\b(?:cannot|can't|can not|could not|couldn't|unable to|may not) (?:be )?\w",
    re.IGNORECASE,
)
_DECIDED = re.compile(
    r'"(?:eligible|allowed|approved|accepted|authori[sz]ed|permitted)":\s*false'
    rf'|"(?:status|result|decision|outcome)":\s*"(?:{_DENIALS})"',
    re.IGNORECASE,
)


def says_no(operation: str, result: str) -> str | None:
    """EMPTY or REFUSED for an answer of the tool `operation` that reports no error; else None."""
    if not result or len(result) > _MOST_CHARS or operation.startswith("$"):
        return None
    structured = result[0] in "{["
    if is_look_up(operation):
        found = _holds_nothing(result) if structured else _NOTHING.match(result) is not None
        return EMPTY if found or is_empty(result) else None
    refused = (_DECIDED if structured else _TURNED_DOWN).search(result) is not None
    return REFUSED if refused else None


@remembered
def is_look_up(operation: str) -> bool:
    """Whether a tool only asks, by its name."""
    return _LOOK_UP.search(operation) is not None


def _holds_nothing(result: str) -> bool:
    try:
        value = json.loads(result)
    except (ValueError, RecursionError):
        return False
    if not isinstance(value, Mapping):
        return isinstance(value, list) and not value
    counts = [value[name] for name in _COUNTS & value.keys()]
    if any(count in (0, False) for count in counts):
        return True
    return not value or (_containers(value) > 0 and _hollow(value))


def _hollow(value: Any) -> bool:
    """Whether a JSON value consists of nothing but empty lists, objects, nulls, zeros."""
    if isinstance(value, Mapping):
        return all(_hollow(each) for each in value.values())
    return value in (None, 0, "", []) and value is not False


def _containers(value: Mapping[str, Any]) -> int:
    return sum(isinstance(each, Mapping | list) for each in value.values())
