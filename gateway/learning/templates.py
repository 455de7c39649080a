"""The texts of mined lessons: templates of ours, with slots for the difference of two calls.

A slot shows names and options of a call in backticks, never a sentence that a model, a user or a
tool wrote. A slot that could do harm when it is followed makes the whole lesson void."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any

from gateway.text.secrets import MARK, find_secrets

SLOT_CHARS = 40  # longest text in a slot; no longer piece of a transcript is in any lesson

_HARMFUL = re.compile(
    r"""(?xi)
      \b[a-z][a-z0-9+.-]{0,20}:// | \bwww\. | \S@\S{1,80}\.\w | \b\d{1,3}(?:\.\d{1,3}){3}\b
    | \|\s{0,9}(?:sudo\s{1,9})?(?:\S{0,60}/)?(?:ba|z|da|k|fi)?sh\b
    | \|\s{0,9}(?:sudo\s{1,9})?(?:python|perl|ruby|node|php|xargs)
    | \b(?:curl|wget|nc|ncat|telnet|ssh|scp|eval|sudo|mkfs|shutdown|reboot|base64)\b
    | \brm\s{1,9}-\w{0,9}[rf] | \bdd\s{1,9}if= | \bchmod\s{1,9}(?:-R\s{1,9})?[0-7]{0,4}7 | \bchown\b
    | \bgit\s{1,9}(?:push|reset\s{1,9}--hard|clean) | --force\b | --no-verify\b
    | \b(?:drop|truncate)\s{1,9}(?:table|database) | \bdelete\s{1,9}from\b | /dev/sd
    | :\(\)\s{0,9}\{
    | steering[\s_-]*guidance | \bsystem-reminder\b | <\|
    """
)
"""Addresses, pipes into interpreters, destructive commands, and marks of our own."""

_PROGRAM = re.compile(r"[a-z0-9_.][a-z0-9_.+/-]{0,23}")
_FILE = re.compile(r"[A-Za-z_.][\w.+/-]{0,22}[._/-][\w.+/-]{0,22}\w")
_PLAIN = re.compile(r"[a-z][a-z0-9]{0,15}")
_OPTION = re.compile(r"--?[A-Za-z][\w-]{0,23}")
_VALUE = re.compile(r"[A-Za-z_.][A-Za-z_./-]{0,23}|\d{1,3}|true|false")
_NAME = re.compile(r"[A-Za-z_][\w.-]{0,39}")
_SEGMENT = re.compile(r"&&|\|\||;|\n|\|")
_QUOTED = re.compile(r"'[^']{0,4000}'|\"[^\"]{0,4000}\"|['\"].*", re.DOTALL)
_INTERPRETER = re.compile(
    r"(?:\S*/)?(?:python[\d.]*|node|ruby|perl|php|java|bash|sh|Rscript)(?: |$)"
)
_SKIPPED = frozenset({"cd", "export", "source", ".", "set", "echo"})
_LEFT_OUT = "..."
_MOST_NAMES = 3


def slot(text: str) -> str | None:
    """`text` for a slot, or None when it may not be shown."""
    text = " ".join(text.replace("`", "'").split())
    if not text.isprintable() or _HARMFUL.search(text) is not None or has_secret(text):
        return None
    cut = text if len(text) <= SLOT_CHARS else text[: SLOT_CHARS - 3].rstrip() + _LEFT_OUT
    return f"`{cut}`"


def harmful(text: str) -> bool:
    """Whether a text names what no lesson may suggest."""
    return _HARMFUL.search(text) is not None


def command_shape(command: str) -> str:
    """The program of a shell command with its options, files and at most one plain word. Empty for
    what does not look like a command: a sentence is not shown as one."""
    bare = _QUOTED.sub(f" {_LEFT_OUT} ", command)
    segments = [part.split() for part in _SEGMENT.split(bare)]
    words = next((s for s in segments if s and s[0] not in _SKIPPED), [])
    if not words or _PROGRAM.fullmatch(words[0]) is None:
        return ""
    shown, plain = [words[0]], 0
    for word in words[1:]:
        kept = _OPTION.fullmatch(word) or (_FILE.fullmatch(word) and word.count("/") < 3)
        if not kept and _PLAIN.fullmatch(word) and not plain:
            kept, plain = True, 1
        if kept or shown[-1] != _LEFT_OUT:
            shown.append(word if kept else _LEFT_OUT)
    return " ".join(shown)


def command_of(arguments: str) -> str | None:
    """The shell command in a call's arguments, None where there is none."""
    values = parse(arguments)
    if values is None:
        return arguments if arguments and arguments[0] not in "{[" else None
    for key in ("command", "cmd", "script", "code", "input", "commandline"):
        value = values.get(key)
        if isinstance(value, str):
            return value
        if isinstance(value, list):
            parts = [str(part) for part in value]
            return parts[2] if len(parts) == 3 and parts[1] in ("-c", "-lc") else " ".join(parts)
    return None


def parse(arguments: str) -> Mapping[str, Any] | None:
    """The arguments as a JSON object, None for anything else."""
    try:
        values = json.loads(arguments)
    except (ValueError, RecursionError):
        return None
    return values if isinstance(values, Mapping) else None


def difference(before: str, after: str, *, shell: bool) -> str | None:
    """Difference between the call that worked and the one that failed, in words with slots. Empty
    when it cannot be said without the content of the call; None when it may not be said."""
    if shell:
        earlier, later = command_of(before), command_of(after)
        if earlier is None or later is None:
            return ""
        if harmful(later) or has_secret(later):
            return None
        failed, worked = command_shape(earlier), command_shape(later)
        if failed == worked or not worked:
            return ""
        if _options(failed) == _options(worked) and _INTERPRETER.match(worked):
            return ""  # another script was run: that says nothing about the first
        command = slot(worked)
        return None if command is None else f"as {command}"
    old, new = parse(before), parse(after)
    if old is None or new is None:
        return ""
    parts, others = [], []
    names = (name for name in {**old, **new} if _NAME.fullmatch(name))
    changed = [name for name in names if old.get(name) != new.get(name)]
    for name in changed[:_MOST_NAMES]:
        value = new.get(name)
        text = str(value).lower() if isinstance(value, bool) else str(value)
        if name not in old:
            parts.append(f"with `{name}` added")
        elif name not in new:
            parts.append(f"without `{name}`")
        elif not _VALUE.fullmatch(text):
            others.append(f"`{name}`")
        elif shown := slot(text):
            parts.append(f"with {shown} as `{name}`")
        else:
            return None
    if others:
        parts.append(f"with another {' and '.join(others)}")
    return ", ".join(parts)


def _options(shape: str) -> tuple[str, ...]:
    return tuple(word for word in shape.split() if not _FILE.fullmatch(word) and word != _LEFT_OUT)


_TEXTS = {
    "fixed": "In an earlier run the same call of `{head}` worked {how}{after}.",
    "repaired": "In an earlier run the same call of `{head}` worked after a change{where} with "
    "`{changer}`.",
    "refused": "In an earlier run `{head}` failed several times in this way, and no variation of "
    "the call helped. Look for the cause, or go another way.",
    "nothing": "In an earlier run `{head}` found nothing several times, and no variation of the "
    "call helped. What is looked for may be elsewhere, or not there.",
    "elsewhere": "`{head}` found nothing in an earlier run; `{instead}` with the same arguments "
    "did.",
    "replaced": "`{head}` was not there in an earlier run; {instead} worked.",
    "repeated": "Sending the same call of `{head}` again: it failed in the same way.",
    "situation": "`{head}`: {words}.",
}


def say(name: str, head: str, **slots: str) -> str:
    """A text about the failure of a tool or program; `$` in front of names is left out."""
    shown = {slot: text.lstrip("$") for slot, text in {"head": head, **slots}.items()}
    return _TEXTS[name].format(**shown)


def is_file_name(text: str) -> bool:
    """Whether a text may be shown as the name of a file."""
    return _FILE.fullmatch(text) is not None


def has_secret(text: str) -> bool:
    """True where the one detector finds a secret, or has masked one before."""
    return MARK in text or bool(find_secrets(text))
