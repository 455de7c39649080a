"""A fold that goes on after another gateway has served the conversation in between."""

from __future__ import annotations

from msgspec import Struct

from gateway.steering.fold import ConversationFold
from gateway.wire.prefix_hash import PrefixHashes


class KeptFold(Struct, frozen=True, kw_only=True):
    """A fold and the prefix hash of the messages that it has read.

    It stands aside until a request continues them: the stored state of the run is further.
    """

    fold: ConversationFold
    digest: bytes

    def has_read(self, hashes: PrefixHashes) -> bool:
        """Whether a history begins with the messages that were read, at the same positions."""
        at = self.fold.consumed - hashes.start
        return 0 <= at < len(hashes.digests) and hashes.digests[at] == self.digest
