"""Tool calls arrive whole, whatever the adapter did to them."""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.wire.toolcalls import ToolCallStream, finish_reason, repair_message
from tests.examples import examples

Delta = dict[str, Any]


def an_id(index: int) -> str:
    return f"call_made_{index}"


def a_delta(index: int | None, **parts: Any) -> Delta:
    """One delta; `name` and `arguments` go into `function`."""
    function = {key: parts.pop(key) for key in ("name", "arguments") if key in parts}
    return {**({} if index is None else {"index": index}), **parts, "function": function}


def assemble(deltas: list[Delta]) -> list[tuple[str, str, str]]:
    """What a client that concatenates every string makes of the deltas."""
    calls: dict[int, dict[str, str]] = {}
    for delta in deltas:
        call = calls.setdefault(delta["index"], {"id": "", "name": "", "arguments": ""})
        call["id"] += delta.get("id") or ""
        call["name"] += delta["function"].get("name") or ""
        call["arguments"] += delta["function"].get("arguments") or ""
    assert list(calls) == list(range(len(calls)))
    return [(c["id"], c["name"], c["arguments"]) for c in calls.values()]


def repaired(deltas: list[Delta], *, cut: bool = False) -> list[tuple[str, str, str]]:
    stream = ToolCallStream(an_id)
    return assemble([out for d in deltas for out in stream.push([d])] + stream.finish(cut=cut))


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=12),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=6), inner),
    max_leaves=8,
)
arguments = st.dictionaries(st.text(max_size=6), json_values, min_size=1, max_size=3).flatmap(
    lambda value: st.sampled_from(
        [json.dumps(value), json.dumps(value, ensure_ascii=False), json.dumps(value, indent=1)]
    )
)
names = st.sampled_from(["read", "write", "run"])


@st.composite
def calls(draw: st.DrawFn) -> list[tuple[str, str, list[str]]]:
    """Calls with distinct ids, each with its arguments in fragments."""
    out = []
    for number in range(draw(st.integers(1, 4))):
        text = draw(arguments)
        cuts = sorted(draw(st.lists(st.integers(0, len(text)), max_size=5)))
        edges = [0, *cuts, len(text)]
        pieces = [text[a:b] for a, b in itertools.pairwise(edges)]
        out.append((f"call_{number}", draw(names), pieces))
    return out


def streamed(wanted: list[tuple[str, str, list[str]]]) -> list[Delta]:
    """The deltas of a sound provider."""
    out = []
    for index, (id, name, pieces) in enumerate(wanted):
        out.append(a_delta(index, id=id, type="function", name=name, arguments=""))
        out += [a_delta(index, arguments=piece) for piece in pieces]
    return out


def joined(wanted: list[tuple[str, str, list[str]]]) -> list[tuple[str, str, str]]:
    return [(id, name, "".join(pieces)) for id, name, pieces in wanted]


@given(calls())
def test_sound_calls_come_out_as_they_went_in(wanted: Any) -> None:
    """Whatever the split of the arguments, they join to the same text, ids and names stay."""
    assert repaired(streamed(wanted)) == joined(wanted)


@given(calls(), st.randoms(use_true_random=False))
def test_interleaved_calls_are_kept_apart(wanted: Any, random: Any) -> None:
    """Deltas of parallel calls may arrive mixed, as long as each keeps its own order."""
    queues = [streamed([call]) for call in wanted]
    for index, queue in enumerate(queues):
        for delta in queue:
            delta["index"] = index
    mixed = [queue.pop(0) for queue in queues]
    while any(queues):
        mixed.append(random.choice([queue for queue in queues if queue]).pop(0))
    assert repaired(mixed) == joined(wanted)


def zero_index(deltas: list[Delta]) -> list[Delta]:
    return [{**delta, "index": 0} for delta in deltas]


def no_index(deltas: list[Delta]) -> list[Delta]:
    return [{k: v for k, v in delta.items() if k != "index"} for delta in deltas]


def shifted_index(deltas: list[Delta]) -> list[Delta]:
    return [{**delta, "index": delta["index"] * 2 + 1} for delta in deltas]


def repeated_head(deltas: list[Delta]) -> list[Delta]:
    out, head = [], {}
    for delta in deltas:
        if "id" in delta:
            head = {"id": delta["id"], "name": delta["function"]["name"]}
        function = {**delta["function"], "name": head["name"]}
        out.append({**delta, "id": head["id"], "type": "function", "function": function})
    return out


def null_fields(deltas: list[Delta]) -> list[Delta]:
    out = []
    for delta in deltas:
        function = {"name": None, **delta["function"]}
        function["arguments"] = function["arguments"] or None
        out.append({"id": None, "type": None, **delta, "function": function})
    return out


@pytest.mark.parametrize(
    "fault",
    [
        zero_index,
        no_index,
        shifted_index,
        repeated_head,
        null_fields,
        lambda deltas: zero_index(repeated_head(deltas)),
    ],
)
@examples(40)
@given(wanted=calls())
def test_known_faults_do_not_reach_the_client(
    fault: Callable[[list[Delta]], list[Delta]], wanted: Any
) -> None:
    """Each fault of an adapter, over any calls and any split, gives the same calls as no fault."""
    assert repaired(fault(streamed(wanted))) == joined(wanted)


