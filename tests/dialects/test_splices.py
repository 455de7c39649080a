"""Guidance in a dialect's body: only what was decided changes, whatever else is in it."""

from __future__ import annotations

import json
from typing import Any

import orjson
from hypothesis import given
from hypothesis import strategies as st

from gateway.core.edits import Edit, InsertMessage, SystemAppend
from gateway.dialects import MESSAGES, RESPONSES, SteeredRequest

texts = st.text(max_size=8)
notes = st.lists(st.text(min_size=1, max_size=8), min_size=1, max_size=3).map(tuple)
scalars = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | texts
values = st.recursive(
    scalars, lambda v: st.lists(v, max_size=3) | st.dictionaries(texts, v, max_size=3), max_leaves=6
)
others = st.dictionaries(
    st.text(min_size=1, max_size=6).map(lambda t: f"x-{t}"), values, max_size=3
)
layouts = st.sampled_from([{}, {"indent": 2}, {"separators": (",", ":")}, {"ensure_ascii": False}])
blocks = st.lists(
    st.fixed_dictionaries(
        {"type": st.just("text"), "text": texts},
        optional={"cache_control": st.just({"type": "ephemeral"})},
    ),
    max_size=3,
)
users = st.lists(
    st.fixed_dictionaries({"role": st.just("user"), "content": texts | blocks}), max_size=4
)
MARKER = {"type": "ephemeral"}


def request_of(dialect: Any, body: dict[str, Any], layout: dict[str, Any]) -> SteeredRequest:
    raw = json.dumps({"model": "m", **body}, **layout).encode("utf-8", "surrogatepass")
    parsed: SteeredRequest = dialect.parse(raw, orjson.loads)
    return parsed


def edited(request: SteeredRequest, edits: list[Edit]) -> Any:
    return json.loads(request.render(request.dialect.splices(request, edits)))


@given(st.none() | texts | blocks, users, others, notes, st.booleans(), layouts)
def test_a_system_prompt_of_messages(
    system: Any, said: Any, other: Any, told: tuple[str, ...], marked: bool, layout: Any
) -> None:
    """The client's blocks stay as they are, ours follow one by one, all else is untouched."""
    body = {"messages": said, **other} | ({} if system is None else {"system": system})
    request = request_of(MESSAGES, body, layout)
    breakpoint = MARKER if marked and system else None
    after = edited(request, [SystemAppend(index=0, texts=told, breakpoint=breakpoint)])
    own = [{"type": "text", "text": system}] if isinstance(system, str) and system else system or []
    if breakpoint:
        own = [*own[:-1], {**own[-1], "cache_control": MARKER}]
    assert after["system"] == [*own, *({"type": "text", "text": t} for t in told)]
    assert {k: v for k, v in after.items() if k != "system"} == {
        "model": "m",
        **{k: v for k, v in body.items() if k != "system"},
    }


@given(st.none() | texts, texts | users, others, notes, layouts)
def test_instructions_of_responses(
    instructions: Any, said: Any, other: Any, told: tuple[str, ...], layout: Any
) -> None:
    """Instructions grow behind the client's own; the input is untouched."""
    body = {"input": said, **other}
    body |= {} if instructions is None else {"instructions": instructions}
    request = request_of(RESPONSES, body, layout)
    after = edited(request, [SystemAppend(index=0, texts=told)])
    assert after["instructions"] == "\n\n".join(filter(None, [instructions, *told]))
    assert {k: v for k, v in after.items() if k != "instructions"} == {
        "model": "m",
        **{k: v for k, v in body.items() if k != "instructions"},
    }


@given(texts | users.filter(bool), others, st.text(min_size=1, max_size=8), st.data(), layouts)
def test_an_item_among_the_input(
    said: Any, other: Any, told: str, data: st.DataObject, layout: Any
) -> None:
    """A text for input becomes the items that mean the same, with ours behind."""
    request = request_of(RESPONSES, {"input": said, "instructions": "I", **other}, layout)
    items = [{"role": "user", "content": said}] if isinstance(said, str) else said
    at = len(items) if isinstance(said, str) else data.draw(st.integers(0, len(items)))
    after = edited(request, [InsertMessage(position=at + 1, role="developer", text=told)])
    ours = {"role": "developer", "content": told}
    assert after["input"] == [*items[:at], ours, *items[at:]]


@given(blocks.filter(bool), others, notes, layouts)
def test_a_leading_item_of_a_client_that_keeps_its_history(
    parts: Any, other: Any, told: tuple[str, ...], layout: Any
) -> None:
    """With `store: false` the client's own developer item grows by parts of input text."""
    items = [{"type": "message", "role": "developer", "content": parts}]
    request = request_of(RESPONSES, {"input": items, "store": False, **other}, layout)
    after = edited(request, [SystemAppend(index=0, texts=told, breakpoint=MARKER)])
    [item] = after["input"]
    assert item["content"] == [*parts, *({"type": "input_text", "text": t} for t in told)]
    assert "instructions" not in after


@given(users, others, layouts)
def test_no_edit_is_no_change(said: Any, other: Any, layout: Any) -> None:
    """Without an edit the bytes are the client's."""
    for dialect, key in ((MESSAGES, "messages"), (RESPONSES, "input")):
        request = request_of(dialect, {key: said, **other}, layout)
        assert request.render(dialect.splices(request, [])) == request.raw
