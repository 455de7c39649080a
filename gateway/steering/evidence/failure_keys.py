"""Keys by which a failure is recognised in another run: its kind, its tool, a digest of its words.

The key is the same wherever a tool complains about the very same thing: what it quotes and its
codes count, numbers and the names in the call do not. It never contains the tool's words."""

import re
from hashlib import sha256
from itertools import pairwise

from gateway.core.step import Action
from gateway.data_files import read_toml
from gateway.steering.evidence.commands import ReadCall, read_call
from gateway.steering.evidence.outcomes import failure_line, readable, signature
from gateway.steering.evidence.results import EMPTY, is_transient, says_no
from gateway.values import Value

_KINDS: dict[str, dict[str, str]] = read_toml(__package__, "failure_kinds.toml")
_PATTERNS = [(kind, re.compile(row["pattern"], re.IGNORECASE)) for kind, row in _KINDS.items()]

_PART = re.compile(r"[a-z]{3,30}")
_CODE = re.compile(r"[^\W\d][\w-]*|\d\w*[a-z]\w*")
_STATUS = re.compile(r"\bhttp(?:/[\d.]+)?(?: status)?[ :]+([45]\d\d)\b")
_ERROR_CHARS = 400
_HEAD = re.compile(r"\$?[\w.-]{1,40}")
_PASSES = re.compile(  # faults of the moment
    r"\b(?:5\d\d|429)\b (?:\w+ ){0,3}|rate.?limit|too many requests|timed? ?out|overloaded"
    r"|temporarily|service unavailable|bad gateway|connection (?:reset|refused|aborted|closed)"
    r"|try again later|ECONNRESET|ETIMEDOUT",
    re.IGNORECASE,
)


class Failure(Value):
    """One failed call."""

    key: str  # under which lessons about this failure are stored
    kind: str  # a kind of `failure_kinds.toml`, else `error` or `empty`
    head: str  # the tool, or the program that a shell ran
    words: str  # of the tool's complaint, without numbers and the call's own names


class CallReading(Value):
    """One call as learning reads it."""

    call: ReadCall  # its operation, arguments and effect
    head: str  # the tool, or the program that a shell ran
    failure: Failure | None  # None when the call did not fail
    transient: bool  # it failed or waits for a reason that passes, which is no lesson


def read_action(action: Action) -> CallReading:
    """The reading of one call with its result; never raises."""
    call = read_call(action.name, action.arguments)
    head = "tool"
    if _HEAD.fullmatch(call.operation):
        head = call.operation
    result = readable(action.observation.strip())
    opening = result[:_ERROR_CHARS]
    line = failure_line(result, reads_content=call.effect.reads)
    if line is None and action.is_error:
        line = opening
    transient = call.effect.waits
    if line is None:
        shows = call.effect.reads or call.effect.looks_up
        kind = says_no(call.operation, result, shows=shows)
    else:
        kind = next((kind for kind, pattern in _PATTERNS if pattern.search(line)), "error")
        transient = transient or _PASSES.search(line[:_ERROR_CHARS]) is not None
        transient = transient or is_transient(opening, frozenset(opening.lower().split()))
    if kind is None or transient:
        return CallReading(call=call, head=head, failure=None, transient=transient)
    # The words in which a tool says that there is nothing do not make another failure.
    if line is None and kind == EMPTY:
        words = ""
    else:
        words = _words(signature(line or opening), call)
    digest = sha256(words.encode("utf-8", "surrogatepass")).hexdigest()[:12]
    key = f"{kind}|{head}|{digest}"
    failure = Failure(key=key, kind=kind, head=head, words=words)
    return CallReading(call=call, head=head, failure=failure, transient=False)


def _words(said: str, call: ReadCall) -> str:
    """The words of a complaint in lower case, with what it quotes and its codes; without numbers
    and the names and objects of the call itself. A status of HTTP is a code."""
    names = _own_names(call).union(_PART.findall(" ".join(call.question.objects)))
    words = [
        "_" if word in names or not names.isdisjoint(_PART.findall(word)) else word
        for word in _CODE.findall(_STATUS.sub(r"http_\1", said.lower()))
    ]
    return " ".join(words)


def _own_names(call: ReadCall) -> frozenset[str]:
    """Returns the words of the call's own arguments. Where a complaint repeats them, they belong
    to one task and not to the kind of failure."""
    words = call.canonical[:_ERROR_CHARS].split()
    if call.operation.startswith("$"):
        words = [word for word in words[2:] if word[0] != "-"]  # past program and sub-command
    else:  # values of one word
        words = [a for a, b in pairwise([*words, "="]) if "=" in a and "=" in b]
    own = " ".join(word.partition("=")[2] or word for word in words).lower()
    return frozenset((*_PART.findall(own), *_CODE.findall(own)))
