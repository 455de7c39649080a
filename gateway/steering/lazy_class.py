"""Classes given by name, so that a table can list them without importing their modules."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from functools import cache
from typing import Any


@cache
def load_class(package: str, name: str) -> Callable[..., Any]:
    """The class `name`, written `module:Class`, in a module below `package`; imports the module.

    Raises:
        ImportError: there is no such module.
        AttributeError: the module has no such class.
    """
    module, _, attribute = name.partition(":")
    loaded: Callable[..., Any] = getattr(importlib.import_module(f"{package}.{module}"), attribute)
    return loaded
