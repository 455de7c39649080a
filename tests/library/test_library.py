"""The library: searches by text, files, re-embedding, the patterns that ship."""

from __future__ import annotations

import asyncio
import re
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import AsyncExitStack
from pathlib import Path

import pytest
from msgspec.structs import replace

from gateway.backends import open_stores
from gateway.config.storage import IN_MEMORY, StorageSettings
from gateway.core.guidance_choice import passing
from gateway.core.guidance_settings import EtraceSettings, Gates
from gateway.core.guidance_text import PLACEHOLDER, ModelFamily, pattern_text
from gateway.core.monitors import FAILURE_TYPES
from gateway.core.pattern import Pattern, Query, Tier, causes, content
from gateway.embedding import Embedder, EmbeddingError, Vector
from gateway.embedding.base import HashingEmbedder
from gateway.embedding.similarity_thresholds import gates_for
from gateway.embedding.static import StaticEmbedder
from gateway.library import PatternLibrary, starter_patterns
from gateway.steering.guidance.codec import to_line
from gateway.stores.patterns import Added, PatternFilter
from gateway.stores.sql.patterns import PatternStore
from gateway.stores.sqlite.engine import SQLiteEngine
from tests.stores.conftest import open_database

STARTER = starter_patterns()
SETTINGS = EtraceSettings()
QUERY = Query(tier=Tier.E2, text="I run the same failing test again", top_k=2, floor=0.1)


class Failing(HashingEmbedder):
    """An embedder whose provider cannot be reached."""

    async def embed(self, texts: Sequence[str]) -> list[Vector[float]]:
        raise EmbeddingError("gone")


Fresh = Callable[[], Awaitable[PatternStore]]


@pytest.fixture
async def fresh() -> AsyncIterator[Fresh]:
    """Opens empty pattern stores, in memory."""
    async with AsyncExitStack() as opened:

        async def fresh() -> PatternStore:
            stores = await open_stores(StorageSettings(path=IN_MEMORY), vectors=True)
            opened.push_async_callback(stores.close)
            return stores.patterns

        yield fresh


async def a_library(
    fresh: Fresh, embedder: Embedder | None = None, *, starter: bool = False
) -> PatternLibrary:
    return await PatternLibrary(await fresh(), embedder or HashingEmbedder(), SETTINGS).prepare(
        starter=starter
    )


def an_e1(text: str, tenant: str) -> Pattern:
    fields = {"situation": "I run the same failing test again", "unlock": text}
    return Pattern(tier=Tier.E1, fields=fields, tenant=tenant)


async def test_what_was_read_while_a_pattern_was_added_is_not_kept(fresh: Fresh) -> None:
    """The next call finds a pattern whose text took long to embed, though another call has just
    found that the tenant has none."""
    begun, may_end = asyncio.Event(), asyncio.Event()

    class Slow(HashingEmbedder):
        async def embed(self, texts: Sequence[str]) -> list[Vector[float]]:
            if not begun.is_set():
                begun.set()
                await may_end.wait()
            return await super().embed(texts)

    library = await a_library(fresh, Slow())
    mine = replace(QUERY, tier=Tier.E1)
    adding = asyncio.ensure_future(library.add([an_e1("ask", "acme")]))
    await begun.wait()
    assert await library.look_up(mine, "acme") == []
    may_end.set()
    ((_, pattern_id),) = await adding
    assert len(await library.look_up(mine, "acme")) == 1
    await library.remove("acme", pattern_id)
    assert await library.look_up(mine, "acme") == []


async def test_an_empty_store_gets_the_starter_patterns_once(fresh: Fresh) -> None:
    """A second start, or a store that has patterns, adds nothing."""
    store = await fresh()
    await PatternLibrary(store, HashingEmbedder(), SETTINGS).prepare()
    assert await store.count() == len(STARTER)
    (first,) = (await store.list_patterns(PatternFilter(), limit=1)).patterns
    await store.delete("", first.pattern.pattern_id)
    await PatternLibrary(store, HashingEmbedder(), SETTINGS).prepare()
    assert await store.count() == len(STARTER) - 1


