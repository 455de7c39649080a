"""Test repeat: a test fails twice in the same way."""

from __future__ import annotations

import re

from gateway.steering.monitors.reference.suite import CallText
from gateway.steering.monitors.settings import MonitorSettings

TEST_HINTS = ("pytest", "test", "run_tests", "npm test", "cargo test")
FAILURE_MARKS = ("assertionerror", "failed ", "failures=")
HEAD_CHARS = 60
SIGNATURE_CHARS = 200
# A prefix of this length, up to a line end, nearly always yields the whole signature.
_PREFIX_CHARS = 600

# What differs between two runs of one failing test, in the order of replacement. Each begins with
# one class of characters, which the search can skip to.
_HEX = "[0-9a-fA-F]"
_VOLATILE = tuple(
    re.compile(pattern)
    for pattern in (
        r"(?:/tmp/|C:\\Users\\|/var/folders/)\S*",
        rf"{_HEX}{_HEX}{{7}}-{_HEX}{{4}}-{_HEX}{{4}}-{_HEX}{{4}}-{_HEX}{{12}}",
        rf"0[xX]{_HEX}+",
        r"[pP][iI][dD][=: ]\d+",
        r"\d\d{3}-\d{2}-\d{2}[ T]\d{2}:\d{2}:\d{2}\S*",
        r"\d(?<!\w\d)\d{9,}+\b",
    )
)
_PLACEHOLDER = "#"


class TestRepeat:
    """1 once two neighbouring failures of test steps have one signature; never expires.

    Steps that are no failing tests add nothing and break nothing. Source: reference section 4.4."""

    __slots__ = ("_last", "_repeated")

    def __init__(self, _settings: MonitorSettings) -> None:
        self._last = ""
        self._repeated = ""

    def push(self, call: CallText) -> None:
        """Compare a failing test with the one before."""
        if self._repeated or not call.failed:
            return
        name, lower = call.name.lower(), call.lowered_observation
        is_test = any(hint in name for hint in TEST_HINTS) or "test" in lower[:HEAD_CHARS]
        if not is_test and not any(mark in lower for mark in FAILURE_MARKS):
            return
        signature = failure_signature(call.observation)
        if signature and signature == self._last:
            self._repeated = signature
        self._last = signature

    def reading(self) -> tuple[float, str]:
        """1.0 after a repetition, else 0."""
        if not self._repeated:
            return 0.0, ""
        return 1.0, f"same failure twice: {' '.join(self._repeated.split())[:80]}"


def failure_signature(observation: str) -> str:
    """The first 200 characters of a failure without what changes from run to run.

    Temporary paths, identifiers, addresses, process ids, time stamps and long numbers become one
    placeholder each. Source: reference section 4, failure signature."""
    text = observation.lstrip()
    if (cut := text.find("\n", _PREFIX_CHARS)) >= 0:
        # No volatile stretch crosses a line end, so a prefix of lines normalises by itself.
        signature = _normalised(text[:cut])
        if len(signature) >= SIGNATURE_CHARS:
            return signature[:SIGNATURE_CHARS]
    return _normalised(text)[:SIGNATURE_CHARS]


def _normalised(text: str) -> str:
    for pattern in _VOLATILE:
        text = pattern.sub(_PLACEHOLDER, text)
    return text.strip()
