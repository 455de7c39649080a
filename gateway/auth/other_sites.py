"""Web pages that reach the gateway through a visitor's browser, and how they are recognised.

A page cannot make up a key, so what asks for a key needs no further guard. What asks for none is
guarded twice: by `Host`, against a page whose own name leads here (DNS rebinding), and by `Origin`
and `Sec-Fetch-Site`, which every browser sends with what a page of another site requests and which
no page can change. Clients that are no browsers send neither."""

import re
from urllib.parse import urlsplit

from starlette.types import Scope

from gateway.auth.authenticator import Authenticator
from gateway.auth.hosts import HostNames, host_name
from gateway.config import ServerSettings
from gateway.config.own_address import is_loopback_name
from gateway.errors import Forbidden
from gateway.wire.headers import RawHeaders, header

# They show nothing of a run, and load balancers ask for them by any name.
PROBES = frozenset({"/healthz", "/readyz", "/api/hello"})
# Beginning of the paths of the control plane and the dashboard.
CONTROL = re.compile(r"/(api|dashboard)(/|$)")
_METRICS = "/metrics"
_READ = frozenset({b"host", b"origin", b"sec-fetch-site"})
_OWN_SITES = (b"same-origin", b"none")  # none: a person typed the address
_SAFE_METHODS = frozenset({"GET", "HEAD", "OPTIONS"})
_REQUIRE_KEY = "require a key (auth.gateway_keys, or `gateway keys create`)"
_QUOTED = 80  # characters of a client's text in an error


class BrowserGuard:
    """Decides for `/v1` and `/metrics`; `gateway.auth.access` decides for the control plane."""

    def __init__(self, auth: Authenticator, server: ServerSettings):
        self._auth = auth
        self._listens_on = server.host
        self._on_loopback = is_loopback_name(server.host)
        self.update(server)

    def update(self, server: ServerSettings) -> None:
        """Use the names and origins of a reloaded config."""
        self._hosts = HostNames(self._listens_on, server.trusted_hosts)
        self._origins = _Origins(server.trusted_origins)

    def admit(self, scope: Scope) -> str:
        """The origin whose pages may read the answer; "" for none. Raises: Forbidden: no key is
        required, and a page of another site sent the request, or its host is a name that a stranger
        may own."""
        path = scope["path"]
        if path in PROBES or CONTROL.match(path):
            return ""
        found = {name: value for name, value in scope["headers"] if name in _READ}
        origin = found.get(b"origin", b"").decode("latin-1")
        keyless = not self._auth.keys.required
        metrics = path == _METRICS
        listed = bool(origin) and not metrics and self._origins.include(origin, keyless=keyless)
        if keyless or metrics:
            # With keys, and beyond loopback, the gateway was published under a name of its own.
            host = found.get(b"host")
            # HTTP/1.0 may lack the field, and no browser speaks it.
            guarded = keyless or self._on_loopback
            if guarded and host is not None and not self._hosts.include(host):
                raise self._other_host(host)
            if not listed and comes_from_another_site(found):
                raise _other_site(found, metrics=metrics)
        return origin if listed else ""

    def _other_host(self, host: bytes) -> Forbidden:
        where = "loopback" if self._on_loopback else "private networks"
        return Forbidden(
            f"the Host header names {_quoted(host)}, and what needs no key is answered under names "
            f"of {where} only: any web page can have a name that leads here (DNS rebinding). Add "
            f"the name to server.trusted_hosts, or {_REQUIRE_KEY}",
            code="host_not_allowed",
        )


class _Origins:
    """The entries of `server.trusted_origins`."""

    def __init__(self, allowed: tuple[str, ...]):
        patterns = [origin.lower() for origin in allowed]
        self._names = frozenset(pattern.removesuffix(":*") for pattern in patterns)
        self._prefixes = tuple(pattern[:-1] for pattern in patterns if pattern.endswith("*"))

    def include(self, origin: str, *, keyless: bool) -> bool:
        """Whether pages of an origin may call; `null` may be any page, and so needs a key."""
        name = origin.lower()
        if name == "null":
            return name in self._names and not keyless
        return name in self._names or bool(self._prefixes and name.startswith(self._prefixes))


def comes_from_another_site(headers: dict[bytes, bytes]) -> bool:
    """Whether a browser sent the request for a page that is not the gateway's own. `sec-fetch-site`
    is preferred to `origin`: behind a proxy that rewrites the host, our own origin would not match
    it."""
    site = headers.get(b"sec-fetch-site", b"")
    origin = headers.get(b"origin", b"")
    if site == b"same-origin":
        return False
    if site and site not in _OWN_SITES:
        return True
    return bool(origin) and _netloc(origin) != headers.get(b"host", b"").lower()


def refuse_other_origins(headers: RawHeaders) -> None:
    """Refuse a change that a page of another site makes a browser send (CSRF). Raises: Forbidden:
    the request comes from another origin."""
    found = {name: value for name, value in headers if name in _READ}
    if comes_from_another_site(found):
        raise Forbidden(
            f"the request comes from another site's page ({_sender(found)}), and changes are taken "
            "from the dashboard's own pages or with a key in x-gateway-key only (auth.admin_key)"
        )


def refuse_embedding(scope: Scope) -> None:
    """Refuse to be loaded into a page of another site; a link to the dashboard may be followed.
    Raises: Forbidden: another site's page asks for more than to show the address."""
    headers: RawHeaders = scope["headers"]
    following = (
        scope["method"] in _SAFE_METHODS
        and header(headers, b"sec-fetch-mode") == b"navigate"
        and header(headers, b"sec-fetch-dest") in (b"document", b"")
    )
    if not following:
        refuse_other_origins(headers)


def require_loopback_host(headers: RawHeaders) -> None:
    """Refuse pages whose host name was made to resolve to this machine (DNS rebinding). Raises:
    Forbidden: the request's host is not a name of loopback."""
    host = header(headers, b"host")
    if not is_loopback_name(host_name(host)):
        raise Forbidden(
            f"the Host header names {_quoted(host)}: without an admin key the host must be "
            "localhost, 127.0.0.1 or [::1]. Set auth.admin_key to use another name",
            code="host_not_allowed",
        )


def _other_site(found: dict[bytes, bytes], *, metrics: bool) -> Forbidden:
    if metrics:
        advice = "metrics are not for web pages; fetch them without a browser's Origin header"
    elif found.get(b"origin") == b"null":
        advice = f"any page can have the origin null: {_REQUIRE_KEY}, and list null in "
        advice += "server.trusted_origins"
    else:
        advice = "without gateway keys any page could spend the provider's key. Add the page's "
        advice += f"origin to server.trusted_origins, or {_REQUIRE_KEY}"
    return Forbidden(
        f"the request comes from another site's page ({_sender(found)}), and {advice}",
        code="origin_not_allowed",
    )


def _sender(found: dict[bytes, bytes]) -> str:
    """The headers that show where a request comes from, for an error."""
    names = {b"origin": "Origin", b"sec-fetch-site": "Sec-Fetch-Site"}
    return ", ".join(f"{label}: {_quoted(found[n])}" for n, label in names.items() if n in found)


def _quoted(value: bytes) -> str:
    return repr(value[:_QUOTED].decode("latin-1"))


def _netloc(origin: bytes) -> bytes:
    try:
        return urlsplit(origin.decode("latin-1")).netloc.lower().encode("latin-1")
    except ValueError:
        return b""
