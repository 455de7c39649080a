"""Checks of PatternStore: storing, editing, listing and counting patterns."""

from __future__ import annotations

from gateway.backends import Stores
from gateway.core.pattern import Pattern, Tier, content_id
from gateway.stores.patterns import Added, PatternConflict, PatternFilter
from steering_gateway_testing.store_conformance.check import Check, raises
from steering_gateway_testing.store_conformance.sample_patterns import (
    add,
    drawn,
    found,
    opened,
    pattern,
    vector,
)


async def a_pattern_is_kept_as_it_was(stores: Stores) -> None:
    """Every field comes back; without an id, the id is derived from the content."""
    store = await opened(stores)
    kept = Pattern(
        tier=Tier.E1,
        fields={"situation": "naïve 日本語 \u0000", "unlock": "u", "tags": ["a"], "n": {"x": 1.5}},
        tenant="acme",
        failure_type="loop",
        model_family="claude-3",
        gate_threshold=0.4,
        source_trace_id="run-1",
    )
    pattern_id = await add(store, kept, drawn(1))
    stored = await store.get("acme", pattern_id)
    assert stored is not None
    assert pattern_id == content_id(kept)
    assert dict(stored.pattern.fields) == kept.fields
    assert (stored.pattern.failure_type, stored.pattern.model_family) == ("loop", "claude-3")
    assert (stored.pattern.gate_threshold, stored.pattern.source_trace_id) == (0.4, "run-1")
    assert stored.injected == 0
    assert stored.indexed
    assert stored.created_at == stored.updated_at > 0


async def the_same_content_is_stored_once(stores: Stores) -> None:
    """Adding it again, with any id, changes nothing and returns the first id."""
    store = await opened(stores)
    first = await add(store, pattern("wait"), vector(1))
    same = Pattern(tier=Tier.E2, fields={"unlock": " wait", "situation": "s"}, pattern_id="other")
    assert await store.add([(same, vector(1))]) == [(Added.UNCHANGED, first)]
    assert await store.count() == 1


async def a_known_id_gets_the_new_content(stores: Stores) -> None:
    """Importing a newer version replaces the text and its vector and keeps the counts."""
    store = await opened(stores)
    await add(store, pattern("old", pattern_id="p"), vector(1))
    await store.note_injected("", ["p"])
    newer = pattern("new", pattern_id="p", failure_type="hedge")
    assert await store.add([(newer, vector(0, 1))]) == [(Added.REPLACED, "p")]
    stored = await store.get("", "p")
    assert stored is not None
    assert stored.injected == 1
    assert await found(store, floor=0.5) == []
    assert await found(store, vector=vector(0, 1), floor=0.5) == ["new"]


async def many_at_once_are_one_after_the_other(stores: Stores) -> None:
    """A text that is repeated, replaced or taken over by another id has the result and the vector
    that it would have by itself."""
    store = await opened(stores)
    await add(store, pattern("old", pattern_id="p"), vector(1))
    batch = [
        (pattern("new", pattern_id="p"), vector(0, 1)),
        (pattern("old", pattern_id="q"), vector(1)),
        (pattern("old", pattern_id="r"), vector(1)),
        (pattern("one", pattern_id="s"), vector(1)),
        (pattern("two", pattern_id="s"), vector(0, 1)),
    ]
    assert await store.add(batch) == [
        (Added.REPLACED, "p"),
        (Added.ADDED, "q"),
        (Added.UNCHANGED, "q"),
        (Added.ADDED, "s"),
        (Added.REPLACED, "s"),
    ]
    assert await found(store, floor=0.5) == ["old"]
    assert set(await found(store, vector=vector(0, 1), floor=0.5)) == {"new", "two"}


async def two_tenants_may_use_the_same_id(stores: Stores) -> None:
    """An id belongs to its tenant; each gets its own."""
    store = await opened(stores)
    for tenant in ("a", "b"):
        await add(store, pattern(tenant, Tier.E1, tenant=tenant, pattern_id="same"), vector(1))
    for tenant in ("a", "b"):
        stored = await store.get(tenant, "same")
        assert stored is not None
        assert stored.pattern.fields["unlock"] == tenant
    assert await store.delete("a", "same")
    assert await store.get("b", "same") is not None


