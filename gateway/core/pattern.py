"""Patterns, lessons, the query of a look-up and its answer.

A pattern's `fields` may have any of three shapes; `content()` reads them all into one:

* per tier: e1 `task_context_embedding_text`, `observation`, `recommended_action`;
  e2 `trigger_state.trajectory_description`, `diagnosis`, `intervention`, `anti_pattern`, and
  `trigger_state.examples`, texts that agents write in that situation;
  e3 `instruction`, `meta_reasoning_prompt`;
* generic: `title`, `guidance`, `example`, `tags`;
* short: `situation`, `dead_ends`, `unlock`."""

import json
import re
from collections.abc import Mapping
from enum import StrEnum
from hashlib import sha256
from typing import Any
from unicodedata import normalize

from msgspec import field
from msgspec.structs import replace

from gateway.values import Fields, Value


class Status(StrEnum):
    """The state of a lesson. Only `trial` and `active` ones are retrieved."""

    CANDIDATE = "candidate"
    TRIAL = "trial"
    ACTIVE = "active"
    QUARANTINED = "quarantined"
    RETIRED = "retired"


RETRIEVED = (Status.TRIAL, Status.ACTIVE)
# Origin of lessons that say what ended an exact failure; also the kind of their evidence.
ENDED = "ended"


class Trust(StrEnum):
    """The least trusted source of a lesson's text, the most trusted first."""

    OPERATOR = "operator"
    TEMPLATE = "template"
    USER = "user"
    MODEL = "model"
    TOOL = "tool"

    @property
    def advises(self) -> bool:
        """True if the text may be phrased as advice; otherwise it is shown as a quotation."""
        return self in (Trust.OPERATOR, Trust.TEMPLATE)


class Lesson(Value):
    """Data that makes a pattern a lesson."""

    key: str  # of the failure that it answers, see `evidence.failure_keys`
    status: Status = Status.CANDIDATE  # only a lesson in trial or active is looked up
    version: int = 1  # from 1; an edited lesson is a new one, one version later
    supersedes: str = ""  # id of the lesson that it replaces; "" for the first version
    # `said` by a person, `distilled` from runs, or `written` by an operator
    origin: str = "distilled"
    trust: Trust = Trust.TEMPLATE  # who vouches for the text; decides how it is framed
    applies_when: Mapping[str, str] = {}  # conditions and marks, by name
    last_confirmed_at: float = 0.0  # epoch seconds of the newest run that supports it; 0 = never
    share: float = 0.5  # of the occasions on which it is given, in (0, 1)


MAX_TEXT_CHARS = 64_000  # of one field. Source: the reference's limit for texts in its API
MAX_NUMBER = 2**53  # of a payload. Source: RFC 8259, section 6, on interoperable numbers
MAX_ID_CHARS = 128  # longest pattern id, tenant or model family that is accepted
_SPACE = re.compile(r"\s+")


class Tier(StrEnum):
    """Generality of a pattern: one instance, a kind of failure, or a universal rule."""

    E1 = "e1"
    E2 = "e2"
    E3 = "e3"


class Pattern(Value):
    """One stored piece of learned guidance. Raises: ValueError, with the field's name in front,
    for anything that cannot be stored."""

    tier: Tier  # e1 (an instance), e2 (a kind of failure) or e3 (a universal rule)
    fields: Fields  # the payload as JSON values; its shape depends on the tier
    pattern_id: str = ""  # unique within a store; "" before it is stored
    tenant: str = ""  # owner; "" for shared patterns (e3, and e2 without a lesson)
    failure_type: str | None = None  # label of the only failure it is for; None = any
    model_family: str = ""  # the only family it is for, such as `claude`; "" = any
    # replaces the tier's injection gate, cosine in [0, 1]; None = the tier's
    gate_threshold: float | None = None
    source_trace_id: str | None = None  # the run that taught it; None when no run did
    lesson: Lesson | None = None  # its trial and origin; None for a pattern that was not learned

    def __post_init__(self) -> None:
        _check_fields(self.fields)
        for name in ("pattern_id", "tenant", "model_family", "source_trace_id"):
            value = getattr(self, name) or ""
            if len(value) > MAX_ID_CHARS:
                raise ValueError(f"{name}: longer than {MAX_ID_CHARS} characters")
            if not value.isprintable():
                raise ValueError(f"{name}: control characters are not allowed")
        owned = self.tier is Tier.E1 or (self.tier is Tier.E2 and self.lesson is not None)
        if self.tenant and not owned:
            tier = self.tier.value
            raise ValueError(f"tenant: a pattern of tier {tier} is shared, not a tenant's")
        if self.gate_threshold is not None and not 0.0 <= self.gate_threshold <= 1.0:
            raise ValueError(f"gate_threshold: {self.gate_threshold!r} is not in [0, 1]")
        texts = content(self.fields)
        if not (texts.move or texts.avoid or texts.instruction or texts.question):
            raise ValueError("fields: no text that could be shown to a model")


