"""Gateway keys made with `gateway keys`: their form, and which are valid now."""

import asyncio
import hashlib
import secrets
import time
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime

from msgspec import convert
from msgspec.structs import asdict

from gateway.config import AuthSettings
from gateway.config.budgets import BudgetLimits, BudgetSettings
from gateway.config.values import duration
from gateway.observability.logging import get_logger
from gateway.stores.protocols import KeyStore, StoreError
from gateway.stores.records import KeyRecord, KeyTerms
from gateway.values import FieldDict, Fields, frozen

DEFAULT_TENANT = "default"  # the tenant of requests while no key is required

KEY_PREFIX = "gw-"
_SECRET_BYTES = 32  # 256 random bits cannot be guessed, so one round of SHA-256 is enough
_SHOWN_CHARACTERS = 9
_MAX_CHARS = 120


def key_digest(key: str) -> bytes:
    """SHA-256 of the key, which is stored and compared instead of the key."""
    return hashlib.sha256(key.encode("utf-8", "surrogateescape")).digest()


@frozen
class NewKey:
    """A new key."""

    text: str  # shown once and not stored
    record: KeyRecord  # what is stored of it


def make_key(tenant: str, name: str = "", terms: KeyTerms | None = None) -> NewKey:
    """A new random key for a tenant. Raises: ValueError: a name that is too long or not visible."""
    for what, given in (("tenant", tenant or "\n"), ("name", name)):
        if not given.isprintable() or len(given) > _MAX_CHARS:
            raise ValueError(f"{what}: must be at most {_MAX_CHARS} visible characters")
    text = KEY_PREFIX + secrets.token_urlsafe(_SECRET_BYTES)
    record = KeyRecord(
        id=f"key-{secrets.token_hex(6)}",
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
    ends = time.time() + duration("overlap", overlap)
    now = time.time()
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
    made = await create_key(store, old.tenant, old.name or old.id, fresh)
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


def state_of(key: KeyRecord) -> str:
    """`valid`, `expired` or `revoked`."""
    if key.revoked_at is not None:
        return "revoked"
    end = key.terms.expires_at
    return "expired" if end is not None and end <= time.time() else "valid"


def key_view(key: KeyRecord) -> FieldDict:
    """A key without its digest, as commands and the API show it."""
    names = ("id", "tenant", "name", "hint", "created_at", "revoked_at")
    shown = {name: getattr(key, name) for name in names}
    return shown | {"state": state_of(key)} | asdict(key.terms)


def key_budgets(keys: Sequence[KeyRecord]) -> dict[tuple[str, str], tuple[BudgetSettings, ...]]:
    """Returns the budgets of keys with limits, by tenant and name. A key and the one that it
    replaces share a budget, with the limits of the newer key."""
    first: dict[str, str] = {}
    found: dict[tuple[str, str], dict[str, BudgetSettings]] = {}
    for key in keys:
        root = first[key.id] = first.get(key.terms.replaces, key.id)
        for name, metric, most, per in (
            (root, "usd", key.terms.usd, key.terms.per),
            (f"{root}.rpm", "calls", key.terms.rpm, "1m"),
            (f"{root}.tpm", "tokens", key.terms.tpm, "1m"),
        ):
            if most is not None and key.revoked_at is None:
                limits = BudgetLimits(**{metric: most})  # type: ignore[arg-type]
                budget = BudgetSettings(name=name, scope="key", limits=limits, per=per)
                found.setdefault((key.tenant, key.name or key.id), {})[name] = budget
    return {name: tuple(budgets.values()) for name, budgets in found.items()}


class KeyRing:
    """The valid keys in memory: looked up for every request, read from the store in intervals.
    While the store cannot be read they stay good for `auth.stale_s`. `required` stays true when the
    last key is revoked: revoking must not open the gateway."""

    def __init__(self) -> None:
        self.required = False
        self._active: dict[bytes, KeyRecord] = {}
        self.budgets: dict[tuple[str, str], tuple[BudgetSettings, ...]] = {}
        self._log = get_logger("gateway.keys")
        self._failing = False
        self._read_at = time.monotonic()
        self._begun = self._taken = 0

    def find(self, digest: bytes) -> KeyRecord | None:
        """The key with this digest, None when it is unknown, expired or revoked. The look-up need
        not take constant time: choosing digests would mean inverting SHA-256."""
        key = self._active.get(digest)
        return None if key is None or state_of(key) != "valid" else key

    def expiry(self, digest: bytes) -> str:
        """The time at which the key with this digest has expired; empty when none has."""
        key = self._active.get(digest)
        end = key.terms.expires_at if key is not None and state_of(key) == "expired" else None
        return "" if end is None else f"{datetime.fromtimestamp(end, UTC):%Y-%m-%d %H:%M UTC}"

    @property
    def digests(self) -> Mapping[bytes, str]:
        """The digests of the valid keys, with their tenants."""
        return {d: record.tenant for d, record in self._active.items() if self.find(d)}

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
        self.budgets.clear()
        self.budgets.update(key_budgets(records))
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
