"""Suite `reference`: the monitors with the formulas of the reference, on the text of one call at a
time."""

import re
from collections import Counter, deque
from collections.abc import Iterator
from itertools import pairwise

from gateway.core.ledger.ledger import LedgerStep
from gateway.core.monitors.alarms import Suite
from gateway.core.monitors.settings import MonitorSettings
from gateway.core.scoring.heuristic import HEDGES, HEDGES_PER_WORD
from gateway.core.step import Action, Step
from gateway.values import Value
from gateway.wire.coerce import lowered, word_count

# Plain substrings, so that "0 errors" is an error. Source: docs/names.md, the error flag.
ERROR_MARKS = ("error", "exception", "traceback", "failed", "not found", "assertion", "invalid")


class FormulaText(Value):
    """The texts of one call, as the formulas read them."""

    name: str  # of the tool; empty when nothing was called
    arguments: str  # as the client wrote them
    observation: str  # the result; empty when there is none
    lowered_observation: str  # the result in lower case, made once for all monitors
    thought: str  # text next to the call
    failed: bool  # flagged as an error, or reads like one


def calls_of(step: Step) -> Iterator[FormulaText]:
    """The calls of a step in order: parallel ones count each, the thought goes with the first."""
    for number, action in enumerate(step.actions or (Action(name=""),)):
        lower = lowered(action.observation)
        yield FormulaText(
            name=action.name,
            arguments=action.arguments,
            observation=action.observation,
            lowered_observation=lower,
            thought="" if number else step.thought,
            failed=action.is_error or any(mark in lower for mark in ERROR_MARKS),
        )


class ReferenceSuite(Suite[FormulaText]):
    """The active reference monitors over one run."""

    def __init__(self, settings: MonitorSettings):
        super().__init__(settings, settings)

    def push(self, read: LedgerStep) -> None:
        """Take the next step of the run."""
        for call in calls_of(read.step):
            for monitor in self.monitors.values():
                monitor.push(call)


class Streak:
    """Length of the newest run of equal tool names over the cap; a single call scores 0. Arguments
    are not compared, and steps without a call are passed over. Source: docs/names.md, the six
    monitors."""

    def __init__(self, settings: MonitorSettings):
        self._cap = settings.streak_cap
        self._name = ""
        self._length = 0

    def push(self, call: FormulaText) -> None:
        """Lengthen the streak, or begin another."""
        if call.name:
            self._length = self._length + 1 if call.name == self._name else 1
            self._name = call.name

    def reading(self) -> tuple[float, str]:
        """min(length / cap, 1) from the second equal call on."""
        if self._length <= 1:
            return 0.0, ""
        return min(self._length / self._cap, 1.0), f"{self._length} x {self._name[:60]} in a row"


class CallCount:
    """Calls so far over the budget. Source: docs/names.md, the six monitors."""

    def __init__(self, settings: MonitorSettings):
        self._budget = settings.call_budget
        self._calls = 0

    def push(self, call: FormulaText) -> None:
        """Count a call."""
        self._calls += bool(call.name)

    def reading(self) -> tuple[float, str]:
        """min(calls / budget, 1)."""
        if not self._calls:
            return 0.0, ""
        return min(self._calls / self._budget, 1.0), f"{self._calls} of {self._budget} calls"


EDIT_TOOLS = frozenset({"edit", "write", "str_replace", "str_replace_editor"}) | frozenset(
    {"patch", "apply_patch", "create_file", "overwrite"}
)
REVERT_MARGIN = 0.10
FULL_CYCLES = 2
# The distinct stretches of three characters, each as a triple (faster to make than text).
Trigrams = frozenset[tuple[str, str, str]]
_STRETCH = re.compile(r"[\w./\\\-]+")
_EXTENSION = re.compile(r"\.[A-Za-z]{1,5}")


