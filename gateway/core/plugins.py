"""Classes that are imported when used, and the entry points by which packages add table rows."""

import importlib
import sys
from collections.abc import Callable, Container
from contextlib import suppress
from functools import cache
from glob import iglob
from pkgutil import get_importer
from typing import TYPE_CHECKING, Any
from zipimport import zipimporter

if TYPE_CHECKING:
    from importlib.metadata import EntryPoint


_GROUP = b"steering_gateway."  # the beginning of the name of each group


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
    # To read all takes six times as long as to look whether one is for the gateway.
    if not any(map(_may_name_one, sys.path)):
        return None
    from importlib.metadata import entry_points

    return entry_points()


def _may_name_one(place: str) -> bool:
    """Whether a package in this entry of `sys.path` may have an entry point for the gateway."""
    for name in iglob("*-[Ii][Nn][Ff][Oo]/entry_points.txt", root_dir=place):
        with suppress(OSError), open(f"{place or '.'}/{name}", "rb") as file:
            if _GROUP in file.read():
                return True
    return isinstance(get_importer(place), zipimporter)


def plugins(group: str, built_in: Container[str]) -> "list[EntryPoint]":
    """The entry points of a group, by name; read once, when a table is imported. Raises ValueError:
    two have the same name, or one has the name of a built-in row."""
    installed = _installed()
    if installed is None:
        return []
    found = sorted(set(installed.select(group=group)), key=lambda each: each.name)
    for before, each in zip([None, *found], found, strict=False):
        if each.name in built_in or (before and each.name == before.name):
            raise ValueError(f"entry point {group}: {each.name} ({each.value}) is already taken")
    return found
