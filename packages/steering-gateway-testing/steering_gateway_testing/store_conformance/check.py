"""The type of a check, the store that it checks, and the one assertion that Python has no statement
for."""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from typing import Generic, TypeVar

from gateway.backends import Stores

Check = Callable[[Stores], Awaitable[None]]

E = TypeVar("E", bound=BaseException)
Kept = TypeVar("Kept")


def kept_by(stores: Stores, kind: type[Kept]) -> Kept:
    """The store of a feature, by its class, which these stores have."""
    found = stores.of(kind)
    assert found is not None
    return found


class Raised(Generic[E]):
    """The exception that a `raises` block ended with."""

    value: E


@contextmanager
def raises(kind: type[E], pattern: str = "") -> Iterator[Raised[E]]:
    """A block that must raise `kind` with a message that `pattern` matches somewhere.

    Raises: AssertionError when it does not.
    """
    raised: Raised[E] = Raised()
    try:
        yield raised
    except kind as error:
        raised.value = error
    else:
        raise AssertionError(f"{kind.__name__} was not raised")
    message = str(raised.value)
    assert re.search(pattern, message), f"{message!r} does not match {pattern!r}"
