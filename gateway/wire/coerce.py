"""JSON values of unknown type, read as the expected type or a default; long texts in pieces.

Clients and providers send any type under any key. Each function here returns the value when it has
the expected type and the default otherwise; none raises, and none converts text to a number. A
boolean is never a number, although Python counts `bool` as a kind of `int`."""

from collections.abc import Iterator, Mapping
from typing import Any

from msgspec import Struct
from msgspec.structs import asdict

from gateway.values import FieldDict, Fields, T


def as_text(value: object, default: T) -> str | T:
    """The value if it is a string, empty or not."""
    return value if isinstance(value, str) else default


def text_at(values: Fields, key: str) -> str:
    """The string under `key`, else an empty one."""
    value = values.get(key)
    return value if isinstance(value, str) else ""


def as_bool(value: object, default: T) -> bool | T:
    """The value if it is true or false."""
    return value if isinstance(value, bool) else default


def as_int(value: object, default: T) -> int | T:
    """The value if it is an integer; 1.0 is none."""
    return value if isinstance(value, int) and not isinstance(value, bool) else default


def as_number(value: object, default: T) -> float | T:
    """The value as a float if it is a number that a float can hold; it may be NaN or infinite."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return default
    try:
        return float(value)
    except OverflowError:  # JSON's integers have no limit
        return default


def as_mapping(value: object) -> Fields:
    """The value if it is an object, else an empty one."""
    return value if isinstance(value, dict) else {}


def mapping_at(values: Fields, key: str) -> Fields:
    """The object under `key`, else an empty one."""
    value = values.get(key)
    return value if isinstance(value, dict) else {}


def as_list(value: object) -> list[Any]:
    """The value if it is an array, else an empty one."""
    return value if isinstance(value, list) else []


def list_at(values: Fields, key: str) -> list[Any]:
    """The array under `key`, else an empty one."""
    value = values.get(key)
    return value if isinstance(value, list) else []


def mappings_at(values: Fields, key: str) -> list[Fields]:
    """The items of the array under `key`, each an object, which is empty for any other value."""
    return [as_mapping(value) for value in list_at(values, key)]


def objects(value: object) -> list[FieldDict]:
    """The objects in an array; empty for any other value."""
    if not isinstance(value, list):
        return []
    return [each for each in value if isinstance(each, dict)]


def as_json_value(value: object) -> FieldDict:
    """The fields of a struct, or a mapping as a dict: the `default` of `orjson` and `json`. Raises:
    TypeError for any other type."""
    if isinstance(value, Struct):
        return asdict(value)
    if isinstance(value, Mapping):
        return dict(value)
    raise TypeError(f"{type(value).__name__} has no place in a record")


# Characters of a piece: splitting so many into words takes 8 ms, of all that is done here the
# longest.
PIECE_CHARACTERS = 2**19
# The one letter whose lower case depends on the letters around it.
_FINAL_SIGMA = "\N{GREEK CAPITAL LETTER SIGMA}"


def lowered(text: str) -> str:
    """`text.lower()`, made in pieces."""
    if len(text) <= PIECE_CHARACTERS or text.isascii() or _FINAL_SIGMA in text:
        return text.lower()
    return "".join([piece.lower() for piece in _pieces(text)])


def word_count(text: str) -> int:
    """`len(text.split())`, counted in pieces."""
    if len(text) <= PIECE_CHARACTERS:
        return len(text.split())
    count = 0
    inside = False
    for piece in _pieces(text):
        count += len(piece.split()) - (inside and not piece[0].isspace())
        inside = not piece[-1].isspace()
    return count


def _pieces(text: str) -> Iterator[str]:
    for at in range(0, len(text), PIECE_CHARACTERS):
        yield text[at : at + PIECE_CHARACTERS]
