"""Conversation ids, the signature of an agent, and the label of where an id came from."""

from __future__ import annotations

import base64
import functools
import re
from collections.abc import Iterable, Sequence
from hashlib import blake2b

# 120 bits: 24 characters of base 32 without padding.
_ID_BYTES = 15
# The role of an agent is told at the start; what follows is often a listing of files or a diff.
SIGNATURE_CHARACTERS = 400

_RANDOM = 16
"""Characters of a call's id from which on it is taken for random. Providers number calls with less
(`call_0`), and their random ids have more (OpenAI 29, Anthropic 30)."""
_MAX_CALL_ID = 255

_DIGIT = re.compile(r"\d")
# fmt: off
_CALENDAR = frozenset({
    "monday", "tuesday", "wednesday", "thursday", "friday", "saturday", "sunday",
    "mon", "tue", "wed", "thu", "fri", "sat", "sun",
    "january", "february", "march", "april", "may", "june", "july", "august", "september",
    "october", "november", "december",
    "jan", "feb", "mar", "apr", "jun", "jul", "aug", "sep", "sept", "oct", "nov", "dec",
    "am", "pm", "utc", "gmt",
})
# fmt: on


def _joined(*parts: str) -> bytes:
    # The length in front keeps ("ab", "c") and ("a", "bc") apart.
    return "".join(f"{len(part)}:{part}" for part in parts).encode("utf-8", "surrogatepass")


def _printable(*parts: str) -> str:
    digest = blake2b(_joined(*parts), digest_size=_ID_BYTES, person=b"gw-conversation1").digest()
    return "c-" + base64.b32encode(digest).decode("ascii").lower()


def conversation_id(tenant: str, key: str, nonce: str = "") -> str:
    """The printable id of a conversation, "c-" and 24 letters or digits.

    `key`: the id the client sent, or the hexadecimal head of the opening request; then `nonce`, a
    value that is new each time, tells conversations with the same opening apart. The same key of
    two tenants gives two ids.
    """
    return _printable("conversation", tenant, key, nonce)


def child_id(parent: str, head: bytes, taken: Iterable[str] = ()) -> str:
    """The id of the branch that leaves `parent` with the request head `head`.

    The same request gives the same id, so that two gateways, or a second attempt, agree; an id in
    `taken` is passed over.
    """
    used = frozenset(taken)
    child = _printable("child", parent, head.hex())
    while child in used:
        child = _printable("child", child, head.hex())
    return child


def calls_head(tenant: str, calls: Iterable[str]) -> bytes:
    """Where a store keeps which conversation's latest reply made these calls; 16 bytes."""
    return blake2b(_joined(tenant, *calls), digest_size=16, person=b"gw-calls-made-01").digest()


def sane_calls(ids: Sequence[str]) -> tuple[str, ...]:
    """The ids of one turn's calls; none unless each call has one of 1 to 255 characters."""
    return tuple(ids) if all(0 < len(i) <= _MAX_CALL_ID for i in ids) else ()


def is_random(calls: Iterable[str]) -> bool:
    """Whether the ids of calls are as good as random: no two replies make the same."""
    return all(len(call) >= _RANDOM for call in calls)


def signature(system: str, tool_names: Iterable[str]) -> bytes:
    """What stays of an agent when its history is rewritten, 16 bytes: its tools and its role.

    The role is the start of the system text without letter case, white space, names of days and
    months, and any word that holds a digit (dates, versions, counters, hashes).
    """
    # Twice as much is read as is used, so that what is left out does not move the end.
    return _signature(system[: 2 * SIGNATURE_CHARACTERS], tuple(sorted(set(tool_names))))


@functools.lru_cache(maxsize=512)
def _signature(start: str, tool_names: tuple[str, ...]) -> bytes:
    """Kept, because an agent sends the same system text and tools with every call."""
    words = start.lower().split()
    role = " ".join([word for word in words if not _changes(word)])[:SIGNATURE_CHARACTERS]
    return blake2b(_joined(role, *tool_names), digest_size=16).digest()


def _changes(word: str) -> bool:
    if not word.isalpha():
        if _DIGIT.search(word):
            return True
        word = word.strip(".,:;()")
    return word in _CALENDAR
