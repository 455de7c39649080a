"""Patterns and their vectors, and the rows of patterns and lessons."""

from __future__ import annotations

import time
from array import array
from collections.abc import Sequence
from typing import Any, TypeAlias

import orjson
from msgspec.structs import replace

from gateway.core.guidance_text import family_matches
from gateway.core.pattern import (
    Lesson,
    Pattern,
    PatternMatch,
    Status,
    Tier,
    Trust,
    causes,
    content_id,
    with_id,
)
from gateway.stores.codec import names
from gateway.stores.learning import Posterior, StoredLesson, Support
from gateway.stores.patterns import (
    MAX_PAGE,
    Added,
    CopiedPattern,
    Mark,
    PatternConflict,
    PatternFilter,
    PatternPage,
    SpaceMismatch,
    StoredPattern,
    Vector,
    VectorSearch,
    decode_cursor,
)
from gateway.stores.protocols import PATTERNS, StoreCorrupt
from gateway.stores.sql.engine import (
    Connection,
    Engine,
    Row,
    SqlForms,
    columns,
    conditions,
    insert,
    record_of,
    row_of,
)
from gateway.values import FieldDict, by_name

_CONTENT = (
    "tier",
    "digest",
    "failure_type",
    "model_family",
    "gate_threshold",
    "source_trace_id",
    "fields",
    "updated_at",
)
_LESSON = names(Lesson, "share")
_AS_STORED = ("tenant", "pattern_id", "model_family", "gate_threshold", "source_trace_id")
_NEW = (*_CONTENT, "created_at", "tenant", "pattern_id", *_LESSON)
_READ = (
    "pk",
    "tenant",
    "pattern_id",
    "tier",
    "failure_type",
    "model_family",
    "gate_threshold",
    "source_trace_id",
    "fields",
    "created_at",
    "updated_at",
    "injected",
    *_LESSON,
)
# Columns that `pattern_of` reads, from `patterns AS p`.
COLUMNS = columns(_READ, "p.")

_POSTERIOR = names(Posterior)
_SUPPORTED = ("conversations", "tasks", "keys", "span_s", "against")
_OF_LESSON = (
    "FROM pattern_evidence AS e WHERE e.pattern_id = p.pattern_id "
    "AND (p.tenant = '' OR e.tenant = p.tenant)"
)
_SUPPORT = f"{_OF_LESSON} AND e.kind NOT IN ('mark', 'failed_again', 'unsure')"
# Query whose rows `stored_lesson` reads.
SELECT_LESSONS = f"""
SELECT {COLUMNS}, p.reason,
    (SELECT count(DISTINCT e.conversation) {_SUPPORT}),
    (SELECT count(DISTINCT e.task) {_SUPPORT}),
    (SELECT count(DISTINCT e.key_name) {_SUPPORT}),
    (SELECT coalesce(max(e.at) - min(e.at), 0.0) {_SUPPORT}),
    (SELECT count(DISTINCT e.conversation) {_OF_LESSON} AND e.kind = 'failed_again'),
    {columns(_POSTERIOR, "q.")}
FROM patterns AS p LEFT JOIN pattern_posteriors AS q ON q.owner = p.tenant
    AND q.pattern_id = p.pattern_id AND q.version = p.version
WHERE p.origin <> ''"""

