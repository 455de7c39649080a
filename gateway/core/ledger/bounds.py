"""Bounds on what a ledger remembers."""

from typing import Any


def keep_newest(kept: dict[Any, Any], most: int) -> None:
    """Forget the oldest entry, once there are more than `most`."""
    if len(kept) > most:
        del kept[next(iter(kept))]
