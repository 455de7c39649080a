"""Rules for every request head, on any route: its size, method, `Host` and target."""

import re
import unicodedata
from urllib.parse import unquote_to_bytes

from gateway.auth.hosts import host_name
from gateway.config import ServerSettings
from gateway.errors import BadRequest, HeadTooLarge, MethodNotAllowed
from gateway.wire.headers import RawHeaders

_METHODS = "GET, HEAD, POST, PUT, PATCH, DELETE, OPTIONS"
_VERSIONS = ("1.1", "1.0")
_ABSOLUTE = re.compile(rb"https?://([^/?#]*)", re.IGNORECASE)


def check_head(method: bytes, version: str, target: bytes, headers: RawHeaders) -> None:
    """Refuse a head that two readers may understand differently, or that asks for no resource.
    Raises: MethodNotAllowed: CONNECT, which asks for a tunnel. BadRequest: a version other than
    HTTP/1.0 and 1.1; no `Host`, several, or one that is no name (RFC 9112 section 3.2); or the
    target names another host or has a fragment."""
    if method == b"CONNECT":
        raise _not_offered("CONNECT")
    if version not in _VERSIONS:
        raise BadRequest(f"HTTP/{version} is not supported, only HTTP/1.1 and HTTP/1.0")
    hosts = [value for name, value in headers if name == b"host"]
    if len(hosts) != 1 and (hosts or version == "1.1"):
        if not hosts:
            count = "no Host header"
        else:
            count = f"{len(hosts)} Host headers"
        raise BadRequest(f"the request has {count}, and needs one (RFC 9112 section 3.2)")
    if hosts and not host_name(hosts[0]):
        raise BadRequest("the Host header is not a host name with an optional port")
    if b"#" in target:  # which some servers cut off, and others take for a part of the path
        raise BadRequest("the request's target has a fragment (RFC 9112 section 3.2)")
    if not target.startswith(b"/"):
        _check_target(method, target, hosts)


def refuse_trace(method: str) -> None:
    """Refuse to have a provider send back what the gateway added to a request, its key included.
    Raises: MethodNotAllowed: the method is TRACE (RFC 9110 section 9.3.8)."""
    if method == "TRACE":
        raise _not_offered(method)


def _not_offered(method: str) -> MethodNotAllowed:
    headers = (("allow", _METHODS),)
    return MethodNotAllowed(f"{method} is not offered, only {_METHODS}", headers=headers)


def check_size(size: int, fields: int, limits: ServerSettings) -> None:
    """Refuse a head that is too large. Raises: HeadTooLarge: `size` bytes or `fields` are more than
    the settings allow."""
    if size > limits.max_head_kb * 1024:
        raise HeadTooLarge(
            f"the request line and its headers are larger than {limits.max_head_kb:g} KiB "
            "(server.max_head_kb)"
        )
    if fields > limits.max_head_fields:
        raise HeadTooLarge(
            f"the request has more than {limits.max_head_fields} headers (server.max_head_fields)"
        )


def _check_target(method: bytes, target: bytes, hosts: list[bytes]) -> None:
    """An absolute target replaces `Host` (RFC 9112 section 3.2.2), so the two have to agree."""
    if target == b"*" and method == b"OPTIONS":
        return
    found = _ABSOLUTE.match(target)
    if found is None:
        raise BadRequest("the request's target is neither a path nor a URL")
    if [found[1].lower()] != [host.lower() for host in hosts]:
        raise BadRequest("the request's target names another host than its Host header")


_SUSPICIOUS = re.compile(rb"[%\\]|(?:^|/)\.")
_NOT_ENCODED = re.compile(rb"%(?![0-9A-Fa-f]{2})")  # `%u002e` is a dot for some servers
_CONTROL = re.compile("[\x00-\x1f\x7f]")
_END = re.compile("[;?#]")  # where a path segment ends for a server that decodes before it splits
_MOST_DECODINGS = 3
"""A path that is still encoded after this many was encoded to hide something: servers in a row
that each decode once are two or three."""


def refuse_ambiguous_path(raw: bytes) -> None:
    """Refuse dot segments, backslashes and control characters, however they are encoded, and what
    is no percent-encoding. `raw` is the path as it was sent. `..;` counts as a dot segment: some
    servers cut parameters off before they resolve it. An encoded slash (`%2F`) is part of a name
    and is let through. Raises: BadRequest: names what is wrong."""
    if _SUSPICIOUS.search(raw) is None:
        return
    if _NOT_ENCODED.search(raw):
        raise BadRequest("the path has a '%' that encodes nothing")
    for _ in range(_MOST_DECODINGS):
        _refuse_text(raw)
        decoded = unquote_to_bytes(raw)
        if decoded == raw:
            return
        raw = decoded
    _refuse_text(raw)
    if unquote_to_bytes(raw) != raw:
        raise BadRequest(f"the path is percent-encoded more than {_MOST_DECODINGS} times")


def _refuse_text(path: bytes) -> None:
    try:
        # Some servers take look-alikes (a full-width dot) for the character itself.
        text = unicodedata.normalize("NFKC", path.decode("utf-8"))
    except UnicodeDecodeError:
        raise BadRequest("the path is not percent-encoded UTF-8") from None
    if "\\" in text:
        raise BadRequest("the path may not have a backslash, also not as %5C")
    if _CONTROL.search(text):
        raise BadRequest("the path may not have control characters, also not percent-encoded")
    if any(_END.split(segment)[0].strip() in (".", "..") for segment in text.split("/")):
        raise BadRequest("the path may not have '.' or '..' segments, also not percent-encoded")
