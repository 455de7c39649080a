"""A fast path for the usual stream: one-line events, most of which differ only in one string.

Of a hundred chunks more than ninety differ only in a piece of content or of arguments. Such a run
of chunks means the same as its first chunk with all the pieces in it, so the pieces are joined
while they are still escaped, and one chunk is parsed instead of the run.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any, Final

_END: Final = b"data: [DONE]\n\n"
# The text before a piece: the start of a delta that contains only text, or only arguments.
_OPENING: Final = re.compile(
    rb'"delta": ?\{(?:'
    rb'(?:"role": ?"assistant", ?)?(?:"content": ?null, ?)?'
    rb'"(?:content|reasoning_content|reasoning|refusal)": ?"'
    rb'|"tool_calls": ?\[\{"index": ?\d+, ?"function": ?\{"arguments": ?")'
)
# Fields that accumulate over chunks: a chunk with a second one of these is never merged.
_ADDS_UP: Final = re.compile(
    rb'"(?:content|reasoning_content|reasoning|refusal|arguments|name)":\s*"|"logprobs":\s*\{'
)
_PIECE: Final = re.compile(rb'[^"\\]*(?:\\.[^"\\]*)*')  # the inside of a JSON string
_PATIENCE: Final = 3
"""After this number of chunks in a row that form no run, no more runs are looked for."""


def parse_plain(stream: bytes, loads: Callable[[bytes], Any]) -> list[Any] | None:
    """Chunks that make the same completion as the stream; None for a stream of another form."""
    payloads = plain_payloads(stream)
    if payloads is None:
        return None
    merged = merge_runs(payloads)
    try:
        chunks = loads(b"[" + b",".join(merged) + b"]")
    except ValueError:
        return None
    return chunks if len(chunks) == len(merged) else None


def plain_payloads(stream: bytes) -> list[bytes] | None:
    """The payloads of a stream of one-line `data: ` events that ends in `[DONE]`, else None."""
    if not stream.startswith(b"data: ") or not stream.endswith(b"\n\n" + _END) or b"\r" in stream:
        return None
    body = stream[len(b"data: ") : -len(_END) - 2]
    payloads = body.split(b"\n\ndata: ")
    # Every line end was part of a separator: no comments, no other fields, no further lines.
    return payloads if body.count(b"\n") == 2 * (len(payloads) - 1) else None


def merge_runs(payloads: list[bytes]) -> list[bytes]:
    """Fewer payloads with the same meaning: of each run of pieces the first, with all the text."""
    merged: list[bytes] = []
    at, misses = 0, 0
    while at < len(payloads) and misses < _PATIENCE:
        frame = _frame(payloads[at])
        end = at + 1
        if frame is None:
            merged.append(payloads[at])
        else:
            pieces, end = _run(payloads, at, *frame)
            merged.append(frame[0] + b"".join(pieces) + frame[1])
        misses = misses + 1 if end == at + 1 else 0
        at = end
    return merged + payloads[at:]


def _run(payloads: list[bytes], start: int, before: bytes, after: bytes) -> tuple[list[bytes], int]:
    """(the pieces between `before` and `after` from index `start` on, the end of the run)."""
    pieces: list[bytes] = []
    first, last, least = len(before), -len(after), len(before) + len(after)
    for at in range(start, len(payloads)):
        payload = payloads[at]
        if not payload.startswith(before) or not payload.endswith(after) or len(payload) < least:
            return pieces, at
        piece = payload[first:last]
        # `in` raises and drops an error before it searches bytes (CPython 3.11): ten times as much.
        special = piece.find(b'"') >= 0 or piece.find(b"\\") >= 0
        if special and not _PIECE.fullmatch(piece):
            return pieces, at
        pieces.append(piece)
    return pieces, len(payloads)


def _frame(payload: bytes) -> tuple[bytes, bytes] | None:
    """The bytes before and after the one piece of text in a chunk; None without exactly one."""
    opening = _OPENING.search(payload)
    if opening is None:
        return None
    piece = _PIECE.match(payload, opening.end())
    end = piece.end() if piece else 0
    after = payload[end:]
    if not after.startswith(b'"') or _ADDS_UP.search(after):
        return None
    if _ADDS_UP.search(payload, 0, opening.start()):
        return None
    return payload[: opening.end()], after
