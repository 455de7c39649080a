"""A chat request keeps every byte that nobody asked it to change."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from typing import Any

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.dialects import RESPONSES
from gateway.errors import BadRequest
from gateway.wire.parsing import array_spans, object_spans, parse_object
from gateway.wire.request import Splice
from steering_gateway_testing.json_texts import Member, bodies, parsed, rendered, standard, values
from tests.examples import examples

few = examples(40)
PARSERS = [standard, orjson.loads]
Body = tuple[list[Member], tuple[str, str, str]]

new_models = st.one_of(st.text(min_size=1, max_size=12), st.just('a"b\\ \u00e9\U0001f600')).filter(
    lambda text: not any("\ud800" <= c <= "\udfff" for c in text)
)


def with_member(pairs: Sequence[Member], key: str, value: str) -> list[Member]:
    return [(k, value if k == key else v) for k, v in pairs]


def body(**fields: Any) -> bytes:
    return json.dumps({"model": "m", "messages": [], **fields}).encode()


@few
@given(bodies(), st.sampled_from(PARSERS))
def test_an_unchanged_request_is_the_clients_bytes(made: Body, loads: Any) -> None:
    """Without splices the rendered body is the very object that came in."""
    raw = rendered(*made)
    request = parsed(raw, loads)
    assert request.render([]) is raw
    assert request.render(request.with_model(request.model)) is raw


@few
@given(bodies(), new_models)
def test_another_model_changes_its_value_only(made: Body, model: str) -> None:
    """Every byte outside the value of `model` stays; key order, numbers and spacing included."""
    pairs, spaces = made
    raw = rendered(pairs, spaces)
    request = parsed(raw, orjson.loads)
    literal = json.dumps(model, ensure_ascii=False)
    expected = (
        raw if model == request.model else rendered(with_member(pairs, '"model"', literal), spaces)
    )
    assert request.render(request.with_model(model)) == expected


@few
@given(bodies(), new_models)
def test_as_parsed_json_only_the_model_differs(made: Body, model: str) -> None:
    """Read again, the changed body has the same keys in the same order and one new value."""
    raw = rendered(*made)
    request = parsed(raw, orjson.loads)
    before, after = json.loads(raw), json.loads(request.render(request.with_model(model)))
    assert list(before) == list(after)
    assert after == {**before, "model": model}


@few
@given(bodies())
def test_asking_for_usage_keeps_all_else(made: Body) -> None:
    """`stream_options.include_usage` becomes true; whatever else is in the body is untouched."""
    raw = rendered(*made)
    request = parsed(raw, orjson.loads)
    after = json.loads(request.render(request.with_usage()))
    assert after.pop("stream_options") == {"include_usage": True}
    assert after == json.loads(raw)
    assert request.render(request.with_usage()).startswith(raw.rstrip(b"} \r\n\t"))


@few
@given(values, values, st.sampled_from(["", '"include_usage": false', '"include_usage":null']))
def test_other_stream_options_survive_to_the_byte(first: str, last: str, usage: str) -> None:
    """Options of the client's own keep their text, lone surrogates and odd numbers included."""
    inner = [f'"a": {first}', *([usage] if usage else []), f'"b":{last}']
    raw = f'{{"model":"m","messages":[],"stream_options" : {{{" , ".join(inner)} }}}}'.encode()
    out = parsed(raw, orjson.loads)
    changed = out.render(out.with_usage())
    assert json.loads(changed)["stream_options"]["include_usage"] is True
    assert f'"a": {first}'.encode() in changed
    assert f'"b":{last}'.encode() in changed


@pytest.mark.parametrize("options", ["{}", "{ }", "null", "7", "[1]"])
def test_stream_options_that_hold_nothing(options: str) -> None:
    """Empty or meaningless stream options become ones that ask for usage."""
    raw = f'{{"stream_options": {options}, "model": "m", "messages": []}}'.encode()
    request = parsed(raw)
    after = json.loads(request.render(request.with_usage()))
    assert after["stream_options"] == {"include_usage": True}


def test_a_repeated_key_is_changed_everywhere() -> None:
    """Whichever of two `model` keys an upstream reads, it reads the new one."""
    raw = b'{"model": "a", "messages": [], "model": "b"}'
    request = parsed(raw)
    assert (
        request.render(request.with_model("c")) == b'{"model": "c", "messages": [], "model": "c"}'
    )


def test_a_missing_key_is_added_at_the_end() -> None:
    """A value for a key that is not there goes behind the last one."""
    request = parsed(b'{"model": "m", "messages": [] }\n')
    assert request.render(request.set_value("n", 2)) == b'{"model": "m", "messages": [] , "n": 2}\n'


def test_bytes_that_are_not_utf8_survive() -> None:
    """What is no UTF-8 in a text is forwarded as it came, around a changed model too."""
    raw = b'{"model": "m", "messages": [{"role": "user", "content": "\xff\xfe\xc3"}]}'
    request = parsed(raw, orjson.loads)
    assert request.render(request.with_model("n")) == raw.replace(b'"m"', b'"n"')


