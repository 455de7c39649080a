"""Conversation ids, the ids of tool calls, the signature of an agent, and the draw for a unit."""

import base64
import functools
import re
from collections.abc import Iterable, Sequence
from hashlib import blake2b, sha256

from gateway.steering.word_lists import word_list

# 120 bits: 24 characters of base 32 without padding.
_ID_BYTES = 15
# A system prompt begins with the agent's role; what follows is often a file listing or a diff.
SIGNATURE_CHARACTERS = 400

# Least length of a random call id: numbered ones are shorter (`call_0`), those of providers longer.
_UNIQUE_CHARACTERS = 16
_MAX_CALL_ID = 255
_DIGIT = re.compile(r"\d")
_CALENDAR = frozenset(word_list("ids", "calendar"))


def _joined(*parts: str) -> bytes:
    # The length before each part distinguishes ("ab", "c") from ("a", "bc").
    return "".join(f"{len(part)}:{part}" for part in parts).encode("utf-8", "surrogatepass")


def _text_id(*parts: str) -> str:
    digest = blake2b(_joined(*parts), digest_size=_ID_BYTES, person=b"gw-conversation1").digest()
    return "c-" + base64.b32encode(digest).decode("ascii").lower()


def conversation_id(tenant: str, key: str, nonce: str = "") -> str:
    """The printable id of a conversation, "c-" and 24 letters or digits. `key`: the id the client
    sent, or the hexadecimal prefix hash of the first request; in that case `nonce`, a fresh random
    value, distinguishes conversations that begin with the same request."""
    return _text_id("conversation", tenant, key, nonce)


def child_id(parent: str, prefix_hash: bytes, taken: Iterable[str] = ()) -> str:
    """The id of the branch that forks from `parent` with a request of this hash, the same in every
    process; ids in `taken` are not used again."""
    used = frozenset(taken)
    child = parent
    while (child := _text_id("child", child, prefix_hash.hex())) in used:
        pass
    return child


def calls_hash(tenant: str, calls: Iterable[str]) -> bytes:
    """The key, 16 bytes, under which a store finds the conversation that made these calls last."""
    return blake2b(_joined(tenant, *calls), digest_size=16, person=b"gw-calls-made-01").digest()


def clean_call_ids(ids: Sequence[str]) -> tuple[str, ...]:
    """The ids of one turn's calls; empty unless every call has one of 1 to 255 characters."""
    if all(0 < len(i) <= _MAX_CALL_ID for i in ids):
        return tuple(ids)
    return ()


def looks_unique(calls: Iterable[str]) -> bool:
    """Whether all these call ids are long enough to be random, so that no two replies share one."""
    return all(len(call) >= _UNIQUE_CHARACTERS for call in calls)


def signature(system: str, tool_names: Iterable[str]) -> bytes:
    """A digest of an agent's tools and role, 16 bytes; it survives a rewritten history. The role is
    the start of the system text in lower case, without names of days and months and without any
    word that contains a digit (dates, versions, counters, hashes)."""
    # Twice as much is read as is used, so that dropped words do not change where the role ends.
    return _signature(system[: 2 * SIGNATURE_CHARACTERS], tuple(sorted(set(tool_names))))


def system_digest(system: str) -> bytes:
    """A digest of a whole system text, 8 bytes; an agent may change it between calls (dates)."""
    return blake2b(system.encode("utf-8", "surrogatepass"), digest_size=8).digest()


@functools.lru_cache(maxsize=512)
def _signature(start: str, tool_names: tuple[str, ...]) -> bytes:
    """Cached, because an agent sends the same system text and tools with every call."""
    words = [
        word
        for word in start.lower().split()
        if not _DIGIT.search(word) and word.strip(".,:;()") not in _CALENDAR
    ]
    role = " ".join(words)[:SIGNATURE_CHARACTERS]
    return blake2b(_joined(role, *tool_names), digest_size=16).digest()


def draw(experiment: str, unit: str) -> float:
    """A number in [0, 1), always the same for the pair, uniformly distributed over units. First 8
    bytes of a SHA-256 digest, big-endian, over 2^64. Each part is preceded by its length in bytes,
    so that no two pairs are the same text. Source: docs/names.md, the draw of an arm."""
    parts = [part.encode("utf-8", "surrogatepass") for part in (experiment, unit)]
    joined = b"".join(b"%d:%s" % (len(part), part) for part in parts)
    return int.from_bytes(sha256(joined).digest()[:8], "big") / 2.0**64
