"""A chat request over the client's own bytes: read through the parsed JSON, changed by splicing.

What is not edited leaves as the client wrote it, to the byte: unknown fields, key order, number
forms (`1.0`, 2^70), escapes and white space.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from json.decoder import JSONDecoder
from typing import Any, Final

from gateway.errors import BadRequest

_SPACE: Final = " \t\n\r"
_scan_once = JSONDecoder().scan_once  # type: ignore[attr-defined]  # the C scanner: (text, index) -> (value, end)

# Strings whole, so that brackets inside them do not count.
_TOKENS: Final = re.compile(r'"[^"\\]*(?:\\.[^"\\]*)*"|[\[\]{}]', re.DOTALL)

Span = tuple[int, int]


@dataclass(frozen=True, slots=True, kw_only=True)
class Splice:
    """Replace the characters `start` to `end` of the body's text by `text`."""

    start: int
    end: int
    text: str


class ChatRequest:
    """One chat-completions body. `raw` is never changed; edits give new bytes."""

    __slots__ = ("_message_spans", "_spans", "_text", "body", "list_key", "raw")

    def __init__(self, raw: bytes, body: dict[str, Any], list_key: str = "messages") -> None:
        self.raw = raw
        self.body = body
        self.list_key = list_key
        self._text: str | None = None
        self._spans: dict[str, list[Span]] | None = None
        self._message_spans: list[Span] | None = None

    @classmethod
    def parse(
        cls, raw: bytes, loads: Callable[[bytes], Any] | None = None, *, list_key: str = "messages"
    ) -> ChatRequest:
        """The request in `raw`; `loads` may be a faster parser than the standard library's.

        Raises:
            BadRequest: not JSON, not an object, or `model`, `stream` or the `list_key` of the
                wrong type; `param` names the key.
        """
        body = parse_object(raw, loads)
        model = body.get("model")
        if not isinstance(model, str) or not model:
            what = "is required" if model is None else "must be a non-empty string"
            raise BadRequest(f"'model' {what}", param="model")
        if not isinstance(body.get("stream"), (bool, type(None))):
            raise BadRequest("'stream' must be true or false", param="stream")
        if not isinstance(body.get(list_key), list):
            what = "must be an array" if list_key in body else "is required"
            raise BadRequest(f"{list_key!r} {what}", param=list_key)
        return cls(raw, body, list_key)

    @property
    def model(self) -> str:
        """The requested model name."""
        return str(self.body["model"])

    @property
    def stream(self) -> bool:
        """Whether the client asked for a stream."""
        return self.body.get("stream") is True

    @property
    def messages(self) -> list[Any]:
        """The messages as parsed; elements may be malformed."""
        messages = self.body.get(self.list_key)
        return messages if isinstance(messages, list) else []

    @property
    def wants_usage(self) -> bool:
        """Whether the client asked for the usage chunk of a stream."""
        options = self.body.get("stream_options")
        return isinstance(options, Mapping) and options.get("include_usage") is True

    @property
    def text(self) -> str:
        """The body as text; bytes that are not UTF-8 survive the way back."""
        if self._text is None:
            self._text = self.raw.decode("utf-8", "surrogateescape")
        return self._text

    def spans(self, key: str) -> list[Span]:
        """Where the values of top-level `key` stand in `text`; several when the key is repeated."""
        if self._spans is None:
            spans: dict[str, list[Span]] = {}
            for name, start, end in object_spans(self.text, 0, self._jumps()):
                spans.setdefault(name, []).append((start, end))
            self._spans = spans
        return self._spans.get(key, [])

    @property
    def message_spans(self) -> list[Span]:
        """Where each message stands in `text`."""
        if self._message_spans is None:
            spans = self.spans(self.list_key)
            self._message_spans = list(array_spans(self.text, spans[-1][0])) if spans else []
        return self._message_spans

    def know_message_spans(self, spans: list[Span]) -> None:
        """Take the spans from a caller that knows them, so that the messages need no new scan."""
        self._message_spans = spans

    def _jumps(self) -> Mapping[int, int]:
        """Start of the messages array -> an index inside it from which to look for its end."""
        if not self._message_spans:
            return {}
        start = self.text.rindex("[", 0, self._message_spans[0][0])
        return {start: self._message_spans[-1][1]}

    def set_value(self, key: str, value: Any) -> list[Splice]:
        """The splices that give top-level `key` the value, adding the key when it is absent."""
        literal = json.dumps(value, ensure_ascii=False)
        spans = self.spans(key)
        if spans:
            return [Splice(start=s, end=e, text=literal) for s, e in spans]
        end = self.text.rindex("}")
        comma = ", " if self.body else ""
        return [Splice(start=end, end=end, text=f"{comma}{json.dumps(key)}: {literal}")]

    def with_model(self, model: str) -> list[Splice]:
        """The splices that ask for another model."""
        return [] if model == self.model else self.set_value("model", model)

    def with_usage(self) -> list[Splice]:
        """The splices that ask for a stream's usage chunk, keeping the other stream options."""
        if not self.body.get("stream_options") or not isinstance(
            self.body["stream_options"], Mapping
        ):
            return self.set_value("stream_options", {"include_usage": True})
        start, _ = self.spans("stream_options")[-1]
        members = object_spans(self.text, start)
        found = [(s, e) for key, s, e in members if key == "include_usage"]
        if found:
            return [Splice(start=s, end=e, text="true") for s, e in found]
        return [Splice(start=start + 1, end=start + 1, text='"include_usage": true, ')]

    def render(self, splices: Iterable[Splice]) -> bytes:
        """The body with the splices applied; without any, the client's own bytes."""
        ordered = sorted(splices, key=lambda s: (s.start, s.end))
        if not ordered:
            return self.raw
        parts, at = [], 0
        for splice in ordered:
            parts += [self.text[at : splice.start], splice.text]
            at = splice.end
        parts.append(self.text[at:])
        return "".join(parts).encode("utf-8", "surrogateescape")