class PatternContent(Value):
    """The texts of a payload by their meaning, whatever its shape; "" = absent."""

    situation: str = ""  # when the advice applies
    diagnosis: str = ""  # why runs fail there
    move: str = ""  # what to do
    avoid: str = ""  # what not to do
    instruction: str = ""  # a rule for every step
    question: str = ""  # one that the agent should ask itself
    example: str = ""  # of a run in which the advice worked


class Query(Value):
    """One look-up among the patterns of one tier."""

    tier: Tier  # patterns of this tier only
    text: str = ""  # what is compared with the patterns; "" for e3, which is listed, not searched
    top_k: int = 1  # most answers
    # leaves out patterns for another one; None = leaves out nothing
    failure_type: str | None = None
    model: str = ""  # name of the routed model; patterns for another family are left out
    floor: float = 0.0  # cosine similarity under which a pattern is no candidate
    gate: float = 0.0  # cosine similarity needed for an injection; a pattern's own threshold wins
    margin: float = 2.0  # most similarity that an answer may be behind the best one
    # ids that are not wanted, because the run has them
    exclude: frozenset[str] = field(default_factory=frozenset)
    cause: str = ""  # name of the trouble; a pattern for it comes first and needs no similarity
    kind: str = ""  # of the agent; universal rules for another kind are left out; "" = any
    max_chars: int = 0  # of all universal rules together; 0 = any number


class PatternMatch(Value):
    """A pattern that a look-up found."""

    pattern: Pattern  # as it is stored
    similarity: float  # cosine; 1.0 for e3 patterns, which are listed


class ETrace(Value):
    """A pattern that was retrieved for a step, as the run's record holds it."""

    tier: str  # e1, e2 or e3
    level: str = ""  # the same by its older name; empty in records of earlier versions
    pattern_id: str  # unique within a store, as in `/api/patterns/{pattern_id}`
    similarity: float  # cosine, 1.0 for listed e3 patterns
    cleared: bool  # similar enough to be given
    fields: Mapping[str, Any] = {}  # the payload as it was then, of one that cleared; no lesson's
    failure_type: str | None = None  # label of the only failure the pattern is for; None = any
    model_family: str = ""  # the only family the pattern is for; "" = any
    source_trace_id: str | None = None  # the run that taught it


def etrace_of(match: PatternMatch, *, cleared: bool) -> ETrace:
    """The part of a pattern that a look-up found which a step's record holds."""
    pattern = match.pattern
    return ETrace(
        tier=pattern.tier.value,
        level=pattern.tier.value,
        pattern_id=pattern.pattern_id,
        similarity=match.similarity,
        cleared=cleared,
        # What was learned from runs can be forgotten, and is in no other record.
        fields=pattern.fields if cleared and pattern.lesson is None else {},
        failure_type=pattern.failure_type,
        model_family=pattern.model_family,
        source_trace_id=pattern.source_trace_id,
    )


def content(fields: Fields) -> PatternContent:
    """The texts of a payload of any of the three shapes. Never raises; unknown keys are ignored."""

    def pick(*keys: str) -> str:
        return next((text for key in keys if (text := _text(fields.get(key)))), "")

    return PatternContent(
        situation=pick("task_context_embedding_text", "trigger_state", "situation", "title"),
        diagnosis=pick("diagnosis"),
        move=pick("recommended_action", "intervention", "unlock", "guidance"),
        avoid=pick("anti_pattern", "dead_ends", "observation"),
        instruction=pick("instruction"),
        question=pick("meta_reasoning_prompt"),
        example=pick("example"),
    )


