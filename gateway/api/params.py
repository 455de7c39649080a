"""Parameters of an operation as a pydantic model: one declaration reads, checks and documents them.

Each field is one parameter of the query, of the path (where the path names it) or of a header.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Annotated, Any, ClassVar, TypeVar
from urllib.parse import parse_qsl

from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    ValidationError,
    WithJsonSchema,
)
from pydantic_core import CoreSchema, PydanticCustomError, core_schema

from gateway.errors import BadRequest

_FLAGS = {"true": True, "1": True, "false": False, "0": False}
# Seconds since the epoch that every date library can show: the years 1970 to 9999.
_LAST_TIME = 253402300799


class Parameters(BaseModel):
    """The parameters of one operation; a field with the default None may be absent.

    `in_headers`: the names of those that are request headers.
    """

    model_config = ConfigDict(frozen=True)
    in_headers: ClassVar[frozenset[str]] = frozenset()


M = TypeVar("M", bound=BaseModel)
P = TypeVar("P", bound=Parameters)


@dataclass(frozen=True, slots=True)
class OneOf:
    """Annotation of a text that must be one of `options`, which may be computed."""

    options: Sequence[str]

    def __get_pydantic_core_schema__(self, _source: Any, _handler: Any) -> CoreSchema:
        return core_schema.literal_schema(list(self.options))


def _whole_number(text: str) -> str:
    # int() and pydantic take more: other scripts' digits, underscores, `5.0`.
    if not re.fullmatch(r"[+-]?[0-9]+", text.strip()):
        raise PydanticCustomError("whole_number", "must be a whole number")
    return text


def _flag(text: str) -> bool:
    if text.lower() not in _FLAGS:
        raise PydanticCustomError("flag", "must be true, false, 1 or 0")
    return _FLAGS[text.lower()]


def _epoch_seconds(text: str) -> float:
    try:
        value = float(text) if "_" not in text else math.nan
    except ValueError:
        value = _iso_seconds(text)
    if not 0 <= value <= _LAST_TIME:
        example = "2026-05-01T09:00:00Z"
        raise PydanticCustomError("time", f"must be seconds since the epoch or like {example}")
    return value


def _iso_seconds(text: str) -> float:
    # fromisoformat refuses leap seconds, which ISO 8601 allows.
    try:
        time = datetime.fromisoformat(text.upper().replace(":60", ":59"))
        return (time if time.tzinfo else time.replace(tzinfo=UTC)).timestamp()
    except (ValueError, OverflowError):
        return math.nan


Text = Annotated[str, Field(max_length=1000)]
PathText = Annotated[str, Field(min_length=1, max_length=1000)]
DIGITS = BeforeValidator(_whole_number)
"""Put behind `Field(ge=..., le=...)` of an integer."""

Flag = Annotated[bool, BeforeValidator(_flag)]
Time = Annotated[
    float,
    BeforeValidator(_epoch_seconds),
    WithJsonSchema(
        {
            "anyOf": [
                {"type": "number", "minimum": 0, "maximum": _LAST_TIME},
                {"type": "string", "format": "date-time"},
            ]
        }
    ),
]
"""Seconds since the epoch, or an ISO 8601 date or time, UTC where it names no zone."""


def read_parameters(
    model: type[P], query: bytes, elsewhere: Mapping[str, str | None] | None = None
) -> P:
    """The parameters of a request; `elsewhere` has those of its path and headers, None if absent.

    Raises:
        BadRequest: an unknown or repeated parameter, or a wrong value. Ignoring an unknown filter
            would look like applying it.
    """
    elsewhere = elsewhere or {}
    known = [name for name in names_of(model) if name not in elsewhere]
    values = {name: text for name, text in elsewhere.items() if text is not None}
    try:
        given = parse_qsl(query.decode("latin-1"), keep_blank_values=True, max_num_fields=100)
    except ValueError:
        raise BadRequest("the query has too many parameters", param="query") from None
    for name, text in given:
        refuse_unknown(name, known)
        if name in values:
            raise BadRequest(f"{name}: given twice", param=name)
        values[name] = text
    return read_model(model, values)


def read_model(model: type[M], values: Mapping[str, Any]) -> M:
    """`values` as a model. Raises: BadRequest, naming the first key that is wrong."""
    try:
        return model.model_validate(values)
    except ValidationError as error:
        first = error.errors(include_url=False, include_context=False, include_input=False)[0]
        name = ".".join(map(str, first["loc"])) or "body"
        reason = first["msg"].removeprefix("Input ")
        message = f"{name}: {reason[:1].lower()}{reason[1:]}"
        raise BadRequest(message, param=name) from None


def refuse_unknown(name: str, known: Sequence[str]) -> None:
    """Refuse a parameter or key that is not among `known`. Raises: BadRequest."""
    if name not in known:
        choices = ", ".join(known) or "none"
        raise BadRequest(f"{name[:80]!r} is not known here; known: {choices}", param=name[:80])


def names_of(model: type[BaseModel]) -> list[str]:
    """The names of a model's fields as a request writes them."""
    return [field.alias or name for name, field in model.model_fields.items()]
