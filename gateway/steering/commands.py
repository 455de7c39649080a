"""What a tool call does: its operation, the program it runs, the files it changes."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any


def _words(text: str) -> frozenset[str]:
    return frozenset(text.split())


_MAX_JSON_CHARS = 200_000
_COMMAND_CHARS = 400
_SUBCOMMAND_CHARS = 24
_SQUEEZED_CHARS = 1000

SHELL_TOOLS = _words(
    "bash shell sh terminal execute_bash run_command cmd run_shell_command "
    "execute_command exec local_shell run_in_terminal run powershell console "
    "container.exec"
)
_COMMAND_KEYS = ("command", "cmd", "script", "code", "input")
_PATH_KEYS = ("path", "file_path", "filepath", "filename", "file", "target_file", "notebook_path")
_OLD_KEYS = ("old_str", "old_string", "old_text", "oldText", "search", "old_content", "find")
_NEW_KEYS = ("new_str", "new_string", "new_text", "newText", "replace", "replacement", "text")
_WHOLE_KEYS = ("file_text", "content", "contents", "new_content", "code_edit")
_PATCH_KEYS = ("patch", "diff", "input")

_READERS = _words(
    "cat head tail less more sed awk grep egrep rg ag find ls tree nl wc diff open "
    "view goto read scroll_down scroll_up search_dir search_file find_file "
    "read_file list_dir grep_search glob file_search codebase_search list_files "
    "search_files readfile"
)
_EDIT_NAME = re.compile(r"edit|write|replace|patch|create|insert|overwrite|append", re.IGNORECASE)
_SKIPPED_WORDS = _words("cd export source . set sudo time timeout env nohup exec then do")
_SEGMENT = re.compile(r"&&|\|\||;|\n|\|")
_ASSIGNMENT = re.compile(r"(?:\w+=\S*\s+)+")
_CHANGES_FILES = re.compile(
    r"(?<![0-9&2])>{1,2}\s*(?!&|/dev/null)\S|\bsed\s+(?:-\w+\s+)*-\w*i|\btee\b"
    r"|\b(?:rm|mv|cp|touch|mkdir)\s"
    r"|\bgit\s+(?:apply|checkout|stash|reset|restore|revert)\b|\bpatch\b|\binstall\b|\bcreate\b"
)
_CHANGERS = _words("sed tee rm mv cp touch mkdir git patch install create")
_PROGRAMS = re.compile(
    r"(?:python[\d.]*|node|deno|bun|ruby|perl|php|java|go|cargo|dotnet|mvnw?|gradlew?|make|cmake"
    r"|ctest|npm|npx|yarn|pnpm|pytest|py\.test|tox|nox|jest|vitest|rspec|phpunit|tsc|javac|gcc"
    r"|g\+\+|bash|sh)$"
)
_TEST_NAME = re.compile(r"(?:^|[_\W])tests?(?:$|[_\W])|pytest|run_?tests?")
_PLUMBING = re.compile(
    r"\s*2>&1|\s*\|\s*(?:head|tail|grep|less|cat)\b[^|;&]*|^\s*cd\s+\S+\s*(?:&&|;)\s*"
)
_PATCH_FILE = re.compile(r"(?m)^(?:\*\*\* (?:Update|Add|Delete) File: |\+\+\+ (?:b/)?)(\S+)")


@dataclass(frozen=True, slots=True, kw_only=True)
class Edit:
    """One change of one file; `old` and `new` are digests, 0 when the call did not state them."""

    path: str
    old: int
    new: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Call:
    """A tool call, read.

    `operation` is the tool, with its sub-command or, for a shell, the program it starts.
    `canonical` is the arguments' text independent of key order and spacing. `program` identifies
    what is executed, None when nothing is; `changes` says that files may differ afterwards.
    """

    operation: str
    canonical: str
    reads_content: bool
    program: str | None
    changes: bool
    edits: tuple[Edit, ...]


def read_call(name: str, arguments: str) -> Call:
    """The call as an operation on the world. Never raises; unknown tools give an empty effect."""
    values = _parse(arguments)
    canonical = _canonical(values, arguments)
    command = _shell_command(name, values, arguments)
    if command is not None:
        return _shell_call(command, canonical)
    operation = _operation(name, values)
    edits = _edits(operation, values, arguments)
    return Call(
        operation=operation,
        canonical=canonical,
        reads_content=operation.rsplit(".", 1)[-1].lower() in _READERS,
        program=f"{operation} {canonical}" if _names_test(name) else None,
        changes=bool(edits),
        edits=edits,
    )


def _parse(arguments: str) -> Any:
    if arguments[:1] not in ("{", "[") or len(arguments) > _MAX_JSON_CHARS:
        return None
    try:
        return json.loads(arguments)
    except (ValueError, RecursionError):
        return None


def _canonical(values: Any, arguments: str) -> str:
    if isinstance(values, dict):
        return " ".join(f"{key}={_plain(values[key])}" for key in sorted(values))
    return " ".join(arguments.split())


def _plain(value: Any) -> str:
    text = value if isinstance(value, str) else json.dumps(value, sort_keys=True)
    return text if len(text) > _SQUEEZED_CHARS else " ".join(text.split())


def _shell_command(name: str, values: Any, arguments: str) -> str | None:
    lowered = name.lower()
    if lowered not in SHELL_TOOLS:
        return None
    if not isinstance(values, Mapping):
        return arguments if values is None else None
    for key in _COMMAND_KEYS:
        value = values.get(key)
        if isinstance(value, str):
            return value
        if isinstance(value, list):
            return " ".join(str(part) for part in value)
    return None


def _shell_call(command: str, canonical: str) -> Call:
    head = command[:_COMMAND_CHARS]
    word = _first_program(head)
    may_change = ">" in head or not _CHANGERS.isdisjoint(head.split())
    changes = may_change and _CHANGES_FILES.search(head) is not None
    executes = _PROGRAMS.match(word) is not None or _names_test(head)
    reads = word in _READERS and not changes
    return Call(
        operation=f"${word}",
        canonical=canonical,
        reads_content=reads,
        program=_PLUMBING.sub("", head).strip() if executes and not reads else None,
        changes=changes,
        edits=(),
    )


def _names_test(text: str) -> bool:
    lowered = text.lower()
    return "test" in lowered and _TEST_NAME.search(lowered) is not None


def _first_program(command: str) -> str:
    """The first word that does something: past `cd`, assignments and wrappers."""
    for segment in _SEGMENT.split(command):
        words = _ASSIGNMENT.sub("", segment.strip() + " ").split()
        while words and (words[0] in _SKIPPED_WORDS or words[0].isdigit()):
            words = [] if words[0] in ("cd", "export", "source", ".", "set") else words[1:]
        if words and not words[0].startswith("#"):
            return words[0].rsplit("/", 1)[-1]
    return "sh"


def _operation(name: str, values: Any) -> str:
    if isinstance(values, Mapping):
        sub = values.get("command")
        if isinstance(sub, str) and 0 < len(sub) <= _SUBCOMMAND_CHARS and " " not in sub:
            return f"{name}.{sub}"
    return name


def _edits(operation: str, values: Any, arguments: str) -> tuple[Edit, ...]:
    if operation.endswith(".view") or _EDIT_NAME.search(operation) is None:
        return ()
    if not isinstance(values, Mapping):
        return _patch_edits(arguments)
    for key in _PATCH_KEYS:
        patch = values.get(key)
        if isinstance(patch, str) and _PATCH_FILE.search(patch):
            return _patch_edits(patch)
    path = _first_text(values, _PATH_KEYS)
    several = values.get("edits")
    if isinstance(several, list):
        old = "\n".join(_first_text(e, _OLD_KEYS) for e in several if isinstance(e, Mapping))
        new = "\n".join(_first_text(e, _NEW_KEYS) for e in several if isinstance(e, Mapping))
    else:
        old = _first_text(values, _OLD_KEYS)
        new = _first_text(values, _NEW_KEYS) or _first_text(values, _WHOLE_KEYS)
        region = values.get("lines") or values.get("insert_line")
        path = f"{path}:{region}" if region and not old else path
    if not (path or old or new):
        return ()
    return (Edit(path=path, old=text_digest(old), new=text_digest(new)),)


def _patch_edits(patch: str) -> tuple[Edit, ...]:
    parts = _PATCH_FILE.split(patch)
    edits = []
    for path, body in zip(parts[1::2], parts[2::2], strict=False):
        lines = body.split("\n")
        old = "\n".join(line[1:] for line in lines if line.startswith("-") and line[:3] != "---")
        new = "\n".join(line[1:] for line in lines if line.startswith("+"))
        edits.append(Edit(path=path, old=text_digest(old), new=text_digest(new)))
    return tuple(edits)


def _first_text(values: Mapping[str, Any], keys: tuple[str, ...]) -> str:
    for key in keys:
        value = values.get(key)
        if isinstance(value, str) and value:
            return value
    return ""


def text_digest(text: str) -> int:
    """Digest of a text without the blanks around it, 0 for a blank one; holds in one process."""
    stripped = text.strip()
    return hash(stripped) if stripped else 0