async def test_queries_of_all_tiers_are_answered_together(fresh: Fresh) -> None:
    """Searched tiers by similarity, e1 in its tenant, universal rules as a list."""
    library = await a_library(fresh, starter=True)
    await library.add([an_e1("mine", "a"), an_e1("theirs", "b")])
    queries = [
        Query(tier=Tier.E3, top_k=32),
        Query(tier=Tier.E1, text="the same failing test", top_k=3),
        QUERY,
    ]
    found = await library.look_up_all(queries, "a")
    assert len(found[Tier.E3]) == sum(p.tier is Tier.E3 for p in STARTER)
    assert [match.pattern.fields["unlock"] for match in found[Tier.E1]] == ["mine"]
    assert len(found[Tier.E2]) == 2


async def test_a_failed_search_is_reported_and_left_out(fresh: Fresh) -> None:
    """The other tiers are answered."""
    store = await fresh()
    failed: list[tuple[Tier, str]] = []
    await PatternLibrary(store, HashingEmbedder(), SETTINGS).prepare()
    library = await PatternLibrary(
        store, Failing(), SETTINGS, failed=lambda tier, error: failed.append((tier, str(error)))
    ).prepare()
    found = await library.look_up_all([Query(tier=Tier.E3, top_k=32), QUERY], "a")
    assert set(found) == {Tier.E3}
    assert failed == [(Tier.E2, "gone")]


async def test_a_failing_store_is_reported() -> None:
    """A StoreError is reported with the tier, and nothing is found."""

    stores = await open_stores(StorageSettings(path=IN_MEMORY), vectors=True)
    failed: list[Tier] = []
    library = await PatternLibrary(
        stores.patterns, HashingEmbedder(), SETTINGS, failed=lambda tier, _: failed.append(tier)
    ).prepare()
    await stores.close()
    assert await library.look_up_all([QUERY], "") == {}
    assert failed == [Tier.E2]


async def test_excluded_patterns_do_not_use_up_the_answer(fresh: Fresh) -> None:
    """For each exclusion one more candidate is fetched."""
    library = await a_library(fresh, starter=True)
    best = await library.look_up(QUERY, "")
    again = replace(QUERY, exclude=frozenset({best[0].pattern.pattern_id}))
    assert len(await library.look_up(again, "")) == 3


def _fields(query: Query) -> dict[str, object]:
    return {name: getattr(query, name) for name in query.__struct_fields__}


async def test_a_file_is_imported_and_counted(fresh: Fresh) -> None:
    """Added, replaced and unchanged patterns are counted; e1 patterns become the importer's."""
    library = await a_library(fresh)
    lines = [to_line(pattern) for pattern in STARTER] + [to_line(an_e1("x", ""))]
    seen: list[int] = []
    report = await library.import_lines(lines, "acme", seen.append)
    assert (report.counts[Added.ADDED], report.total) == (len(lines), len(lines))
    assert seen[-1] == len(lines)
    changed = [lines[0].replace("Never", "Do not ever"), *lines[1:]]
    report = await library.import_lines(changed, "acme")
    assert report.counts == {Added.ADDED: 0, Added.REPLACED: 1, Added.UNCHANGED: len(lines) - 1}
    page = await library.store.list_patterns(PatternFilter(tier=Tier.E1))
    assert [stored.pattern.tenant for stored in page.patterns] == ["acme"]


async def test_a_bad_line_refuses_a_file_before_anything_is_stored(fresh: Fresh) -> None:
    """The error has the line's number, whatever the number of valid lines before it."""
    library = await a_library(fresh)
    many = [Pattern(tier=Tier.E3, fields={"instruction": f"rule {n}"}) for n in range(600)]
    with pytest.raises(ValueError, match="line 601: tier"):
        await library.import_lines([*map(to_line, many), '{"tier": "e7"}'], "")
    assert await library.store.count() == 0


