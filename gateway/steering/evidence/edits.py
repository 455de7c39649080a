"""Which files a call changes, and from what to what, in the forms of many editors."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from msgspec import Struct

from gateway.steering.evidence.embedded_edits import (
    here_documents,
    search_replace_blocks,
    sed_substitutions,
)
from gateway.steering.short_cache import remembered

# Argument names without their underscores and in lower case, the first that is there counts.
_PATH_KEYS = ("path", "filepath", "filename", "file", "targetfile", "notebookpath", "absolutepath")
_OLD_KEYS = ("oldstr", "oldstring", "oldtext", "search", "oldcontent", "find", "oldcode", "before")
_NEW_KEYS = (
    *("newstr", "newstring", "newtext", "replace", "replacement", "text", "newcode", "after"),
    *("insertline", "newsource"),
)
_WHOLE_KEYS = ("filetext", "content", "contents", "newcontent", "codeedit", "body", "source")
_PATCH_KEYS = ("patch", "diff", "input", "changes")

_EDIT_NAME = re.compile(
    r"edit|write|replace|patch|create|insert|overwrite|append|diff|update|modify|save",
    re.IGNORECASE,
)
_PATCH_FILE = re.compile(r"(?m)^(?:\*\*\* (?:Update|Add|Delete) File: |\+\+\+ (?:b/)?)(\S+)")
COMMAND_CHARS = 65_536
"""Characters of a command in which edits are looked for. Commands are shorter; a longer one is data
written to a file, and reading it all for its edits would take 0.5 s of CPU for 1 MB."""
PATCH_CHARS = 262_144
"""Characters of a patch in which edits are looked for: above what a model writes in one reply."""


class Edit(Struct, frozen=True, kw_only=True):
    """One change of one file; `old` and `new` are digests, 0 when the call did not state them."""

    path: str
    old: int
    new: int


def edits_of(operation: str, values: Any, arguments: str) -> tuple[Edit, ...]:
    """The edits that a call of an editing tool asks for; `values` are its parsed arguments."""
    if not _may_edit(operation):
        return ()
    if not isinstance(values, dict):
        return _patch_edits(arguments)
    given = _squeezed(values)
    path = _first_text(given, _PATH_KEYS)
    for key in _PATCH_KEYS:
        patch = given.get(key)
        if isinstance(patch, str):
            edits = _patch_edits(patch) or _block_edits(path, patch)
            if edits:
                return edits
    old, new = _old_and_new(given)
    region = given.get("lines") or given.get("insertline")
    path = f"{path}:{region}" if region and not old else path
    if not ((path and new) or old):
        return ()
    return (Edit(path=path, old=text_digest(old), new=text_digest(new)),)


@remembered
def _may_edit(operation: str) -> bool:
    return not operation.endswith(".view") and _EDIT_NAME.search(operation) is not None


def _old_and_new(given: Mapping[str, Any]) -> tuple[str, str]:
    several = given.get("edits")
    if not isinstance(several, list):
        new = _first_text(given, _NEW_KEYS) or _first_text(given, _WHOLE_KEYS)
        return _first_text(given, _OLD_KEYS), new
    parts = [_old_and_new(_squeezed(each)) for each in several if isinstance(each, dict)]
    return "\n".join([old for old, _ in parts]), "\n".join([new for _, new in parts])


def _block_edits(path: str, text: str) -> tuple[Edit, ...]:
    blocks = list(search_replace_blocks(text[:PATCH_CHARS]))
    if not blocks:
        return ()
    old, new = ("\n".join(side) for side in zip(*blocks, strict=True))
    return (Edit(path=path, old=text_digest(old), new=text_digest(new)),)


def command_edits(command: str) -> tuple[Edit, ...]:
    """The edits of a command that contains its file and content: patch, `sed s`, here-document."""
    command = command[:COMMAND_CHARS]
    if "*** Begin Patch" in command:
        return _patch_edits(command)
    if "<<" in command:
        return tuple(
            Edit(path=file, old=0, new=text_digest(body))
            for file, body in here_documents(command)
            if file
        )
    if "sed" not in command:
        return ()
    return tuple(
        Edit(path=file, old=text_digest(old), new=text_digest(new))
        for file, old, new in sed_substitutions(command)
    )


def _patch_edits(patch: str) -> tuple[Edit, ...]:
    parts = _PATCH_FILE.split(patch[:PATCH_CHARS])
    edits = []
    for path, body in zip(parts[1::2], parts[2::2], strict=False):
        lines = body.split("\n")
        old = "\n".join(line[1:] for line in lines if line.startswith("-") and line[:3] != "---")
        new = "\n".join(line[1:] for line in lines if line.startswith("+"))
        edits.append(Edit(path=path, old=text_digest(old), new=text_digest(new)))
    return tuple(edits)


def _squeezed(values: Mapping[str, Any]) -> dict[str, Any]:
    return {_bare(key): value for key, value in values.items()}


@remembered
def _bare(key: str) -> str:
    return key.replace("_", "").lower()


def _first_text(values: Mapping[str, Any], keys: tuple[str, ...]) -> str:
    for key in keys:
        if key in values:
            value = values[key]
            if isinstance(value, str) and value:
                return value
    return ""


def text_digest(text: str) -> int:
    """Digest of a text without the blanks around it, 0 for a blank one; holds in one process."""
    stripped = text.strip()
    return hash(stripped) if stripped else 0


def goes_back(edit: Edit, earlier: Sequence[Edit]) -> bool:
    """Whether an edit restores what an earlier one of the same file replaced; newest last."""
    if edit.old and edit.new:
        return any(past.old == edit.new and past.new == edit.old for past in earlier)
    if not edit.new or not earlier or earlier[-1].new == edit.new:
        return False
    return any(past.new == edit.new for past in earlier)
