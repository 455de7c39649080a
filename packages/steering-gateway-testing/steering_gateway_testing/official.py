"""The official clients of two providers, loaded when a test first uses one.

Each has thousands of models, which take a second and 70 MB to load: every process of the tests
would pay that for the few tests that call one.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import anthropic as anthropic
    import openai as openai


class _Later:
    """A package that is imported at the first look at one of its names."""

    def __init__(self, name: str) -> None:
        self._name = name

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):  # pytest asks every global of a module for private names
            raise AttributeError(name)
        return getattr(importlib.import_module(self._name), name)


if not TYPE_CHECKING:
    anthropic = _Later("anthropic")
    openai = _Later("openai")
