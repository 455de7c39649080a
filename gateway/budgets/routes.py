"""The table of routes that are passed on (`routes.toml`): how budgets count a call of each."""

import re

from gateway.data_files import read_toml
from gateway.wire.headers import RawHeaders

_TABLE = read_toml(__package__, "routes.toml")
_ROW = re.compile("|".join([f"(?P<{how}>{'|'.join(rows)})" for how, rows in _TABLE.items()]))
_NAMES = (b'name="model"', b"name=model")
# What follows the name: a part of a form may have more headers before its text.
_AFTER_NAME = re.compile(rb"[^\r\n]*+\r?\n(?:[^\r\n]++\r?\n)*+\r?\n([^\r\n]{1,200}+)")
_MOST_NAMED = 16  # places of a name in a form; one with more names no model
_MOST_BYTES = 4096  # from a name to the end of the model; a form with a longer part names none


def counted_how(method: str, path: str, headers: RawHeaders) -> str:
    """The list of `routes.toml` that a route is in; empty for none, and for a request that some
    servers take for one of another method, because a header says so."""
    if any(b"http-method" in name for name, _ in headers):
        return ""
    found = _ROW.fullmatch(f"{method} {path}")
    return (found and found.lastgroup) or ""


def form_model(raw: bytes) -> str:
    """The model that a form names; empty where it names none, or several. Takes linear time: from
    each place of the name only so many bytes are read."""
    found = set[bytes]()
    for name in _NAMES:
        at = 0
        for _ in range(_MOST_NAMED):
            at = raw.find(name, at) + len(name)
            if at < len(name):
                break
            part = _AFTER_NAME.match(raw, at, at + _MOST_BYTES)
            found.add(part[1] if part else b"")
        else:
            return ""
    return found.pop().decode("utf-8", "replace") if len(found) == 1 else ""
