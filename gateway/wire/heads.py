"""Heads: the chained digest of a transcript after each of its messages.

Two transcripts have the same head after k messages when their first k messages are the same up to
what `gateway.wire.messages` normalises. Chaining can be taken up where it was left, so a request
that is known to extend an earlier one costs the digests of its new messages only.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from hashlib import blake2b

from gateway.wire.messages import DIGEST_BYTES, VERSION, Reader, digest_fields, fold


def chain(previous: bytes, digest: bytes) -> bytes:
    """The head of a history that had the head `previous` and got one more atom; 16 bytes."""
    return blake2b(previous + digest, digest_size=DIGEST_BYTES, person=VERSION).digest()


def root_digest(tenant: str) -> bytes:
    """The head of a tenant's empty history: equal histories of two tenants never meet."""
    return digest_fields("root", tenant)


@dataclass(frozen=True, slots=True, kw_only=True)
class ChainState:
    """Where chaining stands after `count` messages: all that is needed to go on from there.

    `root` is the head of the empty history, `digest` the present one; the rest is the state of the
    `Reader`.
    """

    root: bytes
    digest: bytes
    count: int = 0
    turns: int = 0
    in_turn: bool = False
    call_ids: tuple[str, ...] = ()
    answered: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Heads:
    """The heads of one transcript from message `start` on.

    `digests[i]` is the head after `start + i` messages and `turns[i]` the number of assistant turns
    in them; `messages[i]` is the digest of message `start + i` by itself (None: leaves no trace).
    """

    start: int
    digests: tuple[bytes, ...]
    turns: tuple[int, ...]
    messages: tuple[bytes | None, ...]
    state: ChainState

    @property
    def full(self) -> bytes:
        """The head of the whole transcript."""
        return self.state.digest

    def turns_after(self, position: int) -> int:
        """Assistant turns behind the first `position` messages; `start` <= `position`."""
        return self.state.turns - self.turns[position - self.start]

    def candidates(self) -> list[tuple[int, bytes]]:
        """(messages covered, head) of every head worth looking up, the longest first.

        The root is not among them (all histories start there), and a head that a system message
        left as it was is named once, with all the messages it covers.
        """
        found: list[tuple[int, bytes]] = []
        last = root = self.state.root
        for position in range(len(self.digests) - 1, -1, -1):
            digest = self.digests[position]
            if digest not in (last, root):
                found.append((self.start + position, digest))
            last = digest
        return found


def start_state(tenant: str) -> ChainState:
    """The state before the first message."""
    root = root_digest(tenant)
    return ChainState(root=root, digest=root)


def extend(state: ChainState, messages: Sequence[object]) -> Heads:
    """The heads of a transcript that goes on with `messages` after `state`."""
    reader = Reader(state.call_ids, state.answered, state.in_turn, state.turns)
    head = state.digest
    digests, turns, own = [head], [state.turns], []
    for message in messages:
        atoms = reader.atoms(message)
        for atom in atoms:
            head = chain(head, atom)
        digests.append(head)
        turns.append(reader.turns)
        own.append(fold(atoms))
    end = ChainState(
        root=state.root,
        digest=head,
        count=state.count + len(messages),
        turns=reader.turns,
        in_turn=reader.in_turn,
        call_ids=tuple(reader.call_ids),
        answered=reader.answered,
    )
    return Heads(
        start=state.count,
        digests=tuple(digests),
        turns=tuple(turns),
        messages=tuple(own),
        state=end,
    )


def chain_digests(
    messages: Sequence[object], tenant: str, *, resume: ChainState | None = None
) -> Heads:
    """The heads of a whole transcript; never raises, whatever the messages are.

    With `resume` only the messages after its `count` are read: the caller vouches that those before
    are the ones it was made from, under the same tenant. A state that counts more messages than
    there are is not used.
    """
    if resume is None or resume.count > len(messages):
        resume = start_state(tenant)
    return extend(resume, messages[resume.count :])
