"""What every pattern store does, run against each."""

from __future__ import annotations

import math
import random
from array import array
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from gateway.steering.etrace.pattern import Pattern, Tier, content_id
from gateway.stores.patterns import (
    Added,
    Event,
    PatternConflict,
    PatternFilter,
    PatternStore,
    Search,
    SpaceMismatch,
    Vector,
)
from gateway.stores.patterns_memory import MemoryPatternStore
from gateway.stores.settings import StorageSettings
from gateway.stores.sqlite.database import Database
from gateway.stores.sqlite.pattern_schema import PATTERN_MIGRATIONS, load_vector_extension
from gateway.stores.sqlite.patterns import SQLitePatternStore
from gateway.stores.sqlite.schema import CORE_MIGRATIONS

SIZE = 16


def vector(*values: float, size: int = SIZE) -> Vector[float]:
    """A unit vector that begins with these values."""
    padded = [*values, *([0.0] * (size - len(values)))]
    length = math.sqrt(sum(value * value for value in padded)) or 1.0
    return array("f", [value / length for value in padded])


def drawn(seed: int, size: int = SIZE) -> Vector[float]:
    """A unit vector in a direction drawn from `seed`."""
    source = random.Random(seed)
    return vector(*(source.gauss(0, 1) for _ in range(size)), size=size)


def pattern(text: str, tier: Tier = Tier.E2, **more: object) -> Pattern:
    return Pattern(tier=tier, fields={"situation": "s", "unlock": text}, **more)  # type: ignore[arg-type]


async def open_database(path: Path) -> Database:
    return await Database.open(
        StorageSettings(path=str(path)),
        migrations=(*CORE_MIGRATIONS, *PATTERN_MIGRATIONS),
        hooks=(load_vector_extension,),
    )


