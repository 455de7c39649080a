"""Authentication by gateway keys, compared as digests; each belongs to one tenant."""

import hmac
import re
import time
from collections.abc import Callable
from dataclasses import replace
from functools import cache
from hashlib import sha256
from math import ceil
from secrets import token_bytes, token_urlsafe
from urllib.parse import unquote_plus

from cachetools import LRUCache
from starlette.types import Scope

from gateway.auth.keys import KEY_PREFIX, Keys, Principal, key_digest
from gateway.config import AuthSettings
from gateway.config.own_address import is_loopback_name
from gateway.errors import Overloaded, Unauthorized
from gateway.upstream import credentials
from gateway.wire.headers import RawHeaders

_WINDOW_S = 60.0
# Clients choose how many addresses they have (IPv6), hence a limit; the oldest are forgotten.
_ADDRESSES_KEPT = 4096


class WrongKeyLimit:
    """Limit of wrong keys that one address may send in a minute; 0 is no limit."""

    def __init__(self, per_minute: int, now: Callable[[], float] = time.monotonic):
        self.per_minute = per_minute
        self._now = now
        self._seen: LRUCache[str, tuple[float, int]] = LRUCache(_ADDRESSES_KEPT)

    def refuse(self, address: str) -> None:
        """Refuse an address that has used up its minute. Raises: Overloaded: with the seconds that
        are left in `retry-after`."""
        began, count = self._seen.get(address, (0.0, 0))
        left_s = began + _WINDOW_S - self._now()
        if self.per_minute and count >= self.per_minute and left_s > 0:
            raise Overloaded(
                "too many wrong keys from this address: wait before sending another",
                code="too_many_wrong_keys",
                headers=(("retry-after", str(ceil(left_s))),),
            )

    def count(self, address: str) -> None:
        """Count one wrong key."""
        now = self._now()
        began, count = self._seen.get(address, (now, 0))
        self._seen[address] = (now, 1) if now - began >= _WINDOW_S else (began, count + 1)


_WORDS = re.compile(r"openai-insecure-api-key\.|[\s,;&=\"]")

# A key of so many characters is not found by trying; `gateway keys create` makes longer ones.
UNGUESSABLE_CHARACTERS = 32


_ANONYMOUS = Principal()


@cache
def process_key() -> str:
    """The key that controls a gateway without `auth.admin_key`, new for each process; workers
    share that of their parent. It has the form of gateway keys, so that it is never forwarded."""
    return KEY_PREFIX + token_urlsafe(32)


