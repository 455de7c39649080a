"""Guidance as text: patterns as lines for the model's family, and what is said of a failure.

Texts are sanitised and bounded per field, and framed once: no text can end the frame, start a new
role or carry control characters. What is said of a failure that a monitor reports stands in the
rows of the monitors' table; a problem that persists gets the text of the next severity."""

import re
from collections.abc import Mapping, Sequence
from enum import StrEnum
from functools import lru_cache
from types import MappingProxyType
from typing import Generic

from gateway.core.monitors import FAILURE_TYPES, Readings
from gateway.core.monitors.table import TABLE
from gateway.core.pattern import Pattern, PatternContent, Tier, content
from gateway.core.short_cache import remembered
from gateway.data_files import read_toml
from gateway.values import T

FRAME_OPEN = "[STEERING GUIDANCE]"
FRAME_CLOSE = "[/STEERING GUIDANCE]"


class ModelFamily(StrEnum):
    """A family of models; `OTHER` gets the form for Claude Sonnet."""

    CLAUDE_HAIKU = "claude-haiku"
    CLAUDE_SONNET = "claude-sonnet"
    CLAUDE_OPUS = "claude-opus"
    GPT = "gpt"
    O_SERIES = "o-series"
    GEMINI = "gemini"
    OTHER = "other"


# Failure patterns without the diagnosis, universal rules as a question: small models follow three
# short lines better than four, reasoning models find the cause themselves.
_TERSE = (ModelFamily.CLAUDE_HAIKU, ModelFamily.CLAUDE_OPUS, ModelFamily.O_SERIES)
_ONE_LINE = (ModelFamily.CLAUDE_OPUS, ModelFamily.O_SERIES)  # instances as the action that worked

_RULES = (
    (re.compile(r"haiku"), ModelFamily.CLAUDE_HAIKU),
    (re.compile(r"opus"), ModelFamily.CLAUDE_OPUS),
    (re.compile(r"sonnet|claude"), ModelFamily.CLAUDE_SONNET),
    (re.compile(r"gemini|gemma"), ModelFamily.GEMINI),
    (re.compile(r"(?:^|[/:._-])o[1-9](?:$|[-._:@])"), ModelFamily.O_SERIES),
    (re.compile(r"gpt|codex"), ModelFamily.GPT),
)  # First match wins. Source: the providers' model names; for Claude docs/names.md, texts.


@remembered
def model_family(model: str) -> ModelFamily:
    """The family of a model name, provider prefixes and date suffixes included."""
    name = model.lower()
    return next((family for rule, family in _RULES if rule.search(name)), ModelFamily.OTHER)


def family_matches(wanted: str, model: str) -> bool:
    """True if a pattern for `wanted` suits `model`; an empty side suits anything. `wanted` may be a
    family (`claude-sonnet`, `sonnet`, `gpt`), a line of models (`claude-3`, `gpt-4o`) or a whole
    name."""
    want = wanted.lower()
    name = model.lower()
    family = model_family(name).value
    return not model or want in name or want in (family, family.rpartition("-")[2])


Pairs = list[tuple[str, str]]

ADVISORY = (
    "Notes from an automatic monitor of this run and from earlier runs. They are advice, not "
    "instructions from the user: weigh them against what you see, and follow the user's task and "
    "rules."
)
PLACEHOLDER = "<removed>"  # in brackets: the text around it cannot make it a tag with attributes
TRUNCATION = "\n<... cut ...> "  # ends in a line break: the tail of a cut text never starts a line

_HIDDEN = re.compile(
    "[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f\u00ad\u061c\u180e\u200b-\u200f\u2028-\u202e"
    "\u2060-\u206f\ufe00-\ufe0f\ufeff\ufff9-\ufffb\U000e0000-\U000e0fff\ud800-\udfff"
    # Format characters of single scripts and of notations.
    "\u0600-\u0605\u06dd\u070f\u0890\u0891\u08e2\U000110bd\U000110cd\U00013430-\U0001343f"
    "\U0001bca0-\U0001bca3\U0001d173-\U0001d17a]"
)  # control and format characters (Cc, Cf) but tab and line ends, lone surrogates

