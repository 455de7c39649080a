"""The table of routes that are passed on (`routes.toml`): how budgets count a call of each."""

import re

from gateway.data_files import read_toml
from gateway.wire.headers import RawHeaders

_TABLE = read_toml(__package__, "routes.toml")
_ROW = re.compile("|".join([f"(?P<{how}>{'|'.join(rows)})" for how, rows in _TABLE.items()]))


def counted_how(method: str, path: str, headers: RawHeaders) -> str:
    """The list of `routes.toml` that a route is in; empty for none, and for a request that some
    servers take for one of another method, because a header says so."""
    if any(b"http-method" in name for name, _ in headers):
        return ""
    found = _ROW.fullmatch(f"{method} {path}")
    return (found and found.lastgroup) or ""
