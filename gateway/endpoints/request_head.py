"""What a request head must be, whatever its route: its size, method, `Host` and target."""

from __future__ import annotations

import re

from gateway.auth.hosts import host_name
from gateway.config import ServerSettings
from gateway.errors import BadRequest, HeadTooLarge, MethodNotAllowed
from gateway.upstream.base import RawHeaders

_METHODS = "GET, HEAD, POST, PUT, PATCH, DELETE, OPTIONS"
_VERSIONS = ("1.1", "1.0")
_ABSOLUTE = re.compile(rb"https?://([^/?#]*)", re.IGNORECASE)


def check_head(method: bytes, version: str, target: bytes, headers: RawHeaders) -> None:
    """Refuse a head that two readers may understand differently, or that asks for no resource.

    Raises:
        MethodNotAllowed: CONNECT, which asks for a tunnel.
        BadRequest: a version other than HTTP/1.0 and 1.1; no `Host`, several, or one that is no
            name (RFC 9112 section 3.2); or the target names another host or has a fragment.
    """
    if method == b"CONNECT":
        raise _not_offered("CONNECT")
    if version not in _VERSIONS:
        raise BadRequest(f"HTTP/{version} is not supported, only HTTP/1.1 and HTTP/1.0")
    hosts = [value for name, value in headers if name == b"host"]
    if len(hosts) != 1 and (hosts or version == "1.1"):
        count = "no Host header" if not hosts else f"{len(hosts)} Host headers"
        raise BadRequest(f"the request has {count}, and needs one (RFC 9112 section 3.2)")
    if hosts and not host_name(hosts[0]):
        raise BadRequest("the Host header is not a host name with an optional port")
    if b"#" in target:  # which some servers cut off, and others take for a part of the path
        raise BadRequest("the request's target has a fragment (RFC 9112 section 3.2)")
    if not target.startswith(b"/"):
        _check_target(method, target, hosts)


def refuse_trace(method: str) -> None:
    """Refuse to have a provider send back what the gateway added to a request, its key included.

    Raises:
        MethodNotAllowed: the method is TRACE (RFC 9110 section 9.3.8).
    """
    if method == "TRACE":
        raise _not_offered(method)


def _not_offered(method: str) -> MethodNotAllowed:
    headers = (("allow", _METHODS),)
    return MethodNotAllowed(f"{method} is not offered, only {_METHODS}", headers=headers)


def check_size(size: int, fields: int, limits: ServerSettings) -> None:
    """Refuse a head that is too large.

    Raises:
        HeadTooLarge: `size` bytes or `fields` are more than the settings allow.
    """
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
