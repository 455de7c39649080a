"""Guidance as splices in the messages of a body; the client's own text does not change."""

from __future__ import annotations

import functools
import json
from collections.abc import Mapping, Sequence

from gateway.wire.parsing import array_spans, object_spans, scannable, skip_space
from gateway.wire.request import ChatRequest, Splice


def insert_message(request: ChatRequest, position: int, role: str, text: str) -> Splice:
    """A message with `text` before the client's message `position`; their count = at the end.

    A list without messages takes only one such splice."""
    spans = request.message_spans
    literal = _message(role, text)
    if position < len(spans):
        at = spans[position][0]
        return Splice(start=at, end=at, text=f"{literal}, ")
    if spans:
        at = spans[-1][1]
        return Splice(start=at, end=at, text=f", {literal}")
    at = request.spans(request.list_key)[-1][0] + 1
    return Splice(start=at, end=at, text=literal)


@functools.lru_cache(maxsize=64)
def _message(role: str, text: str) -> str:
    """Cached, because every run begins with the same guidance."""
    return json.dumps({"role": role, "content": text})


def append_to_message(
    request: ChatRequest,
    index: int,
    texts: Sequence[str],
    breakpoint: Mapping[str, str] | None = None,
    *,
    part_type: str = "text",
) -> list[Splice]:
    """`texts` as separate blocks at the end of the content of message `index`.

    To a string each text is added after a blank line, to a list of parts as a part; absent, null or
    empty content is replaced by the texts. With `breakpoint` the content becomes a list of parts,
    and the last of the client's own gets it as `cache_control`. `part_type`: the type of a text
    part in the dialect."""
    start, end = request.message_spans[index]
    message = scannable(request.raw[start:end])
    found = [(s, e) for key, s, e in object_spans(message, 0) if key == "content"]
    if not found:
        comma = "" if message[skip_space(message, 1)] == "}" else ", "
        joined = json.dumps("\n\n".join(texts))
        return [Splice(start=start + 1, end=start + 1, text=f'"content": {joined}{comma}')]
    s, e = (start + at for at in found[-1])
    content = message[found[-1][0] : found[-1][1]]
    if content[0] == "[" and content[skip_space(content, 1)] != "]":
        return _append_parts(content, s, [_part(t, part_type) for t in texts], breakpoint)
    if content[0] != '"' or content == '""':
        return [Splice(start=s, end=e, text=json.dumps("\n\n".join(texts)))]
    if breakpoint is None:
        added = json.dumps("".join(f"\n\n{t}" for t in texts))[1:-1]
        return [Splice(start=e - 1, end=e - 1, text=added)]
    marker = json.dumps(dict(breakpoint))
    head = Splice(start=s, end=s, text='[{"type": "text", "text": ')
    parts = "".join(f", {_part(t)}" for t in texts)
    return [head, Splice(start=e, end=e, text=f', "cache_control": {marker}}}{parts}]')]


def _append_parts(
    content: str, start: int, added: Sequence[str], breakpoint: Mapping[str, str] | None
) -> list[Splice]:
    """`added` after the last part of `content`, which begins at `start` in the body."""
    splices = []
    first, last = list(array_spans(content, 0))[-1]
    last_end = start + last
    if breakpoint is not None and content[first] == "{":
        at = last_end - 1
        empty = content[skip_space(content, first + 1)] == "}"
        marker = f'"cache_control": {json.dumps(dict(breakpoint))}'
        splices.append(Splice(start=at, end=at, text=marker if empty else f", {marker}"))
    behind = "".join(f", {part}" for part in added)
    splices.append(Splice(start=last_end, end=last_end, text=behind))
    return splices


def _part(text: str, kind: str = "text") -> str:
    return json.dumps({"type": kind, "text": text})