def causes(pattern: Pattern) -> tuple[str, ...]:
    """The causes of trouble that a pattern answers (`trigger_state.causes`); see `causes.json`."""
    trigger = pattern.fields.get("trigger_state")
    return _names(trigger.get("causes")) if isinstance(trigger, Mapping) else ()


def kinds(pattern: Pattern) -> tuple[str, ...]:
    """The kinds of agents that a universal rule is for (`tags`); empty = all."""
    return _names(pattern.fields.get("tags"))


def _names(value: Any) -> tuple[str, ...]:
    if not isinstance(value, list | tuple):
        return ()
    return tuple(name for name in value if isinstance(name, str))


def embedding_text(pattern: Pattern) -> str:
    """The text a pattern is found by: the texts of agents in its situation
    (`trigger_state.examples`), else the description of the situation with its evidence, else any
    text. A query consists of an agent's words, and a description is much less similar to them."""
    trigger = pattern.fields.get("trigger_state")
    if isinstance(trigger, Mapping) and (examples := _text(trigger.get("examples"))):
        return examples
    texts = content(pattern.fields)
    signs = _text(pattern.fields.get("evidence"))
    found_by = " ".join(part for part in (texts.situation, signs) if part)
    return found_by or texts.diagnosis or texts.move or texts.instruction or texts.avoid


def content_id(pattern: Pattern) -> str:
    """The id that patterns of the same normalised content share: tier, dash, 16 hex digits. White
    space and Unicode form are normalised; tenant, failure type and model family count, thresholds
    and provenance do not. The id of a lesson counts: two may say the same."""
    identity = [
        pattern.tier.value,
        pattern.tenant,
        pattern.failure_type or "",
        pattern.model_family,
        _normalised(pattern.fields),
        *([pattern.pattern_id] if pattern.lesson is not None else []),
    ]
    text = json.dumps(identity, sort_keys=True, ensure_ascii=False, separators=(",", ":"))
    digest = sha256(text.encode("utf-8", "surrogatepass")).hexdigest()
    return f"{pattern.tier.value}-{digest[:16]}"


def with_id(pattern: Pattern) -> Pattern:
    """The pattern, with the id of its content if it has none."""
    return pattern if pattern.pattern_id else replace(pattern, pattern_id=content_id(pattern))


def _normalised(value: Any) -> Any:
    match value:
        case str():
            text = value if value.isascii() else normalize("NFC", value)
            return _SPACE.sub(" ", text).strip()
        case Mapping():
            return {str(key): _normalised(item) for key, item in value.items()}
        case list() | tuple():
            return [_normalised(item) for item in value]
        case _:
            return value


def _text(value: Any) -> str:
    match value:
        case str():
            return value.strip()
        case Mapping():
            described = value.get("trajectory_description")
            return _text(described) if described else _text(list(value.values()))
        case list() | tuple():
            return "; ".join(text for item in value if (text := _text(item)))
        case _:
            return ""


def _check_fields(fields: Any, path: str = "fields", depth: int = 0) -> None:
    match fields:
        case Mapping():
            if depth > 4:
                raise ValueError(f"{path}: nested too deeply")
            for key, value in fields.items():
                if not isinstance(key, str):
                    raise ValueError(f"{path}: the key {key!r} is not text")
                _check_text(key, path)
                _check_fields(value, f"{path}.{key}", depth + 1)
        case list() | tuple() if depth:
            for index, value in enumerate(fields):
                _check_fields(value, f"{path}[{index}]", depth + 1)
        case str() if depth:
            _check_text(fields, path)
        case int() | float() if depth:
            if not -MAX_NUMBER <= fields <= MAX_NUMBER:
                raise ValueError(f"{path}: {fields!r} is not a number that JSON carries exactly")
        case None if depth:
            pass
        case _:
            raise ValueError(f"{path}: {type(fields).__name__} is not a JSON object")


def _check_text(text: str, path: str) -> None:
    if len(text) > MAX_TEXT_CHARS:
        raise ValueError(f"{path}: longer than {MAX_TEXT_CHARS} characters")
    if not text.isascii() and any("\ud800" <= char <= "\udfff" for char in text):
        raise ValueError(f"{path}: not valid Unicode")
