"""Values with named fields: objects that nothing can change once they are made, and mappings."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeVar, dataclass_transform

from msgspec import Struct, StructMeta
from msgspec import field as struct_field

# Values by name, to be read: an object of JSON, keyword arguments, the columns of a row.
Fields = Mapping[str, Any]
# The same, made or changed by its holder.
FieldDict = dict[str, Any]
# Texts by name, to be read: headers, tags, variables of the environment.
Texts = Mapping[str, str]
T = TypeVar("T")  # any type: the one variable of all signatures
_CONFIG = {"frozen": True, "kw_only": True}


class _ValueMeta(StructMeta):
    """Passes to msgspec, for each class of values, what `Value` promises."""

    def __new__(
        mcs, name: str, bases: tuple[type, ...], body: dict[str, Any], **config: Any
    ) -> Any:
        return super().__new__(mcs, name, bases, body, **(config | _CONFIG))


@dataclass_transform(frozen_default=True, kw_only_default=True, field_specifiers=(struct_field,))
class Value(Struct, frozen=True, kw_only=True, metaclass=_ValueMeta):
    """A value as a struct: quick to make, and msgspec encodes it."""


@dataclass_transform(frozen_default=True, kw_only_default=True, field_specifiers=(field,))
def frozen(cls: type[T]) -> type[T]:
    """Makes a class a value as a dataclass, whose fields the settings and their schema are read
    from. `dataclass` compiles each method of each class, which took a fifth of a short command's
    time: two that requests do not need are shared."""
    for name, method in (("__eq__", _equal), ("__hash__", _digest)):
        setattr(cls, name, method)
    return dataclass(frozen=True, slots=True, kw_only=True, eq=False)(cls)


def _equal(one: Any, other: Any) -> Any:
    if other.__class__ is not one.__class__:
        return NotImplemented
    return one.__getstate__() == other.__getstate__()


def _digest(value: Any) -> int:
    return hash(tuple(value.__getstate__()))


def by_name(names: Iterable[str], values: Iterable[T]) -> dict[str, T]:
    """Values by the names of their columns. Raises: ValueError for more of the one than of the
    other."""
    return dict(zip(names, values, strict=True))