async def test_an_import_that_keeps_going_loses_bad_lines_only(fresh: Fresh) -> None:
    """Each is reported by its number; any line ending, and a byte order mark, is accepted."""
    library = await a_library(fresh)
    lines = [b"\xef\xbb\xbf" + to_line(STARTER[0]).encode() + b"\r", b"{", b"\xff\xfe\xff", b"\r"]
    lines += [to_line(pattern).encode() for pattern in STARTER[1:]]
    report = await library.import_lines(lines, "", keep_going=True)
    assert [reason.partition(":")[0] for reason in report.refused] == ["line 2", "line 3"]
    assert await library.store.count() == report.total == len(STARTER)


async def test_instances_come_back_to_the_tenants_they_were_exported_from(fresh: Fresh) -> None:
    """If the importer lets the lines name their tenant; otherwise they become the importer's."""
    library = await a_library(fresh)
    await library.add([an_e1("mine", "a"), an_e1("theirs", "b")])
    lines = [line async for line in library.export_lines(PatternFilter())]
    other = await a_library(fresh)
    await other.import_lines(lines, "default", names_tenant=True)
    page = await other.store.list_patterns(PatternFilter())
    assert [stored.pattern.tenant for stored in page.patterns] == ["a", "b"]
    taken = await a_library(fresh)
    await taken.import_lines(lines, "c")
    page = await taken.store.list_patterns(PatternFilter())
    assert [stored.pattern.tenant for stored in page.patterns] == ["c", "c"]


async def test_a_text_with_any_line_end_survives_a_file(fresh: Fresh) -> None:
    """Lines are split at line feeds only."""
    text = "a\u2028b\u2029c\x85d\x0be\x0cf\x1cg\rh"
    library, other = await a_library(fresh), await a_library(fresh)
    await library.add([Pattern(tier=Tier.E3, fields={"instruction": text})])
    (line,) = [line async for line in library.export_lines(PatternFilter())]
    await other.import_lines(f"{line}\n".encode().split(b"\n"), "")
    (stored,) = (await other.store.list_patterns(PatternFilter())).patterns
    assert stored.pattern.fields["instruction"] == text


async def test_an_export_can_be_imported_again(fresh: Fresh) -> None:
    """Everything comes back, over several pages, without other tenants' patterns."""
    library = await a_library(fresh, starter=True)
    many = [Pattern(tier=Tier.E2, fields={"situation": f"s{n}", "unlock": "u"}) for n in range(300)]
    await library.add([*many, an_e1("mine", "a"), an_e1("theirs", "b")])
    lines = [line async for line in library.export_lines(PatternFilter(tenant="a"))]
    assert len(lines) == len(STARTER) + 301
    assert not any("theirs" in line for line in lines)
    other = await a_library(fresh)
    report = await other.import_lines(lines, "a")
    assert report.counts[Added.ADDED] == len(lines)


@pytest.fixture
async def sqlite_store(tmp_path: Path) -> AsyncIterator[PatternStore]:
    database = await open_database(tmp_path / "g.db")
    yield PatternStore(SQLiteEngine(database))
    await database.close()


async def test_another_embedder_finds_after_reindexing(sqlite_store: PatternStore) -> None:
    """Before reindexing nothing is found, never by an old vector; afterwards everything."""
    await PatternLibrary(sqlite_store, HashingEmbedder(), SETTINGS).prepare()
    library = await PatternLibrary(sqlite_store, StaticEmbedder.load(), SETTINGS).prepare()
    assert await library.look_up(QUERY, "") == []
    done: list[int] = []
    count = await library.reindex(done.append)
    assert count == sum(pattern.tier is not Tier.E3 for pattern in STARTER) == done[-1]
    assert len(await library.look_up(QUERY, "")) == 2
    assert await library.reindex() == 0


