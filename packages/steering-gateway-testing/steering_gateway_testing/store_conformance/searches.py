"""Checks of PatternStore: searches, and the vectors of more than one embedder."""

from __future__ import annotations

import math

from msgspec.structs import replace

from gateway.backends import Stores
from gateway.core.pattern import Pattern, Tier
from gateway.library.memory import PatternMemory
from gateway.stores.patterns import PatternFilter, SpaceMismatch, VectorSearch
from steering_gateway_testing.store_conformance.check import Check, raises
from steering_gateway_testing.store_conformance.sample_patterns import (
    add,
    drawn,
    found,
    opened,
    pattern,
    vector,
)


async def one_bad_vector_refuses_all(stores: Stores) -> None:
    """Patterns are added all or none."""
    store = await opened(stores)
    with raises(SpaceMismatch, "8 dimensions in a space of 16"):
        await store.add([(pattern("a"), vector(1)), (pattern("b"), vector(1, size=8))])
    assert await store.count() == 0
    with raises(SpaceMismatch):
        await found(store, vector=vector(1, size=8))


async def nearest_come_first_and_the_floor_holds(stores: Stores) -> None:
    """Matches are ordered by cosine similarity, which is reported exactly."""
    store = await opened(stores)
    for text, at in [("far", vector(0.1, 1)), ("near", vector(1, 0.1)), ("mid", vector(1, 1))]:
        await add(store, pattern(text), at)
    await add(store, pattern("opposite"), vector(-1))
    matches = await store.search(VectorSearch(tier=Tier.E2, vector=vector(1), limit=9, floor=0.2))
    assert [match.pattern.fields["unlock"] for match in matches] == ["near", "mid"]
    assert abs(matches[0].similarity - 1 / math.sqrt(1.01)) < 1e-5
    assert await found(store, limit=1) == ["near"]


async def a_vector_of_zeros_finds_nothing(stores: Stores) -> None:
    """A vector of zeros has no neighbours; a pattern stored with one is never found."""
    store = await opened(stores)
    await add(store, pattern("a"), vector(1))
    await add(store, pattern("mute"), vector(0))
    assert await found(store, vector=vector(0), floor=0.1) == []
    assert await found(store, floor=0.1) == ["a"]


async def a_pattern_for_the_cause_needs_no_similarity(stores: Stores) -> None:
    """It is found behind any number of nearer ones, by a text of unknown words, too; not if it
    only mentions the word, or is for another failure."""
    store = await opened(stores)
    await store.add([(pattern(f"near {n}"), vector(1, n / 999)) for n in range(100)])
    about = {"causes": ["path_missing", "port_taken"]}
    fields = {"trigger_state": about, "unlock": "look"}
    await add(store, Pattern(tier=Tier.E2, fields=fields), vector(-1))
    mute = {"trigger_state": about, "unlock": "mute"}
    await add(store, Pattern(tier=Tier.E2, fields=mute), vector(0))
    mentions = {"trigger_state": "path_missing", "causes": ["path_missing"], "unlock": "mentions"}
    await add(store, Pattern(tier=Tier.E2, fields=mentions), vector(1))
    loop = {"trigger_state": about, "unlock": "loop"}
    await add(store, Pattern(tier=Tier.E2, fields=loop, failure_type="loop"), vector(-1, 1))
    memory = PatternMemory(store)
    await memory.refresh()
    assert memory.searched is not None
    for at in (vector(1), vector(0)):
        wanted = VectorSearch(
            tier=Tier.E2,
            vector=at,
            limit=9,
            floor=0.9,
            failure_type="hedge",
            cause="path_missing",
        )
        for search in (store.search, memory.searched.search):
            similar = {m.pattern.fields["unlock"]: m.similarity for m in await search(wanted)}
            assert abs(similar.pop("look") + at[0]) < 1e-5
            assert similar == {"mute": 0.0}
            assert await search(replace(wanted, cause="disk_full")) == []


async def the_search_agrees_with_comparing_everything(stores: Stores) -> None:
    """Over 400 random directions the best two are the exact ones."""
    store = await opened(stores)
    vectors = {f"t{n}": drawn(n) for n in range(400)}
    await store.add([(pattern(text), at) for text, at in vectors.items()])
    for seed in range(1000, 1020):
        query = drawn(seed)
        exact = sorted(
            vectors, key=lambda t: -sum(a * b for a, b in zip(vectors[t], query, strict=True))
        )
        assert await found(store, vector=query, limit=2) == exact[:2]


