"""Gateway keys made with `gateway keys`: their form, and which are valid now."""

import asyncio
import hmac
import time
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from itertools import chain
from secrets import token_hex, token_urlsafe
from typing import Any, cast

from msgspec import convert
from msgspec.structs import asdict

from gateway.auth.keys import KEY_PREFIX, Keys, Principal, key_digest
from gateway.backends import Stores
from gateway.config import AuthSettings
from gateway.config.values import duration
from gateway.features.keys.records import KeyRecord, KeyTerms
from gateway.features.keys.settings import KeySettings
from gateway.features.keys.store import KeyStore
from gateway.hooks import given
from gateway.observability.logging import get_logger
from gateway.runtime import Runtime
from gateway.stores.protocols import StoreError
from gateway.values import FieldDict, Fields, frozen

_log = get_logger("gateway.keys")

_SECRET_BYTES = 32  # 256 random bits cannot be guessed, so one round of SHA-256 is enough
_SHOWN_CHARACTERS = 9
_MAX_CHARS = 120


@frozen
class NewKey:
    """A new key."""

    text: str  # shown once and not stored
    record: KeyRecord  # what is stored of it


def make_key(tenant: str, name: str = "", terms: KeyTerms | None = None) -> NewKey:
    """A new random key for a tenant. Raises: ValueError: a name that is too long or not visible."""
    for what, value in (("tenant", tenant or "\n"), ("name", name)):
        if not value.isprintable() or len(value) > _MAX_CHARS:
            raise ValueError(f"{what}: must be at most {_MAX_CHARS} visible characters")
    text = KEY_PREFIX + token_urlsafe(_SECRET_BYTES)
    record = KeyRecord(
        id=f"key-{token_hex(6)}",
        tenant=tenant,
        name=name,
        hint=text[:_SHOWN_CHARACTERS],
        digest=key_digest(text),
        created_at=time.time(),
        terms=terms or KeyTerms(),
    )
    return NewKey(text=text, record=record)


async def create_key(store: KeyStore, tenant: str, name: str, terms: Fields) -> NewKey:
    """Make a key and store it. Raises: ValueError."""
    made = make_key(tenant, name, KeyTerms(**terms))
    await store.add_key(made.record)
    return made


async def rotate_key(store: KeyStore, key_id: str, overlap: str) -> NewKey | None:
    """Make a key with the name, rights and lifetime of another, which expires after `overlap`; None
    when no valid key has that id. Raises: ValueError: it has been replaced already."""
    now = time.time()
    ends = now + duration("overlap", overlap)
    keys = {}
    for key in await store.list_keys():
        keys[key.id] = key
        if key.terms.replaces == key_id and key.revoked_at is None:
            raise ValueError(f"key {key_id!r} is replaced by {key.id} already")
    old = keys.get(key_id)
    if old is None or state_of(old) != "valid":
        return None
    end = old.terms.expires_at
    fresh = asdict(old.terms) | {"replaces": key_id}
    if end is not None:
        fresh["expires_at"] = now + end - old.created_at
        ends = min(end, ends)
    # Usage and budgets go by the name of a key.
    made = await create_key(store, old.tenant, old.name or old.id, terms=fresh)
    await store.change_key(key_id, {"expires_at": ends})
    return made


def read_terms(given: Fields) -> FieldDict:
    """The fields of KeyTerms that a person has written: texts, `tags` as name=value, `expires` as
    30d or `never`. Lists may be one text with commas. Raises: ValueError."""
    fields = ("owner", "team", "tags", "models", "routes", "usd", "per", "rpm", "tpm")
    found = {name: given[name] for name in fields if given.get(name) is not None}
    for name in ("tags", "models", "routes"):
        if isinstance(found.get(name), str):
            found[name] = [part.strip() for part in found[name].split(",") if part.strip()]
    if "tags" in found:
        found["tags"] = {tag.partition("=")[0]: tag.partition("=")[2] for tag in found["tags"]}
    if ends := given.get("expires"):
        never = ends == "never"
        found["expires_at"] = None if never else time.time() + duration("expires", ends)
    terms = convert(found, KeyTerms, strict=False)
    return {name: getattr(terms, name) for name in found}


def own(settings: AuthSettings) -> KeySettings:
    """The section `auth` of the settings, with the keys that this feature adds."""
    return cast(KeySettings, settings)


def state_of(key: KeyRecord) -> str:
    """`valid`, `expired` or `revoked`."""
    if key.revoked_at is not None:
        return "revoked"
    end = key.terms.expires_at
    if end is not None and end <= time.time():
        return "expired"
    return "valid"


def key_view(key: KeyRecord) -> FieldDict:
    """A key without its digest, as commands and the API show it."""
    names = ("id", "tenant", "name", "hint", "created_at", "revoked_at")
    shown = {name: getattr(key, name) for name in names}
    return shown | {"state": state_of(key)} | asdict(key.terms)


