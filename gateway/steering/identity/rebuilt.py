"""Recognising a conversation whose client has rebuilt what comes before the first reply.

Some clients write a new first message (date, list of files) when they continue a conversation that
they saved. Its prefix hashes change with that message; from the first reply on it is the same.
"""

from __future__ import annotations

from collections.abc import Sequence
from hashlib import blake2b

from gateway.wire.messages import SYSTEM_ROLES, content_text
from gateway.wire.prefix_hash import PrefixHashes

_LONG_REPLY_CHARACTERS = 200
"""A reply from this length on is not given twice; shorter ones ("Hello!") are."""
_MANY_TURNS = 3


def extend_tail(
    tail: bytes, hashes: PrefixHashes, first: int = 0, last: int | None = None
) -> bytes:
    """The tail hash of a history, 16 bytes; empty before the first reply.

    `tail`: that of the messages before; `first`, `last`: the range of those to add, among the
    messages that `hashes` has.
    """
    for position in range(first, len(hashes.messages) if last is None else last):
        digest = hashes.messages[position]
        if digest is not None and hashes.turns[position + 1]:
            tail = blake2b(tail + digest, digest_size=16, person=b"gw-tail-01").digest()
    return tail


def tail_key(tenant: str, tail: bytes) -> bytes:
    """The key, 16 bytes, under which a store finds the conversation with this tail hash."""
    named = tenant.encode("utf-8", "surrogatepass")
    return blake2b(tail + named, digest_size=16, person=b"gw-tail-key-01").digest()


def end_of_reply(messages: Sequence[object]) -> int | None:
    """How many messages a request has up to its latest reply; None unless that is a text that the
    user answers."""
    for position in range(len(messages) - 1, -1, -1):
        message = messages[position]
        role = message.get("role") if isinstance(message, dict) else None
        if role == "assistant":
            return position + 1 if position + 1 < len(messages) else None
        if role != "user" and role not in SYSTEM_ROLES:
            return None
    return None


def is_distinctive(hashes: PrefixHashes, messages: Sequence[object], end: int) -> bool:
    """Whether no two conversations have the same messages from the first reply to this end."""
    last = messages[end - 1]
    said = content_text(last.get("content")) if isinstance(last, dict) else ""
    return hashes.state.turns >= _MANY_TURNS or len(said) >= _LONG_REPLY_CHARACTERS
