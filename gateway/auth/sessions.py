"""Sessions of a browser: the cookie that a login gets, and how long it lasts."""

import hmac
import json
import time
from base64 import urlsafe_b64decode, urlsafe_b64encode
from hashlib import sha256
from http.cookies import CookieError, SimpleCookie

from gateway.upstream.credentials import SESSION_COOKIE
from gateway.wire.headers import RawHeaders, header

SESSION_S = 12 * 3600  # how long a login lasts: a working day


def signed(session: dict[str, str | None], secret: bytes) -> str:
    """The value of SESSION_COOKIE for a session that begins now."""
    claims = json.dumps({**session, "x": int(time.time()) + SESSION_S}).encode()
    body = urlsafe_b64encode(claims).rstrip(b"=")
    return f"{body.decode()}.{_mac(body, secret)}"


def verified(headers: RawHeaders, secret: bytes) -> dict[str, str | None] | None:
    """The session of a request's cookie; None without one, or for one that is over or forged."""
    body, _, mac = _cookie(headers).partition(".")
    if not hmac.compare_digest(_mac(body.encode(), secret).encode(), mac.encode()):
        return None
    session = json.loads(urlsafe_b64decode(body + "=" * (-len(body) % 4)))
    return session if session["x"] > time.time() else None


def _mac(body: bytes, secret: bytes) -> str:
    return hmac.new(b"gateway session\x00" + secret, body, sha256).hexdigest()


def _cookie(headers: RawHeaders) -> str:
    jar: SimpleCookie = SimpleCookie()
    try:
        jar.load(header(headers, b"cookie").decode("latin-1"))
    except CookieError:
        return ""
    if SESSION_COOKIE in jar:
        return jar[SESSION_COOKIE].value
    return ""
