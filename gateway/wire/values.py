"""`dataclass` for values that every request makes many of.

The type checker keeps them frozen; at run time nothing does. A frozen dataclass sets each of its
fields through `object.__setattr__`, which was 9 % of the instructions of a small call.
"""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from dataclasses import dataclass as dataclass
else:

    def dataclass(*, frozen: bool = False, **options: Any) -> Any:
        """`dataclasses.dataclass`; with `frozen` compared and hashed like a frozen one."""
        return dataclasses.dataclass(unsafe_hash=frozen, **options)