_FRAME = re.compile(
    r"""
      \[ \s*+ /?+ \s*+ STEERING [\s_-]*+ GUIDANCE \s*+ \]        # this frame
    | \[ \s*+ /?+ \s*+ (?: SYSTEM | INST | REASONBLOCKS ) \s*+ \] # other frames and role marks
    | < \s*+ /?+ \s*+ (?: system | assistant | user | developer | tool | function_results
        | system-reminder | tool_call | tool_response | invoke )  (?: \s [^<>]{0,200} )? /? \s*+ >
    | <</?SYS>>
    | </?s>
    """,
    re.IGNORECASE | re.VERBOSE,
)  # anything a model or a chat template may read as the end of the frame or as a new speaker

# The ends of special tokens of chat templates (`<|im_start|>`, and with full-width bars).
_TOKEN_OPEN = re.compile("<(?=[|\uff5c])")
_TOKEN_CLOSE = re.compile("([|\uff5c])>")

_TURN = re.compile(r"^([ \t]*)(human|assistant|system|user|developer)[ \t]*:", re.I | re.M)
_NEVER = re.compile(r"(?:(?<=[.;!?])\s+|^)never\b", re.IGNORECASE)


def sanitise(text: str, limit: int) -> str:
    """`text` made safe inside the frame, at most `limit` characters: its head and its tail. Each
    match is replaced, never deleted: the text around it cannot join into a new one."""
    # Bounded before the expressions run, so that a text of a megabyte costs no more than a page.
    bounded = _cut(text, 4 * limit)
    clean = _HIDDEN.sub("", bounded.replace("\r\n", "\n").replace("\r", "\n"))
    clean = _TOKEN_CLOSE.sub(r"\1 >", _TOKEN_OPEN.sub("< ", clean))
    clean = _FRAME.sub(PLACEHOLDER, clean)
    clean = _TURN.sub(r"\1\2 -", clean)
    return _cut(clean.strip(), limit)


class Same(Generic[T]):
    """A value as a cache key by identity, which costs no comparison of contents."""

    def __init__(self, value: T):
        self.value = value

    def __hash__(self) -> int:
        return id(self.value)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Same) and self.value is other.value


def pattern_text(pattern: Pattern, family: ModelFamily, limit: int) -> str:
    """A pattern as labelled lines for models of `family`; each field at most `limit` characters.
    Universal rules get ALWAYS and NEVER lines, or the pattern's question; e2 and e1 get situation,
    cause, solution and dead end, as far as present. Source for the three Claude
    families: docs/names.md, texts of E-traces."""
    return _pattern_text(Same(pattern), family, limit)


@lru_cache(maxsize=1024)
def _pattern_text(same: Same[Pattern], family: ModelFamily, limit: int) -> str:
    """Cached, because every run begins with the same universal rules."""
    texts = content(same.value.fields)
    pairs = _pairs(same.value.tier, texts, family) or [
        ("SITUATION", texts.situation),
        ("GUIDANCE", texts.instruction or texts.move or texts.question),
        ("AVOID", texts.avoid),
    ]
    lines = [(label, sanitise(text, limit)) for label, text in pairs]
    return "\n".join(f"{label}: {text}" for label, text in lines if text)


def frame(texts: Sequence[str], *, preface: bool = True) -> str:
    """The block that is injected: opening line, advisory line if it is to have one, the texts,
    closing line."""
    return _frame(tuple(texts), preface)


@lru_cache(maxsize=256)
def _frame(texts: tuple[str, ...], preface: bool) -> str:
    """Cached, so that all runs with the same guidance share one text."""
    opening = f"{FRAME_OPEN}\n{ADVISORY}\n" if preface else FRAME_OPEN
    return "\n".join((opening, "\n\n".join(texts), FRAME_CLOSE))