async def a_pattern_can_be_edited(stores: Stores) -> None:
    """Text, vector and failure type change; the id and the creation date do not."""
    store = await opened(stores)
    pattern_id = await add(store, pattern("old"), vector(1))
    before = await store.get("", pattern_id)
    await store.edit(pattern("new", pattern_id=pattern_id, failure_type="loop"), vector(0, 1))
    after = await store.get("", pattern_id)
    assert before is not None
    assert after is not None
    assert after.pattern.fields["unlock"] == "new"
    assert after.created_at == before.created_at
    assert await found(store, vector=vector(0, 1), failure_type="loop") == ["new"]


async def an_edit_cannot_duplicate_or_create(stores: Stores) -> None:
    """The content of another pattern, or an unknown id, is a conflict and changes nothing."""
    store = await opened(stores)
    first = await add(store, pattern("one"), vector(1))
    await add(store, pattern("two"), vector(1))
    with raises(PatternConflict, "same content"):
        await store.edit(pattern("two", pattern_id=first), vector(1))
    with raises(PatternConflict, "no pattern"):
        await store.edit(pattern("three", pattern_id="unknown"), vector(1))
    assert set(await found(store)) == {"one", "two"}


async def a_deleted_pattern_is_gone(stores: Stores) -> None:
    """It is neither listed nor found, and its content may be added again."""
    store = await opened(stores)
    pattern_id = await add(store, pattern("gone"), vector(1))
    assert await store.delete("", pattern_id)
    assert not await store.delete("", pattern_id)
    assert await store.get("", pattern_id) is None
    assert await found(store) == []
    assert await store.count() == 0
    assert (await store.add([(pattern("gone"), vector(1))]))[0][0] is Added.ADDED


async def lists_come_in_pages_newest_first(stores: Stores) -> None:
    """The pages contain each pattern once; an invalid cursor is refused."""
    store = await opened(stores)
    await store.add([(pattern(f"t{n}"), vector(1)) for n in range(7)])
    seen, cursor = [], None
    while True:
        page = await store.list_patterns(PatternFilter(), limit=3, cursor=cursor)
        seen += [stored.pattern.fields["unlock"] for stored in page.patterns]
        cursor = page.next_cursor
        if cursor is None:
            break
    assert seen == [f"t{n}" for n in reversed(range(7))]
    for bad in ("x", "1; DROP", "9" * 30):
        with raises(ValueError, "cursor"):
            await store.list_patterns(PatternFilter(), cursor=bad)
    with raises(ValueError, "limit"):
        await store.list_patterns(PatternFilter(), limit=0)


async def lists_are_filtered(stores: Stores) -> None:
    """By tier, failure type, family and a piece of text."""
    store = await opened(stores)
    await add(store, pattern("Clear the CACHE", failure_type="loop"), vector(1))
    await add(store, pattern("100% sure_thing", model_family="gpt"), vector(1))
    await add(store, pattern("rule", Tier.E3))

    async def texts(**wanted: object) -> list[str]:
        page = await store.list_patterns(PatternFilter(**wanted))  # type: ignore[arg-type]
        return [stored.pattern.fields["unlock"] for stored in page.patterns]

    assert await texts(tier=Tier.E3) == ["rule"]
    assert await texts(failure_type="loop") == ["Clear the CACHE"]
    assert await texts(model_family="gpt") == ["100% sure_thing"]
    assert await texts(text="the cache") == ["Clear the CACHE"]
    assert await texts(text="%") == ["100% sure_thing"]
    assert await texts(text="nothing") == []


async def events_are_counted(stores: Stores) -> None:
    """Counts add up; unknown ids are ignored."""
    store = await opened(stores)
    pattern_id = await add(store, pattern("a"), vector(1))
    await store.note_injected("any", [pattern_id, "unknown"])
    await store.note_injected("any", [pattern_id], by=2)
    stored = await store.get(None, pattern_id)
    assert stored is not None
    assert stored.injected == 3


PATTERN_CHECKS: tuple[Check, ...] = (
    a_pattern_is_kept_as_it_was,
    the_same_content_is_stored_once,
    a_known_id_gets_the_new_content,
    many_at_once_are_one_after_the_other,
    two_tenants_may_use_the_same_id,
    a_pattern_can_be_edited,
    an_edit_cannot_duplicate_or_create,
    a_deleted_pattern_is_gone,
    lists_come_in_pages_newest_first,
    lists_are_filtered,
    events_are_counted,
)
