"""Values of the pattern store (`gateway/stores/sql/patterns.py`).

A store keeps patterns with one vector each, in the *space* of the embedder in use. Opening another
space keeps the patterns, which then need new vectors; vectors of two spaces are never compared.
Universal rules (tier e3) are listed, not searched, and have no vector. Lessons are listed with the
others, and found by their keys. Every store must pass
`steering_gateway_testing.store_conformance`."""

from __future__ import annotations

import enum
from array import array
from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple

from msgspec import Struct

from gateway.core.pattern import Pattern, Tier
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
        return scope_of(self.tier, self.tenant)


def scope_of(tier: Tier, tenant: str) -> str:
    """The tenant whose patterns of a tier are searched for a tenant; empty for the shared ones."""
    return tenant if tier is Tier.E1 else ""


class Mark(Struct, frozen=True, kw_only=True):
    """A fingerprint of the patterns that are not learned, and of their vectors in the open space:
    it changes when they do."""

    patterns: int
    changed_ms: int
    """Sum of the times of their last changes, in milliseconds of the epoch."""
    newest: float
    vectors: int
    dimensions: int

    @property
    def vector_bytes(self) -> int:
        """Size of all vectors as float32."""
        return 4 * self.vectors * self.dimensions


class CopiedPattern(NamedTuple):
    """A pattern with its vector, as it is copied into memory. `number`: of its row; `row`: what
    `pattern_of` reads, as JSON; `vector`: float32."""

    number: int
    tenant: str
    tier: str
    failure_type: str
    model_family: str
    vector: bytes
    row: bytes


def decode_cursor(cursor: str | None) -> int | None:
    """The row number in a cursor. Raises: ValueError for any other text."""
    if cursor is None:
        return None
    if not (cursor.isascii() and cursor.isdigit() and len(cursor) < 19):
        raise ValueError("cursor: not one of this server's")
    return int(cursor)
