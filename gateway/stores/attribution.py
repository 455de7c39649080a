"""Who spent what: sums over a tree of conversations, and over groups of runs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import Any, Final, Protocol

from gateway.stores.queries import RunFilter

GROUPS = ("tenant", "key", "agent", "model", "day", "experiment", "arm", "mode", "outcome", "state")
"""What runs can be grouped by, besides `tag:NAME`."""

TAG = "tag:"


@dataclass(frozen=True, slots=True, kw_only=True)
class Sums:
    """Sums over runs; `cost_usd` None while no call has a known price.

    `estimated_calls` of the calls, `estimated_tokens` of the tokens and `estimated_usd` of the cost
    are estimated, because the provider reported no usage.
    """

    runs: int = 0
    calls: int = 0
    errors: int = 0
    input_tokens: int = 0
    cached_tokens: int = 0
    cache_write_tokens: int = 0
    output_tokens: int = 0
    reasoning_tokens: int = 0
    unpriced_calls: int = 0
    cost_usd: float | None = None
    saved_usd: float | None = None
    estimated_calls: int = 0
    estimated_tokens: int = 0
    estimated_usd: float = 0.0

    @property
    def cached_share(self) -> float:
        """Cached of all input tokens, in [0, 1]."""
        return self.cached_tokens / self.input_tokens if self.input_tokens else 0.0

    @property
    def tokens(self) -> int:
        """Input and output tokens together."""
        return self.input_tokens + self.output_tokens


SUMMED = tuple(field.name for field in fields(Sums) if field.name != "runs")


def sums_of(row: Sequence[Any]) -> Sums:
    """From a row of the number of runs, and the columns SUMMED."""
    return Sums(runs=row[0], **dict(zip(SUMMED, row[1:], strict=True)))


def added(parts: Sequence[Sums]) -> Sums:
    """The sums together; one that no part knows stays unknown."""

    def total(name: str) -> Any:
        known = [value for part in parts if (value := getattr(part, name)) is not None]
        return sum(known) if known else None

    return Sums(runs=sum(part.runs for part in parts), **{name: total(name) for name in SUMMED})


@dataclass(frozen=True, slots=True, kw_only=True)
class TreeNode:
    """One conversation of a tree with the sums over its own runs; `parent_id` None: the root."""

    id: str
    parent_id: str | None
    external_key: str | None
    created_at: float
    updated_at: float
    sums: Sums


@dataclass(frozen=True, slots=True, kw_only=True)
class Tree:
    """A conversation with its forks and sub-agents: oldest first, and all of it together."""

    root_id: str
    nodes: tuple[TreeNode, ...]
    total: Sums


@dataclass(frozen=True, slots=True, kw_only=True)
class Group:
    """The runs with one value of what they are grouped by; "" for those without one."""

    value: str
    sums: Sums


ESTIMATED: Final = {
    "estimated_calls": "calls",
    "estimated_tokens": "tokens",
    "estimated_usd": "cost_usd",
}
"""The sums that are counters of a run (`RunTotals.estimated`), and their names there."""


class AttributionStore(Protocol):
    """Sums over the run log. Every method may raise StoreError."""

    async def tree(self, conversation_id: str, *, tenant: str | None) -> Tree | None:
        """The whole tree that a conversation belongs to; None when the tenant has no such one."""

    async def groups(self, runs: RunFilter, by: str) -> tuple[Group, ...]:
        """The runs that match, by one of GROUPS or `tag:NAME`, the costliest first.

        Raises: ValueError for another `by`.
        """
