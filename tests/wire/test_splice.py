"""Splicing guidance into the bytes does what editing the parsed messages does, and no more."""

from __future__ import annotations

import json
from typing import Any, Literal

import orjson
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from gateway.core.edits import Edit, InsertMessage, InsertSystem, SystemAppend, apply
from gateway.dialects import CHAT
from gateway.wire.request import ChatRequest, Splice, append_to_message, insert_message
from steering_gateway_testing.json_texts import Member, bodies, parsed, rendered
from tests.examples import examples

Body = tuple[list[Member], tuple[str, str, str]]

guidance = st.text(min_size=1, max_size=10)
groups = st.lists(guidance, min_size=1, max_size=2).map(tuple)
roles: st.SearchStrategy[Literal["system", "developer"]] = st.sampled_from(["system", "developer"])
breakpoints = st.sampled_from([None, {"type": "ephemeral"}, {"type": "ephemeral", "ttl": "1h"}])


@st.composite
def edits(draw: st.DrawFn, count: int) -> list[Edit]:
    """Edits as they are decided: append to or insert a system message, then more messages."""
    made: list[Edit] = []
    if count:
        for index in draw(st.lists(st.integers(0, count - 1), max_size=2, unique=True)):
            texts, marker = draw(groups), draw(breakpoints)
            made.append(SystemAppend(index=index, texts=texts, breakpoint=marker))
    if draw(st.booleans()):
        made.append(InsertSystem(texts=draw(groups)))
    for _ in range(draw(st.integers(0, 3 if count else 1 - len(made)))):
        role = draw(roles)
        position = draw(st.integers(0, count))
        made.append(InsertMessage(position=position, role=role, text=draw(guidance)))
    return made


def spliced(request: ChatRequest, made: list[Edit]) -> list[Splice]:
    splices: list[Splice] = []
    for edit in made:
        match edit:
            case SystemAppend():
                splices += append_to_message(request, edit.index, edit.texts, edit.breakpoint)
            case InsertSystem():
                splices.append(insert_message(request, 0, "system", "\n\n".join(edit.texts)))
            case InsertMessage():
                splices.append(insert_message(request, edit.position, edit.role, edit.text))
    return splices


@examples(60)
@given(bodies(), st.data())
def test_splicing_agrees_with_editing(made: Body, data: st.DataObject) -> None:
    """For every kind of edit, at every place, the spliced bytes parse to the edited messages."""
    request = parsed(rendered(*made), orjson.loads)
    before = json.loads(request.raw)
    chosen = data.draw(edits(len(before["messages"])))
    after = json.loads(request.render(spliced(request, chosen)))
    assert after["messages"] == apply(before["messages"], chosen)
    assert {**after, "messages": before["messages"]} == before
    assert list(after) == list(before)


@examples(40)
@given(bodies(), st.data())
def test_splices_only_add(made: Body, data: st.DataObject) -> None:
    """Taking the added text out again gives the client's bytes, but for content that was empty."""
    request = parsed(rendered(*made), orjson.loads)
    chosen = data.draw(edits(len(request.messages)))
    splices = spliced(request, chosen)
    raw = request.raw
    replaced = [raw[s.start : s.end] for s in splices]
    assert all(json.loads(old or b'""') in (None, "", []) for old in replaced)
    at, parts = 0, []
    for splice in sorted(splices, key=lambda s: (s.start, s.end)):
        parts.append(raw[at : splice.start])
        at = splice.end
    rest = b"".join([*parts, raw[at:]])
    assert len(rest) == len(raw) - sum(map(len, replaced))


@examples(60)
@given(bodies(), st.data())
def test_splicing_behind_a_known_prefix_is_the_same(made: Body, data: st.DataObject) -> None:
    """What is known of a body changes neither where guidance goes nor where the model's name is."""
    raw = rendered(*made)
    whole = parsed(raw)
    if whole.prefix is None:
        return
    cut = data.draw(st.integers(1, len(whole.prefix.spans)))
    behind = parsed(raw, known=replace(whole.prefix, spans=whole.prefix.spans[:cut]))
    chosen = data.draw(edits(len(whole.messages)))
    rendering = [r.render(spliced(r, chosen) + r.with_model("x")) for r in (behind, whole)]
    assert rendering[0] == rendering[1]


def test_the_pipeline_splices_each_edit() -> None:
    """The pipeline's own translation of edits gives what the edits say."""
    messages: list[dict[str, Any]] = [{"role": "user", "content": "hi"}]
    request = parsed(json.dumps({"model": "m", "messages": messages}).encode())
    chosen: list[Edit] = [
        InsertSystem(texts=("a", "b")),
        SystemAppend(index=0, texts=("c",)),
        InsertMessage(position=1, role="developer", text="d"),
    ]
    steered: Any = type("Steered", (), {"edits": chosen})()
    after = json.loads(request.render(CHAT.splices(request, steered.edits)))
    assert after["messages"] == apply(messages, chosen)
