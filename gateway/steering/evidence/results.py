"""Results of calls: equality without times and ids; refusals, results to come."""

import json
import re
from collections.abc import Mapping
from typing import Any

from gateway.core.short_cache import remembered
from gateway.steering.evidence.outcomes import is_empty
from gateway.steering.word_lists import word_list

HEAD_CHARS = 400
TAIL_CHARS = 600  # parts of a long result from which times and ids are removed

_WORD = re.compile(r"[^\W\d_]{2,}")
_LEAST_WORDS = 0.5  # words for each id or time that a result must have to be equal without it
_MOST_IDS = 20  # ids and times above which no more words are asked for
# What differs between two results that say the same: names with digits in them, long numbers,
# times, durations, temporary paths.
_IDS = re.compile(
    r"/(?:tmp|var/folders)/\S+|(?<![\w.])(?:[A-Za-z_]+\d\w*+|\d+(?:\.\d+)?\s?(?:ms|s|secs?|seconds)\b"
    r"|^\d+:|\d+[A-Za-z_]\w*+|\d{1,4}[:-]\d\d[:-]\d\d\S*|\d{1,2}:\d\d\b|\d{6,}+)",
    re.MULTILINE,
)


def sameness(text: str, *, exact: bool = False, image: int = 0) -> int:
    """Returns a digest that is equal for results that say the same; it holds within one process.
    Ids, times and durations do not count, unless the result has little else. `exact`: the text
    is content, which is compared unchanged; `image`: the digest of a picture in it, 0 for none."""
    if exact or not text:
        return hash((text, image))
    middle = ""
    shown = text
    if len(text) > HEAD_CHARS + TAIL_CHARS:
        middle = text[HEAD_CHARS:-TAIL_CHARS]
        shown = f"{text[:HEAD_CHARS]}\n{text[-TAIL_CHARS:]}"
    blanked, ids = _IDS.subn("#", shown)
    if ids and len(_WORD.findall(blanked)) < _LEAST_WORDS * min(ids, _MOST_IDS):
        blanked = shown
    return hash((blanked, middle, image))


STATUS_CHARS = 400  # length up to which an answer is a status and not content
_PENDING_WORDS = frozenset(word_list("pending_results", "pending_words"))
_PENDING_PAIRS = tuple(
    frozenset(pair.split()) for pair in word_list("pending_results", "pending_pairs")
)
_IN_PROGRESS = word_list("pending_results", "pending_endings")
_PERSON = re.compile(  # names of tools that ask a person, beginnings of what a person answered
    r"(?i)ask_?(?:the_?)?(?:user|human|follow|question)|user_?(?:input|question)"
    r"|\n(?:the )?user (?:has )?(?:answered|replied|responded|selected|chose)\b"
)
_PENDING_MARKS = re.compile(
    r'"(?:is_?)?(?:done|ready|complete|completed|finished|available)"\s*:\s*false'
    r'|"timed_?out"\s*:\s*true' + "|" + "|".join(word_list("pending_results", "pending_unspaced"))
)
_JOB = re.compile(  # names of tools that report the status of a job
    r"(?:^|[_\W]|(?<=[a-z]))(?:[Jj]ob|[Bb]uild|[Dd]eploy(?:ment)?|[Rr]ollout|[Pp]ipeline"
    r"|[Ww]orkflow|[Ee]xport|[Ii]mport|[Bb]atch|[Mm]igration|[Uu]pload|[Dd]ownload|[Bb]ackup|[Tt]raining"
    r"|[Rr]ender|[Cc]rawl|[Ss]can|[Ee]xecution)s?(?=$|[_\W]|[A-Z])"
)
_RUNNING = re.compile(r"<(?:retrieval_)?status>\s*(?:running|timeout|pending|not_ready)\b")
_STATUS = re.compile(r"(?:status|state|phase|stage)\W{1,4}([a-z_-]+)", re.IGNORECASE)
_ENDED = frozenset(word_list("pending_results", "ended"))
_TRANSIENT_WORDS = frozenset(word_list("pending_results", "transient_words"))
_PATH = re.compile(r"(?<!\S)\S[^\s/]*+/\S+")
_TRANSIENT_PHRASES = word_list("pending_results", "transient_phrases")


