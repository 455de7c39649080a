"""Answers that mean "later": work in progress, and refusals that ask to retry."""

from __future__ import annotations

import re

from gateway.steering.word_lists import word_list

STATUS_CHARS = 400
"""Length up to which an answer is a status and not content."""
_PENDING_WORDS = frozenset(word_list("pending_results", "pending_words"))
_PENDING_PAIRS = tuple(
    frozenset(pair.split()) for pair in word_list("pending_results", "pending_pairs")
)
_IN_PROGRESS = (*word_list("pending_results", "pending_endings"), "in_progress")
_PENDING_MARKS = re.compile(
    r'"(?:is_?)?(?:done|ready|complete|completed|finished|available)"\s*:\s*false'
    r'|"timed_?out"\s*:\s*true' + "|" + "|".join(word_list("pending_results", "pending_unspaced"))
)
_JOB = re.compile(
    r"(?:^|[_\W]|(?<=[a-z]))(?:[Jj]ob|[Bb]uild|[Dd]eploy(?:ment)?|[Rr]ollout|[Pp]ipeline"
    r"|[Ww]orkflow|[Ee]xport|[Ii]mport|[Bb]atch|[Mm]igration|[Uu]pload|[Dd]ownload|[Bb]ackup|[Tt]raining"
    r"|[Rr]ender|[Cc]rawl|[Ss]can|[Ee]xecution)s?(?=$|[_\W]|[A-Z])"
)
"""Names of tools that report the status of a job."""
_STATUS = re.compile(r"(?:status|state|phase|stage)\W{1,4}([a-z_-]+)", re.IGNORECASE)
_ENDED = frozenset(word_list("pending_results", "ended"))
_TRANSIENT_WORDS = frozenset(word_list("pending_results", "transient_words"))
_TRANSIENT_PHRASES = word_list("pending_results", "transient_phrases")


def is_pending(result: str, words: frozenset[str]) -> bool:
    """True for a short answer whose `words` say that work is in progress: asking again is right."""
    if len(result) > STATUS_CHARS:
        return False
    if not words.isdisjoint(_PENDING_WORDS) or [p for p in _PENDING_PAIRS if p <= words]:
        return True
    if [word for word in words if word.endswith(_IN_PROGRESS)]:
        return True
    return not (result.isascii() and '"' not in result) and bool(_PENDING_MARKS.search(result))


def is_unfinished_job(operation: str, result: str) -> bool:
    """True for a short answer of a job tool whose status is not a final one."""
    if len(result) > STATUS_CHARS or _JOB.search(operation) is None:
        return False
    status = _STATUS.search(result)
    return status is not None and status.group(1).lower() not in _ENDED


def is_transient(result: str, words: frozenset[str]) -> bool:
    """True for a short refusal that asks to retry later, such as a rate limit."""
    if len(result) > STATUS_CHARS:
        return False
    if not words.isdisjoint(_TRANSIENT_WORDS):
        return True
    lowered = result.lower()
    return bool([phrase for phrase in _TRANSIENT_PHRASES if phrase in lowered])
