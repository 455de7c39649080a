"""The patterns in memory: searched exactly, kept up to date, and there while the store is away."""

from __future__ import annotations

import asyncio
from array import array
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from gateway.backends import open_stores
from gateway.config.storage import IN_MEMORY, StorageSettings
from gateway.core.guidance_settings import EtraceSettings
from gateway.core.guidance_text import family_matches
from gateway.core.pattern import Pattern, Query, Tier
from gateway.embedding.base import HashingEmbedder
from gateway.library import PatternLibrary
from gateway.library.memory import PatternCopy, PatternMemory
from gateway.stores.patterns import VectorSearch
from gateway.stores.protocols import StoreUnavailable
from gateway.stores.sql.patterns import PatternStore
from steering_gateway_testing.patience import until_async
from tests.examples import examples

RULES = Query(tier=Tier.E3, top_k=32)
QUERY = Query(tier=Tier.E2, text="I run the same failing test again", top_k=2, floor=0.1)
MINE = replace(QUERY, tier=Tier.E1)
RULE = Pattern(tier=Tier.E3, fields={"instruction": "Be brief."})
INSTANCE = Pattern(
    tier=Tier.E1, fields={"situation": QUERY.text, "unlock": "Read the error."}, tenant="a"
)
SIZE = 4

directions = st.tuples(*[st.integers(-9, 9)] * SIZE)
drawn_patterns = st.lists(
    st.tuples(
        directions,
        st.sampled_from([(Tier.E2, ""), (Tier.E1, "a"), (Tier.E1, "b")]),
        st.sampled_from([None, "loop", "hedge"]),
        st.sampled_from(["", "gpt", "claude-sonnet"]),
    ),
    max_size=40,
)
searches = st.builds(
    VectorSearch,
    tier=st.sampled_from([Tier.E1, Tier.E2]),
    vector=directions.map(lambda numbers: array("f", numbers)),
    tenant=st.sampled_from(["a", "b", "c"]),
    limit=st.integers(1, 6),
    failure_type=st.sampled_from([None, "loop"]),
    model=st.sampled_from(["", "gpt-4o", "qwen"]),
    floor=st.sampled_from([-1.0, 0.0, 0.5]),
)


class Away:
    """Makes reads, until the store is `away`."""

    def __init__(self) -> None:
        self.away = False
        self.made = 0

    async def __call__(self, work: Callable[[], Awaitable[Any]], /) -> Any:
        if self.away:
            raise StoreUnavailable("gone")
        self.made += 1
        return await work()


@pytest.fixture
async def store() -> AsyncIterator[PatternStore]:
    stores = await open_stores(StorageSettings(path=IN_MEMORY), vectors=True)
    yield stores.patterns
    await stores.close()


async def a_library(store: PatternStore, read: Away) -> PatternLibrary:
    """With the starter patterns, a rule for one family and an instance of one tenant."""
    library = await PatternLibrary(store, HashingEmbedder(), EtraceSettings(), read=read).prepare()
    await library.add([replace(RULE, model_family="gpt"), INSTANCE])
    return library


@asynccontextmanager
async def followed(library: PatternLibrary) -> AsyncIterator[None]:
    """Keeps the memory of a library up to date."""
    following = asyncio.ensure_future(library.memory.follow())
    try:
        yield
    finally:
        following.cancel()
        with suppress(asyncio.CancelledError):
            await following


def cosine(one: tuple[int, ...], other: array[float]) -> float | None:
    """In double precision; None where one has no direction."""
    lengths = sum(a * a for a in one) * sum(b * b for b in other)
    if not lengths:
        return None
    return sum(a * b for a, b in zip(one, other, strict=True)) / float(lengths) ** 0.5


@examples(60)
@given(patterns=drawn_patterns, wanted=st.lists(searches, min_size=1, max_size=8))
async def test_a_search_finds_what_comparing_everything_finds(
    patterns: list[Any], wanted: list[VectorSearch]
) -> None:
    """No pattern that fits is more alike than those found; none is missing, and none is another
    tenant's, tier's, failure's or family's."""
    stores = await open_stores(StorageSettings(path=IN_MEMORY), vectors=True)
    await stores.patterns.open_space("test", SIZE)
    named = {f"p{number}": each for number, each in enumerate(patterns)}
    await stores.patterns.add(
        [
            (
                Pattern(
                    tier=tier,
                    tenant=tenant,
                    pattern_id=name,
                    failure_type=failure_type,
                    model_family=family,
                    fields={"unlock": name},
                ),
                array("f", direction),
            )
            for name, (direction, (tier, tenant), failure_type, family) in named.items()
        ]
    )
    memory = PatternMemory(stores.patterns)
    await memory.refresh()
    await stores.close()
    assert memory.searched is not None
    for search in wanted:
        fitting = {
            name: similarity
            for name, (direction, (tier, tenant), failure_type, family) in named.items()
            if (similarity := cosine(direction, search.vector)) is not None
            and tier is search.tier
            and tenant == search.scope
            and (search.failure_type is None or failure_type in (None, search.failure_type))
            and family_matches(family, search.model)
        }
        found = await memory.searched.search(search)
        for match in found:
            assert abs(match.similarity - fitting[match.pattern.pattern_id]) < 1e-6
        best = sorted((s for s in fitting.values() if s >= search.floor + 1e-6), reverse=True)
        alike = [match.similarity for match in found]
        assert alike == sorted(alike, reverse=True)
        assert len(found) <= search.limit
        for one, other in zip(best[: search.limit], alike, strict=False):
            assert abs(one - other) < 1e-6
        assert len(found) >= min(search.limit, len(best))
        assert all(similarity >= search.floor for similarity in alike)


