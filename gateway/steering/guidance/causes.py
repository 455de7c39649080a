"""The causes of trouble that monitor texts and patterns tell apart: `causes.json`.

Each cause has the words of the message that shows it, by language, and the texts of its severities.
The first cause in the file that fits is the one.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Set
from functools import cache
from importlib import resources

from msgspec import Struct

COUNTED = 2
"""From how many times on a text says how often; "1 x" says nothing."""


class Cause(Struct, frozen=True, kw_only=True):
    """One kind of trouble.

    `when`: what the newest step does: `failed`, `repeated`, `waiting`, `reworded`, `undone`,
    `talk`, `doubt`. `needs`: a property that the call must have, "" for none. `words`: one of them
    is in the message, in lower case; without words every message fits. `texts`: the move to
    suggest at severity 1, 2, ...
    """

    name: str
    when: str
    needs: str
    words: tuple[str, ...]
    texts: tuple[str, ...]


class _Causes(Struct, frozen=True):
    by_name: Mapping[str, Cause]
    openings: Mapping[str, tuple[str, str]]


def cause_of(when: str, properties: Set[str], message: str = "") -> Cause | None:
    """The first cause that fits a call with these properties, and its message in any case."""
    lowered = f" {message.lower()}"
    for cause in _causes().by_name.values():
        if cause.when != when or (cause.needs and cause.needs not in properties):
            continue
        if not cause.words or any(word in lowered for word in cause.words):
            return cause
    return None


def cause_names() -> tuple[str, ...]:
    """The names of all causes."""
    return tuple(_causes().by_name)


def opening(cause: Cause, count: int, quote: str) -> str:
    """The sentence that says what happened, with the quote and the count; "" when it is unknown.

    `quote` is shown between quotation marks; without one the part that needs it is left out.
    """
    openings = _causes().openings
    pair = openings.get(cause.name) or openings[cause.when]
    text = pair[count >= COUNTED].replace("{count}", str(count))
    if not quote:
        return text.replace(": {quote}", "").replace("{quote}", "")
    shown = '"' + quote.replace('"', "'") + '"'
    before = "" if ": {quote}" in text else ": "
    return text.replace("{quote}", before + shown)


@cache
def _causes() -> _Causes:
    source = resources.files("gateway.steering.guidance").joinpath("causes.json")
    data = json.loads(source.read_text(encoding="utf-8"))
    found = [
        Cause(
            name=each["cause"],
            when=each["when"],
            needs=each.get("needs", ""),
            words=tuple(w for words in each.get("words", {}).values() for w in words),
            texts=tuple(each["texts"]),
        )
        for each in data["causes"]
    ]
    openings = {when: (first, counted) for when, (first, counted) in data["openings"].items()}
    return _Causes(by_name={cause.name: cause for cause in found}, openings=openings)
