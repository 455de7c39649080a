"""Values of the pattern store (`gateway/stores/sql/patterns.py`).

A store keeps patterns with one vector each, in the *space* of the embedder in use. Opening another
space keeps the patterns, which then need new vectors; vectors of two spaces are never compared.
Universal rules (tier e3) are listed, not searched, and have no vector. Lessons are listed with the
others, and found by their keys. Every store must pass
`steering_gateway_testing.store_conformance`."""

from __future__ import annotations

from array import array
from enum import StrEnum
from typing import NamedTuple

from gateway.core.pattern import Pattern, Tier
from gateway.stores.protocols import StoreError
from gateway.values import Value, frozen

# An embedding: float32, unit length.
Vector = array
MAX_PAGE = 1000


class PatternConflict(StoreError, label="pattern_conflict"):
    """Another pattern of the tenant has the same content, or no pattern has that id."""


class SpaceMismatch(StoreError, label="pattern_space"):
    """A vector has other dimensions than the open space, or no space is open."""


class Added(StrEnum):
    """The result of adding a pattern."""

    ADDED = "added"
    REPLACED = "replaced"
    UNCHANGED = "unchanged"


class StoredPattern(Value):
    """A pattern, its dates and its count."""

    pattern: Pattern  # as it is given to runs
    created_at: float  # epoch seconds
    updated_at: float  # epoch seconds of its last change
    injected: int = 0  # how often it was given
    indexed: bool = True  # it has a vector of the embedder in use, or needs none


@frozen
class PatternFilter:
    """Filter of patterns; a field of None does not filter."""

    tenant: str | None = None  # its own patterns and the shared ones; None = every tenant's
    tier: Tier | None = None  # e1, e2 or e3
    failure_type: str | None = None  # label; patterns for any failure do not match
    model_family: str | None = None  # such as `claude`; patterns for any family do not match
    text: str | None = None  # occurs in the fields, case ignored
    learned: bool | None = None  # learned from runs or not
    status: str | None = None  # of a lesson


class PatternPage(Value):
    """One page of a list of patterns."""

    patterns: tuple[StoredPattern, ...]  # newest first
    next_cursor: str | None  # None on the last page


class VectorSearch(Value):
    """A look-up of tier e1 or e2 by vector. Patterns of another failure type or model family are
    left out; those without one are not."""

    tier: Tier  # e1 or e2
    vector: Vector[float]  # of the query's text, by the embedder in use
    tenant: str = ""  # owner of the e1 patterns that are searched; e2 is shared
    limit: int = 1  # most patterns, best first
    failure_type: str | None = None  # label; None does not filter
    model: str = ""  # the routed model's name; "" does not filter
    floor: float = 0.0  # least cosine similarity
    # only patterns that name this cause, at any similarity; 0 where that is unknown. "" = all
    cause: str = ""

    @property
    def scope(self) -> str:
        """The tenant whose patterns are searched, empty for the shared ones."""
        return scope_of(self.tier, self.tenant)


def scope_of(tier: Tier, tenant: str) -> str:
    """The tenant whose patterns of a tier are searched for a tenant; empty for the shared ones."""
    if tier is Tier.E1:
        return tenant
    return ""


class Mark(Value):
    """A fingerprint of the patterns that are not learned, and of their vectors in the open space:
    it changes when they do."""

    patterns: int  # rows that are not lessons
    changed_ms: int  # sum of the times of their last changes, in milliseconds of the epoch
    newest: float  # epoch seconds of the newest change
    vectors: int  # rows in the open space; universal rules have none
    dimensions: int  # of one vector; 0 without any


class CopiedPattern(NamedTuple):
    """A pattern with its vector, as it is copied into memory."""

    number: int  # of its row; orders the copy
    tenant: str  # owner; "" for shared patterns
    tier: str  # e1 or e2
    failure_type: str  # label; "" = any
    model_family: str  # "" = any
    causes: tuple[str, ...]  # of the trouble that it answers
    vector: bytes  # float32 values
    row: bytes  # what `pattern_of` reads, as JSON


def decode_cursor(cursor: str | None) -> int | None:
    """The row number in a cursor. Raises: ValueError for any other text."""
    if cursor is None:
        return None
    if not (cursor.isascii() and cursor.isdigit() and len(cursor) < 19):
        raise ValueError("cursor: not one of this server's")
    return int(cursor)