def key_budgets(keys: Sequence[KeyRecord]) -> dict[tuple[str, str], tuple[Any, ...]]:
    """Returns the budgets of keys with limits, by tenant and name. A key and the one that it
    replaces share a budget, with the limits of the newer key."""
    make = next(given("key_budget"), None)
    first: dict[str, str] = {}
    found: dict[tuple[str, str], dict[str, Any]] = {}
    for key in keys:
        root = first[key.id] = first.get(key.terms.replaces, key.id)
        for name, metric, most, per in (
            (root, "usd", key.terms.usd, key.terms.per),
            (f"{root}.rpm", "calls", key.terms.rpm, "1m"),
            (f"{root}.tpm", "tokens", key.terms.tpm, "1m"),
        ):
            if most is not None and key.revoked_at is None and make is not None:
                budget = make(name, metric, most, per)
                found.setdefault((key.tenant, key.name or key.id), {})[name] = budget
    return {name: tuple(budgets.values()) for name, budgets in found.items()}


async def stored_budgets(stores: Stores) -> list[Any]:
    """The budgets of the keys that are stored."""
    store = stores.of(KeyStore)
    if store is None:
        return []
    return list(chain(*key_budgets(await store.list_keys()).values()))


class KeyRing(Keys):
    """The valid keys in memory: looked up for every request. Those of the config are compared one
    by one; those that were made with `gateway keys` are read from the store in intervals. While the
    store cannot be read they stay good for `auth.stale_s`. `required` stays true when the last key
    is revoked: revoking must not open the gateway."""

    def __init__(self) -> None:
        self.budgets: dict[tuple[str, str], tuple[Any, ...]] = {}
        self._of_config: dict[bytes, Principal] = {}
        self._any_stored = False
        self._active: dict[bytes, KeyRecord] = {}
        self._failing = False
        self._read_at = time.monotonic()
        self._begun = self._taken = 0

    def update(self, settings: AuthSettings) -> None:
        """Use the keys of a config that was read."""
        keys = own(settings).gateway_keys
        self._of_config = {key_digest(key): Principal(tenant=t, key=t) for t, key in keys.items()}
        self.required = bool(self._of_config) or self._any_stored

    def find(self, digest: bytes) -> Principal | None:
        """The holder of the valid key with this digest; None without one. For a stored key the
        look-up need not take constant time: choosing digests would mean inverting SHA-256."""
        key = self._active.get(digest)
        if key is not None and state_of(key) == "valid":
            return Principal(tenant=key.tenant, key=key.name or key.id, terms=key.terms)
        found = None
        # No early exit: the time taken must not reveal which key matched.
        for known, holder in self._of_config.items():
            if hmac.compare_digest(known, digest):
                found = holder
        return found

    def expiry(self, digest: bytes) -> str:
        """The time at which the key with this digest has expired; empty when none has."""
        key = self._active.get(digest)
        if key is None or state_of(key) != "expired":
            return ""
        return f"{datetime.fromtimestamp(key.terms.expires_at or 0.0, UTC):%Y-%m-%d %H:%M UTC}"

    def tenants(self) -> Mapping[bytes, str]:
        """The tenants of the valid keys, by digest."""
        stored = {d: key.tenant for d, key in self._active.items() if state_of(key) == "valid"}
        return {digest: holder.tenant for digest, holder in self._of_config.items()} | stored

    async def refresh(self, stores: Stores) -> None:
        """Read the stored keys again. Raises: StoreError, and keeps the keys known before. Of
        readings at the same time the one that began last counts: an earlier one may not know yet
        that a key was revoked."""
        store = stores.of(KeyStore)
        if store is None:
            return
        self._begun += 1
        began = self._begun
        records = await store.list_keys()
        if began < self._taken:
            return
        self._taken = began
        self._active = {r.digest: r for r in records if r.revoked_at is None}
        self._any_stored = bool(records)
        self.required = bool(self._of_config) or self._any_stored
        self.budgets.clear()
        self.budgets.update(key_budgets(records))
        self._read_at = time.monotonic()

    async def follow(self, stores: Stores, settings: Callable[[], KeySettings]) -> None:
        """Refresh for ever; a failing store is logged once until it works again."""
        while True:
            await asyncio.sleep(settings().poll_s)
            try:
                await self.refresh(stores)
                self._failing = False
            except StoreError as error:
                if not self._failing:
                    _log.error("gateway keys cannot be read again", reason=str(error))
                self._failing = True
                self._expire(settings().stale_s)

    def _expire(self, stale_s: float) -> None:
        """Refuse keys that were read too long ago: one may have been revoked since."""
        if self._active and stale_s and time.monotonic() - self._read_at > stale_s:
            _log.error("gateway keys are refused: they cannot be read", stale_s=stale_s)
            self._active = {}


async def start(runtime: Runtime) -> None:
    """Begin to follow the stored keys, which `Runtime` has read."""
    ring = cast(KeyRing, runtime.keys)
    stores = runtime.opened.stores
    runtime.follow(ring.follow(stores, lambda: own(runtime.settings.auth)), "watch gateway keys")
