"""Loopback addresses where nobody answers."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from contextlib import contextmanager

LOOPBACK = "127.0.0.1"


@contextmanager
def closed_port() -> Iterator[int]:
    """A port that refuses connections for as long as the block lasts.

    It is bound but does not listen, so that no other process can take it meanwhile.
    """
    with socket.socket() as holder:
        holder.bind((LOOPBACK, 0))
        yield holder.getsockname()[1]
