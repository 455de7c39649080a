"""Who spent what: sums over a tree of conversations, and over groups of runs."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from gateway.stores.queries import RunFilter

GROUPS = ("tenant", "key", "agent", "model", "day", "experiment", "arm", "mode", "outcome", "state")
"""What runs can be grouped by, besides `tag:NAME`."""

TAG = "tag:"


@dataclass(frozen=True, slots=True, kw_only=True)
class Sums:
    """Sums over runs; `cost_usd` None while no call has a known price."""

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

    @property
    def cached_share(self) -> float:
        """Cached of all input tokens, in [0, 1]."""
        return self.cached_tokens / self.input_tokens if self.input_tokens else 0.0

    @property
    def tokens(self) -> int:
        """Input and output tokens together."""
        return self.input_tokens + self.output_tokens


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


class AttributionStore(Protocol):
    """Sums over the run log. Every method may raise StoreError."""

    async def tree(self, conversation_id: str, *, tenant: str | None) -> Tree | None:
        """The whole tree that a conversation belongs to; None when the tenant has no such one."""

    async def groups(self, runs: RunFilter, by: str) -> tuple[Group, ...]:
        """The runs that match, by one of GROUPS or `tag:NAME`, the costliest first.

        Raises: ValueError for another `by`.
        """