def is_pending(result: str, words: frozenset[str], operation: str = "") -> bool:
    """True for a short answer whose `words` say that work is in progress, or of a job tool whose
    status is not a final one: asking again is right."""
    if _RUNNING.match(result):
        return True  # with what it has written so far
    if len(result) > STATUS_CHARS or _PERSON.search(f"{operation}\n{result}"):
        return False
    if not words.isdisjoint(_PENDING_WORDS) or [p for p in _PENDING_PAIRS if p <= words]:
        return True
    in_progress = [word for word in words if f"_{word}".endswith(_IN_PROGRESS)]
    if in_progress or _PENDING_MARKS.search(result):
        return True
    status = None
    if _JOB.search(operation):
        status = _STATUS.search(result)
    return status is not None and status.group(1).lower() not in _ENDED


def is_transient(result: str, words: frozenset[str]) -> bool:
    """True for a short refusal that asks to retry later, such as a rate limit."""
    if len(result) > STATUS_CHARS:
        return False
    if not words.isdisjoint(_TRANSIENT_WORDS):
        return True
    lowered = _PATH.sub(" ", result.lower())  # files may have any name
    return bool([phrase for phrase in _TRANSIENT_PHRASES if phrase in lowered])


EMPTY = "empty"  # the kind of a look-up that found nothing
REFUSED = "refused"  # the kind of a request that was turned down

_MOST_CHARS = 300  # A longer answer has content
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
_COMPLAINT = re.compile(  # of a line, behind the name of the program
    r"(?mi)^(?:[\w./-]{1,40}: ){0,2}(?:fatal|refus(?:ed|ing)|abort(?:ed|ing)|can(?:no|')t|denied"
    r"|could ?n[o']t|unable|unknown|invalid|no match|not \w+(?:ed|ing))\b"
    r"|^(?-i:ERR_\w|E\d{2,5}\b)|\Afailed\b|^hint:|\bdid you mean\b"
    r"|\A(?-i:(?:[A-Z][a-z]+){0,3}(?:Stale|Invalid|Missing|Unknown|Denied|Expired|Conflict)"
    r"(?:[A-Z][a-z]+){0,3}: \S)"
)
_FALSE = re.compile(r'"(\w{2,30})":\s*false', re.IGNORECASE)
_DECIDED = frozenset(
    ("eligible", "allowed", "approved", "accepted", "authorized", "authorised", "permitted")
)
_STATED = re.compile(
    rf'"(?:status|state|result|decision|outcome)":\s*"({_DENIALS}|blocked|failed|invalid|locked)"',
    re.IGNORECASE,
)


def _decided_against(operation: str, result: str) -> bool:
    """Whether an answer says that what was asked for is not so: `"issued": false` of
    `issue_voucher`; that a card is blocked is no refusal of `block_card`."""
    parts = [part[:3] for part in re.split(r"[^a-z]+", operation.lower()) if len(part) > 2]
    said = [name.lower() for name in _FALSE.findall(result)]
    if [name for name in said if name in _DECIDED or name[:3] in parts]:
        return True
    found = _STATED.search(result)
    return found is not None and found[1].lower()[:3] not in parts


def says_no(operation: str, result: str, *, shows: bool = False) -> str | None:
    """EMPTY or REFUSED for an answer of the tool `operation` that reports no error; else None.
    `shows`: a shell's command only shows something."""
    if not result or len(result) > _MOST_CHARS:
        return None
    structured = result[0] in "{["
    if operation.startswith("$"):
        if not (shows or structured) and _COMPLAINT.search(result):
            return REFUSED
        return None
    if not is_look_up(operation):
        if structured:
            if _decided_against(operation, result):
                return REFUSED
            return None
        if _TURNED_DOWN.search(result) or _COMPLAINT.search(result):
            return REFUSED
        return None
    if not structured and ":" in result and _COMPLAINT.match(result):
        return REFUSED
    if structured:
        nothing = _holds_nothing(result)
    else:
        nothing = _NOTHING.match(result) is not None
    if nothing or is_empty(result):
        return EMPTY
    return None


@remembered
def is_look_up(operation: str) -> bool:
    """True if a tool only asks, by its name."""
    return _LOOK_UP.search(operation) is not None


def _holds_nothing(result: str) -> bool:
    try:
        value = json.loads(result)
    except (ValueError, RecursionError):
        return False
    if not isinstance(value, Mapping):
        return isinstance(value, list) and not value
    if any(value[name] in (0, False) for name in _COUNTS & value.keys()):
        return True
    contains = any(isinstance(each, Mapping | list) for each in value.values())
    return not value or (contains and _hollow(value))


def _hollow(value: Any) -> bool:
    """True if a JSON value consists of nothing but empty lists, objects, nulls, zeros."""
    if isinstance(value, Mapping):
        return all(_hollow(each) for each in value.values())
    return value in (None, 0, "", []) and value is not False
