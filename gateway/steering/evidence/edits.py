"""Files that a call changes, with old and new text, in the forms of many editors."""

import re
from bisect import bisect_left
from collections.abc import Iterator
from typing import Any

from gateway.core.short_cache import remembered
from gateway.core.step import FileEdit
from gateway.values import FieldDict, Fields

# `sed -n -i -e 's/`: the limits keep the search linear, real commands have one or two flags.
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
    at = 0
    line_end = -1
    while head := _SED.search(command, at):
        at = start = head.end()
        if line_end < start:
            line_end = command.find("\n", start)
            if line_end < 0:
                line_end = len(command)
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
        if ends is None:  # the line ends before each word that begins a line
            ends = {}
            for word in _LINE_WORD.finditer(command):
                ends.setdefault(word[1], []).append(word.start())
        positions = ends.get(mark[2], [])
        found = bisect_left(positions, at)
        if found < len(positions):
            end = positions[found]
            yield name or mark[3] or "", command[at:end]
            at = least = end + 1 + len(mark[2])


def _heredoc_file(command: str, least: int, mark: int) -> str | None:
    """The file before the `<<` at `mark`, "" without one; None when `cat` or `tee` is not there.
    Reads backwards to `least`: blanks, a name, perhaps `>`, and the line of the program."""
    start = max(least, command.rfind("<", least, mark) + 1)
    before = command[start:mark].rstrip()
    name_start = len(before)
    while name_start > 0 and _FILE_NAME_END.match(before[name_start - 1]) is None:
        name_start -= 1
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
    if program is None:
        return None
    return before[max(name_start, program.end() - start) :]


def _line_start(text: str) -> int:
    return max(text.rfind("\n"), text.rfind(">")) + 1


def search_replace_blocks(text: str) -> Iterator[tuple[str, str]]:
    """(old, new) of each SEARCH/REPLACE block."""
    at = 0
    while opening := _BLOCK_OPENING.search(text, at):
        divider = _BLOCK_DIVIDER.search(text, opening.end())
        end = None
        if divider:
            end = _BLOCK_END.search(text, divider.end())
        if divider is None or end is None:
            return
        old = text[opening.end() : divider.start()].removesuffix("\n")
        yield old, text[divider.end() : end.start()].removesuffix("\n")
        at = end.end()


# Argument names in lower case without underscores; the first that is present counts.
_PATH_KEYS = ("path", "filepath", "filename", "file", "targetfile", "notebookpath", "absolutepath")
_OLD_KEYS = ("oldstr", "oldstring", "oldtext", "search", "oldcontent", "find", "oldcode", "before")
_NEW_KEYS = (
    "newstr",
    "newstring",
    "newtext",
    "replace",
    "replacement",
    "text",
    "newcode",
    "after",
    "insertline",
    "newsource",
    "filetext",
    "content",
    "contents",
    "newcontent",
    "codeedit",
    "body",
    "source",
    "code",
)
_PATCH_KEYS = ("patch", "diff", "input", "changes")

_EDIT_NAME = re.compile(
    r"edit|write|replace|patch|create|insert|overwrite|append|diff|update|modify|save", re.I
)
_PATCH_FILE = re.compile(r"(?m)^(?:\*\*\* (?:Update|Add|Delete) File: |\+\+\+ (?:b/)?)(\S+)")
# Characters in which edits are looked for. A longer command is data written to a file, which would
# take 0.5 s of CPU for 1 MB; a model writes no longer patch in one reply.
COMMAND_CHARS = 65_536
PATCH_CHARS = 262_144


def _edit(path: str, old: str, new: str) -> FileEdit:
    """Returns the edit with the digests of both texts, blanks at their ends removed; the digests
    hold within one process."""
    before, after = (hash(text) if (text := side.strip()) else 0 for side in (old, new))
    return FileEdit(path=path, old=before, new=after, is_line="\n" not in new.strip())


def edits_of(operation: str, values: Any, arguments: str) -> tuple[FileEdit, ...]:
    """The edits that a call of an editing tool asks for; `values` are its parsed arguments."""
    if not _may_edit(operation):
        return ()
    if not isinstance(values, dict):
        return _patch_edits(arguments)
    given = _squeezed(values)
    path = _first_text(given, _PATH_KEYS)
    for key in _PATCH_KEYS:
        if not isinstance(patch := given.get(key), str):
            continue
        if edits := _patch_edits(patch):
            return edits
        if blocks := list(search_replace_blocks(patch[:PATCH_CHARS])):
            old, new = ("\n".join(side) for side in zip(*blocks, strict=True))
            return (_edit(path, old, new),)
        if path and patch:
            return (_edit(path, "", patch[:PATCH_CHARS]),)
    old, new = _old_and_new(given)
    region = given.get("lines") or given.get("insertline")
    if region and not old:
        path = f"{path}:{region}"
    if (path and new) or old:
        return (_edit(path, old, new),)
    return ()


@remembered
def _may_edit(operation: str) -> bool:
    return not operation.endswith(".view") and _EDIT_NAME.search(operation) is not None


def _old_and_new(given: Fields) -> tuple[str, str]:
    several = given.get("edits")
    if not isinstance(several, list):
        return _first_text(given, _OLD_KEYS), _first_text(given, _NEW_KEYS)
    parts = [_old_and_new(_squeezed(each)) for each in several if isinstance(each, dict)]
    return "\n".join([old for old, _ in parts]), "\n".join([new for _, new in parts])


def command_edits(command: str) -> tuple[FileEdit, ...]:
    """The edits of a command that contains its file and content: patch, `sed s`, here-document."""
    command = command[:COMMAND_CHARS]
    if "*** Begin Patch" in command:
        return _patch_edits(command)
    if "<<" in command:
        return tuple(_edit(file, "", body) for file, body in here_documents(command) if file)
    if "sed" in command:
        return tuple(_edit(*edit) for edit in sed_substitutions(command))
    return ()


def _patch_edits(patch: str) -> tuple[FileEdit, ...]:
    parts = _PATCH_FILE.split(patch[:PATCH_CHARS])
    edits = []
    for path, body in zip(parts[1::2], parts[2::2], strict=False):
        lines = body.split("\n")
        old = "\n".join(line[1:] for line in lines if line.startswith("-") and line[:3] != "---")
        new = "\n".join(line[1:] for line in lines if line.startswith("+"))
        edits.append(_edit(path, old, new))
    return tuple(edits)


def _squeezed(values: Fields) -> FieldDict:
    return {_bare(key): value for key, value in values.items()}


@remembered
def _bare(key: str) -> str:
    return key.replace("_", "").lower()


def _first_text(values: Fields, keys: tuple[str, ...]) -> str:
    for key in keys:
        if isinstance(value := values.get(key), str) and value:
            return value
    return ""
