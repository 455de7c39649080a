"""The comments at the fields of a class, for the API's document: each is written once."""

import inspect
import re
from functools import cache

_FIELD = re.compile(r"    (\w+): .*?(?:  # (.*))?")
_ABOVE = "    # "


@cache
def field_comments(kind: type) -> dict[str, str]:
    """Comment by field, of the class and those that it derives from, at the end of the field's line
    or above it. A class without source, such as a built-in one, has none."""
    found: dict[str, str] = {}
    for base in reversed(kind.__mro__):
        try:
            found |= _read(inspect.getsource(base))
        except (OSError, TypeError):
            continue
    return found


def _read(source: str) -> dict[str, str]:
    found: dict[str, str] = {}
    above: list[str] = []
    for line in source.splitlines():
        if line.startswith(_ABOVE):
            above.append(line.removeprefix(_ABOVE))
            continue
        field = _FIELD.fullmatch(line)
        if field and (text := field[2] or " ".join(above)):
            found[field[1]] = text
        above.clear()
    return found