@pytest.mark.parametrize("depth", [100, 980, 1010, 100_000])
@pytest.mark.parametrize("opening", ["[", '{"a":'])
def test_deep_nesting_is_forwarded_or_refused(depth: int, opening: str) -> None:
    """A body is either read and changed exactly, or refused as a bad request; it never breaks."""
    closing = "]" if opening == "[" else "}"
    deep = opening * depth + "1" + closing * depth
    raw = f'{{"x": {deep}, "model": "m", "messages": []}}'.encode()
    if depth == 100_000:
        with pytest.raises(BadRequest, match="nested too deeply"):
            parsed(raw, orjson.loads)
        return
    request = parsed(raw, orjson.loads)
    assert request.render(request.with_model("n")) == raw.replace(b'"m"', b'"n"')


@few
@given(bodies())
def test_message_spans_are_where_the_messages_stand(made: Body) -> None:
    """The text between a message's start and end is that message."""
    request = parsed(rendered(*made), orjson.loads)
    found = [json.loads(request.raw[s:e]) for s, e in request.message_spans]
    assert found == json.loads(request.raw)["messages"]


@few
@given(st.lists(values, max_size=4), st.dictionaries(st.text(max_size=4), values, max_size=4))
def test_spans_cover_the_values(items: list[str], fields: dict[str, str]) -> None:
    """Spans of arrays and objects hold exactly the text of each value."""
    text = " [" + " ,".join(items) + "\n]"
    assert [text[s:e] for s, e in array_spans(text, 0)] == items
    text = "{" + ", ".join(f"{json.dumps(k)} : {v}" for k, v in fields.items()) + " }"
    assert {k: text[s:e] for k, s, e in object_spans(text)} == fields


def test_splices_are_applied_in_the_order_of_their_place() -> None:
    """Splices may be given in any order; those at one place keep theirs."""
    request = parsed(body())
    splices = [Splice(start=5, end=5, text="c"), Splice(start=0, end=1, text="a")]
    splices += [Splice(start=5, end=5, text="d"), Splice(start=2, end=3, text="b")]
    raw = request.raw.decode()
    assert request.render(splices).decode() == "a" + raw[1] + "b" + raw[3:5] + "cd" + raw[5:]


@pytest.mark.parametrize("loads", PARSERS)
@pytest.mark.parametrize(
    ("raw", "param", "says"),
    [
        (b'{"messages": []}', "model", "required"),
        (b'{"model": 5, "messages": []}', "model", "non-empty string"),
        (b'{"model": "", "messages": []}', "model", "non-empty string"),
        (b'{"model": "m"}', "messages", "required"),
        (b'{"model": "m", "messages": {}}', "messages", "array"),
        (b'{"model": "m", "messages": null}', "messages", "array"),
        (b'{"model": "m", "messages": [], "stream": "yes"}', "stream", "true or false"),
        (b'{"model": "m", "messages": [], "stream": 1}', "stream", "true or false"),
    ],
)
def test_a_wrong_type_names_its_key(
    raw: bytes, param: str, says: str, loads: Callable[[bytes], Any]
) -> None:
    """A bad request tells which key is wrong, in the message and in `param`."""
    with pytest.raises(BadRequest, match=says) as refused:
        parsed(raw, loads)
    assert refused.value.param == param
    assert repr(param) in refused.value.message


@pytest.mark.parametrize("loads", PARSERS)
@pytest.mark.parametrize(
    ("raw", "says"),
    [
        (b"", "line 1, column 1"),
        (b'{"model": "m",}', "line 1, column"),
        (b'{"a": 1\n "b": 2}', "line 2, column 2"),
        (b"[1]", "an array"),
        (b'"x"', "a string"),
        (b"true", "a boolean"),
        (b"null", "null"),
        (b"12", "a number"),
        (b'\xef\xbb\xbf{"model": "m", "messages": []}', "BOM"),
        ("{'model': 'm'}".encode("utf-16"), "line 1"),
        (b"[" * 100_000, "nested too deeply"),
        (b'{"a": ' + b"9" * 5000 + b"}", "too long a number"),
    ],
)
def test_what_is_no_json_object_is_refused(raw: bytes, says: str, loads: Any) -> None:
    """Anything but a JSON object is a bad request that says what it was, or where it broke."""
    with pytest.raises(BadRequest, match=says):
        parse_object(raw, loads)


@pytest.mark.parametrize(
    ("options", "wanted"),
    [
        ({"include_usage": True}, True),
        ({"include_usage": False}, False),
        ({}, False),
        (None, False),
    ],
)
def test_whether_the_client_wants_usage(options: Any, wanted: bool) -> None:
    """Only `include_usage: true` asks for the usage chunk."""
    assert parsed(body(stream_options=options)).wants_usage is wanted


def test_views_of_a_request() -> None:
    """Model, stream and messages are what the body says; another list key has its own messages."""
    request = parsed(body(stream=True, messages=[1, {"role": "user"}]))
    assert (request.model, request.stream) == ("m", True)
    assert request.messages == [1, {"role": "user"}]
    other = RESPONSES.parse(b'{"model": "m", "input": ["x"]}', orjson.loads)
    assert other.messages == ["x"]
    assert [other.raw[s:e] for s, e in other.message_spans] == [b'"x"']
