"""Call records as JSON, for the files in which they wait: what is read is what was written.

Python's own JSON instead of orjson, which refuses unpaired surrogates and integers beyond 64 bits
and turns NaN into null; all of these may come from a client. A field that is added later gets its
default when an older record is read, one that was removed is left out; any other change of a record
needs a new `VERSION`.
"""

from __future__ import annotations

import json
import types
import typing
from base64 import b64decode, b64encode
from collections.abc import Callable
from functools import cache
from typing import Any, cast

from msgspec import Struct

from gateway.stores.records import CallRecord
from gateway.wire.coerce import as_json_value

VERSION = 1
"""Of the form of a record; kept with each file."""

_Reader = Callable[[Any], Any]


def encoded(record: CallRecord) -> bytes:
    """The record as JSON."""
    text = json.dumps(record, default=_plain, ensure_ascii=False, separators=(",", ":"))
    return text.encode("utf-8", "surrogatepass")


def decoded(content: bytes) -> CallRecord:
    """The record that `encoded` was given. Raises: ValueError when it is none."""
    try:
        values = json.loads(content.decode("utf-8", "surrogatepass"))
        return cast(CallRecord, _reader(CallRecord)(values))
    except (AttributeError, KeyError, TypeError, RecursionError) as error:
        raise ValueError(f"not a call record: {error}") from error


def _plain(value: Any) -> Any:
    if isinstance(value, bytes):
        return b64encode(value).decode()
    return as_json_value(value)


@cache
def _reader(kind: Any) -> _Reader:
    """What makes a value of this type out of its JSON."""
    if kind is bytes:
        return b64decode
    if isinstance(kind, type) and issubclass(kind, Struct):
        return _struct_reader(kind)
    origin, arguments = typing.get_origin(kind), typing.get_args(kind)
    if origin is tuple:
        item = _reader(arguments[0])
        return lambda values: tuple([item(value) for value in values])
    if origin in (types.UnionType, typing.Union):
        inner = _reader(next(each for each in arguments if each is not types.NoneType))
        return lambda value: None if value is None else inner(value)
    return _unchanged


def _struct_reader(kind: type[Struct]) -> _Reader:
    types_of = typing.get_type_hints(kind)
    readers = [(name, _reader(types_of[name])) for name in kind.__struct_fields__]

    def read(values: dict[str, Any]) -> Any:
        return kind(**{name: of(values[name]) for name, of in readers if name in values})

    return read


def _unchanged(value: Any) -> Any:
    return value
