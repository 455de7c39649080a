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
    "l\u00e4uft verarbeitet bearbeitung warteschlange procesando pendiente "
    "haz\u0131rlan\u0131yor i\u015fleniyor beklemede bekleniyor s\u00fcr\u00fcyor "
    "\u00e7al\u0131\u015f\u0131yor trakcie oczekuje przetwarzanie attesa elaborazione bezig "
    "wachten v\u00e4ntar p\u00e5g\u00e5r venter prob\u00edh\u00e1 \u010dek\u00e1 "
    "\u043e\u0431\u0440\u0430\u0431\u0430\u0442\u044b\u0432\u0430\u0435\u0442\u0441\u044f "
    "\u043e\u0436\u0438\u0434\u0430\u0435\u0442 "
    "\u043e\u0436\u0438\u0434\u0430\u043d\u0438\u0435 "
    "\u043e\u0447\u0435\u0440\u0435\u0434\u0438 "
    "\u0432\u0438\u043a\u043e\u043d\u0443\u0454\u0442\u044c\u0441\u044f "
    "\u043e\u0447\u0456\u043a\u0443\u0454 aguardando processando pendente esperando "
    "ejecutando \u0111ang sedang menunggu"
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
_JOB = re.compile(
    r"(?:^|[_\W]|(?<=[a-z]))(?:[Jj]ob|[Bb]uild|[Dd]eploy(?:ment)?|[Rr]ollout|[Pp]ipeline"
    r"|[Ww]orkflow|[Ee]xport|[Ii]mport|[Bb]atch|[Mm]igration|[Uu]pload|[Dd]ownload|[Bb]ackup|[Tt]raining"
    r"|[Rr]ender|[Cc]rawl|[Ss]can|[Ee]xecution)s?(?=$|[_\W]|[A-Z])"
)
"""Names of tools that tell how a job is getting on."""
_STATUS = re.compile(r"(?:status|state|phase|stage)\W{1,4}([a-z_-]+)", re.IGNORECASE)
_ENDED = _words(
    "done complete completed finished success successful succeeded ok passed ready ended closed "
    "fail failed failure error errored invalid cancelled canceled aborted rejected stopped "
    "terminated expired timeout timed_out deleted unknown not_found none null"
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


def is_unfinished_job(operation: str, result: str) -> bool:
    """True for a short answer of a tool for jobs whose status is no end, in whatever word."""
    if len(result) > STATUS_CHARS or _JOB.search(operation) is None:
        return False
    status = _STATUS.search(result)
    return status is not None and status.group(1).lower() not in _ENDED


def is_transient(result: str, words: frozenset[str]) -> bool:
    """True for a short refusal that asks to come back later, such as a rate limit."""
    if len(result) > STATUS_CHARS:
        return False
    lowered = result.lower()
    return not words.isdisjoint(_TRANSIENT_WORDS) or any(
        phrase in lowered for phrase in _TRANSIENT_PHRASES
    )