async def test_every_tier_is_there_while_the_store_is_away(store: PatternStore) -> None:
    """From the first call on, whatever the model and the tenant: nothing is read for it."""
    read = Away()
    library = await a_library(store, read)
    await library.memory.refresh()
    read.away = True
    assert len(await library.look_up(QUERY, "a")) == 2
    assert len(await library.look_up(MINE, "a")) == 1
    assert await library.look_up(MINE, "b") == []
    rules = len(await library.look_up(replace(RULES, model="gpt-4o"), "a"))
    assert len(await library.look_up(replace(RULES, model="claude-opus-4"), "a")) == rules - 1


async def test_a_change_here_is_found_at_once(store: PatternStore) -> None:
    """Before the patterns are read again the store is searched."""
    read = Away()
    library = await a_library(store, read)
    await library.memory.refresh()
    ((_, pattern_id),) = await library.add([replace(INSTANCE, tenant="b")])
    assert len(await library.look_up(MINE, "b")) == 1
    assert read.made == 1
    await library.memory.refresh()
    assert len(await library.look_up(MINE, "b")) == 1
    assert read.made == 1
    await library.remove("b", pattern_id)
    assert await library.look_up(MINE, "b") == []


async def test_what_was_known_holds_when_a_change_cannot_be_read(store: PatternStore) -> None:
    """Agents are told the same as before, and the change once the store answers."""
    read = Away()
    library = await a_library(store, read)
    await library.memory.refresh()
    before = [await library.look_up(query, "a") for query in (RULES, MINE, QUERY)]
    await library.add([replace(INSTANCE, fields={"situation": QUERY.text, "unlock": "Wait."})])
    read.away = True
    assert [await library.look_up(query, "a") for query in (RULES, MINE, QUERY)] == before
    read.away = False
    assert len(await library.look_up(MINE, "a")) == 2 > len(before[1]) - 1


async def test_a_change_by_another_process_is_noticed(
    store: PatternStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nobody has to say so, and a store that fails in between ends nothing."""
    monkeypatch.setattr("gateway.library.memory.CHECKED_S", 0.01)
    library = await a_library(store, Away())
    await library.memory.refresh()
    failures: list[str] = []
    mark = store.mark

    async def failing() -> Any:
        failures.append("once more")
        if len(failures) < 3:
            raise StoreUnavailable("gone")
        return await mark()

    monkeypatch.setattr(store, "mark", failing)
    another = await PatternLibrary(store, HashingEmbedder(), EtraceSettings()).prepare()
    await another.add([replace(INSTANCE, tenant="b")])

    async def noticed() -> bool:
        copy = library.memory.searched
        return copy is not None and copy.has_any(Tier.E1, "b")

    async with followed(library):
        await until_async(noticed)
    assert len(failures) >= 3


async def test_what_changes_during_a_reading_is_read_again(
    store: PatternStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A copy from before a change does not pass for one from after it."""
    library = await a_library(store, Away())
    copied = store.copied

    async def changed_meanwhile(after: int) -> Any:
        page = await copied(after)
        if not after:
            await library.add([replace(INSTANCE, tenant="b")])
        return page

    monkeypatch.setattr(store, "copied", changed_meanwhile)
    await library.memory.refresh()
    assert not library.memory.current
    assert len(await library.look_up(MINE, "b")) == 1


async def test_more_patterns_than_fit_into_memory_are_searched_in_the_store(
    store: PatternStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Universal rules are in memory all the same."""
    monkeypatch.setattr("gateway.library.memory.MOST_BYTES", 1000)
    read = Away()
    library = await a_library(store, read)
    await library.memory.refresh()
    assert len(await library.look_up(QUERY, "a")) == 2
    assert read.made == 1
    assert await library.look_up(RULES, "a")
    assert read.made == 1
    read.away = True
    with pytest.raises(StoreUnavailable):
        await library.look_up(QUERY, "a")


async def test_many_patterns_are_compared_in_a_thread(
    store: PatternStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The event loop goes on, and what is found is the same."""
    library = await a_library(store, Away())
    await library.memory.refresh()
    before = await library.look_up(QUERY, "a")
    monkeypatch.setattr("gateway.library.memory._ON_THE_LOOP", 0)
    threads: list[int] = []
    nearest = PatternCopy._nearest

    def watched(copy: PatternCopy, *about: Any) -> Any:
        with pytest.raises(RuntimeError):
            asyncio.get_running_loop()
        threads.append(1)
        return nearest(copy, *about)

    monkeypatch.setattr(PatternCopy, "_nearest", watched)
    assert await library.look_up(QUERY, "a") == before
    assert threads
