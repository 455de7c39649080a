"""Who is asking: gateway keys, compared as digests, bound to a tenant."""

from __future__ import annotations

import hmac
import secrets
from dataclasses import dataclass

from gateway.config import AuthSettings
from gateway.errors import Unauthorized
from gateway.keys import DEFAULT_TENANT, KeyRing, key_digest
from gateway.upstream.base import RawHeaders

LOOPBACK_NAMES = ("127.0.0.1", "::1", "localhost")


@dataclass(frozen=True, slots=True, kw_only=True)
class Principal:
    """The tenant a request belongs to, and the headers that held the gateway's own keys."""

    tenant: str = DEFAULT_TENANT
    key_headers: frozenset[bytes] = frozenset()


_ANYBODY = Principal()


class Authenticator:
    """Checks gateway keys, those of the config and those made with `gateway keys`, and the admin
    key."""

    def __init__(self, settings: AuthSettings, *, host: str, keys: KeyRing | None = None) -> None:
        self._host = host
        self._ring = keys or KeyRing()
        self._seed = secrets.token_bytes(32)
        self.update(settings)

    def update(self, settings: AuthSettings) -> None:
        """Take the keys of a new config."""
        self._tenants = {key_digest(key): name for name, key in settings.gateway_keys.items()}
        self._admin = key_digest(settings.admin_key) if settings.admin_key else None

    @property
    def open_admin(self) -> bool:
        """Whether the control plane asks for no key: none configured, and loopback only."""
        return self._admin is None and self._host in LOOPBACK_NAMES

    @property
    def session_seed(self) -> bytes:
        """What browser sessions are signed with: whoever changes the admin key ends them."""
        return self._admin or self._seed

    @property
    def keys_required(self) -> bool:
        """Whether there are gateway keys, so that a request has to show one."""
        return bool(self._tenants) or self._ring.required

    @property
    def admin_digest(self) -> bytes | None:
        """SHA-256 of the admin key; None when none is configured."""
        return self._admin

    def principal(self, headers: RawHeaders) -> Principal:
        """The caller.

        Raises:
            Unauthorized: there are keys and the request shows none of them.
        """
        required = self.keys_required
        if not required and self._admin is None:
            return _ANYBODY
        found = self.tenant_key(headers)
        if found is not None:
            return found
        if not required:
            return Principal(key_headers=self._key_headers(headers))
        what = "is not known" if offered_keys(headers) else "is missing"
        raise Unauthorized(
            f"the gateway key {what}: send it in x-gateway-key, Authorization: Bearer or x-api-key"
        )

    def tenant_key(self, headers: RawHeaders) -> Principal | None:
        """The caller by the first good gateway key among the headers, None without one."""
        for _name, key in offered_keys(headers):
            tenant = self.tenant_of(key_digest(key))
            if tenant is not None:
                return Principal(tenant=tenant, key_headers=self._key_headers(headers))
        return None

    def _key_headers(self, headers: RawHeaders) -> frozenset[bytes]:
        """The headers that hold any key of the gateway's own, not only the one that let in."""
        return frozenset(
            name
            for name, key in offered_keys(headers)
            if self.tenant_of(key_digest(key)) is not None or self.is_admin(key)
        )

    def tenant_of(self, digest: bytes) -> str | None:
        """The tenant of the good key with this digest."""
        record = self._ring.find(digest)
        if record is not None:
            return record.tenant
        found = None
        # No early exit: the time taken tells nothing of which key was near.
        for known, tenant in self._tenants.items():
            if hmac.compare_digest(known, digest):
                found = tenant
        return found

    def is_admin(self, key: str) -> bool:
        """Whether `key` is the admin key."""
        return self._admin is not None and hmac.compare_digest(key_digest(key), self._admin)


def offered_keys(headers: RawHeaders) -> list[tuple[bytes, str]]:
    """(header name, key) of every key the request carries, the gateway's own header first."""
    found = []
    for wanted in (b"x-gateway-key", b"authorization", b"x-api-key"):
        for name, raw in headers:
            if name != wanted:
                continue
            value = raw.decode("latin-1")
            if name == b"authorization":
                scheme, _, value = value.partition(" ")
                value = value if scheme.lower() == "bearer" else ""
            if value.strip():
                found.append((name, value.strip()))
    return found
