"""Patterns: shapes, limits, identity, and their JSON form."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from gateway.core.pattern import (
    MAX_TEXT_CHARS,
    Lesson,
    Pattern,
    PatternMatch,
    Status,
    Tier,
    Trust,
    content,
    content_id,
    embedding_text,
    etrace_of,
    with_id,
)
from gateway.steering.guidance.codec import (
    failure_label,
    from_record,
    read_lines,
    to_line,
    to_record,
)
from tests.steering.guidance.builders import e1, e2, e3

TEXT = st.text(min_size=1, max_size=40).filter(str.strip)
SHAPES: dict[str, dict[str, Any]] = {
    "e1": {"task_context_embedding_text": "S", "observation": "A", "recommended_action": "M"},
    "e2": {
        "trigger_state": {"trajectory_description": "S", "step": 3},
        "diagnosis": "D",
        "intervention": "M",
        "anti_pattern": "A",
    },
    "e3": {"instruction": "I", "meta_reasoning_prompt": "Q"},
    "generic": {"title": "S", "guidance": "M", "example": "E", "tags": ["x"]},
    "short": {"situation": "S", "dead_ends": ["A", "B"], "unlock": "M"},
}


@pytest.mark.parametrize(
    ("shape", "expected"),
    [
        ("e1", {"situation": "S", "avoid": "A", "move": "M"}),
        ("e2", {"situation": "S", "diagnosis": "D", "avoid": "A", "move": "M"}),
        ("e3", {"instruction": "I", "question": "Q"}),
        ("generic", {"situation": "S", "move": "M", "example": "E"}),
        ("short", {"situation": "S", "avoid": "A; B", "move": "M"}),
    ],
)
def test_every_payload_shape_is_read(shape: str, expected: dict[str, str]) -> None:
    """The three documented shapes give the same content, whatever the tier."""
    texts = content(SHAPES[shape])
    assert {name: getattr(texts, name) for name in expected} == expected
    for tier in Tier:
        Pattern(tier=tier, fields=SHAPES[shape])


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"fields": {}}, "fields: no text"),
        ({"fields": {"situation": "only that"}}, "fields: no text"),
        ({"fields": {"unlock": "x" * (MAX_TEXT_CHARS + 1)}}, "fields.unlock: longer"),
        ({"fields": {"unlock": {1: "x"}}}, "fields.unlock: the key 1"),
        ({"fields": {"unlock": object()}}, "fields.unlock: object"),
        ({"fields": {"unlock": "\ud800"}}, "fields.unlock: not valid Unicode"),
        ({"fields": {"unlock": "u", "n": float("nan")}}, "fields.n: nan"),
        ({"fields": {"unlock": "u", "n": 2**60}}, "fields.n: 1152"),
        ({"fields": [1]}, "fields: list"),
        (
            {"fields": {"a": {"b": {"c": {"d": {"e": {"f": 1}}}}}}},
            "fields.a.b.c.d.e: nested too deeply",
        ),
        ({"gate_threshold": 1.5}, "gate_threshold: 1.5"),
        ({"tenant": "acme"}, "tenant: a pattern of tier e2"),
        ({"pattern_id": "a\nb"}, "pattern_id: control"),
        ({"model_family": "m" * 200}, "model_family: longer"),
    ],
)
def test_what_cannot_be_stored_is_refused_by_name(change: dict[str, Any], message: str) -> None:
    """The message starts with the field that is wrong."""
    good: dict[str, Any] = {"tier": Tier.E2, "fields": SHAPES["e2"]}
    with pytest.raises(ValueError, match="^" + message):
        Pattern(**(good | change))


def test_the_same_content_has_the_same_id() -> None:
    """White space, Unicode form, key order and thresholds do not count; scope and words do."""
    one = Pattern(tier=Tier.E2, fields={"unlock": "na\u00efve  now", "situation": "s"})
    same = Pattern(
        tier=Tier.E2,
        fields={"situation": "s ", "unlock": "nai\u0308ve\nnow"},
        gate_threshold=0.4,
        source_trace_id="r1",
    )
    assert content_id(one) == content_id(same)
    others = [
        Pattern(tier=Tier.E1, fields=one.fields),
        Pattern(tier=Tier.E1, fields=one.fields, tenant="a"),
        Pattern(tier=Tier.E2, fields=one.fields, failure_type="loop"),
        Pattern(tier=Tier.E2, fields=one.fields, model_family="gpt"),
        Pattern(tier=Tier.E2, fields={"unlock": "naive now", "situation": "s"}),
    ]
    assert len({content_id(pattern) for pattern in (one, *others)}) == 6


def test_a_pattern_is_found_by_its_situation() -> None:
    """The embedded text is the situation with its evidence, else the rule itself."""
    assert embedding_text(e2()) == "the same test fails three times"
    assert embedding_text(e3("Read first.")) == "Read first."
    shown = Pattern(tier=Tier.E2, fields={"situation": "s", "unlock": "u", "evidence": ["a", "b"]})
    assert embedding_text(shown) == "s a; b"


@pytest.mark.parametrize(
    ("name", "label"),
    [
        (None, None),
        ("", None),
        ("loop", "loop"),
        ("Infinite_Loop", "loop"),
        ("streak", "loop"),
        ("call_count", "budget"),
        ("thrashing", "edit_revert"),
        ("verification_skip", "verification_skip"),
    ],
)
def test_failure_names_become_labels(name: str | None, label: str | None) -> None:
    """Aliases of the six labels are resolved, foreign labels kept."""
    assert failure_label(name) == label


@pytest.mark.parametrize("pattern", [e1(tenant="acme"), e2(failure_type="loop"), e3()])
def test_a_pattern_survives_its_json_line(pattern: Pattern) -> None:
    """Writing and reading a line gives the same pattern; the reader's tenant owns e1."""
    line = to_line(pattern)
    assert "\n" not in line
    assert list(read_lines([line, "", "  "], tenant="acme")) == [pattern]


