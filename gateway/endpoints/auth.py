"""Who is asking: gateway keys, compared as digests, bound to a tenant."""

from __future__ import annotations

import hmac
from dataclasses import dataclass

from gateway.config import AuthSettings
from gateway.errors import Unauthorized
from gateway.keys import KeyRing, key_digest
from gateway.upstream.base import RawHeaders, header

DEFAULT_TENANT = "default"
LOOPBACK_NAMES = ("127.0.0.1", "::1", "localhost")


@dataclass(frozen=True, slots=True, kw_only=True)
class Principal:
    """The tenant a request belongs to, and the header that held the gateway's own key."""

    tenant: str = DEFAULT_TENANT
    key_header: bytes | None = None


_ANYBODY = Principal()


class Authenticator:
    """Checks gateway keys, those of the config and those made with `gateway keys`, and the admin
    key."""

    def __init__(self, settings: AuthSettings, *, host: str, keys: KeyRing | None = None) -> None:
        self._tenants = {key_digest(key): name for name, key in settings.gateway_keys.items()}
        self._ring = keys or KeyRing()
        self._admin = key_digest(settings.admin_key) if settings.admin_key else None
        self.open_admin = self._admin is None and host in LOOPBACK_NAMES
        """Whether the control plane asks for no key: none configured, and loopback only."""

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
        if not self.keys_required:
            return _ANYBODY
        found = self.tenant_key(headers)
        if found is not None:
            return found
        what = "is not known" if offered_keys(headers) else "is missing"
        raise Unauthorized(
            f"the gateway key {what}: send it in x-gateway-key, Authorization: Bearer or x-api-key"
        )

    def tenant_key(self, headers: RawHeaders) -> Principal | None:
        """The caller by the first good gateway key among the headers, None without one."""
        for name, key in offered_keys(headers):
            tenant = self.tenant_of(key_digest(key))
            if tenant is not None:
                return Principal(tenant=tenant, key_header=name)
        return None

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
    for name in (b"x-gateway-key", b"authorization", b"x-api-key"):
        value = header(headers, name).decode("latin-1")
        if name == b"authorization":
            scheme, _, value = value.partition(" ")
            value = value if scheme.lower() == "bearer" else ""
        if value.strip():
            found.append((name, value.strip()))
    return found
