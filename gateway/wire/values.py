"""`dataclass` and `replace` for values that every request makes many of.

A frozen dataclass sets each of its fields through `object.__setattr__`, which was 9 % of the
instructions of a small call. Here `frozen` holds for the type checker, for comparing, hashing and
inheriting; setting a field of an instance is not refused.
"""

from __future__ import annotations

import dataclasses
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
        """`dataclasses.replace`, in a fifth of the instructions."""
        key = (value.__class__, *changes)
        copy = _copiers.get(key)
        if copy is None:
            copy = _copiers[key] = _copier(*key)
        return copy(value, **changes)

    _copiers: dict[tuple[Any, ...], Any] = {}

    def _copier(kind: type, *changed: str) -> Any:
        """A function that copies a value field by field, but takes those that change."""
        if kind.__setattr__ is not object.__setattr__:
            return dataclasses.replace  # fields cannot be assigned
        names = [field.name for field in dataclasses.fields(kind)]
        if unknown := [name for name in changed if name not in names]:
            raise TypeError(f"{kind.__name__} has no field {unknown[0]!r}")
        lines = ["new_ = create_(kind_)"]
        lines += [f"new_.{n} = {n if n in changed else f'value_.{n}'}" for n in names]
        if hasattr(kind, "__post_init__"):
            lines.append("new_.__post_init__()")
        values: dict[str, Any] = {"create_": object.__new__, "kind_": kind}
        head = ", ".join(["value_, /", *(["*", *changed] if changed else [])])
        code = f"def copy({head}):\n " + "\n ".join([*lines, "return new_"])
        exec(code, values)  # noqa: S102 - names of fields only
        return values["copy"]
