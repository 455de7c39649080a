"""The arguments of one streamed tool call: fragments as they come in, sound text out."""

from __future__ import annotations

import json
import re

_MARK = re.compile(r"\\.|[\\\"{}\[\]]", re.DOTALL)
_EMPTY_SO_FAR = re.compile(r"\s*+\{?+\s*+\}?+\s*+")
_HELD_CHARS = 4096
"""Longest noise held back: it is read again with each fragment, and adapters send a few bytes."""


class _ObjectEnd:
    """Finds where the first JSON object of a text that comes in fragments ends."""

    __slots__ = ("_depth", "_escaped", "_quoted")

    def __init__(self) -> None:
        self._depth = 0
        self._quoted = False
        self._escaped = False

    def feed(self, text: str) -> int | None:
        """The offset in `text` just after the object; None when it does not end in `text`."""
        start, self._escaped = int(self._escaped), False
        for match in _MARK.finditer(text, start):
            mark = match.group()
            if mark == "\\":
                self._escaped = self._quoted
            elif mark == '"':
                self._quoted = not self._quoted
            elif len(mark) == 1 and not self._quoted:
                self._depth += 1 if mark in "{[" else -1
                if self._depth <= 0:
                    return match.end()
        return None


class ArgumentStream:
    """Passes on the arguments of one call, without the noise that some adapters add.

    Noise is an empty placeholder `{}` before the real object, and anything after it, such as the
    same object again or a final `{}`. Text that does not start as an object is not changed.
    """

    __slots__ = ("_end", "_free", "_held", "complete", "sent")

    def __init__(self) -> None:
        self.sent = False
        self._restart()

    def _restart(self) -> None:
        self._end = _ObjectEnd()
        self._free = False
        self._held = ""
        self.complete = False

    def push(self, text: str) -> str:
        """The part of the arguments received so far that can be sent now; often exactly `text`."""
        out = ""
        while text:
            if self.complete:
                if self.sent or not text.lstrip().startswith("{"):
                    break
                self._restart()
            piece = text if self._free else self._one_object(text)
            out += self._release(piece)
            text = text[len(piece) :]
        return out

    def _one_object(self, text: str) -> str:
        end = None
        if self.sent or (self._held + text).strip():
            if not self.sent and not (self._held + text).lstrip().startswith("{"):
                self._free = True
                return text
            end = self._end.feed(text)
        self.complete = end is not None
        return text if end is None else text[:end]

    def _release(self, piece: str) -> str:
        self._held += piece
        if not self.sent and not self._free and self._is_noise():
            return ""
        self.sent = self.sent or bool(self._held)
        out, self._held = self._held, ""
        return out

    def _is_noise(self) -> bool:
        return len(self._held) <= _HELD_CHARS and bool(_EMPTY_SO_FAR.fullmatch(self._held))

    def finish(self, *, cut: bool) -> str:
        """The text held back; a call without arguments gets `{}` unless a limit cut the reply."""
        out, self._held = self._held, ""
        if self.sent or cut or out.strip() == "{":
            return out
        self.sent = True
        return out if self.complete else "{}"


def arguments_text(value: object) -> str:
    """Arguments as a string, as the API has them: null is empty, an object is serialised."""
    if value is None:
        return ""
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
