"""Answers that mean "later": work that goes on, and refusals that ask to come back."""

from __future__ import annotations

import re


def _words(text: str) -> frozenset[str]:
    return frozenset(text.split())


STATUS_CHARS = 400
"""Length up to which an answer is a status and not content."""
_PENDING_WORDS = _words(
    "running pending queued waiting progress processing in_progress starting "
    "initializing building provisioning scheduled unfinished incomplete "
    "inprogress submitted enqueued "
    "\u0432\u044b\u043f\u043e\u043b\u043d\u044f\u0435\u0442\u0441\u044f "
    "l\u00e4uft verarbeitet bearbeitung warteschlange procesando pendiente"
)
_PENDING_PAIRS = (
    frozenset({"not", "ready"}),
    frozenset({"not", "finished"}),
    frozenset({"not", "done"}),
    frozenset({"not", "yet"}),
    frozenset({"no", "yet"}),
    frozenset({"no", "new"}),
    frozenset({"en", "cours"}),
    frozenset({"en", "attente"}),
    frozenset({"en", "proceso"}),
    frozenset({"em", "andamento"}),
)
_PENDING_ENDINGS = tuple(
    _words(
        "creating processing progressing pulling uploading downloading compiling converting "
        "indexing syncing training deploying rendering installing generating loading booting "
        "migrating exporting importing analyzing encoding connecting stopping scaling allocating "
        "validating verifying executing queuing preparing"
    )
)
_PENDING_MARKS = re.compile(
    r'"(?:is_?)?(?:done|ready|complete|completed|finished|available)"\s*:\s*false'
    r'|"timed_?out"\s*:\s*true'
    r"|\u5904\u7406\u4e2d|\u8655\u7406\u4e2d|\u51e6\u7406\u4e2d|\u8fdb\u884c\u4e2d|\u9032\u884c\u4e2d"
    r"|\u6392\u961f|\u7b49\u5f85|\u5b9f\u884c\u4e2d|\u8fd0\u884c\u4e2d|\u6267\u884c\u4e2d"
    r"|\uc9c4\ud589 ?\uc911"
)
_TRANSIENT_WORDS = _words("429 502 503 504 busy retry")
_TRANSIENT_PHRASES = (
    *(
        "rate limit",
        "rate-limit",
        "ratelimit",
        "rate_limit",
        "rate exceeded",
        "throttl",
        "overload",
    ),
    *("quota", "temporar", "unavailable", "too many", "many requests", "slow down", "try again"),
    *("zu viele", "trop de", "demasiad", "l\u00edmite de", "m\u00e1s tarde", "plus tard"),
    *("sp\u00e4ter erneut", "\u8bf7\u6c42\u8fc7\u4e8e", "\u983b\u7e41", "\u7a0d\u540e"),
    *("\u7a0d\u5f8c", "\u3057\u3070\u3089\u304f", "\uc7a0\uc2dc \ud6c4"),
)


def is_pending(result: str, words: frozenset[str]) -> bool:
    """True for a short answer whose `words` say that work goes on: asking again is right."""
    if len(result) > STATUS_CHARS:
        return False
    if not words.isdisjoint(_PENDING_WORDS) or any(pair <= words for pair in _PENDING_PAIRS):
        return True
    if any(word.endswith(_PENDING_ENDINGS) for word in words if word[-3:] == "ing"):
        return True
    if any(word.endswith("in_progress") for word in words):
        return True
    return not (result.isascii() and '"' not in result) and bool(_PENDING_MARKS.search(result))


def is_transient(result: str, words: frozenset[str]) -> bool:
    """True for a short refusal that asks to come back later, such as a rate limit."""
    if len(result) > STATUS_CHARS:
        return False
    lowered = result.lower()
    return not words.isdisjoint(_TRANSIENT_WORDS) or any(
        phrase in lowered for phrase in _TRANSIENT_PHRASES
    )
