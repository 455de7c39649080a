"""Header pairs of HTTP: reading one, leaving some out, giving one another value. Pure.

Names are in lower case; repeated headers are kept, in their order."""

from collections.abc import Container

from gateway.wire.compression import READABLE

RawHeaders = list[tuple[bytes, bytes]]

# RFC 9110 section 7.6.1, and what the two connections' own HTTP stacks must set for themselves.
HOP_BY_HOP = frozenset(
    {b"connection", b"keep-alive", b"proxy-authenticate", b"proxy-authorization", b"te"}
    | {b"proxy-connection", b"trailer", b"transfer-encoding", b"upgrade"}
)


def header(headers: RawHeaders, name: bytes) -> bytes:
    """The first value of `name`, or empty."""
    for key, value in headers:
        if key == name:
            return value
    return b""


def without(headers: RawHeaders, names: Container[bytes]) -> RawHeaders:
    """The headers but for those with these names."""
    return [(name, value) for name, value in headers if name not in names]


def replaced(headers: RawHeaders, name: bytes, value: bytes) -> RawHeaders:
    """The headers with another value of `name`, where they have it."""
    return [(key, value if key == name else old) for key, old in headers]


def end_to_end(headers: RawHeaders, drop: frozenset[bytes] = frozenset()) -> RawHeaders:
    """`headers` without the hop-by-hop ones, those that Connection names, and `drop`."""
    unwanted = HOP_BY_HOP
    if drop:
        unwanted = HOP_BY_HOP | drop
    for key, value in headers:
        if key == b"connection":
            unwanted = unwanted | {token.strip().lower() for token in value.split(b",")}
    return without(headers, unwanted)


def coding_of(headers: RawHeaders) -> bytes:
    """The coding that compresses the body, in lower case; empty for a plain body."""
    values = [value for name, value in headers if name == b"content-encoding"]
    named = b""
    if values:
        named = b", ".join(values).strip().lower()
    if named == b"identity":
        return b""
    return named


def readable(headers: RawHeaders, *, plain: bool) -> RawHeaders:
    """`headers` with an `accept-encoding` that the gateway can read, or, with `plain`, edit."""
    out = []
    for name, value in headers:
        if name == b"accept-encoding":
            if plain:
                offers = []
            else:
                offers = value.split(b",")
            kept = [o.strip() for o in offers if o.split(b";")[0].strip().lower() in READABLE]
            value = b", ".join(kept) or b"identity"
        out.append((name, value))
    return out
