"""Guidance among items of kinds that nobody has documented yet: they are passed over."""

from __future__ import annotations

import json
from itertools import pairwise
from typing import Any

import orjson
import pytest
from hypothesis import assume, example, given
from hypothesis import strategies as st

from gateway.conversations.steer_request import marked
from gateway.core.guidance_choice import Decided, Item
from gateway.core.guidance_settings import InjectionSettings
from gateway.core.guidance_state import GuidanceState, Injection, Place
from gateway.core.pattern import Tier
from gateway.core.placement import GuidanceTarget, place
from gateway.dialects import CHAT, MESSAGES, RESPONSES
from gateway.dialects.base import Dialect
from gateway.wire.body_prefix import AsMappings
from steering_gateway_testing import ReceivedRequest
from steering_gateway_testing.strict import faults_of
from tests.examples import examples

NOTE = "A NOTE OF THE GATEWAY"
DIALECTS: list[Dialect] = [CHAT, RESPONSES, MESSAGES]

# As the newest Codex sends it, in front of its other items.
ADDITIONAL_TOOLS = {"type": "additional_tools", "role": "developer", "tools": [{"name": "x"}]}
kinds = st.sampled_from(
    ["additional_tools", "item_reference", "compaction", "reasoning", "mcp_list_tools", "of_2027"]
)
roles = st.sampled_from(["developer", "system", "user", "assistant", "tool", "critic"])
odd_parts = st.lists(
    st.fixed_dictionaries({"type": st.sampled_from(["of_2027", "input_image"]), "x": st.just(1)}),
    min_size=1,
    max_size=2,
)
unknown = st.fixed_dictionaries(
    {"type": kinds}, optional={"role": roles, "id": st.just("i1"), "tools": st.just([])}
) | st.fixed_dictionaries(
    {"role": st.sampled_from(["developer", "system"])} | {"content": odd_parts}
)
known = st.fixed_dictionaries(
    {"role": st.sampled_from(["system", "developer", "user"]), "content": st.just("said")}
)
items = st.lists(unknown | known, max_size=6)
places: st.SearchStrategy[Place] = st.sampled_from(["system", "message", "result"])
pasts = st.lists(st.builds(lambda p, o: (p, o), places, st.integers(0, 6)), max_size=2)


def sent(dialect: Dialect, given: list[Any], target: GuidanceTarget, past: Any = ()) -> Any:
    """The body that leaves with a rule for the front, a note for the tail and earlier guidance."""
    raw = json.dumps({"model": "m", "store": False, dialect.list_key: given}).encode()
    return json.loads(guided(dialect, raw, target, past))


def guided(dialect: Dialect, raw: bytes, target: GuidanceTarget, past: Any = ()) -> bytes:
    """A request of these bytes, as it leaves."""
    request = dialect.parse(raw, orjson.loads)
    earlier = tuple(
        Injection(step=-1, place=where, offset=at, text=f"{NOTE} {n}")
        for n, (where, at) in enumerate(past)
    )
    new = (Item(text=f"{NOTE} rule", tier=Tier.E3), Item(text=f"{NOTE} tail"))
    decided = Decided(step=1, state=GuidanceState(injections=earlier), items=new)
    placed = place(
        AsMappings(dialect.placeable(request)),
        decided,
        target=target,
        settings=InjectionSettings(),
        tools=marked(request.body),
    )
    return request.render(dialect.splices(request, placed.edits))


@given(items, pasts, st.booleans())
@example([ADDITIONAL_TOOLS, {"role": "developer", "content": "said"}], [], True)
@example([ADDITIONAL_TOOLS, {"role": "user", "content": "said"}], [("system", 0)], True)
@pytest.mark.parametrize("dialect", DIALECTS, ids=lambda dialect: dialect.name)
def test_items_of_unknown_kinds_leave_as_they_came(
    dialect: Dialect, given: list[Any], past: list[Any], late: bool
) -> None:
    """Each of them is in the body that leaves, unchanged and in order; guidance is in no other
    message than one of text that we added or extended."""
    after = sent(dialect, given, GuidanceTarget(late_system=late), past)[dialect.list_key]
    odd = [item for item in given if "type" in item or not isinstance(item["content"], str)]
    rest = iter(after)
    assert all(any(item == other for other in rest) for item in odd)
    for item in after:
        if NOTE in json.dumps(item):
            assert set(item) == {"role", "content"}
            assert isinstance(item["content"], (str, list))


@pytest.mark.parametrize("late", [False, True])
def test_rules_reach_codex_beside_its_tools(late: bool) -> None:
    """The first message of text takes the rules, not the item of tools before it."""
    text = {
        "type": "message",
        "role": "developer",
        "content": [{"type": "input_text", "text": "a"}],
    }
    user = {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "b"}]}
    target = GuidanceTarget(late_system=late)
    after = sent(RESPONSES, [ADDITIONAL_TOOLS, text, user], target)["input"]
    assert after[0] == ADDITIONAL_TOOLS
    assert NOTE in json.dumps(after[1])
    assert [part["type"] for part in after[1]["content"]] == ["input_text", "input_text"]


@given(items, pasts, st.sets(places))
@pytest.mark.parametrize("dialect", DIALECTS, ids=lambda dialect: dialect.name)
def test_a_closed_place_takes_nothing(
    dialect: Dialect, given: list[Any], past: list[Any], closed: set[Place]
) -> None:
    """With every place closed the client's bytes leave; else the closed ones are not used."""
    target = GuidanceTarget(late_system=True, closed=frozenset(closed))
    after = sent(dialect, given, target, past)
    if "message" in closed:
        assert len(after[dialect.list_key]) <= len(given) + 1
    if "system" in closed:
        assert NOTE not in json.dumps([after.get("instructions"), after.get("system")])
    if closed >= {"system", "message", "result"}:
        assert after[dialect.list_key] == given