@given(
    st.dictionaries(st.sampled_from(["situation", "unlock", "note"]), TEXT, min_size=1),
    st.floats(0, 1) | st.none(),
)
def test_any_valid_pattern_survives_json(fields: dict[str, str], gate: float | None) -> None:
    """The record holds everything but the tenant."""
    pattern = with_id(
        Pattern(tier=Tier.E2, fields={**fields, "guidance": "g"}, gate_threshold=gate)
    )
    assert from_record(json.loads(json.dumps(to_record(pattern)))) == pattern


def test_flat_records_and_aliases_are_read() -> None:
    """A payload beside `tier`, `level`, `id`, and limits inside `fields` are accepted."""
    flat = from_record({"level": "E2", "id": "p1", "situation": "s", "unlock": "u"})
    nested = from_record(
        {
            "tier": "e2",
            "pattern_id": "p1",
            "fields": {"situation": "s", "unlock": "u", "gate_threshold": 0.3},
            "failure_type": "infinite_loop",
        }
    )
    assert flat.fields == nested.fields == {"situation": "s", "unlock": "u"}
    assert (flat.pattern_id, nested.gate_threshold, nested.failure_type) == ("p1", 0.3, "loop")


def test_a_file_cannot_name_its_tenant() -> None:
    """The tenant of an imported pattern is the importer's, never the record's."""
    record = {"tier": "e1", "unlock": "u", "tenant": "victim", "customer_id": "victim"}
    assert from_record(record, tenant="me").tenant == "me"
    assert "customer_id" not in from_record(record).fields


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("{", "line 2: not JSON: Expecting"),
        ("[]", "line 2: a pattern is a JSON object"),
        ('{"tier": "e9", "unlock": "u"}', "line 2: tier: 'e9'"),
        ('{"tier": 3}', "line 2: tier: int is not text"),
        ('{"tier": "e2", "fields": []}', "line 2: fields: not a JSON object"),
        ('{"tier": "e2", "unlock": "u", "gate_threshold": "0.4"}', "line 2: gate_threshold: str"),
        ('{"tier": "e2", "unlock": "u", "gate_threshold": true}', "line 2: gate_threshold: bool"),
        ('{"tier": "e2", "unlock": "u", "failure_type": "a b"}', "line 2: failure_type: 'a b'"),
        ("[" * 100_000, "line 2: nested too deeply"),
    ],
)
def test_a_bad_line_is_named(line: str, message: str) -> None:
    """Reading stops with the line's number and the key."""
    with pytest.raises(ValueError, match=message.replace("[", r"\[")):
        list(read_lines([to_line(e2()), line]))


def test_a_record_holds_the_text_of_a_pattern_that_was_near_enough_and_not_learned() -> None:
    """A lesson can be forgotten: its text stands in no record of a step."""
    lesson = Lesson(
        key="k", status=Status.ACTIVE, origin="distilled", trust=Trust.OPERATOR, share=1.0
    )
    given = e2("Read the assertion first.")
    for pattern, cleared, fields in (
        (given, True, given.fields),
        (given, False, {}),
        (replace(given, lesson=lesson), True, {}),
    ):
        match = PatternMatch(pattern=pattern, similarity=0.9)
        assert etrace_of(match, cleared=cleared).fields == fields
