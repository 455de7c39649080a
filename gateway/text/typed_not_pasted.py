"""The sentences of a message that its person wrote, without what was pasted into it."""

import re
from collections.abc import Iterator, Sequence
from itertools import takewhile

from gateway.data_files import read_toml
from gateway.text.sentences import sentences

_BLOCK_LINES = 2  # of a paragraph that somebody types; longer ones are pasted
_MOST_WORDS = 40  # of a sentence
_LEAST_PLAIN = 0.6  # share of plain words in what a person wrote
TABLE = read_toml(__package__, "typed_words.toml")
_PRINTED = re.compile(TABLE["printed"])
_PASTED = re.compile(TABLE["pasted"])
_LISTED = re.compile(TABLE["listed"])
_REPORT = re.compile(TABLE["report"])
_FINISHED = re.compile(TABLE["finished"], re.DOTALL)
_STATED = re.compile(TABLE["stated"], re.DOTALL)
_CODE = re.compile(TABLE["code"])
_PLAIN = re.compile(TABLE["plain"])
_BLOCKS = re.compile(TABLE["blocks"])


def typed_sentences(text: str) -> Iterator[str]:
    """The sentences of a message that its person wrote: none of code, quotations and lists, none
    from the first line on that has the form of something pasted, and none of a report."""
    for paragraph in re.split(r"\n\s*\n", _BLOCKS.sub("\n\n", text)):
        lines = [line for line in paragraph.splitlines() if line.strip()]
        if len(lines) > _BLOCK_LINES:
            return
        for line in lines:
            if _PASTED.match(line) or _PRINTED.search(line):
                return
            if _LISTED.match(line):
                continue
            own = _REPORT.sub("", line)
            found = sentences(own)
            if not _is_report(found):
                own_words = takewhile(lambda each: not _STATED.fullmatch(each), found)
                yield from filter(_is_plain, own_words)
            if own != line:
                return


def _is_report(found: Sequence[str]) -> bool:
    finished = sum(_FINISHED.fullmatch(sentence) is not None for sentence in found)
    return finished == len(found) > 1 and any(map(_CODE.search, found))


def _is_plain(sentence: str) -> bool:
    words = sentence.split()
    plain = sum(_PLAIN.fullmatch(word) is not None for word in words)
    return plain >= _LEAST_PLAIN * len(words) and len(words) <= _MOST_WORDS and sentence[-1] != ":"
