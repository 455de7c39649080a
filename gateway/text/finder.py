"""Whether any of many expressions is found in a text, at a few instructions a character.

Python's `re` tries alternatives one after the other at every character; pydantic's compiled core
contains Rust's `regex`, which runs all of them at once, in time linear in the text.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from functools import cached_property
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pydantic_core import SchemaValidator

_SIGNS = re.compile(r"[^a-z0-9_/ ]")


def literal(text: str) -> str:
    """The expression that finds exactly this ASCII text."""
    return _SIGNS.sub(lambda sign: rf"\x{ord(sign.group()):02x}", text)


class Finder:
    """Looks for expressions in Rust's syntax, of ASCII characters; in any case of letters."""

    def __init__(self, expressions: Iterable[str]) -> None:
        self._expressions = tuple(expressions)

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