# Jumps from family to family through the index instead of reading every pattern.
_FAMILIES = """
WITH RECURSIVE found(name) AS (
    SELECT min(model_family) FROM patterns
    UNION ALL
    SELECT (SELECT min(model_family) FROM patterns WHERE model_family > name)
    FROM found WHERE name IS NOT NULL
)
SELECT name FROM found WHERE name IS NOT NULL
"""
_WRITE = f"""
{insert("patterns", _NEW)} ON CONFLICT (tenant, pattern_id) DO UPDATE
SET {", ".join([f"{name} = excluded.{name}" for name in _CONTENT])}
"""
_KNOWN = """
SELECT tenant, pattern_id, digest, origin FROM patterns WHERE {digests} OR {ids}
"""
_FIND = """
SELECT pk FROM patterns WHERE pattern_id = :pattern_id
    AND (CAST(:tenant AS TEXT) IS NULL OR tenant IN ('', :tenant))
ORDER BY tenant DESC LIMIT 1
"""
_UNIVERSAL = f"""
SELECT {COLUMNS} FROM patterns AS p WHERE tier = 'e3' AND {{only}}
ORDER BY pattern_id LIMIT :limit
"""
_INJECTED = "UPDATE patterns SET injected = injected + :by WHERE pk = :pk"
_TABLE = "patterns"
_OPEN = """
INSERT INTO pattern_spaces (embedder_id, dimensions) VALUES (:embedder_id, :dimensions)
ON CONFLICT (embedder_id) DO NOTHING
"""
_SPACE = "SELECT number, dimensions FROM pattern_spaces WHERE embedder_id = :embedder_id"
_PUT = """
INSERT INTO pattern_vectors (space, pk, tenant, tier, vector)
SELECT :space, p.pk, p.tenant, p.tier, {vector}
FROM patterns AS p WHERE p.tenant = :tenant AND p.digest = :digest
ON CONFLICT (space, pk) DO UPDATE
SET tenant = excluded.tenant, tier = excluded.tier, vector = excluded.vector
"""
# The patterns of one tenant and tier are all compared. An approximate index with a filter loses
# answers: a tenant with a hundredth of 100,000 patterns gets three in ten of its nearest ones.
# Only the nearest are joined with their wide rows.
_NEAREST = f"""
SELECT {COLUMNS}, 1 - v.distance FROM (
    SELECT pk, {{distance}} AS distance
    FROM pattern_vectors WHERE space = :space AND tenant = :tenant AND tier = :tier{{narrowed}}
    ORDER BY distance, pk LIMIT :limit
) AS v JOIN patterns AS p USING (pk)
WHERE {{near}} ORDER BY v.distance, p.pk
"""
_MARK = """
SELECT count(*), coalesce(sum(CAST(updated_at * 1000 AS BIGINT)), 0),
    coalesce(max(updated_at), 0.0),
    (SELECT count(*) FROM pattern_vectors WHERE space = :space)
FROM patterns WHERE origin = ''
"""
_NO_COSINE = 2.0  # of what a database gives for a vector of zeros: NaN, or far below -1
_COPIED_AT_ONCE = 500
_COPIED = f"""
SELECT {COLUMNS}, {{floats}} FROM pattern_vectors AS v JOIN patterns AS p ON p.pk = v.pk
WHERE v.space = :space AND v.pk > :after AND {{size}} = :dimensions
ORDER BY v.pk LIMIT {_COPIED_AT_ONCE}
"""
_SUITABLE = " AND pk IN (SELECT p.pk FROM patterns AS p WHERE {conditions})"
_FORGET = "DELETE FROM pattern_vectors WHERE pk = :pk"  # of all embedders
_OUTDATED = """
DELETE FROM pattern_vectors WHERE pk IN (
    SELECT pk FROM patterns WHERE tenant = :tenant AND pattern_id = :pattern_id
)
"""
_UNFIT = """
DELETE FROM pattern_vectors WHERE space = :space
    AND ({size} <> :dimensions OR pk NOT IN (SELECT pk FROM patterns))
"""
_LACKING = "p.tier <> 'e3' AND p.origin = '' AND v.pk IS NULL"

_Entry: TypeAlias = "tuple[Pattern, Vector[float] | None]"


