"""Gateway keys made with `gateway keys`: how they look, and which are good now."""

from __future__ import annotations

import asyncio
import hashlib
import secrets
import time
from dataclasses import dataclass

from gateway.observability.logging import get_logger
from gateway.stores.base import StoreError
from gateway.stores.keys import KeyRecord, KeyStore

DEFAULT_TENANT = "default"
"""Whose the requests are while no key is asked for."""

KEY_PREFIX = "gw-"
_SECRET_BYTES = 32  # too many to guess, so that one round of SHA-256 is enough to hide them
_SHOWN_CHARACTERS = 9

REFRESH_S = 1.0
"""How long a revoked key may still be taken for good."""


def key_digest(key: str) -> bytes:
    """SHA-256 of the key: what is kept and compared in its place."""
    return hashlib.sha256(key.encode("utf-8", "surrogateescape")).digest()


@dataclass(frozen=True, slots=True, kw_only=True)
class NewKey:
    """A key just made; `text` is shown once and kept nowhere."""

    text: str
    record: KeyRecord


def make_key(tenant: str, name: str = "", *, now: float | None = None) -> NewKey:
    """A fresh random key of a tenant. Raises: ValueError for a tenant without a name."""
    if not tenant or not tenant.isprintable():
        raise ValueError("tenant: must be visible text")
    text = KEY_PREFIX + secrets.token_urlsafe(_SECRET_BYTES)
    record = KeyRecord(
        id=f"key-{secrets.token_hex(6)}",
        tenant=tenant,
        name=name,
        hint=text[:_SHOWN_CHARACTERS],
        digest=key_digest(text),
        created_at=time.time() if now is None else now,
    )
    return NewKey(text=text, record=record)


class KeyRing:
    """The keys that are good now, in memory: looked up for every request, read every second.

    `required` stays true when the last key is revoked: that must not open the gateway.
    """

    def __init__(self) -> None:
        self.required = False
        self._active: dict[bytes, KeyRecord] = {}
        self._log = get_logger("gateway.keys")
        self._failing = False

    def find(self, digest: bytes) -> KeyRecord | None:
        """The key with this digest, None when it is unknown or revoked.

        A look-up by digest tells a clock nothing: who cannot invert SHA-256 cannot choose digests.
        """
        return self._active.get(digest)

    def has(self, key_id: str) -> bool:
        """Whether the key of this id is good."""
        return any(record.id == key_id for record in self._active.values())

    async def refresh(self, store: KeyStore) -> None:
        """Read the keys again. Raises: StoreError; the keys known before stay then."""
        records = await store.list_keys()
        self._active = {r.digest: r for r in records if r.revoked_at is None}
        self.required = bool(records)

    async def follow(self, store: KeyStore) -> None:
        """Refresh for ever; a store that fails is logged once, until it answers again."""
        while True:
            await asyncio.sleep(REFRESH_S)
            try:
                await self.refresh(store)
                self._failing = False
            except StoreError as error:
                if not self._failing:
                    self._log.error("gateway keys cannot be read again", reason=str(error))
                self._failing = True
