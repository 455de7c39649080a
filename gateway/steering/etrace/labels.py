"""Names of failures, as the labels the monitors give."""

from __future__ import annotations

import re
from collections.abc import Mapping

from gateway.steering.monitors.base import FAILURE_TYPES

FAILURE_ALIASES: Mapping[str, str] = {
    **FAILURE_TYPES,
    "infinite_loop": "loop",
    "semantic_loop": "loop",
    "late_sprawl": "budget",
    "thrashing": "edit_revert",
}
"""Other names of the six labels, the monitors' own among them. Source: reference section 18."""

_LABEL = re.compile(r"[a-z][a-z0-9_]{0,63}")


def failure_label(name: str | None) -> str | None:
    """The label for a failure's name, aliases resolved; None for none.

    A label outside the six is kept: such a pattern is found by unfiltered look-ups only.
    Raises: ValueError when `name` is no label (lower-case letters, digits, underscores).
    """
    if not name:
        return None
    label = FAILURE_ALIASES.get(name.lower(), name.lower())
    if not _LABEL.fullmatch(label):
        raise ValueError(f"failure_type: {name!r} is not a label of letters, digits and '_'")
    return label
