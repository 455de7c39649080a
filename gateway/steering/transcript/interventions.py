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
    added in the rest of the text (group 1), None if the client passes nothing on. `has`: further
    words of the sentence, after a part that differs.
    """

    client: str
    kind: Kind
    begins: str
    words: re.Pattern[str] | None = None
    has: str = ""


_SAID = re.compile(
    r"[Tt]he user said:\s*(?!\s|The user wants to clarify these questions)"
    r"(.*?)(?:\s*Note: The user's next message may contain a .*)?$",
    re.DOTALL,
)
_PLAN = re.compile(r"rejected by the user[^\n]{0,200}\n+(?!Rejected plan:)(.*)", re.DOTALL)
_FEEDBACK = re.compile(r"User feedback:\s*(.*)", re.DOTALL)
_TOLD_BACK = re.compile(r"following feedback:\s*(.*)", re.DOTALL)
_FOLLOWING = re.compile(r"following message:\s*(.*)", re.DOTALL)
_REASON = re.compile(r"Action rejected:\s*+(?!User rejected the action)(.*)", re.DOTALL)

WORDINGS: Final[tuple[Wording, ...]] = (
    Wording("claude-code", "interrupt", "[Request interrupted by user"),
    Wording("claude-code", "reject", "The user doesn't want to proceed with this tool use", _SAID),
    Wording("claude-code", "reject", "The user doesn't want to take this action right now", _SAID),
    Wording("claude-code", "reject", "The agent proposed a plan that was rejected", _PLAN),
    # In a sub-agent; without words it may have been a rule.
    Wording(
        *("claude-code", "reject", "Permission for this tool use was denied. The tool use was"),
        *(_SAID, "the user said:"),
    ),
    Wording("codex", "interrupt", "<turn_aborted>"),
    Wording("codex", "reject", "exec command rejected by user"),
    Wording("codex", "reject", "patch rejected by user"),
    Wording("codex", "reject", "rejected by user"),
    Wording("codex", "reject", "exec_command failed", has="rejected by user"),
    Wording("gemini-cli", "reject", "[Operation Cancelled] Reason: User denied execution"),
    Wording("gemini-cli", "reject", "[Operation Cancelled] Reason: User did not allow"),
    Wording("gemini-cli", "interrupt", "[Operation Cancelled] "),
    Wording("gemini-cli", "reject", 'Tool "', has='" was canceled by the user'),
    Wording("gemini-cli", "interrupt", "Request cancelled."),
    Wording("gemini-cli", "interrupt", "Command was cancelled by user"),
    Wording("copilot-cli", "reject", "The user rejected this tool call", _FEEDBACK),
    Wording("copilot-cli", "reject", "The tool execution was denied by the user"),
    Wording("copilot-cli", "reject", "The tool call required approval from the user, but the user"),
    Wording("opencode", "reject", "The user rejected permission to use this specific", _TOLD_BACK),
    Wording("opencode", "reject", "The user dismissed this question"),
    Wording("openhands", "reject", "Action rejected: ", _REASON),
    Wording("openhands", "reject", "Action has been rejected by the user"),
    Wording("mini-swe-agent", "interrupt", "Interrupted by user: "),
    Wording("mini-swe-agent", "reject", "Commands not executed. ", _FOLLOWING),
    Wording("mini-swe-agent", "reject", "Command not executed. ", _FOLLOWING),
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
    head = text[:_HEAD_CHARACTERS].lstrip().removeprefix("Error: ").lower()
    found = (row for begins, row in _BY_KIND[kind] if head.startswith(begins))
    return next((row for row in found if row.has in head), None)
