"""Guidance into the messages of a body, as splices: nothing else of the client's text moves."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence

from gateway.wire.request import ChatRequest, Splice, array_spans, object_spans, skip_space


def insert_message(request: ChatRequest, position: int, role: str, text: str) -> Splice:
    """A message with `text` before the client's message `position`; their count = at the end.

    A list without messages takes one such splice, not several.
    """
    spans = request.message_spans
    literal = json.dumps({"role": role, "content": text})
    if position < len(spans):
        at = spans[position][0]
        return Splice(start=at, end=at, text=f"{literal}, ")
    if spans:
        at = spans[-1][1]
        return Splice(start=at, end=at, text=f", {literal}")
    at = skip_space(request.text, request.spans(request.list_key)[-1][0]) + 1
    return Splice(start=at, end=at, text=literal)


def append_to_message(
    request: ChatRequest,
    index: int,
    texts: Sequence[str],
    breakpoint: Mapping[str, str] | None = None,
    *,
    part_type: str = "text",
) -> list[Splice]:
    """`texts` as blocks of their own at the end of the content of message `index`.

    Text grows by a blank line and the text for each, a list of parts by a part for each; content
    that is absent, null or empty becomes the texts. With `breakpoint` the content becomes parts,
    and the last of the client's own carries it as its `cache_control`. `part_type`: what the
    dialect calls a part of text.
    """
    text = request.text
    start, _ = request.message_spans[index]
    found = [(s, e) for key, s, e in object_spans(text, start) if key == "content"]
    if not found:
        at = skip_space(text, start) + 1
        comma = "" if text[skip_space(text, at)] == "}" else ", "
        joined = json.dumps("\n\n".join(texts))
        return [Splice(start=at, end=at, text=f'"content": {joined}{comma}')]
    s, e = found[-1]
    if text[s] == "[" and text[skip_space(text, s + 1)] != "]":
        return _append_parts(text, s, [_part(t, part_type) for t in texts], breakpoint)
    if text[s] != '"' or text[s:e] == '""':
        return [Splice(start=s, end=e, text=json.dumps("\n\n".join(texts)))]
    if breakpoint is None:
        added = json.dumps("".join(f"\n\n{t}" for t in texts))[1:-1]
        return [Splice(start=e - 1, end=e - 1, text=added)]
    marker = json.dumps(dict(breakpoint))
    head = Splice(start=s, end=s, text='[{"type": "text", "text": ')
    parts = "".join(f", {_part(t)}" for t in texts)
    return [head, Splice(start=e, end=e, text=f', "cache_control": {marker}}}{parts}]')]


def _append_parts(
    text: str, start: int, added: Sequence[str], breakpoint: Mapping[str, str] | None
) -> list[Splice]:
    parts = list(array_spans(text, start))
    splices = []
    last_start, last_end = parts[-1]
    if breakpoint is not None and text[last_start] == "{":
        at = last_end - 1
        empty = text[skip_space(text, last_start + 1)] == "}"
        marker = f'"cache_control": {json.dumps(dict(breakpoint))}'
        splices.append(Splice(start=at, end=at, text=marker if empty else f", {marker}"))
    behind = "".join(f", {part}" for part in added)
    splices.append(Splice(start=last_end, end=last_end, text=behind))
    return splices


def _part(text: str, kind: str = "text") -> str:
    return json.dumps({"type": kind, "text": text})
