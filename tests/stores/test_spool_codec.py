"""A record that waits on disk is read as it was written, whatever is in its texts and numbers."""

from __future__ import annotations

import json
import re
import typing
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from msgspec import Struct

from gateway.core.step import Action
from gateway.stores import codec
from gateway.stores.call_json import decoded, encoded
from gateway.stores.records import CallRecord, StepContent
from gateway.stores.redact import omit
from steering_gateway_testing.store_conformance.records import a_call, a_chat

BEFORE = Path(__file__).parent / "fixtures" / "records_before_msgspec.json"

# Unpaired surrogates, NUL, and pairs of surrogates that no decoder may join.
TEXTS = st.text(st.characters(codec=None), max_size=8) | st.sampled_from(
    ["\ud83d\ude00", "\udc80", "\x00", "\u2028", '"\\', "NaN"]
)
SCALARS: dict[Any, st.SearchStrategy[Any]] = {
    str: TEXTS,
    bytes: st.binary(max_size=8),
    int: st.integers(),
    float: st.floats(),
    bool: st.booleans(),
    Any: TEXTS,
}


def values(kind: Any) -> st.SearchStrategy[Any]:
    """Any value of a type, as the annotations of records name them."""
    if kind in SCALARS:
        return SCALARS[kind]
    if isinstance(kind, type) and issubclass(kind, Struct):
        hints = typing.get_type_hints(kind)
        made = {name: values(hints[name]) for name in kind.__struct_fields__}
        return st.builds(kind, **made)
    arguments = typing.get_args(kind)
    if typing.get_origin(kind) is tuple:
        return st.lists(values(arguments[0]), max_size=2).map(tuple)
    if type(None) in arguments:
        return st.none() | values(arguments[0])
    return st.dictionaries(values(arguments[0]), values(arguments[1]), max_size=2)


@given(values(CallRecord))
@settings(suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large])
def test_every_record_survives(record: CallRecord) -> None:
    """Compared as text, in which NaN is like NaN."""
    assert repr(decoded(encoded(record))) == repr(record)


def _without_what_was_added(text: str) -> str:
    for added in (
        ',"human":[]',
        ',"acts":[]',
        ',"price_estimated":false',
        ',"lost_cause":"","lost_tokens":0,"lost_usd":0.0',
        ',"reason":"","alarms":[]',
        ',"level":""',
        ',"agent_kind":"","task":""',
        ',"fields":{},"failure_type":null,"model_family":"","source_trace_id":null',
    ):
        text = text.replace(added, "")
    return text


def test_what_an_earlier_version_wrote_is_read() -> None:
    """Files that wait and rows of the run log have the same form as before, but for what was added
    since, and read the same."""
    written = json.loads(BEFORE.read_text())
    record = decoded(written["spooled"].encode("utf-8", "surrogatepass"))
    again = _without_what_was_added(encoded(record).decode("utf-8", "surrogatepass"))
    before = json.loads(written["spooled"])
    for step in before["steps"]:
        assert step.pop("risk") is not None  # a reading that is no longer written
    assert json.loads(again) == before
    (step,) = record.steps
    row = dict(zip(codec.STEP_COLUMNS, codec.step_row(step), strict=True))
    row |= {name: _without_what_was_added(row[name]) for name in ("content", "call", "readings")}
    columns = written["columns"]
    columns["readings"] = re.sub(r',"risk":[^,}]*', "", columns["readings"])
    assert {name: row[name] for name in columns} == columns
    assert codec.step_of(step.run_id, tuple(row.values())) == step


def test_a_column_with_other_types_is_read_as_far_as_it_goes() -> None:
    """A provider may have sent a number as the reason why an answer ended; a key may be unknown."""
    text = codec.call_json(a_chat("1", finish_reason="stop"))
    changed = text.replace('"stop"', "5").replace('{"request_id"', '{"gone":1,"request_id"')
    assert codec.call_of(changed) == a_chat("1", finish_reason=None)
    text = '{"thought":"hm","actions":[{"name":"ls","observation":null,"is_error":false}]}'
    assert codec.content_of(text) == StepContent(thought="hm", actions=(Action(name="ls"),))


def test_a_field_may_come_and_go() -> None:
    """A newer gateway gives what is missing its default, an older one leaves out what is more."""
    content = encoded(a_call())
    assert decoded(content.replace(b'"root_id":null', b'"later":[1]')) == a_call()


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (b"", "Expecting value"),
        (b"{}", "not a call record"),
        (b"[]", "not a call record"),
        (b"\xff", "decode"),
        (b'{"conversation":{"id":1}}', "not a call record"),
    ],
)
def test_what_is_no_record_is_refused(content: bytes, reason: str) -> None:
    """Whatever is wrong with it, with a ValueError."""
    with pytest.raises(ValueError, match=reason):
        decoded(content)


def test_what_was_omitted_is_not_omitted_again() -> None:
    """A record that waited on disk is redacted before that, and again when it is stored."""
    assert omit(omit("text")) == omit("text")