class Authenticator:
    """Checks the admin key and gateway keys, of the config and made with `gateway keys`."""

    def __init__(self, settings: AuthSettings, *, host: str, keys: Keys):
        self._on_loopback = is_loopback_name(host)
        self.keys = keys
        self._admin = b""
        self._wrong_keys = WrongKeyLimit(settings.wrong_keys_per_minute)
        # Signs browser sessions. Random: from a cookie nothing can be learned about a key.
        self.session_secret = token_bytes(32)
        self.update(settings)

    def update(self, settings: AuthSettings) -> None:
        """Use the keys of a reloaded config; another admin key ends all sessions."""
        before = self._admin
        self._wrong_keys.per_minute = settings.wrong_keys_per_minute
        self.keys.update(settings)
        self.has_admin_key = bool(settings.admin_key)
        self._admin = key_digest(settings.admin_key or process_key())
        if self._admin != before:
            self.session_secret = token_bytes(32)

    @property
    def open_admin(self) -> bool:
        """Whether the control plane can be read without a key: none is configured, and the address
        is a loopback one. Changing anything needs `process_key` all the same."""
        return not self.has_admin_key and self._on_loopback

    def session_tag(self, digest: bytes) -> str:
        """A session's mark of the key that opened it; without the secret it says nothing."""
        message = b"key of a session\x00" + digest
        return hmac.new(self.session_secret, message, sha256).hexdigest()

    def tenant_of_tag(self, tag: str) -> str | None:
        """The tenant of the valid key with this session tag, None when there is none."""
        for digest, tenant in self.keys.tenants().items():
            if hmac.compare_digest(self.session_tag(digest).encode(), tag.encode()):
                return tenant
        return None

    def principal(self, scope: Scope) -> Principal:
        """The caller. Raises: Unauthorized: gateway keys exist, and the request sends none of them.
        Overloaded: its address has sent too many wrong keys."""
        headers: RawHeaders = scope["headers"]
        required = self.keys.required
        if not required and not self.has_admin_key:
            return _ANONYMOUS
        found = self.principal_by_key(headers)
        if found is not None:
            query = scope.get("query_string", b"")
            if query and self._has_key(unquote_plus(query.decode("latin-1"))):
                raise Unauthorized("a gateway key in the query: send it in x-gateway-key")
            self.refuse_guesses(scope, found.guessable)
            return found
        if not required:
            return Principal(key_headers=self._key_headers(headers))
        self.refuse_expired(headers)
        what = "is missing"
        if offered_keys(headers):
            self.wrong_key(scope)
            what = "is unknown"
        raise Unauthorized(
            f"the gateway key {what}: send it in x-gateway-key, Authorization: Bearer, x-api-key "
            "or x-goog-api-key"
        )

    def principal_by_key(self, headers: RawHeaders) -> Principal | None:
        """The caller, from the first valid gateway key in the headers; None without one."""
        offered = offered_keys(headers)
        for _, key in offered:
            holder = self.keys.find(key_digest(key))
            if holder is not None:
                return replace(
                    holder,
                    key_headers=self._key_headers(headers),
                    guessable=len(key) < UNGUESSABLE_CHARACTERS,
                    operator=any(self.is_admin(other) for _, other in offered),
                )
        return None

    def refuse_expired(self, headers: RawHeaders) -> None:
        """Refuse an expired key with a message that says so. Raises: Unauthorized."""
        for _, key in offered_keys(headers):
            if when := self.keys.expiry(key_digest(key)):
                raise Unauthorized(f"the gateway key expired on {when}")

    def wrong_key(self, scope: Scope) -> None:
        """Count a wrong key. Raises: Overloaded when its address has sent too many."""
        self._wrong_keys.refuse(_address(scope))
        self._wrong_keys.count(_address(scope))

    def refuse_guesses(self, scope: Scope, guessable: bool) -> None:
        """Refuse a right key that its address may have found by trying. A key that cannot be
        guessed is always accepted: behind a proxy or NAT, one client's wrong key must not shut out
        the others. Raises: Overloaded: the key is guessable, and its address has sent too many
        wrong keys."""
        if guessable:
            self._wrong_keys.refuse(_address(scope))

    def _key_headers(self, headers: RawHeaders) -> frozenset[bytes]:
        """All headers that hold a gateway or admin key, not only the one that was accepted."""
        found = {name for name, key in offered_keys(headers) if self._is_known(key)}
        for name, value in headers:
            may_hold = name not in found and credentials.may_hold_key(name)
            if may_hold and self._has_key(value.decode("latin-1")):
                found.add(name)
        return frozenset(found)

    def _has_key(self, text: str) -> bool:
        return any(self._is_known(word) for word in _WORDS.split(text) if word)

    def _is_known(self, key: str) -> bool:
        return self.keys.find(key_digest(key)) is not None or self.is_admin(key)

    def is_admin(self, key: str) -> bool:
        """Whether `key` is the admin key."""
        return hmac.compare_digest(key_digest(key), self._admin)


def _address(scope: Scope) -> str:
    """The address of the client's end of the connection; empty on a Unix socket."""
    return str((scope.get("client") or ("",))[0])


def offered_keys(headers: RawHeaders) -> list[tuple[bytes, str]]:
    """(header name, key) of every key in the request, `x-gateway-key` first."""
    found = []
    for wanted in (b"x-gateway-key", b"authorization", b"x-api-key", b"x-goog-api-key"):
        for name, raw in headers:
            if name != wanted:
                continue
            value = raw.decode("latin-1")
            if name == b"authorization":
                scheme, _, value = value.partition(" ")
                if scheme.lower() != "bearer":
                    value = ""
            if value.strip():
                found.append((name, value.strip()))
    return found
