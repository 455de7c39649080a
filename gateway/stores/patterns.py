"""What the gateway needs of a pattern store, and the values it speaks in.

A store keeps patterns with one vector each, of one *space*: the embedder that is in use. Opening
another space leaves the patterns and asks for new vectors; vectors of two spaces never meet.
Universal rules (tier e3) are listed, not searched, and have no vector.

Conformance: `tests/stores/test_patterns.py` runs against every backend.
"""

from __future__ import annotations

import enum
from array import array
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import ClassVar, Protocol

from gateway.steering.etrace.families import family_matches
from gateway.steering.etrace.pattern import Match, Pattern, Tier
from gateway.stores.base import StoreError

Vector = array
"""An embedding: float32, unit length."""

MAX_PAGE = 1000


class PatternConflict(StoreError):
    """Another pattern of this tenant has the same content, or there is none of that id."""

    label: ClassVar[str] = "pattern_conflict"


class SpaceMismatch(StoreError):
    """A vector has other dimensions than the open space, or no space is open."""

    label: ClassVar[str] = "pattern_space"


class Added(enum.StrEnum):
    """What adding a pattern did."""

    ADDED = "added"
    REPLACED = "replaced"
    UNCHANGED = "unchanged"


class Event(enum.StrEnum):
    """What happened to a pattern in a run; each is counted."""

    INJECTED = "injected"
    HELPED = "helped"
    HURT = "hurt"


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredPattern:
    """A pattern with its history. `indexed`: it has a vector of the open space, or needs none."""

    pattern: Pattern
    created_at: float
    updated_at: float
    counts: Mapping[str, int] = field(default_factory=dict)
    indexed: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class PatternFilter:
    """Which patterns; a field left None admits all.

    `tenant`: its own e1 patterns and what is shared, None every tenant's; `text`: occurs in the
    payload, case ignored.
    """

    tenant: str | None = None
    tier: Tier | None = None
    failure_type: str | None = None
    model_family: str | None = None
    text: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class PatternPage:
    """One slice of a list of patterns, newest first; `next_cursor` is None on the last."""

    patterns: tuple[StoredPattern, ...]
    next_cursor: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Search:
    """A look-up of tier e1 or e2 by vector.

    `tenant` owns the e1 patterns that are searched; e2 is shared. Patterns of another failure type
    or model family are left out, those of none are not; None and "" do not limit. At most `limit`
    patterns of similarity `floor` or more, best first.
    """

    tier: Tier
    vector: Vector[float]
    tenant: str = ""
    limit: int = 1
    failure_type: str | None = None
    model: str = ""
    floor: float = 0.0

    @property
    def scope(self) -> str:
        """The tenant whose patterns are searched, empty for what is shared."""
        return self.tenant if self.tier is Tier.E1 else ""


class PatternStore(Protocol):
    """Patterns and their vectors. Every method may raise StoreError."""

    async def open_space(self, embedder_id: str, dimensions: int) -> int:
        """Make the embedder's space the open one; returns how many patterns lack a vector in it."""

    async def add(
        self, entries: Sequence[tuple[Pattern, Vector[float] | None]]
    ) -> list[tuple[Added, str]]:
        """Store patterns, all or none; returns for each what was done and its id.

        A pattern whose content the tenant has already changes nothing and gives the stored id; one
        with a known id replaces that pattern's content and keeps its counts.
        Raises: SpaceMismatch for a vector of other dimensions.
        """

    async def edit(self, pattern: Pattern, vector: Vector[float] | None) -> None:
        """Replace the pattern of this tenant and id. Raises: PatternConflict."""

    async def get(self, tenant: str | None, pattern_id: str) -> StoredPattern | None:
        """The tenant's own or shared pattern of that id; tenant None looks at every tenant's."""

    async def delete(self, tenant: str | None, pattern_id: str) -> bool:
        """Remove the pattern `get` would give; False when there is none."""

    async def list_patterns(
        self, patterns: PatternFilter, *, limit: int = 50, cursor: str | None = None
    ) -> PatternPage:
        """One page, newest first. Raises: ValueError for a foreign cursor or a limit not in
        1 to 1000."""

    async def search(self, search: Search) -> list[Match]:
        """The nearest patterns. Raises: SpaceMismatch."""

    async def universal(self, *, model: str = "", limit: int = 32) -> list[Match]:
        """The universal rules that suit `model`, in order of their ids."""

    async def record(
        self, tenant: str, pattern_ids: Sequence[str], event: Event, by: int = 1
    ) -> None:
        """Count `event` for the tenant's own or shared patterns of these ids; `by` below 0 takes
        back, and no count falls below 0."""

    async def without_vector(self, limit: int) -> list[Pattern]:
        """Patterns that the open space has no vector for, at most `limit`."""

    async def set_vectors(self, entries: Sequence[tuple[Pattern, Vector[float]]]) -> None:
        """Give patterns, by tenant and id, their vector of the open space."""

    async def rebuild(self) -> None:
        """Make the search index of the open space anew from the vectors; unusable ones are lost."""

    async def count(self) -> int:
        """How many patterns there are."""


def suits(pattern: Pattern, failure_type: str | None, model: str) -> bool:
    """Whether a look-up with this failure type and model may find the pattern."""
    if failure_type and pattern.failure_type not in (None, failure_type):
        return False
    return family_matches(pattern.model_family, model)


def check_limit(limit: int) -> None:
    """Raises: ValueError for a page size not in 1 to 1000."""
    if not 1 <= limit <= MAX_PAGE:
        raise ValueError(f"limit: must be from 1 to {MAX_PAGE}, not {limit}")


def decode_cursor(cursor: str | None) -> int | None:
    """The row number a cursor stands for. Raises: ValueError for any other text."""
    if cursor is None:
        return None
    if not (cursor.isascii() and cursor.isdigit() and len(cursor) < 19):
        raise ValueError("cursor: not one of this server's")
    return int(cursor)
