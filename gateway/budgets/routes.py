"""The table of routes that are passed on (`routes.toml`): how budgets count a call of each."""

import re

from gateway.data_files import read_toml
from gateway.wire.headers import RawHeaders

_TABLE = read_toml(__package__, "routes.toml")
_ROWS = {how: re.compile("|".join(routes)) for how, routes in _TABLE.items()}
# The model in a form, a part of which may have headers of its own after its name.
_FORM_MODEL = re.compile(rb'name="?model"?[^\r\n]*+\r?\n(?:[^\r\n]++\r?\n)*+\r?\n([^\r\n]{1,200}+)')


def counted_how(method: str, path: str, headers: RawHeaders) -> str:
    """The list of `routes.toml` that a route is in; empty for none, and for a request that some
    servers take for one of another method, because a header says so."""
    if any(b"http-method" in name for name, _ in headers):
        return ""
    return next((how for how, rows in _ROWS.items() if rows.fullmatch(f"{method} {path}")), "")


def form_model(raw: bytes) -> str:
    """The model that a form names; empty where it names none, or several."""
    found = set(_FORM_MODEL.findall(raw))
    return found.pop().decode("utf-8", "replace") if len(found) == 1 else ""
