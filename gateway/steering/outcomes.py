"""What a tool result says about success: failures, their signature, and answers that mean "later".

A result counts as a failure only where a tool would report one: a line that a shell, compiler,
interpreter or test runner prints, or an error member of a JSON answer. Words inside source code,
documentation or a count of zero are not failures.
"""

from __future__ import annotations

import re


def _words(text: str) -> frozenset[str]:
    return frozenset(text.split())


HEAD_CHARS = 500
TAIL_CHARS = 1500
SIGNATURE_CHARS = 160
STATUS_CHARS = 400
_LINE_CHARS = 300
_MAX_LINES = 16
_READ_FAILURE_CHARS = 600

_SUSPECT_WORDS = (
    "error",
    "fail",
    "exception",
    "traceback",
    "not found",
    "no such",
    "denied",
    "exit",
    "returncode",
    "usage:",
    "invalid",
    "no replacement",
    "not appear verbatim",
    "refused",
    "timed out",
    "timeout",
    "npm err",
    "panic",
    "fatal",
    "unavailable",
    "too many requests",
    "rate limit",
    "syntax",
    "segmentation",
    "cannot",
    "unable to",
)
_FAILURE_LINE = re.compile(
    r"""(?x)(?:
      Traceback\ \(most\ recent\ call\ last\)
    | (?:[A-Za-z_][\w.]*)?(?:Error|Exception|Fault)(?:\ \[[^\]]*\])?:(?:\ |$)
    | [A-Za-z_][\w.]*(?:Error|Exception|Interrupt)$
    | (?:fatal|FATAL|error|ERROR|Error|panic|PANIC|Fatal)(?:\[\w+\])?(?:\ [\w.-]+)?:\ ?\S
    | \[(?:ERROR|FATAL)\]
    | E\ \ +\S
    | npm\ (?:ERR!|error)
    | (?:/\S*/)?(?:ba|z|da|k|fi)?sh:\ \S
    | \S+:\ (?:\S+:\ )?(?:command\ not\ found|cannot\ \w+|No\ such\ file|Permission\ denied)
    | \S+:\ (?:invalid\ option|unrecognized|illegal\ option)
    | \S+:\d+(?::\d+)?:\ (?:fatal\ )?error:
    | (?:FAILED|FAIL|ERROR)(?:\ |:|$|\()
    | BUILD\ FAIL | ---\ FAIL | make:\ \*\*\* | thread\ '[^']*'\ panicked | Segmentation\ fault
    | (?:OCI\ runtime\ )?exec\ failed | Command\ failed
    | No\ replacement\ was\ performed | Invalid\ [`'"\w] | Usage:\ \S
    | (?:Error|HTTP(?:/[\d.]+)?)[\ :]+[45]\d\d\b
    )"""
)
_FAILURE_PART = re.compile(
    r"""(?x)
      \b[1-9]\d*\ (?:failed|failing|errors?|failures?)\b(?=[\s,.;)]|$)
    | \b(?:Failures|Errors):\ [1-9] | \b(?:failures|errors)=[1-9] | test\ result:\ FAILED
    | (?:\bexit(?:ed)?(?:\ with)?(?:\ code|\ status)?|exitcode|return\ ?code)[:=\s]*[1-9]
    | returncode>\s*[1-9]
    | did\ not\ appear\ verbatim | has\ introduced\ new\ syntax\ error
    | \b(?:execution\ failed|timed\ out|[Pp]ermission\ denied|[Cc]onnection\ refused)
    | \b(?:Service\ Unavailable|Too\ Many\ Requests|[Rr]ate\ limit)
    | \b(?:string|file|path|module|old_str\w*)\b.{0,60}\b(?:not\ found|does\ not\ exist)
    | \b(?:is\ not|not\ a)\ (?:a\ )?valid\b
    """
)
_COUNT = re.compile(r"\b\d+ (?:failed|failing|errors?|failures?)\b|\b(?:failures|errors)=\d", re.I)
_ZERO = re.compile(
    r"\b(?:0|no|zero|without)\s+(?:\w+\s+)?(?:errors?|failures?|failed|exceptions?|problems?)\b",
    re.IGNORECASE,
)
_LISTING = re.compile(
    r"Here's the (?:result of running|files and dir)|\[File: |<NOTE>This file|\s*\d+[:|\t]|\s+\d+\s"
)
_GREP_HIT = re.compile(r"[^\s:]+:\d+[:-]")
_JSON_ERROR = re.compile(
    r'"(?:error|errors|error_message)":\s*(?!null|""|\[\]|\{\}|false)\S|"is_?error":\s*true'
    r'|"success":\s*false|"status":\s*"(?:error|failed|failure)"',
    re.IGNORECASE,
)
# One leading character class lets the search skip from candidate to candidate.
_VOLATILE = re.compile(
    r"[0-9/](?:(?<=/)tmp/\S+|(?<=0)x[0-9a-fA-F]+|(?<=\d)(?:\d:\d\d:\d\d\S*|\d*(?=:)|\d{3,}"
    r"|\d*(?:\.\d+)?\s?(?:ms|s|secs?|seconds)\b))"
)
_PENDING_WORDS = _words(
    "running pending queued waiting progress processing in_progress starting "
    "initializing building provisioning scheduled unfinished incomplete started "
    "inprogress"
)
_PENDING_PAIRS = (
    frozenset({"not", "ready"}),
    frozenset({"not", "finished"}),
    frozenset({"not", "done"}),
)
_TRANSIENT_WORDS = _words(
    "429 502 503 504 overloaded temporarily temporary retry unavailable throttled "
    "throttling rate_limit ratelimit rate_limit_exceeded rate_limited"
)
_TRANSIENT_PAIRS = (
    frozenset({"rate", "limit"}),
    frozenset({"try", "again"}),
    frozenset({"too", "requests"}),
)
_EMPTY_ANSWERS = frozenset({"", "[]", "{}", "null", "none", "()", "no output"})
_EMPTY_OPENING = re.compile(
    r"no (?:matches|results|files|output|data)\b|nothing (?:was )?found|0 results"
    r"|your (?:last )?command ran successfully and did",
    re.IGNORECASE,
)


