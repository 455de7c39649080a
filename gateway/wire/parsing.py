"""Parses JSON bodies, with error messages that help a client."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from typing import Any

from gateway.errors import BadRequest

Loads = Callable[[bytes], Any]


class BeyondParser(BadRequest):
    """Not read, although it may be JSON, which has no limit of depth or digits."""


def parse_value(raw: bytes, loads: Loads) -> Any:
    """The JSON value in `raw`.

    A fast parser may be stricter than JSON's grammar (lone surrogates, big integers), so what it
    refuses is parsed again with the standard library before it counts as an error.

    Raises:
        BadRequest: not JSON, with line and column.
        BeyondParser: nested too deeply, or a number of thousands of digits.
    """
    try:
        return loads(raw)
    except (ValueError, RecursionError):
        return _loads(raw)


def parse_object(raw: bytes, loads: Loads) -> dict[str, Any]:
    """The JSON object in `raw`, as `parse_value` reads it.

    Raises:
        BadRequest: not JSON (with line and column), or not an object.
    """
    body = parse_value(raw, loads)
    if not isinstance(body, dict):
        raise BadRequest(f"the body must be a JSON object, got {_json_kind(body)}")
    return body


def _loads(raw: bytes) -> Any:
    try:
        return json.loads(raw.decode("utf-8", "surrogateescape"))
    except json.JSONDecodeError as exc:
        where = f"line {exc.lineno}, column {exc.colno}"
        raise BadRequest(f"the body is not valid JSON: {exc.msg} at {where}") from exc
    except (ValueError, RecursionError) as exc:
        raise BeyondParser(
            "the body is not valid JSON: nested too deeply or too long a number"
        ) from exc


def _json_kind(value: Any) -> str:
    kinds: Sequence[tuple[Any, str]] = (
        (list, "an array"),
        (str, "a string"),
        (bool, "a boolean"),
        (type(None), "null"),
    )
    return next((name for kind, name in kinds if isinstance(value, kind)), "a number")
