"""Whether any of many expressions is found in a text, at a few instructions a character.

Python's `re` tries alternatives one after the other at every character; pydantic's compiled core
contains Rust's `regex`, which runs all of them at once, in time linear in the text.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import cached_property
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pydantic_core import SchemaValidator


class Finder:
    """Looks for expressions in Rust's syntax, of ASCII characters, and for plain texts; in any case
    of letters."""

    def __init__(self, expressions: Iterable[str], texts: Iterable[str] = ()) -> None:
        self._expressions = [*expressions, *map(_literal, texts)]

    def finds(self, text: str) -> bool:
        """Whether one of the expressions is in the text.

        A character beyond ASCII counts as a question mark.
        """
        if not text.isascii():
            text = text.encode("ascii", "replace").decode("ascii")
        return self._search.isinstance_python(text)

    @cached_property
    def _search(self) -> SchemaValidator:
        # Imported when it is needed: 40 ms that a start does not have to wait for.
        from pydantic_core import SchemaValidator, core_schema

        pattern = f"(?i){'|'.join(f'(?:{each})' for each in self._expressions)}"
        return SchemaValidator(core_schema.str_schema(pattern=pattern, regex_engine="rust-regex"))


def _literal(text: str) -> str:
    """The expression that finds exactly this text."""
    signs = text.encode("ascii", "replace").decode("ascii")
    return "".join([c if c.isalnum() or c in "_/ " else f"\\x{ord(c):02x}" for c in signs])