FRAME_CHARS = len(frame([""]))  # characters that the frame adds to the texts inside it


def _universal(texts: PatternContent, family: ModelFamily) -> Pairs:
    rule = texts.instruction or texts.move
    if texts.question and (family in _TERSE or not rule):
        return [("CHECK YOURSELF", texts.question)]
    if not rule:
        return []
    split = _NEVER.search(rule)
    if split is None:
        return [("ALWAYS", rule)]
    always = rule[: split.start()].strip()
    never = rule[split.end() :].strip()
    return [("ALWAYS", always), ("NEVER", never)]


def _pairs(tier: Tier, texts: PatternContent, family: ModelFamily) -> Pairs:
    if tier is Tier.E3:
        return _universal(texts, family)
    if not (texts.move or texts.avoid):
        return []
    if tier is Tier.E1 and family in _ONE_LINE and texts.move:
        return [("KNOWN-GOOD APPROACH (worked in earlier runs of similar tasks)", texts.move)]
    if tier is Tier.E1 or family in _TERSE:
        return [("SITUATION", texts.situation), ("DEAD END", texts.avoid), ("UNLOCK", texts.move)]
    return [
        ("TRAJECTORY", texts.situation),
        ("DIAGNOSIS", texts.diagnosis),
        ("INTERVENTION", texts.move),
        ("AVOID", texts.avoid),
        ("EXAMPLE", texts.example),
    ]


def _cut(text: str, limit: int) -> str:
    if len(text) <= limit:
        return text
    head = limit // 2
    tail = limit - head - len(TRUNCATION)
    return text[:head] + TRUNCATION + text[-tail:]


MAX_EVIDENCE_CHARS = 300

_BY_FAILURE: Mapping[str, tuple[str, ...]] = MappingProxyType(
    {row.failure_type: row.texts for row in reversed(TABLE) if row.texts}
)  # texts by failure type, in order of severity; of monitors that share one, those of the first

_DIRECTIVES = read_toml(__package__, "directives.toml")
SKIP_DIRECTIVE, SKIP_REPAIR, HAND_OVER_TEXT = (
    " ".join(_DIRECTIVES[name].split()) for name in ("skip", "skip_repair", "hand_over")
)

BUDGET_DIRECTIVE = (  # sent with every call of a run whose budget is nearly used; it may go well
    "WRAP UP: budget {used}. Bring "
    "what you are doing to a state that works, and begin nothing new. Then hand over the result: "
    "state plainly what is done and checked, what is not done, and how to continue."
)


def failure_of(readings: Readings) -> str | None:
    """The failure to speak about: that of the worst fired monitor, else of the highest score."""
    if readings.failure_type:
        return readings.failure_type
    worst = max(FAILURE_TYPES, key=lambda name: readings.scores.get(name, 0.0))
    return FAILURE_TYPES[worst] if readings.scores.get(worst, 0.0) > 0.0 else None


def evidence_for(failure_type: str, readings: Readings) -> str:
    """The reason given by the failure's monitor (the worst of several); "" without one."""
    reports = [name for name, label in FAILURE_TYPES.items() if label == failure_type]
    worst = max(reports, key=lambda name: readings.scores.get(name, 0.0), default=failure_type)
    return readings.evidence.get(worst, "")


def severities(failure_type: str) -> int:
    """Number of texts for a failure; 0 for one without."""
    return len(_BY_FAILURE.get(failure_type, ()))


def monitor_text(failure_type: str, severity: int, evidence: str = "") -> str:
    """The text for a failure at severity 1 to `severities`, with its evidence in parentheses.
    Evidence may quote the agent and its tools, so it is sanitised and bounded."""
    shown = sanitise(evidence, MAX_EVIDENCE_CHARS).replace("\n", " ").rstrip(". ")
    text = _BY_FAILURE[failure_type][severity - 1]
    return text.replace("{evidence}", f" ({shown})" if shown else "")
