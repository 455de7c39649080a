"""Edits inside a text, found in linear time: `sed s`, here-documents, SEARCH/REPLACE blocks.

A model writes these texts, so none of them may be slow to read. What ends a form is looked for from
left to right, at most once per kind of ending, and never again for each place where one begins.
"""

from __future__ import annotations

import re
from bisect import bisect_left
from collections.abc import Iterator

# `sed -n -i -e 's/`. Real commands have one or two flags; the limits keep the search linear where
# one beginning is an argument of the one before.
_SED = re.compile(
    r"\bsed\s++(?:-\w++\s++){0,8}-(?=\w*i)\w++(?:\s++(?:-e|''|\"\")){0,8}+\s++"
    r"(['\"])s([/|#,@])"
)
_SED_DIVIDER = {mark: re.compile(rf"(?<!\\){re.escape(mark)}") for mark in "/|#,@"}
_SED_END = {
    (quote, mark): re.compile(rf"(?<!\\){re.escape(mark)}\w*+{quote}\s++([^\s;&|]++)")
    for quote in "'\""
    for mark in "/|#,@"
}

_HEREDOC_MARK = re.compile(
    r"<<-?\s*+(['\"]?)(\w++)\1[ \t]*+(?:>\s*+([^\s<]++)[ \t]*+)?\n", re.DOTALL
)
_HEREDOC_PROGRAM = re.compile(r"\b(?:cat|tee)\b")
_LINE_WORD = re.compile(r"\n(\w++)")
_FILE_NAME_END = re.compile(r"[\s<>]")

_BLOCK_OPENING = re.compile(r"(?<!<)<{5,}+\s*+SEARCH\s*\n")
_BLOCK_DIVIDER = re.compile(r"(?<!=)={5,}+\s*\n")
_BLOCK_END = re.compile(r"(?<!>)>{5,}+\s*+REPLACE")


def sed_substitutions(command: str) -> Iterator[tuple[str, str, str]]:
    """(file, old, new) of each `sed -i 's/old/new/' file`, whose expression is on one line."""
    ends: dict[tuple[str, str], re.Match[str] | None] = {}
    at, line_end = 0, -1
    while head := _SED.search(command, at):
        at = start = head.end()
        if line_end < start:
            line_end = command.find("\n", start)
            line_end = len(command) if line_end < 0 else line_end
        divider = _SED_DIVIDER[head[2]].search(command, start, line_end)
        if divider is None:
            continue
        key = (head[1], head[2])
        end = ends.get(key)
        if key not in ends or (end is not None and end.start() < divider.end()):
            end = ends[key] = _SED_END[key].search(command, divider.end())
        if end is not None and end.start() < line_end:
            yield end[1], command[start : divider.start()], command[divider.end() : end.start()]
            at = end.end()


def here_documents(command: str) -> Iterator[tuple[str, str]]:
    """(file, body) of each here-document that `cat` or `tee` gets; a file may be empty."""
    ends: dict[str, list[int]] | None = None
    at = least = 0
    while mark := _HEREDOC_MARK.search(command, at):
        at = mark.end()
        name = _heredoc_file(command, least, mark.start())
        if name is None:
            continue
        ends = _line_words(command) if ends is None else ends
        positions = ends.get(mark[2], [])
        found = bisect_left(positions, at)
        if found < len(positions):
            end = positions[found]
            yield name or mark[3] or "", command[at:end]
            at = least = end + 1 + len(mark[2])


def _line_words(text: str) -> dict[str, list[int]]:
    """Where lines begin with a word: word -> offsets of the line ends before it, rising."""
    ends: dict[str, list[int]] = {}
    for found in _LINE_WORD.finditer(text):
        ends.setdefault(found[1], []).append(found.start())
    return ends


def _heredoc_file(command: str, least: int, mark: int) -> str | None:
    """The file before the `<<` at `mark`, empty without one; None when `cat` or `tee` is not there.

    Read backwards: blanks, a name, perhaps `>`, and the line of the program. `least`: where the
    last here-document ended.
    """
    start = max(least, command.rfind("<", least, mark) + 1)
    before = command[start:mark].rstrip()
    name_start = _name_start(before)
    line = before[:name_start]
    stripped = line.rstrip()
    if stripped.endswith(">"):
        first = _line_start(stripped[:-1])
        if _HEREDOC_PROGRAM.search(command, start + first, start + len(stripped) - 1):
            return before[name_start:]
        first = name_start
    else:
        first = _line_start(line)
    program = _HEREDOC_PROGRAM.search(command, start + first, start + len(before))
    return None if program is None else before[max(name_start, program.end() - start) :]


def _name_start(text: str) -> int:
    """Where the name at the end of `text` starts."""
    at = len(text)
    while at > 0 and _FILE_NAME_END.match(text[at - 1]) is None:
        at -= 1
    return at


def _line_start(text: str) -> int:
    return max(text.rfind("\n"), text.rfind(">")) + 1


def search_replace_blocks(text: str) -> Iterator[tuple[str, str]]:
    """(old, new) of each SEARCH/REPLACE block."""
    at = 0
    while opening := _BLOCK_OPENING.search(text, at):
        divider = _BLOCK_DIVIDER.search(text, opening.end())
        end = _BLOCK_END.search(text, divider.end()) if divider else None
        if divider is None or end is None:
            return
        old = text[opening.end() : divider.start()].removesuffix("\n")
        yield old, text[divider.end() : end.start()].removesuffix("\n")
        at = end.end()