class PatternStore:
    """Patterns and their vectors. Every method may raise StoreError."""

    def __init__(self, engine: Engine):
        self._engine = engine
        self._space = 0
        self._dimensions: int | None = None

    async def open_space(self, embedder_id: str, dimensions: int) -> int:
        """Open the space of an embedder; returns how many patterns lack a vector in it. Raises:
        SpaceMismatch."""
        # One that exists is opened while another process holds SQLite's write lock.
        while not (found := await self._engine.fetch(_SPACE, embedder_id=embedder_id)):
            await self._engine.write(_OPEN, embedder_id=embedder_id, dimensions=dimensions)
        number, known = found[0]
        if known != dimensions:
            raise SpaceMismatch(
                f"the embedder {embedder_id!r} had {known} dimensions and has {dimensions} now"
            )
        self._space = number
        self._dimensions = dimensions
        lacking = f"SELECT count(*) FROM patterns AS p {self._joined} WHERE {_LACKING}"
        return await self._engine.number(lacking)

    async def add(self, entries: Sequence[_Entry]) -> list[tuple[Added, str]]:
        """Store patterns, all or none; returns for each the result and its id. A pattern whose
        content the tenant already has changes nothing and gives the stored id; one with a known id
        replaces that pattern's content and keeps its counts. The number of statements does not grow
        with that of the patterns. Raises: SpaceMismatch for a vector of other dimensions."""
        self._check(*(vector for _, vector in entries))
        entries = [(with_id(pattern), vector) for pattern, vector in entries]

        async def work(connection: Connection) -> list[tuple[Added, str]]:
            # One at a time: two gateways may bring the same patterns, as at their first start.
            await connection.take_turn(_TABLE)
            known = await self._known([pattern for pattern, _ in entries], connection)
            results = [known.add(pattern) for pattern, _ in entries]
            await write_patterns(known.changed, connection)
            replaced = {own for result, own in results if result is Added.REPLACED}
            outdated = [pattern for pattern in known.changed if pattern.pattern_id in replaced]
            await _forget_vectors(outdated, connection)
            await self._put(entries, connection)
            return results

        return await self._engine.announced(PATTERNS, self._engine.transact(work, patient=True))

    async def edit(self, pattern: Pattern, vector: Vector[float] | None) -> None:
        """Replace the pattern of this tenant and id. Raises: PatternConflict."""
        self._check(vector)

        async def work(connection: Connection) -> None:
            await connection.take_turn(_TABLE)
            known = await self._known([pattern], connection)
            if (pattern.tenant, pattern.pattern_id) not in known.contents:
                raise PatternConflict(f"there is no pattern {pattern.pattern_id!r}")
            _, same = known.add(pattern)
            if same != pattern.pattern_id:
                raise PatternConflict(f"pattern {same!r} has the same content")
            await write_patterns([pattern], connection)
            await _forget_vectors([pattern], connection)
            await self._put([(pattern, vector)], connection)

        await self._engine.announced(PATTERNS, self._engine.transact(work))

    async def get(self, tenant: str | None, pattern_id: str) -> StoredPattern | None:
        """The tenant's own or the shared pattern of that id; with tenant None, any tenant's."""
        self._check()

        async def work(connection: Connection) -> StoredPattern | None:
            pk = await _find(tenant, pattern_id, connection)
            found = await _select(
                "p.pk = :pk", {"pk": pk}, 1, joined=self._joined, connection=connection
            )
            if found:
                return found[0][1]
            return None

        return await self._engine.read(work)

    async def delete(self, tenant: str | None, pattern_id: str) -> bool:
        """Remove the pattern that `get` would return; False when there is none."""
        self._check()

        async def work(connection: Connection) -> bool:
            pk = await _find(tenant, pattern_id, connection)
            if pk is None:
                return False
            await connection.fetch(_FORGET, pk=pk)
            await connection.fetch("DELETE FROM patterns WHERE pk = :pk", pk=pk)
            return True

        return await self._engine.announced(PATTERNS, self._engine.transact(work))

    async def list_patterns(
        self, patterns: PatternFilter, *, limit: int = 50, cursor: str | None = None
    ) -> PatternPage:
        """One page, newest first. Raises: ValueError for an invalid cursor, or a limit not in 1 to
        1000."""
        if not 1 <= limit <= MAX_PAGE:
            raise ValueError(f"limit: must be from 1 to {MAX_PAGE}, not {limit}")
        self._check()
        bound: FieldDict = {}
        condition = _where(patterns, decode_cursor(cursor), bound, forms=self._engine.forms)
        found = await self._engine.read(
            lambda connection: _select(
                condition, bound, limit + 1, joined=self._joined, connection=connection
            )
        )
        page = found[:limit]
        more = None
        if len(found) > limit:
            more = str(page[-1][0])
        return PatternPage(patterns=tuple(stored for _, stored in page), next_cursor=more)

    async def search(self, search: VectorSearch) -> list[PatternMatch]:
        """The nearest patterns. Raises: SpaceMismatch."""
        self._check(search.vector)
        if not (search.cause or any(search.vector)):
            return []  # a text without a known word is similar to nothing

        async def work(connection: Connection) -> list[PatternMatch]:
            families = await _suitable_families(search.model, connection)
            found = [_match(*row) for row in await self._nearest(search, families, connection)]
            if search.cause:  # the statement sees the word anywhere in their fields
                found = [match for match in found if search.cause in causes(match.pattern)]
            return found

        async with self._engine.searching:
            return await self._engine.read(work)

    async def mark(self) -> Mark:
        """The fingerprint of all that `copied` and `universal` give. Raises: SpaceMismatch."""
        self._check()
        ((patterns, changed_ms, newest, vectors),) = await self._engine.fetch(
            _MARK, space=self._space
        )
        return Mark(
            patterns=patterns,
            changed_ms=int(changed_ms),
            newest=newest,
            vectors=vectors,
            dimensions=self._dimensions or 0,
        )

    async def copied(self, after: int) -> list[CopiedPattern]:
        """The next patterns with a sound vector behind the row of this number; none at the end."""
        forms = self._engine.forms
        statement = _COPIED.format(floats=forms.floats, size=forms.dimensions)
        bound = {"space": self._space, "dimensions": self._dimensions, "after": after}
        return await self._engine.made(_copied, statement, **bound)

    async def universal(self, *, model: str = "", limit: int = 32) -> list[PatternMatch]:
        """The universal rules for `model`, in order of their ids."""

        async def work(connection: Connection) -> Sequence[Row]:
            families = await _suitable_families(model, connection)
            one_of = self._engine.forms.among("model_family", "families", "text")
            bound = {"limit": limit}
            only = conditions({"families": (one_of, families)}, bound)
            return await connection.fetch(_UNIVERSAL.format(only=only), **bound)

        rules = await self._engine.read(work)
        return [PatternMatch(pattern=pattern_of(row), similarity=1.0) for row in rules]

    async def note_injected(self, tenant: str, pattern_ids: Sequence[str], by: int = 1) -> None:
        """Count that the tenant's own or shared patterns of these ids were given, `by` times."""

        async def work(connection: Connection) -> None:
            found = [await _find(tenant, each, connection) for each in pattern_ids]
            # In one order in every gateway, so that no two wait for each other.
            for pk in sorted([pk for pk in found if pk is not None]):
                await connection.fetch(_INJECTED, by=by, pk=pk)

        await self._engine.transact(work)

    async def without_vector(self, limit: int) -> list[Pattern]:
        """At most `limit` patterns that have no vector in the open space."""
        self._check()
        sql = f"SELECT {COLUMNS} FROM patterns AS p {self._joined} WHERE {_LACKING}"
        return await self._engine.made(pattern_of, f"{sql} ORDER BY p.pk LIMIT {limit}")

    async def set_vectors(self, entries: Sequence[_Entry]) -> None:
        """Store vectors of the open space for patterns. Skips a pattern that was edited or removed
        while its vector was computed."""
        self._check(*(vector for _, vector in entries))

        async def work(connection: Connection) -> None:
            await connection.take_turn(_TABLE)
            await self._put(entries, connection)

        await self._engine.transact(work, patient=True)

    async def remove_unfit(self) -> None:
        """Remove vectors of the open space that are of a wrong size or fit no pattern."""
        statement = _UNFIT.format(size=self._engine.forms.dimensions)
        await self._engine.write(statement, space=self._space, dimensions=self._dimensions)

    async def count(self) -> int:
        """Number of patterns."""
        return await self._engine.number("SELECT count(*) FROM patterns")

    def _check(self, *vectors: Vector[float] | None) -> None:
        """Compare the vectors' dimensions with the open space's. Raises: SpaceMismatch."""
        if (own := self._dimensions) is None:
            raise SpaceMismatch("no vector space is open")
        for given in (len(vector) for vector in vectors if vector is not None):
            if given != own:
                raise SpaceMismatch(f"a vector of {given} dimensions in a space of {own}")

    @property
    def _joined(self) -> str:
        """Joins `patterns AS p` with the space's vectors as `v`, whose `pk` is NULL without one."""
        return f"LEFT JOIN pattern_vectors AS v ON v.space = {self._space} AND v.pk = p.pk"

    async def _known(self, patterns: Sequence[Pattern], connection: Connection) -> _Known:
        """The stored patterns with the content or the id of one of these."""
        among = self._engine.forms.among
        statement = _KNOWN.format(
            digests=among("digest", "digests", "text"), ids=among("pattern_id", "ids", "text")
        )
        digests = [content_id(pattern) for pattern in patterns]
        ids = [pattern.pattern_id for pattern in patterns]
        return _Known(await connection.fetch(statement, digests=digests, ids=ids))

    async def _put(self, entries: Sequence[_Entry], connection: Connection) -> None:
        """Store the vectors of patterns, found by their content, in place of earlier ones."""
        statement = _PUT.format(vector=self._engine.forms.vector)
        rows = [
            {
                "space": self._space,
                "tenant": pattern.tenant,
                "digest": content_id(pattern),
                "vector": vector,
            }
            for pattern, vector in entries
            if vector is not None
        ]
        await connection.execute_many(statement, rows)

    async def _nearest(
        self, search: VectorSearch, families: Sequence[str] | None, connection: Connection
    ) -> Sequence[Row]:
        """Rows of COLUMNS and the cosine, best first. `families`: those allowed, None = all."""
        forms = self._engine.forms
        bound = row_of(search, ("vector", "limit"))
        bound |= {"space": self._space, "tenant": search.scope, "tier": search.tier.value}
        one_of = forms.among("p.model_family", "families", "text")
        wanted = {
            "failure_type": ("p.failure_type IN ('', :failure_type)", search.failure_type or None),
            "families": (one_of, families),
        }
        near = "TRUE"
        if search.cause:
            word = orjson.dumps(search.cause).decode()
            wanted["word"] = (f"{forms.position('p.fields', 'word')} > 0", word)
        else:
            near = "v.distance <= :most"
            bound["most"] = 1 - search.floor
        suitable = conditions(wanted, bound)
        if suitable == "TRUE":
            narrowed = ""
        else:
            narrowed = _SUITABLE.format(conditions=suitable)
        statement = _NEAREST.format(distance=forms.distance, narrowed=narrowed, near=near)
        return await connection.fetch(statement, **bound)


