"""The arguments of one tool call, as they come in fragments: what is real and what is noise."""

from __future__ import annotations

import json
import re

_MARK = re.compile(r"\\.|[\\\"{}\[\]]", re.DOTALL)
_EMPTY_SO_FAR = re.compile(r"\s*\{?\s*\}?\s*")


class _ObjectEnd:
    """Finds where the first JSON object of a text that comes in fragments ends."""

    __slots__ = ("_depth", "_escaped", "_quoted")

    def __init__(self) -> None:
        self._depth = 0
        self._quoted = False
        self._escaped = False

    def feed(self, text: str) -> int | None:
        """The offset in `text` just behind the object, or None when it goes on."""
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
    """The arguments of one call: what may be sent on, and what is noise.

    Noise is an empty placeholder `{}` in front of the real object, and anything behind it: the
    object once more, or a closing `{}`. Text that does not start as an object is left alone.
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
        """The part of the arguments so far that may be sent now; often exactly `text`."""
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
        if not self.sent and not self._free and _EMPTY_SO_FAR.fullmatch(self._held):
            return ""
        self.sent = self.sent or bool(self._held)
        out, self._held = self._held, ""
        return out

    def finish(self, *, cut: bool) -> str:
        """What was held back; a call without any arguments gets `{}` unless the reply was cut."""
        out, self._held = self._held, ""
        if self.sent or cut or out.strip() == "{":
            return out
        self.sent = True
        return out if self.complete else "{}"


def arguments_text(value: object) -> str:
    """Arguments as the string the API promises: null is empty, an object is serialised."""
    if value is None:
        return ""
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
