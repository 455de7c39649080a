"""Interventions of a person, as agents write them into their transcripts: work that was interrupted
and calls that were rejected.

Each wording is a row of `WORDINGS`; a new client needs its rows here and nothing else. The same
rows read live requests and the logs that agents keep on disk.
"""

from __future__ import annotations

import re
from typing import Final, Literal, NamedTuple

Kind = Literal["interrupt", "reject"]

_HEAD_CHARACTERS = 400  # a client's wording begins the text; what follows is the person's own


class Wording(NamedTuple):
    """One sentence by which a client tells its model what a person did.

    `begins`: the text's beginning, matched without regard to case; `words`: finds what the person
    added in the rest of the text (group 1), None if the client passes nothing on.
    """

    client: str
    kind: Kind
    begins: str
    words: re.Pattern[str] | None = None


_SAID = re.compile(
    r"[Tt]he user said:\s*(?!\s|The user wants to clarify these questions)"
    r"(.*?)(?:\s*Note: The user's next message may contain a .*)?$",
    re.DOTALL,
)
_PLAN = re.compile(r"rejected by the user[^\n]*\n+(?!Rejected plan:)(.*)", re.DOTALL)

WORDINGS: Final[tuple[Wording, ...]] = (
    Wording("claude-code", "interrupt", "[Request interrupted by user"),
    Wording("claude-code", "reject", "The user doesn't want to proceed with this tool use", _SAID),
    Wording("claude-code", "reject", "The user doesn't want to take this action right now", _SAID),
    Wording("claude-code", "reject", "The agent proposed a plan that was rejected", _PLAN),
    Wording(
        client="claude-code",  # in a sub-agent; without words it may have been a rule
        kind="reject",
        begins="Permission for this tool use was denied. The tool use was rejected (eg. if it was "
        "a file edit, the new_string was NOT written to the file). The user said:",
        words=_SAID,
    ),
    Wording("codex", "interrupt", "<turn_aborted>"),
)
"""Source of each row: texts in recorded sessions of the client, or the client itself."""

_BY_KIND: Final = {
    kind: [(row.begins.lower(), row) for row in WORDINGS if row.kind == kind]
    for kind in ("interrupt", "reject")
}


def is_interruption(text: str) -> bool:
    """True if a client wrote this message to say that the person interrupted the model."""
    return _row(text, "interrupt") is not None


def rejection(text: str) -> str | None:
    """The person's words in the result of a call that they rejected, "" if there are none; None if
    the text is no such result."""
    row = _row(text, "reject")
    if row is None:
        return None
    found = row.words.search(text) if row.words else None
    return found[1].strip() if found else ""


def _row(text: str, kind: Kind) -> Wording | None:
    head = text[:_HEAD_CHARACTERS].lstrip().lower()
    return next((row for begins, row in _BY_KIND[kind] if head.startswith(begins)), None)
