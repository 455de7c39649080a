"""Edit revert: an edit undoes the one before, or edits of a file keep failing."""

from __future__ import annotations

import re
from collections import Counter, deque

from gateway.steering.monitors.reference.suite import CallText
from gateway.steering.monitors.settings import MonitorSettings

EDIT_TOOLS = frozenset({"edit", "write", "str_replace", "str_replace_editor"}) | frozenset(
    {"patch", "apply_patch", "create_file", "overwrite"}
)
REVERT_MARGIN = 0.10
FULL_CYCLES = 2
Trigrams = frozenset[tuple[str, str, str]]
_STRETCH = re.compile(r"[\w./\\\-]+")
_EXTENSION = re.compile(r"\.[A-Za-z]{1,5}")


class EditRevert:
    """1 for a newest edit that is nearer to the last but one than to the last; failed edits of one
    file in a row give 0.5 for the first and 1 from the second, and never expire. An error of any
    step marks the newest edit so far. Source: reference section 4.3."""

    __slots__ = ("_before", "_cycles", "_failed", "_path", "_reverted", "_worst")

    def __init__(self, _settings: MonitorSettings) -> None:
        self._before: deque[Trigrams] = deque(maxlen=2)
        self._path = ""
        self._failed = False
        self._reverted = False
        self._cycles: Counter[str] = Counter()
        self._worst = ""

    def push(self, call: CallText) -> None:
        """Observe an edit; any error counts against the newest one."""
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
        newest = trigrams(text)
        if len(self._before) == 2:
            first, second = self._before
            self._reverted = overlap(newest, first) > overlap(newest, second) + REVERT_MARGIN
        self._before.append(newest)

    def reading(self) -> tuple[float, str]:
        """The larger of revert (0 or 1) and cycles / 2."""
        if self._reverted:
            return 1.0, "the newest edit restores the one before the last"
        if not (cycles := self._cycles[self._worst]):
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
            if extension := _EXTENSION.match(name, at):
                return name[: extension.end()]
    return ""


def trigrams(text: str) -> Trigrams:
    """The distinct stretches of three characters, each as a triple (faster to make than text)."""
    return frozenset(zip(text, text[1:], text[2:], strict=False))


def overlap(one: Trigrams, other: Trigrams) -> float:
    """Jaccard similarity in [0, 1]; 0 when either is empty."""
    if not one or not other:
        return 0.0
    common = len(one & other)
    return common / (len(one) + len(other) - common)