def pattern_of(row: Sequence[Any]) -> Pattern:
    """The pattern of a row that begins with COLUMNS. Raises: StoreCorrupt for an invalid row."""
    found = dict(zip(_READ, row, strict=False))
    try:
        lesson = None
        if found["origin"]:
            known = {name: found[name] for name in _LESSON}
            known["status"] = Status(known["status"])
            known["trust"] = Trust(known["trust"])
            known["applies_when"] = orjson.loads(known["applies_when"])
            lesson = Lesson(**known)
        return Pattern(
            **{name: found[name] for name in _AS_STORED},
            tier=Tier(found["tier"]),
            failure_type=found["failure_type"] or None,
            fields=orjson.loads(found["fields"]),
            lesson=lesson,
        )
    except (ValueError, TypeError) as error:
        raise StoreCorrupt(f"the pattern {found['pattern_id']!r} is damaged ({error})") from error


def _match(*row: Any) -> PatternMatch:
    """From _NEAREST. Its similarity is 0 if one of the two vectors has no direction."""
    *known, cosine = row
    similarity = 0.0
    if abs(cosine) < _NO_COSINE:
        similarity = max(-1.0, min(1.0, cosine))
    return PatternMatch(pattern=pattern_of(known), similarity=similarity)


def _copied(row: Sequence[Any]) -> CopiedPattern:
    """From _COPIED."""
    *known, floats = row
    found = by_name(_READ, known)
    named: tuple[str, ...] = ()
    if '"causes"' in found["fields"]:
        named = causes(pattern_of(known))
    return CopiedPattern(
        number=found["pk"],
        tenant=found["tenant"],
        tier=found["tier"],
        failure_type=found["failure_type"],
        model_family=found["model_family"],
        causes=named,
        vector=array("f", floats).tobytes(),
        row=orjson.dumps(known),
    )


