"""Gateway keys made with `gateway keys`: their form, and which are valid now."""

import asyncio
import hashlib
import secrets
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from gateway.config import AuthSettings
from gateway.observability.logging import get_logger
from gateway.stores.protocols import KeyStore, StoreError
from gateway.stores.records import KeyRecord

DEFAULT_TENANT = "default"  # the tenant of requests while no key is required

KEY_PREFIX = "gw-"
_SECRET_BYTES = 32  # 256 random bits cannot be guessed, so one round of SHA-256 is enough
_SHOWN_CHARACTERS = 9


def key_digest(key: str) -> bytes:
    """SHA-256 of the key, which is stored and compared instead of the key."""
    return hashlib.sha256(key.encode("utf-8", "surrogateescape")).digest()


@dataclass(frozen=True, slots=True, kw_only=True)
class NewKey:
    """A new key; `text` is shown once and not stored."""

    text: str
    record: KeyRecord


def make_key(tenant: str, name: str = "", *, now: float | None = None) -> NewKey:
    """A new random key for a tenant. Raises: ValueError for a tenant without a visible name."""
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
    """The valid keys in memory: looked up for every request, read from the store in intervals.
    While the store cannot be read they stay good for `auth.stale_s`. `required` stays true when the
    last key is revoked: revoking must not open the gateway."""

    def __init__(self) -> None:
        self.required = False
        self._active: dict[bytes, KeyRecord] = {}
        self._log = get_logger("gateway.keys")
        self._failing = False
        self._read_at = time.monotonic()
        self._begun = self._taken = 0

    def find(self, digest: bytes) -> KeyRecord | None:
        """The key with this digest, None when it is unknown or revoked. The look-up need not take
        constant time: choosing digests would mean inverting SHA-256."""
        return self._active.get(digest)

    @property
    def digests(self) -> Mapping[bytes, str]:
        """The digests of the valid keys, with their tenants."""
        return {digest: record.tenant for digest, record in self._active.items()}

    def has(self, key_id: str) -> bool:
        """Whether the key with this id is valid."""
        return any(record.id == key_id for record in self._active.values())

    async def refresh(self, store: KeyStore) -> None:
        """Read the keys again. Raises: StoreError, and keeps the keys known before. Of readings at
        the same time the one that began last counts: an earlier one may not know yet that a key was
        revoked."""
        self._begun += 1
        began = self._begun
        records = await store.list_keys()
        if began < self._taken:
            return
        self._taken = began
        self._active = {r.digest: r for r in records if r.revoked_at is None}
        self.required = bool(records)
        self._read_at = time.monotonic()

    async def follow(self, store: KeyStore, settings: Callable[[], AuthSettings]) -> None:
        """Refresh for ever; a failing store is logged once until it works again."""
        while True:
            await asyncio.sleep(settings().poll_s)
            try:
                await self.refresh(store)
                self._failing = False
            except StoreError as error:
                if not self._failing:
                    self._log.error("gateway keys cannot be read again", reason=str(error))
                self._failing = True
                self._expire(settings().stale_s)

    def _expire(self, stale_s: float) -> None:
        """Refuse keys that were read too long ago: one may have been revoked since."""
        if self._active and stale_s and time.monotonic() - self._read_at > stale_s:
            self._log.error("gateway keys are refused: they cannot be read", stale_s=stale_s)
            self._active = {}