@given(st.lists(st.tuples(names, arguments), min_size=1, max_size=4))
def test_whole_calls_without_ids_in_one_slot_are_told_apart(wanted: Any) -> None:
    """Calls sent whole, all under index 0 and without ids, become calls with ids of their own."""
    deltas = [a_delta(0, name=name, arguments=text) for name, text in wanted]
    expected = [(an_id(i), name, text) for i, (name, text) in enumerate(wanted)]
    assert repaired(deltas) == expected


@pytest.mark.parametrize("empty", [[], ["{}"], ["{", "}"], [" { }"], [None], ["", ""]])
def test_no_arguments_become_an_empty_object(empty: list[str | None]) -> None:
    """A call without arguments carries an empty JSON object, once."""
    deltas = [a_delta(0, id="a", name="now"), *(a_delta(0, arguments=text) for text in empty)]
    ((id, name, text),) = repaired(deltas)
    assert (id, name, json.loads(text)) == ("a", "now", {})


@pytest.mark.parametrize("text", ["", "{", '{"a": "b', '{"a": {"b": 1}'])
def test_a_cut_call_is_not_completed(text: str) -> None:
    """Arguments broken off by a token limit stay broken: a made-up object would be executed."""
    deltas = [a_delta(0, id="a", name="run"), a_delta(0, arguments=text)]
    assert repaired(deltas, cut=True) == [("a", "run", text)]


def test_arguments_that_are_an_object_are_serialised() -> None:
    """Some adapters give the arguments parsed; the API promises a string."""
    assert repaired([a_delta(0, id="a", name="run", arguments={"k": "ü"})]) == [
        ("a", "run", '{"k": "ü"}')
    ]


def test_free_text_arguments_are_left_alone() -> None:
    """What does not start as a JSON object is not ours to judge."""
    deltas = [a_delta(0, id="a", name="run", arguments="ls "), a_delta(0, arguments="{a,b}{}")]
    assert repaired(deltas) == [("a", "run", "ls {a,b}{}")]


def test_a_call_that_never_gets_a_name_is_left_out() -> None:
    """Nobody could execute it."""
    assert repaired([a_delta(0, id="a", arguments="{}")]) == []


def test_extra_fields_survive_on_the_first_delta() -> None:
    """Fields a provider adds, such as signatures, are needed when the call is echoed."""
    signed = {"provider_specific_fields": {"thought_signature": "s"}, "caller": {"type": "direct"}}
    delta = {**a_delta(0, id="a", name="run", arguments='{"a":1}'), **signed}
    (out,) = ToolCallStream(an_id).push([delta])
    assert {key: out[key] for key in signed} == signed


def test_custom_tool_calls_pass_untouched() -> None:
    """The input of a custom tool is free text."""
    delta = {"index": 0, "id": "a", "type": "custom", "custom": {"name": "sh", "input": "{}{}"}}
    assert ToolCallStream(an_id).push([delta]) == [delta]
    message = {"tool_calls": [delta]}
    assert repair_message(message, an_id) == 1
    assert message["tool_calls"] == [delta]


@examples(50)
@given(st.lists(json_values | st.dictionaries(st.text(max_size=4), json_values), max_size=4))
def test_rubbish_never_raises(deltas: list[Any]) -> None:
    """Deltas of any shape are survived."""
    stream = ToolCallStream(an_id)
    stream.push(deltas)
    stream.finish()
    repair_message({"tool_calls": deltas}, an_id)


def test_complete_messages_are_repaired_too() -> None:
    """Missing ids, parsed and missing arguments, calls without a name."""
    message = {
        "tool_calls": [
            {"id": "a", "function": {"name": "run", "arguments": {"k": 1}}},
            {"id": "b", "index": 4, "function": {"name": "run", "arguments": None}},
            {"id": None, "function": {"name": "run", "arguments": '{"k": 2}'}},
            {"id": "c", "function": {"arguments": "{}"}},
        ]
    }
    assert repair_message(message, an_id) == 3
    assert message["tool_calls"] == [
        {"id": "a", "type": "function", "function": {"name": "run", "arguments": '{"k": 1}'}},
        {"id": "b", "type": "function", "function": {"name": "run", "arguments": "{}"}},
        {
            "id": "call_made_2",
            "type": "function",
            "function": {"name": "run", "arguments": '{"k": 2}'},
        },
    ]


def test_a_message_without_sound_calls_has_no_list() -> None:
    """An empty list of calls is refused by providers when it is echoed."""
    message: dict[str, Any] = {"content": "hi", "tool_calls": [{"function": {}}]}
    assert repair_message(message, an_id) == 0
    assert message == {"content": "hi"}


@pytest.mark.parametrize(
    ("reason", "calls", "expected"),
    [
        ("stop", 1, "tool_calls"),
        ("stop", 0, "stop"),
        ("tool_calls", 0, "stop"),
        ("tool_calls", 2, "tool_calls"),
        ("length", 1, "length"),
        ("content_filter", 1, "content_filter"),
        (None, 1, None),
    ],
)
def test_the_finish_reason_agrees_with_the_calls(
    reason: str | None, calls: int, expected: str | None
) -> None:
    """Only stop and tool_calls are exchanged; limits and filters stay, nothing is invented."""
    assert finish_reason(reason, calls) == expected