@pytest.fixture(params=["memory", "sqlite"])
async def store(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[PatternStore]:
    if request.param == "memory":
        memory = MemoryPatternStore()
        await memory.open_space("test", SIZE)
        yield memory
        return
    database = await open_database(tmp_path / "gateway.db")
    sqlite = SQLitePatternStore(database)
    await sqlite.open_space("test", SIZE)
    yield sqlite
    await database.close()


async def add(store: PatternStore, each: Pattern, at: Vector[float] | None = None) -> str:
    """Add one pattern and return its id."""
    return (await store.add([(each, at)]))[0][1]


async def found(store: PatternStore, **search: object) -> list[str]:
    """The texts a search finds, best first."""
    wanted = {"tier": Tier.E2, "vector": vector(1), "limit": 9} | search
    return [match.pattern.fields["unlock"] for match in await store.search(Search(**wanted))]  # type: ignore[arg-type]


async def test_a_pattern_is_kept_as_it_was(store: PatternStore) -> None:
    """Every field comes back; the id is made from the content when none was given."""
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
    assert stored.counts == {"injected": 0, "helped": 0, "hurt": 0}
    assert stored.indexed
    assert stored.created_at == stored.updated_at > 0


async def test_the_same_content_is_stored_once(store: PatternStore) -> None:
    """Adding it again, under any id, changes nothing and gives the first id."""
    first = await add(store, pattern("wait"), vector(1))
    same = Pattern(tier=Tier.E2, fields={"unlock": " wait", "situation": "s"}, pattern_id="other")
    assert await store.add([(same, vector(1))]) == [(Added.UNCHANGED, first)]
    assert await store.count() == 1


async def test_a_known_id_gets_the_new_content(store: PatternStore) -> None:
    """Importing a newer version replaces the text and its vector and keeps the counts."""
    await add(store, pattern("old", pattern_id="p"), vector(1))
    await store.record("", ["p"], Event.INJECTED)
    newer = pattern("new", pattern_id="p", failure_type="hedge")
    assert await store.add([(newer, vector(0, 1))]) == [(Added.REPLACED, "p")]
    stored = await store.get("", "p")
    assert stored is not None
    assert stored.counts["injected"] == 1
    assert await found(store, floor=0.5) == []
    assert await found(store, vector=vector(0, 1), floor=0.5) == ["new"]


async def test_one_bad_vector_keeps_all_out(store: PatternStore) -> None:
    """Patterns are added all or none."""
    with pytest.raises(SpaceMismatch, match="8 dimensions in a space of 16"):
        await store.add([(pattern("a"), vector(1)), (pattern("b"), vector(1, size=8))])
    assert await store.count() == 0
    with pytest.raises(SpaceMismatch):
        await found(store, vector=vector(1, size=8))


async def test_nearest_come_first_and_the_floor_holds(store: PatternStore) -> None:
    """Matches are ordered by cosine similarity, which is reported exactly."""
    for text, at in [("far", vector(0.1, 1)), ("near", vector(1, 0.1)), ("mid", vector(1, 1))]:
        await add(store, pattern(text), at)
    await add(store, pattern("opposite"), vector(-1))
    matches = await store.search(Search(tier=Tier.E2, vector=vector(1), limit=9, floor=0.2))
    assert [match.pattern.fields["unlock"] for match in matches] == ["near", "mid"]
    assert matches[0].similarity == pytest.approx(1 / math.sqrt(1.01), abs=1e-5)
    assert await found(store, limit=1) == ["near"]


async def test_a_text_that_says_nothing_finds_nothing(store: PatternStore) -> None:
    """A vector of zeros has no neighbours; a pattern stored with one is never found."""
    await add(store, pattern("a"), vector(1))
    await add(store, pattern("mute"), vector(0))
    assert await found(store, vector=vector(0), floor=0.1) == []
    assert await found(store, floor=0.1) == ["a"]


async def test_the_search_agrees_with_comparing_everything(store: PatternStore) -> None:
    """Over 400 random directions the best two are the exact ones."""
    vectors = {f"t{n}": drawn(n) for n in range(400)}
    await store.add([(pattern(text), at) for text, at in vectors.items()])
    for seed in range(1000, 1020):
        query = drawn(seed)
        exact = sorted(
            vectors, key=lambda t: -sum(a * b for a, b in zip(vectors[t], query, strict=True))
        )
        assert await found(store, vector=query, limit=2) == exact[:2]


async def test_tenants_never_see_each_others_instances(store: PatternStore) -> None:
    """E1 is searched, got, listed, counted and deleted within its tenant; e2 is shared."""
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
    await store.record("a", [theirs, mine], Event.HURT)
    counts = [await store.get(t, i) for t, i in (("a", mine), ("b", theirs))]
    assert [stored and stored.counts["hurt"] for stored in counts] == [1, 0]
    page = await store.list_patterns(PatternFilter(tenant="a"))
    assert {s.pattern.pattern_id for s in page.patterns} == {mine, shared, nobodys}
    everyone = await store.list_patterns(PatternFilter())
    assert len(everyone.patterns) == 4


async def test_two_tenants_may_use_the_same_id(store: PatternStore) -> None:
    """An id belongs to its tenant; each gets its own."""
    for tenant in ("a", "b"):
        await add(store, pattern(tenant, Tier.E1, tenant=tenant, pattern_id="same"), vector(1))
    for tenant in ("a", "b"):
        stored = await store.get(tenant, "same")
        assert stored is not None
        assert stored.pattern.fields["unlock"] == tenant
    assert await store.delete("a", "same")
    assert await store.get("b", "same") is not None


async def test_failure_types_and_families_narrow_a_search(store: PatternStore) -> None:
    """Patterns for something else are left out, patterns for nothing in particular are not."""
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


async def test_a_store_for_other_models_finds_nothing(store: PatternStore) -> None:
    """When every pattern is for another family, none is given, of any tier."""
    await add(store, pattern("a", model_family="sonnet"), vector(1))
    await add(store, pattern("rule", Tier.E3, model_family="sonnet"))
    assert await found(store, model="gpt-4o") == []
    assert await store.universal(model="gpt-4o") == []
    assert len(await store.universal(model="claude-sonnet-4")) == 1


async def test_universal_rules_are_listed_not_searched(store: PatternStore) -> None:
    """They need no vector, come in order of their ids, and suit the model."""
    for name in ("b", "a", "c"):
        await add(store, pattern(name, Tier.E3, pattern_id=name))
    await add(store, pattern("g", Tier.E3, pattern_id="g", model_family="gemini"))
    rules = await store.universal(model="gpt-4o")
    assert [match.pattern.pattern_id for match in rules] == ["a", "b", "c"]
    assert {match.similarity for match in rules} == {1.0}
    assert len(await store.universal(limit=2)) == 2
    assert len(await store.universal(model="gemini-2.5-pro")) == 4
    assert await store.without_vector(9) == []


async def test_a_pattern_can_be_edited(store: PatternStore) -> None:
    """Text, vector and failure type change; the id and the date of birth stay."""
    pattern_id = await add(store, pattern("old"), vector(1))
    before = await store.get("", pattern_id)
    await store.edit(pattern("new", pattern_id=pattern_id, failure_type="loop"), vector(0, 1))
    after = await store.get("", pattern_id)
    assert before is not None
    assert after is not None
    assert after.pattern.fields["unlock"] == "new"
    assert after.created_at == before.created_at
    assert await found(store, vector=vector(0, 1), failure_type="loop") == ["new"]


async def test_an_edit_cannot_duplicate_or_invent(store: PatternStore) -> None:
    """Content another pattern has, or an unknown id, is a conflict; nothing changes."""
    first = await add(store, pattern("one"), vector(1))
    await add(store, pattern("two"), vector(1))
    with pytest.raises(PatternConflict, match="same content"):
        await store.edit(pattern("two", pattern_id=first), vector(1))
    with pytest.raises(PatternConflict, match="no pattern"):
        await store.edit(pattern("three", pattern_id="unknown"), vector(1))
    assert set(await found(store)) == {"one", "two"}


async def test_a_deleted_pattern_is_gone_from_everywhere(store: PatternStore) -> None:
    """It is neither listed nor found, and its content may be added again."""
    pattern_id = await add(store, pattern("gone"), vector(1))
    assert await store.delete("", pattern_id)
    assert not await store.delete("", pattern_id)
    assert await store.get("", pattern_id) is None
    assert await found(store) == []
    assert await store.count() == 0
    assert (await store.add([(pattern("gone"), vector(1))]))[0][0] is Added.ADDED


async def test_lists_come_in_pages_newest_first(store: PatternStore) -> None:
    """Following the cursor gives each pattern once; a foreign cursor is refused."""
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
        with pytest.raises(ValueError, match="cursor"):
            await store.list_patterns(PatternFilter(), cursor=bad)
    with pytest.raises(ValueError, match="limit"):
        await store.list_patterns(PatternFilter(), limit=0)


async def test_lists_are_filtered(store: PatternStore) -> None:
    """By tier, failure type, family and a piece of text."""
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


async def test_events_are_counted(store: PatternStore) -> None:
    """Injected, helped and hurt add up; unknown ids are ignored."""
    pattern_id = await add(store, pattern("a"), vector(1))
    await store.record("any", [pattern_id, "unknown"], Event.INJECTED)
    await store.record("any", [pattern_id], Event.INJECTED)
    await store.record("any", [pattern_id], Event.HELPED)
    stored = await store.get(None, pattern_id)
    assert stored is not None
    assert stored.counts == {"injected": 2, "helped": 1, "hurt": 0}


async def test_another_embedder_needs_new_vectors(store: PatternStore) -> None:
    """Vectors of two embedders never meet; patterns without one are told and not found."""
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


async def test_a_vector_of_an_outdated_text_is_dropped(store: PatternStore) -> None:
    """An edit during re-embedding wins; the pattern waits for the vector of its new text."""
    pattern_id = await add(store, pattern("old"))
    (old,) = await store.without_vector(9)
    await store.edit(pattern("new", pattern_id=pattern_id), None)
    await store.set_vectors([(old, vector(1))])
    assert await found(store) == []
    assert [each.fields["unlock"] for each in await store.without_vector(9)] == ["new"]


async def test_rebuilding_changes_nothing_that_is_sound(store: PatternStore) -> None:
    """After it everything is found as before, without new vectors."""
    await add(store, pattern("a"), vector(1))
    await store.rebuild()
    assert await found(store) == ["a"]
    assert await store.without_vector(9) == []
