"""The comments at the fields of a class, for the API's document: each is written once."""

import re
import sys
from functools import cache
from linecache import getlines

_FIELD = re.compile(r"    (\w+): .*?(?:  # (.*))?")
_ABOVE = "    # "
_CLASS = re.compile(r"(?ms)^class (\w+)(.*?)(?=^class |\Z)")


@cache
def field_comments(kind: type) -> dict[str, str]:
    """Comment by field, of the class and those that it derives from, at the end of the field's line
    or above it. A class without source, such as a built-in one, has none."""
    texts = [_classes(base.__module__).get(base.__name__, "") for base in reversed(kind.__mro__)]
    return _read("\n".join(texts))


@cache
def _classes(module: str) -> dict[str, str]:
    """The text of each class of a module, by name. `inspect.getsource` reads the whole syntax tree
    of the module for each of them."""
    lines = getlines(getattr(sys.modules[module], "__file__", ""))
    return dict(_CLASS.findall("".join(lines)))


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
