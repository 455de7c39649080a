"""Who is asking: gateway keys, compared as digests, bound to a tenant."""

from __future__ import annotations

import hashlib
import hmac
from dataclasses import dataclass

from gateway.config import AuthSettings
from gateway.errors import Forbidden, Unauthorized
from gateway.upstream.base import RawHeaders, header

DEFAULT_TENANT = "default"
_LOOPBACK = ("127.0.0.1", "::1", "localhost")


@dataclass(frozen=True, slots=True, kw_only=True)
class Principal:
    """The tenant a request belongs to, and the header that held the gateway's own key."""

    tenant: str = DEFAULT_TENANT
    key_header: bytes | None = None


_ANYBODY = Principal()


class Authenticator:
    """Checks gateway keys and the admin key."""

    def __init__(self, settings: AuthSettings, *, host: str) -> None:
        self._tenants = {_digest(key): name for name, key in settings.gateway_keys.items()}
        self._admin = _digest(settings.admin_key) if settings.admin_key else None
        self._open_admin = self._admin is None and host in _LOOPBACK

    def principal(self, headers: RawHeaders) -> Principal:
        """The caller.

        Raises:
            Unauthorized: keys are configured and the request shows none of them.
        """
        if not self._tenants:
            return _ANYBODY
        seen = False
        for name, key in _offered(headers):
            seen = True
            tenant = self._tenant(key)
            if tenant is not None:
                return Principal(tenant=tenant, key_header=name)
        what = "is not known" if seen else "is missing"
        raise Unauthorized(
            f"the gateway key {what}: send it in x-gateway-key, Authorization: Bearer or x-api-key"
        )

    def require_admin(self, headers: RawHeaders) -> None:
        """Let only the admin key through, once one is configured or the bind is not loopback.

        Raises:
            Unauthorized: no admin key in the request, or a wrong one.
            Forbidden: none is configured and the gateway listens beyond loopback.
        """
        if self._open_admin:
            return
        if self._admin is None:
            raise Forbidden("set auth.admin_key to use this from a gateway beyond loopback")
        if not any(hmac.compare_digest(_digest(key), self._admin) for _, key in _offered(headers)):
            raise Unauthorized("the admin key is missing or wrong")

    def _tenant(self, key: str) -> str | None:
        offered = _digest(key)
        found = None
        # No early exit: the time taken tells nothing of which key was near.
        for known, tenant in self._tenants.items():
            if hmac.compare_digest(known, offered):
                found = tenant
        return found


def _digest(key: str) -> bytes:
    return hashlib.sha256(key.encode("utf-8", "surrogateescape")).digest()


def _offered(headers: RawHeaders) -> list[tuple[bytes, str]]:
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
