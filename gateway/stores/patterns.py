"""Protocol of a pattern store, and its values.

A store keeps patterns with one vector each, in the *space* of the embedder in use. Opening another
space keeps the patterns, which then need new vectors; vectors of two spaces are never compared.
Universal rules (tier e3) are listed, not searched, and have no vector. Lessons are listed with the
others, and found by their keys. Every store must pass
`steering_gateway_testing.store_conformance`."""

from __future__ import annotations

import enum
from array import array
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from msgspec import Struct

from gateway.steering.guidance.pattern import Pattern, PatternMatch, Tier
from gateway.stores.protocols import StoreError

# An embedding: float32, unit length.
Vector = array
MAX_PAGE = 1000


class PatternConflict(StoreError, label="pattern_conflict"):
    """Another pattern of the tenant has the same content, or no pattern has that id."""


class SpaceMismatch(StoreError, label="pattern_space"):
    """A vector has other dimensions than the open space, or no space is open."""


class Added(enum.StrEnum):
    """The result of adding a pattern."""

    ADDED = "added"
    REPLACED = "replaced"
    UNCHANGED = "unchanged"


class Event(enum.StrEnum):
    """An event of a pattern in a run. The store counts each. `helped` and `hurt` are those of
    earlier versions: nothing counts or shows them any more."""

    INJECTED = "injected"
    HELPED = "helped"
    HURT = "hurt"


class StoredPattern(Struct, frozen=True, kw_only=True):
    """A pattern, its dates and counts. `indexed`: has a vector of the open space, or needs none."""

    pattern: Pattern
    created_at: float
    updated_at: float
    counts: Mapping[str, int] = {}
    indexed: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class PatternFilter:
    """Filter of patterns; a field of None does not filter. `tenant`: its own patterns and the
    shared ones, None every tenant's. `text`: occurs in the fields, case ignored. `learned`: whether
    it was learned from runs. `status`: of a lesson."""

    tenant: str | None = None
    tier: Tier | None = None
    failure_type: str | None = None
    model_family: str | None = None
    text: str | None = None
    learned: bool | None = None
    status: str | None = None


class PatternPage(Struct, frozen=True, kw_only=True):
    """One page of a list of patterns, newest first; `next_cursor` is None on the last page."""

    patterns: tuple[StoredPattern, ...]
    next_cursor: str | None


class Search(Struct, frozen=True, kw_only=True):
    """A look-up of tier e1 or e2 by vector. `tenant` owns the e1 patterns that are searched; e2 is
    shared. Patterns of another failure type or model family are left out, patterns without one are
    included; None and "" do not filter. At most `limit` patterns of similarity `floor` or more,
    best first."""

    tier: Tier
    vector: Vector[float]
    tenant: str = ""
    limit: int = 1
    failure_type: str | None = None
    model: str = ""
    floor: float = 0.0

    @property
    def scope(self) -> str:
        """The tenant whose patterns are searched, empty for the shared ones."""
        return self.tenant if self.tier is Tier.E1 else ""


class PatternStore(Protocol):
    """Patterns and their vectors. Every method may raise StoreError."""

    async def open_space(self, embedder_id: str, dimensions: int) -> int:
        """Open the space of an embedder; returns how many patterns lack a vector in it."""

    async def add(
        self, entries: Sequence[tuple[Pattern, Vector[float] | None]]
    ) -> list[tuple[Added, str]]:
        """Store patterns, all or none; returns for each the result and its id. A pattern whose
        content the tenant already has changes nothing and gives the stored id; one with a known id
        replaces that pattern's content and keeps its counts. Raises: SpaceMismatch for a vector of
        other dimensions."""

    async def edit(self, pattern: Pattern, vector: Vector[float] | None) -> None:
        """Replace the pattern of this tenant and id. Raises: PatternConflict."""

    async def get(self, tenant: str | None, pattern_id: str) -> StoredPattern | None:
        """The tenant's own or the shared pattern of that id; with tenant None, any tenant's."""

    async def delete(self, tenant: str | None, pattern_id: str) -> bool:
        """Remove the pattern that `get` would return; False when there is none."""

    async def list_patterns(
        self, patterns: PatternFilter, *, limit: int = 50, cursor: str | None = None
    ) -> PatternPage:
        """One page, newest first. Raises: ValueError for an invalid cursor, or a limit not in 1 to
        1000."""

    async def search(self, search: Search) -> list[PatternMatch]:
        """The nearest patterns. Raises: SpaceMismatch."""

    async def universal(self, *, model: str = "", limit: int = 32) -> list[PatternMatch]:
        """The universal rules for `model`, in order of their ids."""

    async def record(
        self, tenant: str, pattern_ids: Sequence[str], event: Event, by: int = 1
    ) -> None:
        """Add `by` to the counts of `event` for the tenant's own or shared patterns of these ids.
        `by` may be negative; no count falls below 0."""

    async def without_vector(self, limit: int) -> list[Pattern]:
        """At most `limit` patterns that have no vector in the open space."""

    async def set_vectors(self, entries: Sequence[tuple[Pattern, Vector[float]]]) -> None:
        """Store vectors of the open space for patterns, found by tenant and id."""

    async def rebuild(self) -> None:
        """Rebuild the search index of the open space from its vectors; damaged ones are removed."""

    async def count(self) -> int:
        """Number of patterns."""


def check_dimensions(dimensions: int, vectors: Iterable[Vector[float] | None]) -> None:
    """Raises: SpaceMismatch for a vector with another number of dimensions."""
    for vector in vectors:
        if vector is not None and len(vector) != dimensions:
            raise SpaceMismatch(f"a vector of {len(vector)} dimensions in a space of {dimensions}")


def decode_cursor(cursor: str | None) -> int | None:
    """The row number in a cursor. Raises: ValueError for any other text."""
    if cursor is None:
        return None
    if not (cursor.isascii() and cursor.isdigit() and len(cursor) < 19):
        raise ValueError("cursor: not one of this server's")
    return int(cursor)
