"""Keys by which a failure is recognised in another run: its kind, its tool, a digest of its words.

The key is the same wherever a tool complains about the same thing, whatever the file, the number
or the name was; it never contains the tool's words."""

import hashlib
import re
from collections.abc import Collection
from itertools import pairwise

from gateway.core.step import Action
from gateway.data_files import read_toml
from gateway.steering.evidence.commands import ReadCall, read_call
from gateway.steering.evidence.outcomes import failure_line, readable, signature
from gateway.steering.evidence.results import EMPTY, is_transient, says_no
from gateway.values import Value

_KINDS: dict[str, dict[str, str]] = read_toml(__package__, "failure_kinds.toml")
_PATTERNS = [(kind, re.compile(row["pattern"], re.IGNORECASE)) for kind, row in _KINDS.items()]

_QUOTED = re.compile(r"'[^'\n]{0,200}'|\"[^\"\n]{0,200}\"|`[^`\n]{0,200}`")
_WORD = re.compile(r"[A-Za-z]++:?$")
_PART = re.compile(r"[a-z]{3,30}")
_MOST_WORDS = 12
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
    words: str  # of the tool's complaint, without names, numbers and quotations
    call: ReadCall  # the call that failed


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
        said = ""
    else:
        said = signature(line or opening)
    words = skeleton(said, _own_names(call))
    digest = hashlib.sha256(words.lower().encode("utf-8", "surrogatepass")).hexdigest()[:12]
    key = f"{kind}|{head}|{digest}"
    failure = Failure(key=key, kind=kind, head=head, words=words, call=call)
    return CallReading(call=call, head=head, failure=failure, transient=False)


def _own_names(call: ReadCall) -> frozenset[str]:
    """Returns the words of the call's own arguments. Where a complaint repeats them, they belong
    to one task and not to the kind of failure."""
    words = call.canonical[:_ERROR_CHARS].split()
    if call.operation.startswith("$"):
        words = [word for word in words[2:] if word[0] != "-"]  # past program and sub-command
    else:  # values of one word
        words = [a for a, b in pairwise([*words, "="]) if "=" in a and "=" in b]
    return frozenset(_PART.findall(" ".join(w.partition("=")[2] or w for w in words).lower()))


def skeleton(text: str, names: Collection[str] = ()) -> str:
    """The words that stay when `names`, paths, numbers and quotations are left out."""
    words: list[str] = []
    for word in _QUOTED.sub(" _ ", text).split():
        bare = word.strip("()[]{}<>,;.!?*=")
        kept = "_"
        if _WORD.match(bare) and bare.lower() not in names:
            kept = bare
        if kept != "_" or words[-1:] != ["_"]:
            words.append(kept)
    return " ".join(words[:_MOST_WORDS])