class EditRevert:
    """1 for a newest edit that is nearer to the last but one than to the last; failed edits of one
    file in a row give 0.5 for the first and 1 from the second, and never expire. An error of any
    step marks the newest edit so far. Source: docs/names.md, the six monitors."""

    def __init__(self, _settings: MonitorSettings):
        self._before: deque[Trigrams] = deque(maxlen=2)
        self._path = ""
        self._failed = False
        self._reverted = False
        self._cycles: Counter[str] = Counter()
        self._worst = ""

    def push(self, call: FormulaText) -> None:
        """Observe an edit; any error counts against the newest one."""
        if call.name.lower() in EDIT_TOOLS:
            self._edit(call.arguments)
        self._failed = self._failed or call.failed

    def _edit(self, text: str) -> None:
        path = edited_path(text)
        if path and self._failed and path == self._path:
            self._cycles[path] += 1
            if self._cycles[path] > self._cycles[self._worst]:
                self._worst = path
        self._path = path
        self._failed = False
        newest = frozenset(zip(text, text[1:], text[2:], strict=False))
        if len(self._before) == 2:
            first, second = self._before
            self._reverted = overlap(newest, first) > overlap(newest, second) + REVERT_MARGIN
        self._before.append(newest)

    def reading(self) -> tuple[float, str]:
        """The larger of revert (0 or 1) and cycles / 2."""
        if self._reverted:
            return 1.0, "the newest edit restores the one before the last"
        if not (cycles := self._cycles[self._worst]):
            return 0.0, ""
        return min(cycles / FULL_CYCLES, 1.0), f"{cycles} failed edits of {self._worst[-80:]}"


def edited_path(text: str) -> str:
    """The first stretch of `text` that looks like a file name with an extension, or nothing. An
    extension longer than five letters is cut. Linear, unlike one pattern with two quantifiers."""
    for stretch in _STRETCH.finditer(text):
        name = stretch.group()
        at = len(name)
        while (at := name.rfind(".", 1, at)) > 0:
            if extension := _EXTENSION.match(name, at):
                return name[: extension.end()]
    return ""


def overlap(one: Trigrams, other: Trigrams) -> float:
    """Jaccard similarity in [0, 1]; 0 when either is empty."""
    if not one or not other:
        return 0.0
    common = len(one & other)
    return common / (len(one) + len(other) - common)


TEST_HINTS = ("pytest", "test", "run_tests", "npm test", "cargo test")
FAILURE_MARKS = ("assertionerror", "failed ", "failures=")
HEAD_CHARS = 60
SIGNATURE_CHARS = 200
# A prefix of this length, up to a line end, nearly always yields the whole signature.
_PREFIX_CHARS = 600

# What differs between two runs of one failing test, in the order of replacement. Each begins with
# one class of characters, which the search can skip to.
_HEX = "[0-9a-fA-F]"
_VOLATILE = tuple(
    re.compile(pattern)
    for pattern in (
        r"(?:/tmp/|C:\\Users\\|/var/folders/)\S*",
        rf"{_HEX}{_HEX}{{7}}-{_HEX}{{4}}-{_HEX}{{4}}-{_HEX}{{4}}-{_HEX}{{12}}",
        rf"0[xX]{_HEX}+",
        r"[pP][iI][dD][=: ]\d+",
        r"\d\d{3}-\d{2}-\d{2}[ T]\d{2}:\d{2}:\d{2}\S*",
        r"\d(?<!\w\d)\d{9,}+\b",
    )
)
_PLACEHOLDER = "#"


class TestRepeat:
    """1 once two neighbouring failures of test steps have one signature; never expires. Steps that
    are no failing tests add nothing and break nothing. Source: docs/names.md, the six monitors."""

    def __init__(self, _settings: MonitorSettings):
        self._last = ""
        self._repeated = ""

    def push(self, call: FormulaText) -> None:
        """Compare a failing test with the one before."""
        if self._repeated or not call.failed:
            return
        name = call.name.lower()
        lower = call.lowered_observation
        is_test = any(hint in name for hint in TEST_HINTS) or "test" in lower[:HEAD_CHARS]
        if not is_test and not any(mark in lower for mark in FAILURE_MARKS):
            return
        signature = failure_signature(call.observation)
        if signature and signature == self._last:
            self._repeated = signature
        self._last = signature

    def reading(self) -> tuple[float, str]:
        """1.0 after a repetition, else 0."""
        if not self._repeated:
            return 0.0, ""
        return 1.0, f"same failure twice: {' '.join(self._repeated.split())[:80]}"


def failure_signature(observation: str) -> str:
    """The first 200 characters of a failure without what changes from run to run. Temporary paths,
    identifiers, addresses, process ids, time stamps and long numbers become one placeholder each.
    Source: docs/names.md, the six monitors, failure signature."""
    text = observation.lstrip()
    if (cut := text.find("\n", _PREFIX_CHARS)) >= 0:
        # No volatile stretch crosses a line end, so a prefix of lines normalises by itself.
        signature = _normalised(text[:cut])
        if len(signature) >= SIGNATURE_CHARS:
            return signature[:SIGNATURE_CHARS]
    return _normalised(text)[:SIGNATURE_CHARS]


