"""Prefix hashes: the chained digest of a transcript after each of its messages.

Two transcripts have the same prefix hash after k messages when their first k messages are equal
under the normalisation of `gateway.wire.message_identity`. Chaining can continue from a stored
state, so a request that is known to extend an earlier one costs the digests of its new messages
only."""

from collections.abc import Mapping, Sequence
from hashlib import blake2b

from gateway.values import Value
from gateway.wire.message_identity import MessageReader, digest_bytes, digest_fields, fold

_NOTHING_YET = blake2b(digest_size=16, person=b"gw-tail-01")


def chain(previous: bytes, digest: bytes) -> bytes:
    """The hash of a history with hash `previous` that got one more atom; 16 bytes."""
    return digest_bytes(previous + digest)


def root_digest(tenant: str) -> bytes:
    """The hash of a tenant's empty history; equal histories of two tenants have other hashes."""
    return digest_fields("root", tenant)


class ChainState(Value):
    """The state of chaining after some messages: all that is needed to continue from there."""

    root: bytes  # hash of the empty history
    digest: bytes  # hash of the `count` messages
    count: int = 0  # messages so far
    turns: int = 0  # assistant turns so far
    in_turn: bool = False  # the newest message belongs to an assistant turn that may go on
    call_ids: tuple[str, ...] = ()  # of the newest turn's calls, which results may answer
    answered: int = 0  # how many of these calls have a result


class PrefixHashes(Value):
    """The prefix hashes of one transcript from one of its messages on. Messages without a digest
    do not change the hash."""

    start: int  # number of the first message that is covered
    digests: tuple[bytes, ...]  # `digests[i]` is the hash of the first `start + i` messages
    # `turns[i]` is the number of assistant turns in the first `start + i` messages
    turns: tuple[int, ...]
    # `messages[i]` is the digest of message `start + i` alone; None for one that does not count
    messages: tuple[bytes | None, ...]
    state: ChainState  # after the last message
    # (messages covered, prefix hash) of every hash to look up, the longest prefix first; the root
    # is left out, since all histories start there, and equal hashes are listed once, with the most
    # messages
    candidates: tuple[tuple[int, bytes], ...]
    # what `tail` gives, as far as it was made beforehand; None: nothing was
    tails: Mapping[tuple[bytes, int, int], bytes] | None = None

    def turns_after(self, position: int) -> int:
        """Assistant turns after the first `position` messages; `start` <= `position`."""
        return self.state.turns - self.turns[position - self.start]

    def tail(self, before: bytes, first: int = 0, last: int | None = None) -> bytes:
        """The tail hash of a history, 16 bytes: that of its messages from the first reply on; empty
        before the first reply. `before`: that of the messages before; `first`, `last`: the range of
        the messages here to add."""
        end = len(self.messages) if last is None else last
        if self.tails is not None and (before, first, end) in self.tails:
            return self.tails[before, first, end]
        tail = before
        for position in range(first, end):
            if (digest := self.messages[position]) is not None and self.turns[position + 1]:
                added = _NOTHING_YET.copy()  # half of what a new one takes
                added.update(tail + digest)
                tail = added.digest()
        return tail


def start_state(tenant: str) -> ChainState:
    """The state before the first message."""
    root = root_digest(tenant)
    return ChainState(root=root, digest=root)


def extend(state: ChainState, messages: Sequence[object]) -> PrefixHashes:
    """The prefix hashes of a transcript that continues after `state` with `messages`; never raises,
    whatever the messages are."""
    reader = MessageReader(state.call_ids, state.answered, state.in_turn, turns=state.turns)
    prefix_hash = state.digest
    digests = [prefix_hash]
    turns = [state.turns]
    own = []
    for message in messages:
        atoms = reader.atoms(message)
        for atom in atoms:
            prefix_hash = digest_bytes(prefix_hash + atom)  # `chain`
        digests.append(prefix_hash)
        turns.append(reader.turns)
        own.append(atoms[0] if len(atoms) == 1 else fold(atoms))
    end = ChainState(
        root=state.root,
        digest=prefix_hash,
        count=state.count + len(messages),
        turns=reader.turns,
        in_turn=reader.in_turn,
        call_ids=tuple(reader.call_ids),
        answered=reader.answered,
    )
    return PrefixHashes(
        start=state.count,
        digests=tuple(digests),
        turns=tuple(turns),
        messages=tuple(own),
        state=end,
        candidates=_candidates(digests, state),
    )


def _candidates(digests: Sequence[bytes], before: ChainState) -> tuple[tuple[int, bytes], ...]:
    """See `PrefixHashes`; `before`: the state to which the first of the digests belongs."""
    found = []
    last = root = before.root
    for position in range(len(digests) - 1, -1, -1):
        digest = digests[position]
        if digest not in (last, root):
            found.append((before.count + position, digest))
        last = digest
    return tuple(found)
