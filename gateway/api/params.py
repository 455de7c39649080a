"""Parameters of the control plane: what one may be, said once for the reader and the document."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Literal
from urllib.parse import parse_qsl

from gateway.api.schema import Schema
from gateway.errors import BadRequest

Kind = Literal["text", "integer", "time", "flag"]

_FLAGS = {"true": True, "1": True, "false": False, "0": False}
# Seconds of the epoch that every date library can show: the years 1970 to 9999.
_LAST_TIME = 253402300799


@dataclass(frozen=True, slots=True, kw_only=True)
class Param:
    """One parameter of a query, a path or a header.

    `time`: seconds since the epoch, or an ISO 8601 date or time, UTC where it names no zone.
    `low` and `high` limit an integer, `choices` and `longest` (characters) a text.
    """

    name: str
    description: str
    kind: Kind = "text"
    choices: tuple[str, ...] = ()
    low: int = 0
    high: int = 2**31 - 1
    longest: int = 1000
    default: Any = None
    in_path: bool = False
    place: Literal["query", "header"] = "query"

    def read(self, text: str) -> Any:
        """The value that `text` stands for. Raises: BadRequest, naming the parameter."""
        match self.kind:
            case "integer":
                return self._integer(text)
            case "time":
                return self._time(text)
            case "flag":
                return self._one_of(_FLAGS, text.lower())
        if self.choices:
            return self._one_of({choice: choice for choice in self.choices}, text)
        if len(text) > self.longest:
            raise self._wrong(f"at most {self.longest} characters")
        return text

    def document(self) -> Schema:
        """The parameter as OpenAPI describes it."""
        return {
            "name": self.name,
            "in": "path" if self.in_path else self.place,
            "required": self.in_path,
            "description": self.description,
            "schema": self._schema(),
        }

    def _schema(self) -> Schema:
        match self.kind:
            case "integer":
                schema: Schema = {"type": "integer", "minimum": self.low, "maximum": self.high}
            case "time":
                number = {"type": "number", "minimum": 0, "maximum": _LAST_TIME}
                schema = {"anyOf": [number, {"type": "string", "format": "date-time"}]}
            case "flag":
                schema = {"type": "boolean"}
            case "text":
                schema = {"type": "string", "maxLength": self.longest}
                schema |= {"enum": list(self.choices)} if self.choices else {}
                schema |= {"minLength": 1} if self.in_path else {}
        return schema if self.default is None else {**schema, "default": self.default}

    def _integer(self, text: str) -> int:
        try:
            value = int(text) if text.isascii() and "_" not in text else None
        except ValueError:
            value = None
        if value is None or not self.low <= value <= self.high:
            raise self._wrong(f"a whole number from {self.low} to {self.high}")
        return value

    def _time(self, text: str) -> float:
        try:
            value = float(text) if "_" not in text else math.nan
        except ValueError:
            value = _epoch_seconds(text)
        if not 0 <= value <= _LAST_TIME:
            raise self._wrong("seconds since the epoch, or a time such as 2026-05-01T09:00:00Z")
        return value

    def _one_of(self, choices: Mapping[str, Any], text: str) -> Any:
        if text not in choices:
            raise self._wrong(f"one of {', '.join(choices)}")
        return choices[text]

    def _wrong(self, wanted: str) -> BadRequest:
        return BadRequest(f"{self.name}: must be {wanted}", param=self.name)


def _epoch_seconds(text: str) -> float:
    # fromisoformat knows no leap seconds, which the standard allows.
    try:
        time = datetime.fromisoformat(text.upper().replace(":60", ":59"))
        return (time if time.tzinfo else time.replace(tzinfo=UTC)).timestamp()
    except (ValueError, OverflowError):
        return math.nan


def read_query(params: Sequence[Param], query: bytes) -> dict[str, Any]:
    """The values of a query string by parameter name, defaults included.

    Raises:
        BadRequest: an unknown or repeated parameter, a wrong value; an unknown filter that was
            passed over in silence would be taken for one that was applied.
    """
    known = {p.name: p for p in params if not p.in_path and p.place == "query"}
    values = {name: param.default for name, param in known.items()}
    seen: set[str] = set()
    try:
        given = parse_qsl(query.decode("latin-1"), keep_blank_values=True, max_num_fields=100)
    except ValueError:
        raise BadRequest("the query has too many parameters", param="query") from None
    for name, text in given:
        if name not in known:
            raise BadRequest(
                f"{name[:80]!r} is no parameter of this route; there are "
                f"{', '.join(known) or 'none'}",
                param=name[:80],
            )
        if name in seen:
            raise BadRequest(f"{name}: given twice", param=name)
        seen.add(name)
        values[name] = known[name].read(text)
    return values