async def tenants_never_see_each_others_instances(stores: Stores) -> None:
    """E1 is searched, got, listed, counted and deleted within its tenant; e2 is shared."""
    store = await opened(stores)
    mine = await add(store, pattern("mine", Tier.E1, tenant="a"), vector(1))
    theirs = await add(store, pattern("theirs", Tier.E1, tenant="b"), vector(1))
    shared = await add(store, pattern("shared"), vector(1))
    nobodys = await add(store, pattern("nobody's", Tier.E1), vector(1))
    assert await found(store, tier=Tier.E1, tenant="a") == ["mine"]
    assert await found(store, tier=Tier.E1, tenant="b") == ["theirs"]
    assert await found(store, tier=Tier.E1, tenant="") == ["nobody's"]
    assert await found(store, tenant="a") == ["shared"]
    assert await store.get("a", theirs) is None
    assert not await store.delete("a", theirs)
    await store.note_injected("a", [theirs, mine])
    counts = [await store.get(t, i) for t, i in (("a", mine), ("b", theirs))]
    assert [stored and stored.injected for stored in counts] == [1, 0]
    page = await store.list_patterns(PatternFilter(tenant="a"))
    assert {s.pattern.pattern_id for s in page.patterns} == {mine, shared, nobodys}
    everyone = await store.list_patterns(PatternFilter())
    assert len(everyone.patterns) == 4


async def failure_types_and_families_narrow_a_search(stores: Stores) -> None:
    """Patterns of another type or family are left out, patterns without one are included."""
    store = await opened(stores)
    await add(store, pattern("any"), vector(1))
    await add(store, pattern("loop", failure_type="loop"), vector(1))
    await add(store, pattern("hedge", failure_type="hedge"), vector(1))
    await add(store, pattern("sonnet", model_family="sonnet"), vector(1))
    await add(store, pattern("gpt", model_family="gpt-4o"), vector(1))
    assert set(await found(store)) == {"any", "loop", "hedge", "sonnet", "gpt"}
    assert set(await found(store, failure_type="loop")) == {"any", "loop", "sonnet", "gpt"}
    assert set(await found(store, failure_type="loop", model="claude-sonnet-4")) == {
        "any",
        "loop",
        "sonnet",
    }
    assert set(await found(store, model="openai/gpt-4o-mini")) == {"any", "loop", "hedge", "gpt"}
    assert set(await found(store, model="qwen")) == {"any", "loop", "hedge"}


async def a_store_for_other_models_finds_nothing(stores: Stores) -> None:
    """When every pattern is for another model family, no tier returns any."""
    store = await opened(stores)
    await add(store, pattern("a", model_family="sonnet"), vector(1))
    await add(store, pattern("rule", Tier.E3, model_family="sonnet"))
    assert await found(store, model="gpt-4o") == []
    assert await store.universal(model="gpt-4o") == []
    assert len(await store.universal(model="claude-sonnet-4")) == 1


async def universal_rules_are_listed_not_searched(stores: Stores) -> None:
    """They need no vector, come in order of their ids, and match the model."""
    store = await opened(stores)
    for name in ("b", "a", "c"):
        await add(store, pattern(name, Tier.E3, pattern_id=name))
    await add(store, pattern("g", Tier.E3, pattern_id="g", model_family="gemini"))
    rules = await store.universal(model="gpt-4o")
    assert [match.pattern.pattern_id for match in rules] == ["a", "b", "c"]
    assert {match.similarity for match in rules} == {1.0}
    assert len(await store.universal(limit=2)) == 2
    assert len(await store.universal(model="gemini-2.5-pro")) == 4
    assert await store.without_vector(9) == []