def excerpt(text: str) -> str:
    """The head and the tail of a result, at most 2,001 characters: where tools put the verdict."""
    if len(text) <= HEAD_CHARS + TAIL_CHARS:
        return text
    return f"{text[:HEAD_CHARS]}\n{text[-TAIL_CHARS:]}"


def without_volatile(text: str) -> str:
    """The text with times, addresses, temporary paths and line numbers replaced by one mark."""
    return _VOLATILE.sub("#", text)


def failure_line(result: str, *, reads_content: bool = False) -> str | None:
    """The line in which a result reports a failure, or None when it reports none.

    `reads_content` says that the tool shows files or search hits: then only a short answer whose
    first line is the tool's own complaint counts. Never raises.
    """
    if not result:
        return None
    if result[0] in "{[":
        head = result[:HEAD_CHARS]
        return head[:SIGNATURE_CHARS] if _JSON_ERROR.search(head) else None
    if _LISTING.match(result) or (reads_content and len(result) > _READ_FAILURE_CHARS):
        return None
    text = excerpt(result)
    lowered = text.lower()
    suspects = [word for word in _SUSPECT_WORDS if word in lowered]
    if not suspects:
        return None
    return _complaint(text) if reads_content else _last_failure(text, lowered, suspects)


def _complaint(text: str) -> str | None:
    first = text.split("\n", 1)[0][:_LINE_CHARS]
    if _GREP_HIT.match(first):
        return None
    return first if _is_failure(first.strip()) else None


def _last_failure(text: str, lowered: str, suspects: list[str]) -> str | None:
    """The last line that says what failed, with the runner's count of failures when it gives one.

    The count belongs to it: one failure less under the same last message is progress.
    """
    if len(lowered) != len(text):  # a few letters change length with their case
        text = lowered
    count = headline = None
    end = len(text)
    for _ in range(_MAX_LINES):
        position = max([lowered.rfind(word, 0, end) for word in suspects])
        if position < 0:
            break
        start = text.rfind("\n", 0, position) + 1
        line = text[start : start + _LINE_CHARS].split("\n", 1)[0].strip()
        end = start
        if not _is_failure(line):
            continue
        if line.startswith("Traceback"):
            headline = line
        elif _COUNT.search(line) is None:
            return line if count is None else f"{count} / {line}"[:_LINE_CHARS]
        else:
            count = count or line.strip("= ")
    return count or headline


def _is_failure(line: str) -> bool:
    if _FAILURE_LINE.match(line) is None and _FAILURE_PART.search(line) is None:
        return False
    if _ZERO.search(line) is None:
        return True
    return _FAILURE_PART.search(_ZERO.sub("", line)) is not None


def signature(line: str) -> str:
    """What stays the same when one failure is met again: the line without its volatile parts."""
    return " ".join(without_volatile(line).split())[:SIGNATURE_CHARS]


def is_empty(result: str) -> bool:
    """True for an answer that carries nothing: blank, an empty list, "no matches found"."""
    text = result[:80].strip()
    return text.lower() in _EMPTY_ANSWERS or _EMPTY_OPENING.match(text) is not None


def is_pending(result: str, words: frozenset[str]) -> bool:
    """True for a short answer whose `words` say that work goes on: asking again is right."""
    if len(result) > STATUS_CHARS:
        return False
    return not words.isdisjoint(_PENDING_WORDS) or any(pair <= words for pair in _PENDING_PAIRS)


def is_transient(result: str, words: frozenset[str]) -> bool:
    """True for a short refusal that asks to come back later, such as a rate limit."""
    if len(result) > STATUS_CHARS:
        return False
    return not words.isdisjoint(_TRANSIENT_WORDS) or any(pair <= words for pair in _TRANSIENT_PAIRS)
