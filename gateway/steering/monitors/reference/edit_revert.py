"""Edit revert: an edit takes the one before back, or edits of a file keep failing."""

from __future__ import annotations

import re
from collections import Counter, deque

from gateway.steering.monitors.base import MonitorSettings
from gateway.steering.monitors.reference.call import Call

EDIT_TOOLS = frozenset(
    {
        "edit",
        "write",
        "str_replace",
        "str_replace_editor",
        "patch",
        "apply_patch",
        "create_file",
        "overwrite",
    }
)
REVERT_MARGIN = 0.10
FULL_CYCLES = 2

_STRETCH = re.compile(r"[\w./\\\-]+")
_EXTENSION = re.compile(r"\.[A-Za-z]{1,5}")


class EditRevert:
    """1 for a newest edit that is nearer to the last but one than to the last; failed edits of one
    file in a row give 0.5 for the first and 1 from the second.

    An error marks the newest edit so far, whichever step it comes from; failures never expire.
    Source: reference section 4.3.
    """

    __slots__ = ("_cycles", "_edits", "_failed", "_path", "_reverted", "_worst")

    def __init__(self, _settings: MonitorSettings) -> None:
        self._edits: deque[frozenset[str]] = deque(maxlen=3)
        self._path = ""
        self._failed = False
        self._reverted = False
        self._cycles: Counter[str] = Counter()
        self._worst = ""

    def push(self, call: Call) -> None:
        """Take in an edit; any error counts against the newest one."""
        if call.name.lower() in EDIT_TOOLS:
            self._edit(call.arguments)
        self._failed = self._failed or call.failed

    def _edit(self, text: str) -> None:
        path = edited_path(text)
        if path and self._failed and path == self._path:
            self._cycles[path] += 1
            if self._cycles[path] > self._cycles[self._worst]:
                self._worst = path
        self._path, self._failed = path, False
        self._edits.append(trigrams(text))
        if len(self._edits) == 3:
            first, second, newest = self._edits
            self._reverted = overlap(newest, first) > overlap(newest, second) + REVERT_MARGIN

    def reading(self) -> tuple[float, str]:
        """The larger of revert (0 or 1) and cycles / 2."""
        if self._reverted:
            return 1.0, "the newest edit restores the one before the last"
        cycles = self._cycles[self._worst]
        if not cycles:
            return 0.0, ""
        return min(cycles / FULL_CYCLES, 1.0), f"{cycles} failed edits of {self._worst[-80:]}"


def edited_path(text: str) -> str:
    """The first stretch of `text` that looks like a file name with an extension, or nothing.

    An extension longer than five letters is cut. Linear, unlike one pattern with two quantifiers.
    """
    for stretch in _STRETCH.finditer(text):
        name = stretch.group()
        at = len(name)
        while (at := name.rfind(".", 1, at)) > 0:
            extension = _EXTENSION.match(name, at)
            if extension:
                return name[: extension.end()]
    return ""


def trigrams(text: str) -> frozenset[str]:
    """The distinct stretches of three characters."""
    return frozenset([text[i : i + 3] for i in range(len(text) - 2)])


def overlap(one: frozenset[str], other: frozenset[str]) -> float:
    """Jaccard similarity in [0, 1]; 0 when either is empty."""
    if not one or not other:
        return 0.0
    common = len(one & other)
    return common / (len(one) + len(other) - common)