async def another_embedder_needs_new_vectors(stores: Stores) -> None:
    """Vectors of two embedders are never compared; patterns without one are listed, not found."""
    store = await opened(stores)
    await add(store, pattern("a"), vector(1))
    await add(store, pattern("rule", Tier.E3))
    assert await store.open_space("other", 8) == 1
    assert await found(store, vector=vector(1, size=8)) == []
    missing = await store.without_vector(9)
    assert [each.fields["unlock"] for each in missing] == ["a"]
    page = await store.list_patterns(PatternFilter(tier=Tier.E2))
    assert not page.patterns[0].indexed
    await store.set_vectors([(missing[0], vector(1, size=8))])
    assert await found(store, vector=vector(1, size=8)) == ["a"]
    assert await store.without_vector(9) == []


async def a_vector_of_an_outdated_text_is_dropped(stores: Stores) -> None:
    """After an edit during re-embedding, the pattern still lacks the vector of its new text."""
    store = await opened(stores)
    pattern_id = await add(store, pattern("old"))
    (old,) = await store.without_vector(9)
    await store.edit(pattern("new", pattern_id=pattern_id), None)
    await store.set_vectors([(old, vector(1))])
    assert await found(store) == []
    assert [each.fields["unlock"] for each in await store.without_vector(9)] == ["new"]


async def a_copy_in_memory_is_searched_like_the_store(stores: Stores) -> None:
    """It has every pattern once, whatever their number, and finds the same ones as alike."""
    store = await opened(stores)
    kinds = [{}, {"failure_type": "loop"}, {"failure_type": "hedge"}, {"model_family": "gpt-4o"}]
    for tier, tenant in ((Tier.E2, ""), (Tier.E1, "a"), (Tier.E1, "b")):
        drawn_ones = [
            (pattern(f"{tenant}{n}", tier, tenant=tenant, **kinds[n % 4]), drawn(n))
            for n in range(600)
        ]
        await store.add(drawn_ones)
    await add(store, pattern("mute"), vector(0))
    memory = PatternMemory(store)
    await memory.refresh()
    for seed in range(1000, 1010):
        for wanted in ({}, {"tier": Tier.E1, "tenant": "b"}, {"tier": Tier.E1, "tenant": "c"}):
            for more in ({}, {"failure_type": "loop"}, {"model": "claude-sonnet-4"}):
                about = {"tier": Tier.E2, "limit": 5, "floor": 0.1} | wanted | more
                search = VectorSearch(vector=drawn(seed), **about)  # type: ignore[arg-type]
                assert memory.searched is not None
                copied, stored = await memory.searched.search(search), await store.search(search)
                assert [each.pattern for each in copied] == [each.pattern for each in stored]
                for one, other in zip(copied, stored, strict=True):
                    assert abs(one.similarity - other.similarity) < 1e-5


async def a_copy_is_made_again_after_each_change(stores: Stores) -> None:
    """Whatever changes is seen, and what is only counted or learned is no change."""
    store = await opened(stores)
    own = await add(store, pattern("a"), vector(1))
    seen = [await store.mark()]
    await store.note_injected("", [own])
    assert await store.mark() == seen[0]
    await store.edit(pattern("b", pattern_id=own), None)
    seen.append(await store.mark())
    await store.set_vectors([(pattern("b", pattern_id=own), vector(0, 1))])
    seen.append(await store.mark())
    await add(store, pattern("rule", Tier.E3))
    seen.append(await store.mark())
    await store.delete(None, own)
    seen.append(await store.mark())
    assert len(set(seen)) == len(seen)


async def sound_vectors_are_kept(stores: Stores) -> None:
    """Removing the vectors that do not fit removes none that does."""
    store = await opened(stores)
    await add(store, pattern("a"), vector(1))
    await store.remove_unfit()
    assert await found(store) == ["a"]
    assert await store.without_vector(9) == []


SEARCH_CHECKS: tuple[Check, ...] = (
    one_bad_vector_refuses_all,
    nearest_come_first_and_the_floor_holds,
    a_vector_of_zeros_finds_nothing,
    a_pattern_for_the_cause_needs_no_similarity,
    the_search_agrees_with_comparing_everything,
    tenants_never_see_each_others_instances,
    failure_types_and_families_narrow_a_search,
    a_store_for_other_models_finds_nothing,
    universal_rules_are_listed_not_searched,
    another_embedder_needs_new_vectors,
    a_vector_of_an_outdated_text_is_dropped,
    a_copy_in_memory_is_searched_like_the_store,
    a_copy_is_made_again_after_each_change,
    sound_vectors_are_kept,
)
