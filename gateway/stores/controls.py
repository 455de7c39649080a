"""What the gateway needs of a store to stop and pause runs: one row for each that is held."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, Protocol

Action = Literal["stop", "pause"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Control:
    """A hold on a run (`subject` is its id), or on a conversation and all below it.

    `reason`: why, for the client and the run's page. `at`: seconds since the epoch.
    """

    subject: str
    tenant: str
    action: Action
    reason: str = ""
    at: float = 0.0


class ControlStore(Protocol):
    """The holds in force. Every method may raise StoreError."""

    async def hold(self, control: Control) -> None:
        """Stop or pause; replaces an earlier hold on the same subject."""

    async def release(self, subject: str) -> bool:
        """End a hold; False when there is none."""

    async def list_controls(self) -> Sequence[Control]:
        """All holds in force, oldest first."""
