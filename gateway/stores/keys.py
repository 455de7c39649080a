"""What the gateway needs of a store of keys; no key itself is ever stored."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Protocol


@dataclass(frozen=True, slots=True, kw_only=True)
class KeyRecord:
    """One gateway key. `hint`: its first characters, to tell it from others; times in seconds
    since the epoch; `revoked_at` None: it is good."""

    id: str
    tenant: str
    name: str
    hint: str
    digest: bytes = field(repr=False)
    created_at: float
    revoked_at: float | None = None


class KeyStore(Protocol):
    """Keys by id and digest. Every method may raise StoreError."""

    async def add_key(self, key: KeyRecord) -> None:
        """Keep a new key."""

    async def list_keys(self) -> Sequence[KeyRecord]:
        """All keys, revoked ones too, oldest first."""

    async def revoke_key(self, key_id: str, at: float) -> bool:
        """Revoke a key; False when there is none of that id, or it was revoked before."""
