"""Patterns as JSON: one object a line, in files, the control plane and the starter library."""

import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping

from msgspec.structs import asdict

from gateway.core.monitors import FAILURE_TYPES
from gateway.core.pattern import Pattern, Tier
from gateway.values import FieldDict, Fields, Texts

# Keys of a pattern itself; any other key of a flat record belongs to its payload.
STRUCTURAL = frozenset(
    {"pattern_id", "id", "tier", "level", "tenant", "customer_id", "failure_type", "model_family"}
    | {"gate_threshold", "source_trace_id", "fields", "lesson", "stats"}
)
FAILURE_ALIASES: Texts = {
    **FAILURE_TYPES,
    "infinite_loop": "loop",
    "semantic_loop": "loop",
    "late_sprawl": "budget",
    "thrashing": "edit_revert",
}  # Other names of the failure types. Source: docs/names.md, the failure types.

_LABEL = re.compile(r"[a-z][a-z0-9_]{0,63}")


def to_record(pattern: Pattern) -> FieldDict:
    """The pattern as a JSON object; what is empty is left out."""
    record: FieldDict = {"pattern_id": pattern.pattern_id, "tier": pattern.tier.value}
    optional = {
        "tenant": pattern.tenant or None,
        "failure_type": pattern.failure_type,
        "model_family": pattern.model_family or None,
        "gate_threshold": pattern.gate_threshold,
        "source_trace_id": pattern.source_trace_id,
    }
    record |= {key: value for key, value in optional.items() if value is not None}
    if lesson := pattern.lesson:
        record["lesson"] = {**asdict(lesson), "applies_when": dict(lesson.applies_when)}
    return record | {"fields": dict(pattern.fields)}


def from_record(
    record: Fields,
    *,
    tenant: str = "",
    names_tenant: bool = False,
) -> Pattern:
    """A pattern from a JSON object, its payload under `fields` or flat next to `tier`. `tenant`
    owns a pattern of tier e1; a tenant in the record counts only with `names_tenant`, so that a
    file cannot put patterns into another tenant's store. A learned pattern is refused: it would be
    given without a trial. Raises: ValueError, with the key in front, for what is missing, of a
    wrong type or too long."""
    if not isinstance(record, Mapping):
        raise ValueError("a pattern is a JSON object")
    if record.get("lesson") is not None:
        raise ValueError("lesson: a learned pattern is no pattern to add; see `gateway learn`")
    named = _string(record, "tier") or _string(record, "level")
    if named.lower() not in set(Tier):
        raise ValueError(f"tier: {named!r} is not one of e1, e2, e3")
    tier = Tier(named.lower())
    flat = {key: value for key, value in record.items() if key not in STRUCTURAL}
    fields = record.get("fields", flat)
    if not isinstance(fields, Mapping):
        raise ValueError("fields: not a JSON object")
    owner = (_string(record, "tenant") if names_tenant else "") or tenant
    limits = ("failure_type", "model_family", "gate_threshold", "source_trace_id")
    found = {**fields, **{key: record[key] for key in limits if record.get(key) is not None}}
    return Pattern(
        tier=tier,
        fields={key: value for key, value in fields.items() if key not in STRUCTURAL},
        pattern_id=_string(record, "pattern_id") or _string(record, "id"),
        tenant=owner if tier is Tier.E1 else "",
        failure_type=failure_label(_string(found, "failure_type")),
        model_family=_string(found, "model_family"),
        gate_threshold=_number(found, "gate_threshold"),
        source_trace_id=_string(found, "source_trace_id") or None,
    )


def to_line(pattern: Pattern) -> str:
    """The pattern as one line of JSON, without a line end."""
    return json.dumps(to_record(pattern), ensure_ascii=False, separators=(", ", ": "))


def read_line(line: str | bytes, *, tenant: str, names_tenant: bool = False) -> Pattern:
    """The pattern of one line of JSON, as `from_record`. Raises: ValueError."""
    try:
        return from_record(json.loads(line), tenant=tenant, names_tenant=names_tenant)
    except json.JSONDecodeError as error:
        raise ValueError(f"not JSON: {error.msg}, column {error.colno}") from None
    except RecursionError:
        raise ValueError("nested too deeply") from None


def read_lines(
    lines: Iterable[str | bytes],
    *,
    tenant: str = "",
    names_tenant: bool = False,
    refused: Callable[[str], None] | None = None,
) -> Iterator[Pattern]:
    """The patterns of a JSONL file, in order; blank lines are skipped. Other parameters: as in
    `from_record`. Lines end with a line feed and nothing else: Python's `splitlines` splits at
    other characters. `refused` is called with the reason (`line N: ...`) for a line that is not a
    pattern; without it such a line raises ValueError with that text."""
    for number, line in enumerate(lines, start=1):
        if not line.strip():
            continue
        try:
            yield read_line(line, tenant=tenant, names_tenant=names_tenant)
        except ValueError as error:
            if refused is None:
                raise ValueError(f"line {number}: {error}") from None
            refused(f"line {number}: {error}")


def _string(record: Fields, key: str) -> str:
    value = record.get(key)
    if not isinstance(value, str | None):
        raise ValueError(f"{key}: {type(value).__name__} is not text")
    return value or ""


def _number(record: Fields, key: str) -> float | None:
    value = record.get(key)
    if isinstance(value, bool) or not isinstance(value, int | float | None):
        raise ValueError(f"{key}: {type(value).__name__} is not a number")
    if value is None:
        return None
    return float(value)


def failure_label(name: str | None) -> str | None:
    """The label for a failure's name, aliases resolved; None for none. A label that no monitor has
    is kept: such a pattern is found by unfiltered look-ups only. Raises: ValueError when `name` is
    not a label (lower-case letters, digits, underscores)."""
    if not name:
        return None
    label = FAILURE_ALIASES.get(name.lower(), name.lower())
    if not _LABEL.fullmatch(label):
        raise ValueError(f"failure_type: {name!r} is not a label of letters, digits and '_'")
    return label
