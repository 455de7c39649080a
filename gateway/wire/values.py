"""`dataclass` and `replace` for values that every request makes many of.

The type checker keeps them frozen; at run time nothing does. A frozen dataclass sets each of its
fields through `object.__setattr__`, which was 9 % of the instructions of a small call.
"""

from __future__ import annotations

import dataclasses
from functools import cache
from operator import attrgetter
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from dataclasses import dataclass as dataclass
    from dataclasses import replace as replace
else:

    def replace(value: Any, /, **changes: Any) -> Any:
        """`dataclasses.replace` of a value with two or more fields, in half the instructions."""
        kind = value.__class__
        names, read = _fields_of(kind)
        return kind(**dict(zip(names, read(value), strict=True), **changes))

    @cache
    def _fields_of(kind: type) -> tuple[tuple[str, ...], Any]:
        names = tuple([field.name for field in dataclasses.fields(kind)])
        return names, attrgetter(*names)

    def dataclass(*, frozen: bool = False, **options: Any) -> Any:
        """`dataclasses.dataclass`; with `frozen` compared and hashed like a frozen one."""
        return dataclasses.dataclass(unsafe_hash=frozen, **options)
