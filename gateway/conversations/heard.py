"""Which messages a conversation has brought, in few bytes."""

from __future__ import annotations

from collections.abc import Iterable

_KEPT_BYTES = 8  # of a digest of 16: among the messages of one conversation 64 bits are enough
_MAX_MESSAGES = 8192  # the newest: 64 kB
_LASTING = 512  # 4 kB: what is kept of a conversation that rests, and stored of one that trims


class Heard:
    """The digests of a conversation's messages, the newest `_MAX_MESSAGES` of them."""

    __slots__ = ("_digests",)

    def __init__(self, kept: bytes = b"") -> None:
        self._digests = bytearray(kept)

    def lasting(self) -> bytes:
        """The newest ones, to be given to another."""
        return bytes(self._digests[-_LASTING * _KEPT_BYTES :])

    def add(self, digests: Iterable[bytes | None]) -> None:
        """Take in the digests of messages; None for those that leave no trace."""
        for digest in digests:
            if digest is not None and not self.knows(digest):
                self._digests += digest[:_KEPT_BYTES]
        del self._digests[: -_MAX_MESSAGES * _KEPT_BYTES]

    def knows(self, digest: bytes) -> bool:
        """Whether a message with this digest was taken in."""
        kept, at = digest[:_KEPT_BYTES], -1
        while (at := self._digests.find(kept, at + 1)) >= 0:
            if at % _KEPT_BYTES == 0:
                return True
        return False
