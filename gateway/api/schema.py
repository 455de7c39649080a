"""JSON Schemas of the dataclasses that answers are made of."""

from __future__ import annotations

import dataclasses
import enum
import types
import typing
from collections.abc import Mapping
from typing import Any

Schema = dict[str, Any]

_PLAIN: dict[Any, str] = {str: "string", int: "integer", float: "number", bool: "boolean"}


def schema_of(hint: Any) -> Schema:
    """The schema of what orjson writes for a value of this type.

    Raises: TypeError for a type that has no place in an answer.
    """
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    if hint is Any:
        return {}
    if hint in _PLAIN:
        return {"type": _PLAIN[hint]}
    if origin in (typing.Union, types.UnionType):
        return _nullable([schema_of(a) for a in arguments if a is not types.NoneType], arguments)
    if origin is typing.Literal:
        return {"enum": list(arguments)}
    if origin in (tuple, list):
        return {"type": "array", "items": schema_of(arguments[0])}
    if origin in (dict, Mapping):
        return {"type": "object", "additionalProperties": schema_of(arguments[1])}
    if isinstance(hint, type) and issubclass(hint, enum.Enum):
        return {"type": "string", "enum": [member.value for member in hint]}
    if isinstance(hint, type) and dataclasses.is_dataclass(hint):
        return object_of(hint)
    raise TypeError(f"{hint!r} has no place in an answer")


def object_of(kind: type, *, without: tuple[str, ...] = (), **more: Schema) -> Schema:
    """The schema of a dataclass as an object, `without` some fields and with `more` properties."""
    hints = typing.get_type_hints(kind)
    names = [f.name for f in dataclasses.fields(kind) if f.name not in without]
    properties = {name: schema_of(hints[name]) for name in names} | more
    return {"type": "object", "properties": properties, "required": list(properties)}


def page_of(name: str, item: Schema, **more: Schema) -> Schema:
    """The schema of one page of a list, under the key `name`."""
    cursor = {"type": ["string", "null"], "description": "Null on the last page."}
    properties = {name: {"type": "array", "items": item}, "next_cursor": cursor, **more}
    return {"type": "object", "properties": properties, "required": [name, "next_cursor"]}


def nullable(schema: Schema) -> Schema:
    """The schema, or null."""
    return _nullable([schema], (types.NoneType,))


def _nullable(options: list[Schema], arguments: tuple[Any, ...]) -> Schema:
    if types.NoneType not in arguments:
        return options[0] if len(options) == 1 else {"anyOf": options}
    if len(options) == 1 and isinstance(options[0].get("type"), str) and "enum" not in options[0]:
        return {**options[0], "type": [options[0]["type"], "null"]}
    return {"anyOf": [*options, {"type": "null"}]}