MARK = {"cache_control": {"type": "ephemeral"}}
CALLED = {"id": "c1", "type": "function", "function": {"name": "x", "arguments": "{}"}}
FUNCTION = {"call_id": "c1", "name": "x", "arguments": "{}", "type": "function_call"}
RESULT = {"type": "tool_result", "tool_use_id": "c1", "content": [{"type": "text", "text": "a"}]}
MARKED_RESULT = {**RESULT, "content": [{"type": "text", "text": "a", **MARK}]}
TOOL_USE = {"type": "tool_use", "id": "c1", "name": "x", "input": {}}
ROUNDS: dict[str, list[list[dict[str, Any]]]] = {
    "chat": [
        [{"role": "user", "content": "said"}],
        [{"role": "developer", "content": [{"type": "text", "text": "said"}]}],
        [{"role": "system", "content": "said", "name": "n"}],
        [
            {"role": "assistant", "content": None, "tool_calls": [CALLED]},
            {"role": "tool", "tool_call_id": "c1", "content": "FAILED"},
        ],
        [
            {"role": "assistant", "tool_calls": [CALLED]},
            {"role": "tool", "tool_call_id": "c1", "content": [{"type": "text", "text": "a"}]},
        ],
    ],
    "responses": [
        [ADDITIONAL_TOOLS | {"tools": []}],
        [{"type": "message", "role": "user", "content": [{"type": "input_text", "text": "a"}]}],
        [{"role": "developer", "content": "said"}],
        [{"id": "i1"}],
        [{"type": "item_reference", "id": "i1"}],
        [{"type": "compaction", "encrypted_content": "x"}],
        [{"type": "compaction_trigger"}],
        [{"type": "reasoning", "id": "r1", "summary": []}],
        [FUNCTION, {"type": "function_call_output", "call_id": "c1", "output": "FAILED"}],
        [
            {"type": "custom_tool_call", "call_id": "c1", "name": "x", "input": "1"},
            {"type": "custom_tool_call_output", "call_id": "c1", "output": "FAILED"},
        ],
        [
            {"type": "program", "id": "p1", "call_id": "c1", "code": "1", "fingerprint": "f"},
            {"type": "program_output", "id": "p2", "call_id": "c1", "result": "1"}
            | {"status": "completed"},
        ],
    ],
    "messages": [
        [{"role": "user", "content": "said"}],
        [{"role": "user", "content": [{"type": "text", "text": "said", **MARK}]}],
        [{"role": "system", "output_config": {}, "content": "said"}],
        [{"role": "assistant", "content": [TOOL_USE]}, {"role": "user", "content": [RESULT]}],
        [
            {"role": "assistant", "content": [{**TOOL_USE, **MARK}]},
            {"role": "user", "content": [MARKED_RESULT, {"type": "text", "text": "said"}]},
        ],
    ],
}
FRONTS: dict[str, list[dict[str, Any]]] = {
    "chat": [{}],
    "responses": [{}, {"instructions": "said"}, {"instructions": None}, {"instructions": ""}],
    "messages": [
        {},
        {"system": "said"},
        {"system": []},
        {"system": [{"type": "text", "text": "said"}]},
        {"system": [{"type": "text", "text": "said", **MARK}]},
        {"system": "said", **MARK},
    ],
}


def received(dialect: Dialect, raw: bytes) -> ReceivedRequest:
    request = ReceivedRequest(method="POST", target=f"/v1{dialect.path}", headers=[], connection=1)
    request.body = raw
    return request


@examples(300)
@given(st.data(), pasts, st.booleans())
@pytest.mark.parametrize("dialect", DIALECTS, ids=lambda dialect: dialect.name)
def test_what_a_provider_accepts_it_accepts_with_guidance(
    dialect: Dialect, data: st.DataObject, past: list[Any], late: bool
) -> None:
    """Requests of every documented kind of item in any order, each system prompt, each number of
    cache markers: no field is added that the reference does not name, no fifth marker, and
    nothing between a call and its result."""
    rounds = data.draw(st.lists(st.sampled_from(ROUNDS[dialect.name]), min_size=1, max_size=6))
    front = data.draw(st.sampled_from(FRONTS[dialect.name]))
    body: dict[str, Any] = (
        {"model": "m", "max_tokens": 9} if dialect is MESSAGES else {"model": "m"}
    )
    body |= {"store": False} if dialect is RESPONSES else {}
    body |= {**front, dialect.list_key: [item for each in rounds for item in each]}
    written = json.dumps(body).encode()
    assume(not faults_of(received(dialect, written)))
    target = GuidanceTarget(late_system=late, breakpoints=dialect is MESSAGES)
    after = guided(dialect, written, target, past)
    assert faults_of(received(dialect, after)) == []
    items = json.loads(after)[dialect.list_key]
    for before, behind in pairwise(items):
        if is_call(before):
            assert behind.get("role") not in ("system", "developer") or NOTE not in str(behind)


def is_call(item: dict[str, Any]) -> bool:
    content = item.get("content")
    parts = content if isinstance(content, list) else []
    return (
        item.get("type") in ("function_call", "custom_tool_call", "program")
        or bool(item.get("tool_calls"))
        or any(part.get("type") == "tool_use" for part in parts)
    )
