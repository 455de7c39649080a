"""`dataclass` and `replace` for values that every request makes many of.

A frozen dataclass sets each of its fields through `object.__setattr__`, which was 9 % of the
instructions of a small call. Here `frozen` holds for the type checker, for comparing, hashing and
inheriting; setting a field of an instance is not refused.
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

    def dataclass(*, frozen: bool = False, **options: Any) -> Any:
        """`dataclasses.dataclass` for fields that are all given to `__init__`."""
        if not frozen:
            return dataclasses.dataclass(**options)

        def make(kind: type) -> type:
            made = dataclasses.dataclass(frozen=True, init=False, **options)(kind)
            inherits = any("__setattr__" in vars(base) for base in made.__mro__[1:-1])
            if not inherits:
                del made.__setattr__, made.__delattr__
            made.__init__ = _initialiser(made, direct=not inherits)
            return made

        return make

    def _initialiser(kind: type, *, direct: bool) -> Any:
        """An `__init__` that sets each field; `direct`: with a plain assignment."""
        values: dict[str, Any] = {"absent": dataclasses.MISSING, "put": object.__setattr__}
        given, by_name, lines = [], [], []
        for field in dataclasses.fields(kind):
            name = value = field.name
            parameters = by_name if field.kw_only else given
            if field.default_factory is not dataclasses.MISSING:
                values[f"make_{name}"] = field.default_factory
                parameters.append(f"{name}=absent")
                value = f"make_{name}() if {name} is absent else {name}"
            elif field.default is not dataclasses.MISSING:
                values[f"default_{name}"] = field.default
                parameters.append(f"{name}=default_{name}")
            else:
                parameters.append(name)
            lines.append(f"self.{name} = {value}" if direct else f"put(self, {name!r}, {value})")
        if hasattr(kind, "__post_init__"):
            lines.append("self.__post_init__()")
        star = ["*"] if by_name else []
        head = ", ".join(["self", *given, *star, *by_name])
        code = f"def __init__({head}):\n " + "\n ".join(lines)
        exec(code, values)  # noqa: S102 - names of fields only, as in dataclasses itself
        return values["__init__"]

    def replace(value: Any, /, **changes: Any) -> Any:
        """`dataclasses.replace` of a value with two or more fields, in half the instructions."""
        kind = value.__class__
        names, read = _fields_of(kind)
        return kind(**dict(zip(names, read(value), strict=True), **changes))

    @cache
    def _fields_of(kind: type) -> tuple[tuple[str, ...], Any]:
        names = tuple([field.name for field in dataclasses.fields(kind)])
        return names, attrgetter(*names)
