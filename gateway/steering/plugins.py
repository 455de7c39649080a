"""Classes given by name, and the entry points by which other packages add rows to a table.

A table lists its classes as `module:Class`, so that none is imported before it is used. Built-in
rows are in the table itself; an installed package adds rows of the same form.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Container
from functools import cache
from importlib.metadata import EntryPoint, entry_points
from typing import Any


@cache
def load_class(package: str, name: str) -> Callable[..., Any]:
    """The class `name`, written `module:Class`; imports the module.

    A module that begins with a dot is below `package`.

    Raises:
        ImportError: there is no such module.
        AttributeError: the module has no such class.
    """
    module, _, attribute = name.partition(":")
    loaded: Callable[..., Any] = getattr(importlib.import_module(module, package), attribute)
    return loaded


_installed = cache(entry_points)  # to look for them takes tens of milliseconds


def plugins(group: str, built_in: Container[str]) -> list[EntryPoint]:
    """The entry points of a group, by name; read once, when a table is imported.

    Raises:
        ValueError: two have the same name, or one has the name of a built-in row.
    """
    found = sorted(set(_installed().select(group=group)), key=lambda each: each.name)
    for number, each in enumerate(found):
        if each.name in built_in or each.name in [other.name for other in found[:number]]:
            raise ValueError(f"entry point {group}: {each.name} ({each.value}) is already taken")
    return found
