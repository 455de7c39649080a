"""Access to the control plane and the dashboard, by key or by a browser's session."""

from dataclasses import replace
from typing import Literal

from starlette.types import Scope

from gateway.auth.authenticator import UNGUESSABLE_CHARACTERS, Authenticator, offered_keys
from gateway.auth.keys import key_digest
from gateway.auth.other_sites import refuse_embedding, require_loopback_host
from gateway.auth.sessions import signed, verified
from gateway.errors import Forbidden, Unauthorized
from gateway.stores.sql.audit_log import persons_name
from gateway.text.sanitize import one_line
from gateway.values import frozen
from gateway.wire.headers import RawHeaders, header

AUTHOR_HEADER = b"x-gateway-author"


@frozen
class Access:
    """Right to see one tenant's data, or all data."""

    tenant: str | None  # None: all tenants' (the operator)
    # by a key in a header, by a browser's session, or because no key is required
    how: Literal["key", "session", "open"]
    author: str = ""  # name that the caller states; nothing proves it

    @property
    def operator(self) -> bool:
        """Whether the caller may see every tenant's data and change shared patterns."""
        return self.tenant is None

    @property
    def controls(self) -> bool:
        """Whether the caller may change what a person decides: stops, budgets, lessons, patterns.
        On a gateway without an admin key anybody on the machine may look, agents too."""
        return self.tenant is None and self.how != "open"

    def require_control(self) -> None:
        """Refuse a change by an agent's key or by nobody's. Raises: Forbidden."""
        if self.controls:
            return
        if self.how == "open":
            raise Forbidden(
                "changes need a key: log in at /dashboard/login, or send x-gateway-key, with "
                "auth.admin_key or the key that `gateway dashboard` prints"
            )
        raise Forbidden("this is changed with the admin key; a gateway key belongs to an agent")

    def scope(self, asked: str | None) -> str | None:
        """The tenant whose data is read: the caller's own, or the one the operator names, if any.
        Raises: Forbidden: a tenant's key asks for another tenant."""
        if self.tenant is None:
            return asked or None
        if asked and asked != self.tenant:
            raise Forbidden("this key belongs to another tenant")
        return self.tenant


class Gate:
    """Admits callers to the control plane and the dashboard."""

    def __init__(self, auth: Authenticator):
        self._auth = auth

    def admit(self, scope: Scope) -> Access:
        """The caller's access. Raises: Unauthorized: no key or session, or an invalid one.
        Overloaded: the caller's address has sent too many wrong keys. BadRequest: the author is no
        person's name. Forbidden: the request comes from another site's page, or the gateway listens
        beyond loopback and has no admin key."""
        headers: RawHeaders = scope["headers"]
        access = self._by_key(scope) or self._by_session(headers) or self._without_key(headers)
        if access.how != "key":
            refuse_embedding(scope)
        stated = persons_name(header(headers, AUTHOR_HEADER).decode("utf-8", "replace"))
        if stated:
            return replace(access, author=one_line(stated, 80))
        return access

    def log_in(self, key: str, scope: Scope, author: str = "") -> str | None:
        """A session for the holder of `key`, as the value of `SESSION_COOKIE`; None for an unknown
        key. `author`: the name that the holder states. Raises: Overloaded: too many wrong keys."""
        self._auth.refuse_guesses(scope, len(key) < UNGUESSABLE_CHARACTERS)
        tenant = None
        tag = ""
        if not self._auth.is_admin(key):
            digest = key_digest(key)
            holder = self._auth.keys.find(digest)
            if holder is None:
                self._auth.wrong_key(scope)
                return None
            tenant = holder.tenant
            tag = self._auth.session_tag(digest)
        session = {"t": tenant, "k": tag, "n": one_line(persons_name(author), 80)}
        return signed(session, self._auth.session_secret)

    def _by_key(self, scope: Scope) -> Access | None:
        headers: RawHeaders = scope["headers"]
        offered = offered_keys(headers)
        admin = [key for _, key in offered if self._auth.is_admin(key)]
        if admin:
            self._auth.refuse_guesses(scope, len(admin[0]) < UNGUESSABLE_CHARACTERS)
            return Access(tenant=None, how="key")
        found = self._auth.principal_by_key(headers)
        if found is not None:
            self._auth.refuse_guesses(scope, found.guessable)
            return Access(tenant=found.tenant, how="key")
        self._auth.refuse_expired(headers)
        # A gateway that requires no key accepts any: the client may have sent its provider's.
        if offered and not (self._auth.open_admin and not self._auth.keys.required):
            self._auth.wrong_key(scope)
            raise Unauthorized("unknown key")
        return None

    def _by_session(self, headers: RawHeaders) -> Access | None:
        session = verified(headers, self._auth.session_secret)
        if session is None:
            return None
        tenant = session["t"]
        # Revoking a key ends the sessions that were opened with it.
        if tenant is not None and self._auth.tenant_of_tag(str(session["k"])) != tenant:
            return None
        return Access(tenant=tenant, how="session", author=session["n"] or "")

    def _without_key(self, headers: RawHeaders) -> Access:
        if self._auth.open_admin:
            require_loopback_host(headers)
            return Access(tenant=None, how="open")
        if not self._auth.has_admin_key and not self._auth.keys.required:
            raise Forbidden("set auth.admin_key: without it, this works on a loopback address only")
        raise Unauthorized(
            "a key is missing: send the admin key, or a gateway key, in x-gateway-key or "
            "Authorization: Bearer, or log in at /dashboard/login"
        )
