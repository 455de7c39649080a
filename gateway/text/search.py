"""Quick search for many expressions at once, before a thorough search.

Python's `re` tries alternatives one after the other at every character; pydantic's compiled core
contains Rust's `regex`, which runs all of them at once, in time linear in the text. google-re2 took
ten times as long for the same texts."""

from collections.abc import Callable, Sequence
from functools import cached_property


class Expressions:
    """Quick filter before a thorough search. It has expressions in a syntax that Rust and Python
    share, and plain texts in lower case; every text with a match for the thorough search matches
    one of them."""

    def __init__(self, expressions: Sequence[str] = (), *, texts: Sequence[str] = ()):
        self._all = [*expressions, *map(_literal, texts)]

    def may_be_in(self, text: str) -> bool:
        """False if none of them is in the text, in any case of letters; True without pydantic. A
        character beyond ASCII counts as a question mark."""
        if not text.isascii():
            text = text.encode("ascii", "replace").decode("ascii")
        return self._search(text)

    @cached_property
    def _search(self) -> Callable[[str], bool]:
        # Imported at the first search: 40 ms that a start does not have to wait for.
        try:
            from pydantic_core import SchemaValidator, core_schema
        except ImportError:  # the decision core runs without it
            return lambda text: True
        pattern = f"(?i){'|'.join(f'(?:{each})' for each in self._all)}"
        schema = core_schema.str_schema(pattern=pattern, regex_engine="rust-regex")
        return SchemaValidator(schema).isinstance_python


def _literal(text: str) -> str:
    signs = text.encode("ascii", "replace").decode("ascii")
    return "".join([c if c.isalnum() or c in "_/ " else f"\\x{ord(c):02x}" for c in signs])