def _normalised(text: str) -> str:
    for pattern in _VOLATILE:
        text = pattern.sub(_PLACEHOLDER, text)
    return text.strip()


ONE_TOOL = 1.0
TWO_TOOLS = 0.7


class Diversity:
    """Distinct tools in the newest calls, once the run has made a minimum of calls. Strict
    alternation of two tools counts as healthy. Source: docs/names.md, the six monitors."""

    def __init__(self, settings: MonitorSettings):
        self._minimum = settings.diversity_min_total
        self._tail: deque[str] = deque(maxlen=settings.diversity_window)
        self._total = 0

    def push(self, call: FormulaText) -> None:
        """Observe the tool of a call."""
        if call.name:
            self._tail.append(call.name)
            self._total += 1

    def reading(self) -> tuple[float, str]:
        """1.0 for one tool, 0.7 for two that do not alternate, else 0."""
        tail = self._tail
        if self._total < self._minimum or len(tail) != tail.maxlen:
            return 0.0, ""
        distinct = len(set(tail))
        if distinct == 1:
            return ONE_TOOL, f"last {len(tail)} calls: only {tail[0][:60]}"
        if distinct > 2 or all(a != b for a, b in pairwise(tail)):
            return 0.0, ""
        return TWO_TOOLS, f"last {len(tail)} calls: only {' and '.join(sorted(set(tail)))[:120]}"


PHRASES = (*HEDGES, "let me think", "on second thought")
# One pattern per first word, each beginning with plain letters: a search for those is many times
# faster than for one pattern with alternatives.
_RETRACTIONS = tuple(
    re.compile(rf"{word}(?<!\w{word}){rest}\b")
    for word, rest in (
        *((noun, r"\s+is\s+(?:not|actually)") for noun in ("bug", "issue", "problem", "fix")),
        ("i", r"\s+was\s+wrong"),
        ("never", r"\s*mind"),
        ("disregard", r"\s+(?:that|my\s+last)"),
    )
)
# A shorter run has no halves worth comparing.
MIN_THOUGHTS = 4
HEALTHY_RATIO = 2.0
RATIO_SPAN = 3.0


class Hedge:
    """Hedging phrases per word, late against early; after a retraction the score stays 1. Source:
    docs/names.md, the six monitors."""

    def __init__(self, _settings: MonitorSettings):
        # Sums after each thought, from which both halves follow without going back.
        self._hedges = [0]
        self._words = [0]
        self._retraction = ""

    def push(self, call: FormulaText) -> None:
        """Count the phrases of a thought."""
        if not (thought := call.thought):
            return
        lower = lowered(thought)
        self._hedges.append(self._hedges[-1] + sum([lower.count(p) for p in PHRASES]))
        self._words.append(self._words[-1] + word_count(thought))
        if not self._retraction:
            self._retraction = retraction(lower)

    def reading(self) -> tuple[float, str]:
        """1 after a retraction; hedges per word in a short run; else the late over the early."""
        if self._retraction:
            return 1.0, f"retraction: {' '.join(self._retraction.split())}"
        hedges = self._hedges
        words = self._words
        half = (len(hedges) - 1) // 2
        early = hedges[half] / max(words[half], 1)
        late = (hedges[-1] - hedges[half]) / max(words[-1] - words[half], 1)
        if len(hedges) - 1 < MIN_THOUGHTS:
            score = min(hedges[-1] / (HEDGES_PER_WORD * words[-1] + 1), 1.0)
        elif not early:
            score = min(late / HEDGES_PER_WORD, 1.0)
        else:
            ratio = late / early
            score = 0.0 if ratio <= HEALTHY_RATIO else min((ratio - 1) / RATIO_SPAN, 1.0)
        return score, f"{hedges[-1]} hedges in {words[-1]} words" if score else ""


def retraction(lower: str) -> str:
    """Returns a retracting phrase in a lower-cased text, or "". Source: docs/names.md, the six
    monitors."""
    found = (pattern.search(lower) for pattern in _RETRACTIONS)
    return next((each.group() for each in found if each), "")
