"""Keys by which a failure is recognised in another run: its kind, its tool, a digest of its words.

The key is the same wherever a tool complains about the same thing, whatever the file, the number
or the name was; it never contains the tool's words."""

from __future__ import annotations

import hashlib
import re

from msgspec import Struct

from gateway.steering.evidence.commands import ReadCall, read_call
from gateway.steering.evidence.outcomes import failure_line, readable, signature
from gateway.steering.evidence.results import EMPTY, is_transient, says_no
from gateway.steering.transcript.steps import Action

KIND_WORDS: dict[str, str] = {  # the kinds, in words of ours
    "missing_command": "the command is not installed",
    "missing_module": "a module or package is missing",
    "refused_edit": "the edit was refused",
    "missing_file": "a file or folder is not there",
    "usage": "the call had wrong or missing arguments",
    "denied": "access was denied",
    "syntax": "the code could not be parsed",
    "test": "a test failed",
    "build": "the build failed",
    "not_found": "what was asked for was not found",
    "refused": "the request was refused",
    "empty": "nothing was found",
    "error": "it ended with an error",
}

_KINDS = {  # the first that matches a line counts
    "missing_command": r"command not found|is not recognized as|sh: \S+ not found"
    r"|executable file not found|(?:command|program) .{0,40}not installed",
    "missing_module": r"no module named|cannot find (?:module|package)|could not (?:find|resolve)"
    r" .{0,40}(?:artifact|dependenc|package|module)|package .{0,40} does not exist"
    r"|modulenotfounderror|importerror",
    "refused_edit": r"no replacement was performed|did not appear verbatim|text to replace|old_str"
    r"|new syntax error|patch (?:failed|does not apply)|edit (?:was |has )?(?:not|failed)",
    "missing_file": r"no such file|file .{0,60}(?:not found|does(?: not|n't) exist)"
    r"|path .{0,80}(?:not found|does(?: not|n't) exist)|filenotfounderror|not a directory",
    "usage": r"^usage:|invalid (?:option|argument|choice|value|parameter|format)|unrecognized"
    r"|unknown (?:tool|function|command|argument|option|parameter)|illegal option"
    r"|missing .{0,30}(?:argument|parameter|field)|unexpected keyword|required"
    r"|takes .{0,30}argument|unsupported",
    "denied": r"permission denied|access denied|not authorized|unauthorized|forbidden|\b40[13]\b",
    "syntax": r"syntaxerror|parse ?error|unexpected (?:token|eof|indent)|indentationerror",
    "test": r"assert|\d{1,6} (?:\w{1,40} )?(?:failed|failing|failures?)|--- fail"
    r"|^fail(?:ed|ures?)?\b|tests? failed|not ok",
    "build": r"compil|build fail|undefined (?:reference|symbol)|undefined:|linker|make: \*\*\*"
    r"|cannot find symbol|error\[e\d+\]|error ts\d+|failed to execute goal",
    "not_found": r"not found|does(?: not|n't) exist|no (?:such|matching|results?)\b|\b404\b",
    "refused": r"cannot|can't|could not|not (?:allowed|available|possible|permitted|valid|enough)"
    r"|invalid|unable to|failed to|already|exceed|mismatch|does not match",
}
_PATTERNS = [(kind, re.compile(pattern, re.IGNORECASE)) for kind, pattern in _KINDS.items()]

_QUOTED = re.compile(r"'[^'\n]{0,200}'|\"[^\"\n]{0,200}\"|`[^`\n]{0,200}`")
_WORD = re.compile(r"[A-Za-z]++:?$")
_MOST_WORDS, _ERROR_CHARS = 12, 400
_HEAD = re.compile(r"\$?[\w.-]{1,40}")
_PASSES = re.compile(  # faults of the moment
    r"\b(?:5\d\d|429)\b (?:\w+ ){0,3}|rate.?limit|too many requests|timed? ?out|overloaded"
    r"|temporarily|service unavailable|bad gateway|connection (?:reset|refused|aborted|closed)"
    r"|try again later|ECONNRESET|ETIMEDOUT",
    re.IGNORECASE,
)


class Failure(Struct, frozen=True, kw_only=True):
    """One failed call. `kind`: one of KIND_WORDS; `head`: the tool, or the program that a shell
    ran; `words`: of the tool's complaint, without names, numbers and quotations."""

    key: str
    kind: str
    head: str
    words: str
    call: ReadCall


class CallReading(Struct, frozen=True, kw_only=True):
    """One call for learning, and its failure or None. `transient`: it failed, or waits, for a
    reason that passes: that is no lesson."""

    call: ReadCall
    head: str
    failure: Failure | None
    transient: bool


def read_action(action: Action) -> CallReading:
    """The reading of one call with its result; never raises."""
    call = read_call(action.name, action.arguments)
    head = call.operation if _HEAD.fullmatch(call.operation) else "tool"
    result = readable(action.observation.strip())
    opening = result[:_ERROR_CHARS]
    line = failure_line(result, reads_content=call.effect.reads)
    if line is None and action.is_error:
        line = opening
    transient = call.effect.waits
    if line is None:
        kind = says_no(call.operation, result)
    else:
        kind = next((kind for kind, pattern in _PATTERNS if pattern.search(line)), "error")
        transient = transient or _PASSES.search(line[:_ERROR_CHARS]) is not None
        transient = transient or is_transient(opening, frozenset(opening.lower().split()))
    if kind is None or transient:
        return CallReading(call=call, head=head, failure=None, transient=transient)
    # The words in which a tool says that there is nothing do not make another failure.
    said = "" if line is None and kind == EMPTY else signature(line or opening)
    words = skeleton(said)
    digest = hashlib.sha256(words.lower().encode("utf-8", "surrogatepass")).hexdigest()[:12]
    key = f"{kind}|{head}|{digest}"
    failure = Failure(key=key, kind=kind, head=head, words=words, call=call)
    return CallReading(call=call, head=head, failure=failure, transient=False)


def skeleton(text: str) -> str:
    """The words that stay when names, paths, numbers and quotations are left out."""
    words: list[str] = []
    for word in _QUOTED.sub(" _ ", text).split():
        bare = word.strip("()[]{}<>,;.!?*=")
        kept = bare if _WORD.match(bare) else "_"
        if kept != "_" or words[-1:] != ["_"]:
            words.append(kept)
    return " ".join(words[:_MOST_WORDS])
