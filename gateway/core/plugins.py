"""Classes that are imported when used, and the entry points by which packages add table rows."""

import importlib
from collections.abc import Callable, Container
from functools import cache
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from importlib.metadata import EntryPoint


@cache
def load_class(package: str, name: str) -> Callable[..., Any]:
    """The class `name`, written `module:Class`; a module that begins with a dot is below `package`.

    Raises:
        ImportError: there is no such module.
        AttributeError: the module has no such class."""
    module, _, attribute = name.partition(":")
    loaded: Callable[..., Any] = getattr(importlib.import_module(module, package), attribute)
    return loaded


@cache
def _installed() -> Any:
    # To look for them takes tens of milliseconds, and to import what does so some, too.
    from importlib.metadata import entry_points

    return entry_points()


def plugins(group: str, built_in: Container[str]) -> "list[EntryPoint]":
    """The entry points of a group, by name; read once, when a table is imported. Raises ValueError:
    two have the same name, or one has the name of a built-in row."""
    found = sorted(set(_installed().select(group=group)), key=lambda each: each.name)
    for before, each in zip([None, *found], found, strict=False):
        if each.name in built_in or (before and each.name == before.name):
            raise ValueError(f"entry point {group}: {each.name} ({each.value}) is already taken")
    return found