def stored_lesson(row: Sequence[Any]) -> StoredLesson:
    """From SELECT_LESSONS. Raises: StoreCorrupt."""
    pattern = pattern_of(row)
    found = dict(zip(_READ, row, strict=False))
    reason, *support = row[len(_READ) :]
    numbers = support[len(_SUPPORTED) :]
    if numbers[0] is None:
        posterior = Posterior()
    else:
        posterior = record_of(Posterior, _POSTERIOR)(numbers)
    if pattern.lesson is not None:
        pattern = replace(pattern, lesson=replace(pattern.lesson, share=posterior.share))
    return StoredLesson(
        pattern=pattern,
        created_at=found["created_at"],
        updated_at=found["updated_at"],
        reason=reason,
        support=Support(**dict(zip(_SUPPORTED, support, strict=False))),
        posterior=posterior,
    )


class _Known:
    """The stored patterns during one import, with those added so far. `contents`: the digest by
    tenant and id, empty for a lesson. `changed`: the patterns to write, in their order."""

    def __init__(self, rows: Sequence[Row]):
        self.contents = {(t, own): "" if origin else digest for t, own, digest, origin in rows}
        self.changed: list[Pattern] = []
        self._ids = {(key[0], digest): key[1] for key, digest in self.contents.items() if digest}

    def add(self, pattern: Pattern) -> tuple[Added, str]:
        """The result of adding one pattern, and its id. Raises: PatternConflict."""
        tenant = pattern.tenant
        digest = content_id(pattern)
        if (same := self._ids.get((tenant, digest))) is not None:
            return Added.UNCHANGED, same
        key = (tenant, pattern.pattern_id)
        if self.contents.get(key) == "":
            raise PatternConflict(f"{pattern.pattern_id!r} is the id of a lesson")
        if key in self.contents:
            result = Added.REPLACED
        else:
            result = Added.ADDED
        self._ids.pop((tenant, self.contents.get(key)), None)
        self._ids[tenant, digest] = pattern.pattern_id
        self.contents[key] = digest
        self.changed.append(pattern)
        return result, pattern.pattern_id


