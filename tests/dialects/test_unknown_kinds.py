"""Guidance among items of kinds that nobody has documented yet: they are passed over."""

from __future__ import annotations

import json
from typing import Any

import orjson
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from gateway.dialects import CHAT, MESSAGES, RESPONSES
from gateway.dialects.base import Dialect
from gateway.steering.guidance.decide import Decided, Item
from gateway.steering.guidance.pattern import Tier
from gateway.steering.guidance.placement import place
from gateway.steering.guidance.settings import InjectionSettings
from gateway.steering.guidance.state import GuidanceState, Injection, Place
from gateway.steering.guidance.target import GuidanceTarget
from gateway.wire.body_prefix import AsMappings

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
    )
    return json.loads(request.render(dialect.splices(request, placed.edits)))


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
            assert isinstance(item["content"], str)


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
    added = [m for m in after[dialect.list_key] if NOTE in json.dumps(m)]
    if "message" in closed:
        assert len(after[dialect.list_key]) <= len(given) + 1
    if "system" in closed:
        assert NOTE not in json.dumps([after.get("instructions"), after.get("system")])
    if closed >= {"system", "message"}:
        assert added == []
        assert after[dialect.list_key] == given