def parse_object(raw: bytes, loads: Callable[[bytes], Any] | None = None) -> dict[str, Any]:
    """The JSON object in `raw`.

    A fast parser may be stricter than JSON's grammar asks (lone surrogates, big integers); what it
    refuses is tried again with the standard library's before the client is told.

    Raises:
        BadRequest: not JSON (with line and column), or not an object.
    """
    try:
        body = loads(raw) if loads is not None else _loads(raw)
    except (ValueError, RecursionError):
        body = _loads(raw)
    if not isinstance(body, dict):
        raise BadRequest(f"the body must be a JSON object, got {_json_kind(body)}")
    return body


def _loads(raw: bytes) -> Any:
    try:
        return json.loads(raw.decode("utf-8", "surrogateescape"))
    except json.JSONDecodeError as exc:
        where = f"line {exc.lineno}, column {exc.colno}"
        raise BadRequest(f"the body is not valid JSON: {exc.msg} at {where}") from exc
    except (ValueError, RecursionError) as exc:
        raise BadRequest(
            "the body is not valid JSON: nested too deeply or too long a number"
        ) from exc


def _json_kind(value: Any) -> str:
    kinds: Sequence[tuple[Any, str]] = (
        (list, "an array"),
        (str, "a string"),
        (bool, "a boolean"),
        (type(None), "null"),
    )
    return next((name for kind, name in kinds if isinstance(value, kind)), "a number")


def object_spans(
    text: str, start: int, jumps: Mapping[int, int] | None = None
) -> Iterator[tuple[str, int, int]]:
    """(key, start, end) of each value in the object that begins at `start` or after white space.

    `text` must hold valid JSON there. `jumps`: start of an array -> the end of its last element,
    for arrays that need not be scanned again.
    """
    jumps = jumps or {}
    at = skip_space(text, start) + 1
    while True:
        at = skip_space(text, at)
        if text[at] == "}":
            return
        if text[at] == ",":
            at += 1
            continue
        key, at = _scan_once(text, at)
        at = skip_space(text, skip_space(text, at) + 1)
        end = skip_space(text, jumps[at]) + 1 if at in jumps else _value_end(text, at)
        yield key, at, end
        at = end


def array_spans(text: str, start: int) -> Iterator[Span]:
    """(start, end) of each element of the array that begins at `start` or after white space."""
    at = skip_space(text, start) + 1
    while True:
        at = skip_space(text, at)
        if text[at] == "]":
            return
        if text[at] == ",":
            at += 1
            continue
        end = _value_end(text, at)
        yield at, end
        at = end


def _value_end(text: str, at: int) -> int:
    """Where the value that starts at `at` ends."""
    try:
        end: int = _scan_once(text, at)[1]
    except RecursionError:
        return _nested_end(text, at)
    return end


def _nested_end(text: str, at: int) -> int:
    """The same for an array or object nested deeper than the scanner's recursion goes."""
    depth = 0
    for token in _TOKENS.finditer(text, at):
        if token[0] in ("[", "{"):
            depth += 1
        elif token[0] in ("]", "}"):
            depth -= 1
            if not depth:
                return token.end()
    raise ValueError(f"the value at character {at} does not end")


def skip_space(text: str, at: int) -> int:
    """The index of the first character at or after `at` that is not JSON white space."""
    while text[at] in _SPACE:
        at += 1
    return at