async def write_patterns(patterns: Sequence[Pattern], connection: Connection) -> None:
    """Write the contents of patterns, new ones or over those of the same ids."""
    await connection.execute_many(_WRITE, [_row(pattern) for pattern in patterns])


async def _forget_vectors(patterns: Sequence[Pattern], connection: Connection) -> None:
    """Remove the vectors of all embedders for patterns whose texts were replaced. A database that
    nobody has searched yet has no table of vectors, and no pattern to replace."""
    ids = [row_of(pattern, ("tenant", "pattern_id")) for pattern in patterns]
    if ids:
        await connection.execute_many(_OUTDATED, ids)


def _row(pattern: Pattern) -> FieldDict:
    lesson = pattern.lesson
    known = {**dict.fromkeys(_LESSON, ""), "status": Status.ACTIVE.value, "version": 1}
    known |= {"applies_when": "{}", "last_confirmed_at": 0.0}
    if lesson is not None:
        known = row_of(lesson, _LESSON)
        known["status"] = lesson.status.value
        known["trust"] = lesson.trust.value
        known["applies_when"] = orjson.dumps(dict(lesson.applies_when)).decode()
    now = time.time()
    return {
        **known,
        **row_of(pattern, _AS_STORED),
        "tier": pattern.tier.value,
        "digest": content_id(pattern),
        "failure_type": pattern.failure_type or "",
        "fields": orjson.dumps(dict(pattern.fields)).decode(),
        "created_at": now,
        "updated_at": now,
    }


async def _find(tenant: str | None, pattern_id: str, connection: Connection) -> int | None:
    """The row of the pattern of this id that `tenant` may see, its own before a shared one."""
    return await connection.value(_FIND, pattern_id=pattern_id, tenant=tenant)  # type: ignore[no-any-return]


async def _select(
    condition: str, bound: FieldDict, limit: int, joined: str, connection: Connection
) -> list[tuple[int, StoredPattern]]:
    """Rows and patterns that match `condition` over `patterns AS p`, newest first. Raises:
    StoreCorrupt."""
    found = []
    for *row, indexed in await connection.fetch(
        f"SELECT {COLUMNS}, v.pk IS NOT NULL OR p.tier = 'e3' OR p.origin <> '' "
        f"FROM patterns AS p {joined} WHERE {condition} ORDER BY p.pk DESC LIMIT {limit}",
        **bound,
    ):
        known = by_name(_READ, row)
        pattern = StoredPattern(
            pattern=pattern_of(row),
            created_at=known["created_at"],
            updated_at=known["updated_at"],
            injected=known["injected"],
            indexed=bool(indexed),
        )
        found.append((known["pk"], pattern))
    return found


def _where(patterns: PatternFilter, before: int | None, bound: FieldDict, forms: SqlForms) -> str:
    """A condition over `patterns AS p`, whose values are added to `bound`."""
    text = None
    if patterns.text:
        text = patterns.text.lower()
    wanted = {
        "tenant": ("p.tenant IN ('', :tenant)", patterns.tenant),
        "tier": ("p.tier = :tier", patterns.tier.value if patterns.tier else None),
        "failure_type": ("p.failure_type = :failure_type", patterns.failure_type),
        "model_family": ("p.model_family = :model_family", patterns.model_family),
        "text": (f"{forms.position('lower(p.fields)', 'text')} > 0", text),
        "learned": ("(p.origin <> '') = :learned", patterns.learned),
        "status": ("p.origin <> '' AND p.status = :status", patterns.status),
        "before": ("p.pk < :before", before),
    }
    return conditions(wanted, bound)


async def _suitable_families(model: str, connection: Connection) -> Sequence[str] | None:
    """The model families among the patterns that match `model`; None when all do."""
    families = [name for (name,) in await connection.fetch(_FAMILIES)]
    suitable = [name for name in families if family_matches(name, model)]
    if suitable == families:
        return None
    return suitable