async def test_edits_are_found_by_their_new_text(sqlite_store: PatternStore) -> None:
    """An edit embeds again."""
    library = await PatternLibrary(sqlite_store, HashingEmbedder(), SETTINGS).prepare(starter=False)
    ((_, pattern_id),) = await library.add([an_e1("x", "")])
    fields = {"situation": "flights to Boston", "unlock": "x"}
    await library.edit(Pattern(tier=Tier.E1, fields=fields, pattern_id=pattern_id))
    query = Query(tier=Tier.E1, text="flights to Boston", floor=0.9)
    (match,) = await library.look_up(query, "")
    assert match.pattern.pattern_id == pattern_id


def test_gates_belong_to_the_embedder_unless_set() -> None:
    """Calibrated for the built-in embedders, the reference's for others, unless configured."""
    assert gates_for("litellm/x@8", SETTINGS) == Gates(e1=0.80, e2=0.70)
    assert gates_for(StaticEmbedder.embedder_id, SETTINGS) != Gates(e1=0.80, e2=0.70)
    chosen = EtraceSettings(e1_gate=0.1, e2_gate=0.0)
    assert gates_for(StaticEmbedder.embedder_id, chosen) == Gates(e1=0.1, e2=0.0, e2_untyped=0.0)


def test_the_starter_library_covers_every_failure_and_kind_of_agent() -> None:
    """Ten universal rules or more, 24 failure patterns or more, each type for each kind; but what
    to do after a person stopped the agent is for the person to say."""
    tiers = Counter(pattern.tier for pattern in STARTER)
    assert tiers[Tier.E3] >= 10
    assert tiers[Tier.E2] >= 24
    covered = {(p.failure_type, tag) for p in STARTER for tag in p.fields.get("tags", ())}
    kinds = ("coding", "tool-use", "research")
    missing = {(f, k) for f in FAILURE_TYPES.values() for k in kinds if f != "stopped"} - covered
    assert not missing
    assert len({pattern.pattern_id for pattern in STARTER}) == len(STARTER)


@pytest.mark.parametrize("pattern", STARTER, ids=lambda pattern: pattern.pattern_id)
def test_a_starter_pattern_is_whole(pattern: Pattern) -> None:
    """Each has a situation, a cause, a remedy, a dead end and evidence, short and plain."""
    texts = content(pattern.fields)
    if pattern.tier is Tier.E3:
        assert texts.instruction
        assert texts.question.endswith("?")
        assert len(texts.instruction.split()) <= 50
    else:
        assert all((texts.situation, texts.diagnosis, texts.move, texts.avoid))
        assert pattern.fields["evidence"]
    for family in ModelFamily:
        text = pattern_text(pattern, family, 2_000)
        assert PLACEHOLDER not in text
        assert len(text) < 1_200
        assert not re.search(r"\s[,.;]|  |\bTODO\b", text)


async def test_a_pattern_for_the_cause_is_found_behind_all_that_are_nearer(fresh: Fresh) -> None:
    """Also by a text without a known word; the store and its copy in memory give the same."""
    library = await a_library(fresh, StaticEmbedder.load(), starter=True)
    named = sorted({cause for pattern in STARTER for cause in causes(pattern)})
    for followed in (False, True):
        if followed:
            await library.memory.refresh()
        for text in ("I run the same failing test again", ""):
            for cause in named:
                query = replace(QUERY, text=text, cause=cause)
                given = passing(query, await library.look_up(query, ""))
                assert given, (cause, text)
                assert all(cause in causes(match.pattern) for match in given)


async def test_all_universal_rules_are_looked_at(fresh: Fresh) -> None:
    """One of forty, whose id is the last: it is for every agent, and comes before the others."""
    library = await a_library(fresh)
    rules = [
        Pattern(
            tier=Tier.E3,
            fields={"instruction": f"Rule {n}.", "tags": ["coding"]},
            pattern_id=f"rule-{n:02}",
        )
        for n in range(40)
    ]
    own = Pattern(tier=Tier.E3, fields={"instruction": "Mine."}, pattern_id="z")
    await library.add([*rules, own])
    query = Query(tier=Tier.E3, top_k=2, kind="coding")
    given = passing(query, await library.look_up(query, ""))
    assert [match.pattern.pattern_id for match in given] == ["z", "rule-00"]
