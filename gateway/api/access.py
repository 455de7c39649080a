"""Who may see what in the control plane and the dashboard, by key or by a browser's session."""

from __future__ import annotations

import base64
import hashlib
import hmac
import json
import time
from dataclasses import dataclass
from http.cookies import CookieError, SimpleCookie
from typing import Literal
from urllib.parse import urlsplit

from gateway.endpoints.auth import LOOPBACK_NAMES, Authenticator, offered_keys
from gateway.endpoints.body import Scope
from gateway.errors import Forbidden, Unauthorized
from gateway.keys import key_digest
from gateway.upstream.base import RawHeaders, header

COOKIE = "gateway_session"
SESSION_S = 12 * 3600
"""How long a browser stays logged in: a working day."""

_SAFE_METHODS = frozenset({"GET", "HEAD", "OPTIONS"})


@dataclass(frozen=True, slots=True, kw_only=True)
class Access:
    """What a caller may see: one tenant's, or everything when `tenant` is None (the operator).

    `how`: by a key in a header, a browser's session, or because no key is asked for.
    """

    tenant: str | None
    how: Literal["key", "session", "open"]

    @property
    def operator(self) -> bool:
        """Whether every tenant's data may be seen, and what is shared may be changed."""
        return self.tenant is None

    def scope(self, asked: str | None) -> str | None:
        """The tenant to look at: the caller's own, or the one the operator asks for, if any.

        Raises:
            Forbidden: a tenant's key asks for another tenant.
        """
        if self.tenant is None:
            return asked or None
        if asked and asked != self.tenant:
            raise Forbidden("this key is another tenant's")
        return self.tenant


class Gate:
    """Admits callers to the control plane and the dashboard."""

    def __init__(self, auth: Authenticator) -> None:
        self._auth = auth

    @property
    def open(self) -> bool:
        """Whether no key is asked for."""
        return self._auth.open_admin

    def admit(self, scope: Scope) -> Access:
        """The caller's access.

        Raises:
            Unauthorized: no key or session, or one that is not good.
            Forbidden: a page of another site asks, or the gateway is reachable from beyond loopback
                and has no admin key.
        """
        headers: RawHeaders = scope["headers"]
        access = self._by_key(headers) or self._by_session(headers) or self._openly(headers)
        if access.how != "key" and scope["method"] not in _SAFE_METHODS:
            refuse_other_origins(headers)
        return access

    def log_in(self, key: str) -> str | None:
        """A session for the holder of `key`, as the value of COOKIE; None for an unknown key."""
        if self._auth.is_admin(key):
            return self._signed({"t": None, "k": ""})
        digest = key_digest(key)
        tenant = self._auth.tenant_of(digest)
        return None if tenant is None else self._signed({"t": tenant, "k": digest.hex()})

    def _by_key(self, headers: RawHeaders) -> Access | None:
        offered = offered_keys(headers)
        if any(self._auth.is_admin(key) for _, key in offered):
            return Access(tenant=None, how="key")
        found = self._auth.tenant_key(headers)
        if found is not None:
            return Access(tenant=found.tenant, how="key")
        # Without any key of its own the gateway takes none for wrong: a client may send its
        # provider's.
        if offered and not (self._auth.open_admin and not self._auth.keys_required):
            raise Unauthorized("the key is not known")
        return None

    def _by_session(self, headers: RawHeaders) -> Access | None:
        session = self._verified(_cookie(headers))
        if session is None:
            return None
        tenant, digest = session.get("t"), str(session.get("k"))
        if tenant is None:
            return Access(tenant=None, how="session")
        # A revoked key ends its sessions.
        if self._auth.tenant_of(bytes.fromhex(digest)) != tenant:
            return None
        return Access(tenant=str(tenant), how="session")

    def _openly(self, headers: RawHeaders) -> Access:
        if self._auth.open_admin:
            refuse_foreign_names(headers)
            return Access(tenant=None, how="open")
        if self._auth.admin_digest is None and not self._auth.keys_required:
            raise Forbidden("set auth.admin_key to use this from a gateway beyond loopback")
        raise Unauthorized(
            "a key is missing: send the admin key, or a gateway key, in x-gateway-key or "
            "Authorization: Bearer, or log in at /dashboard/login"
        )

    def _signed(self, session: dict[str, str | None]) -> str:
        claims = json.dumps({**session, "x": int(time.time()) + SESSION_S}).encode()
        body = base64.urlsafe_b64encode(claims).rstrip(b"=")
        return f"{body.decode()}.{self._mac(body)}"

    def _verified(self, cookie: str) -> dict[str, str | None] | None:
        body, _, mac = cookie.partition(".")
        if not hmac.compare_digest(self._mac(body.encode()).encode(), mac.encode()):
            return None
        session = json.loads(base64.urlsafe_b64decode(body + "=" * (-len(body) % 4)))
        return session if session["x"] > time.time() else None

    def _mac(self, body: bytes) -> str:
        secret = b"gateway session\x00" + self._auth.session_seed
        return hmac.new(secret, body, hashlib.sha256).hexdigest()


def refuse_other_origins(headers: RawHeaders) -> None:
    """Stop a change that another site's page makes a browser ask for.

    Browsers say where such a request comes from; other clients need not. What they say of the site
    goes before the origin, which a proxy that changes the host makes look foreign.

    Raises:
        Forbidden: the request comes from another origin.
    """
    origin = header(headers, b"origin").decode("latin-1")
    site = header(headers, b"sec-fetch-site").decode("latin-1")
    host = header(headers, b"host").decode("latin-1")
    foreign = bool(origin) and urlsplit(origin).netloc.lower() != host.lower()
    if site not in ("same-origin", "none") if site else foreign:
        raise Forbidden("the request comes from another site's page")


def refuse_foreign_names(headers: RawHeaders) -> None:
    """Stop pages whose own name was pointed at this machine (DNS rebinding).

    Raises:
        Forbidden: no key is asked for, and the request's host is not a name of loopback.
    """
    host = header(headers, b"host").decode("latin-1")
    try:
        name = urlsplit(f"//{host}").hostname
    except ValueError:
        name = None
    if name not in LOOPBACK_NAMES:
        raise Forbidden("without an admin key the host must be localhost, 127.0.0.1 or [::1]")


def _cookie(headers: RawHeaders) -> str:
    jar: SimpleCookie = SimpleCookie()
    try:
        jar.load(header(headers, b"cookie").decode("latin-1"))
    except CookieError:
        return ""
    return jar[COOKIE].value if COOKIE in jar else ""
