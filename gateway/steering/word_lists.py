"""The word lists, in several scripts, for reading transcripts and results: `word_lists.json`."""

import json
from functools import cache

from gateway.data_files import read_text


def word_list(module: str, name: str) -> tuple[str, ...]:
    """The list `name` of a module, in the order of the file; of all languages where it has them."""
    words = _lists()[module][name]
    if isinstance(words, dict):
        words = list(dict.fromkeys(word for each in words.values() for word in each))
    return tuple(words)


@cache
def _lists() -> dict[str, dict[str, list[str] | dict[str, list[str]]]]:
    return json.loads(read_text(__package__, "word_lists.json"))  # type: ignore[no-any-return]
