"""Messages as identity sees them: normalised, then digested.

Clients do not echo a reply as they got it. What they are known to change (text as parts, null for
empty, white space at the ends, re-serialised arguments, replaced call ids, moved cache markers,
one reply as two messages) leaves a digest here as it is; what a model would read differently
changes it. Chat messages, Responses items and Anthropic messages are understood alike. System and
developer messages leave no trace, because clients write dates and states of work trees into them.
Nothing here raises on a malformed message.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from hashlib import blake2b

from gateway.wire.prefix import KnownMessages

# Stored heads stay comparable only under one normalisation: raise the number when it changes.
VERSION = b"gw-message-1"
# Source: 128 bits leave a collision unlikely (2^-64) among 2^32 stored heads.
DIGEST_BYTES = 16

SYSTEM_ROLES = ("system", "developer")
RESULT_ROLES = ("tool", "function")
_TEXT_PARTS = ("text", "input_text", "output_text", None)
# Clients keep, drop or re-sign these at will.
_VOLATILE_PARTS = ("thinking", "redacted_thinking", "reasoning", "refusal")
_CALL_ITEMS = ("function_call", "custom_tool_call")
_RESULT_ITEMS = ("function_call_output", "custom_tool_call_output")
REFERENCE = "item_reference"
"""The type of an item that stands for one which the server has, named by its id."""

# Dropped or added by Responses clients; cache markers move to the newest message on each call.
_VOLATILE_KEYS = ("cache_control", "id", "status")


def _number(text: str) -> float | int:
    """A JSON number as JavaScript clients write it back: 1.0 is 1."""
    value = float(text)
    return int(value) if value.is_integer() else value


_parse = json.JSONDecoder(parse_float=_number).decode
_serialise = json.JSONEncoder(
    sort_keys=True, separators=(",", ":"), ensure_ascii=False, default=str
).encode


def digest_fields(*fields: str) -> bytes:
    """Digest of a tuple of texts, 16 bytes."""
    # Lengths keep ("ab", "c") and ("a", "bc") apart; JSON escapes can yield lone surrogates.
    joined = "".join([f"{len(text)}:{text}" for text in fields])
    encoded = joined.encode("utf-8", "surrogatepass")
    return blake2b(encoded, digest_size=DIGEST_BYTES, person=VERSION).digest()


def _unmarked(value: object) -> object:
    if isinstance(value, dict):
        return {k: _unmarked(v) for k, v in value.items() if k != "cache_control"}
    if isinstance(value, list):
        return [_unmarked(v) for v in value]
    return value


def _written(value: object) -> str:
    try:
        return _serialise(value)
    except (TypeError, ValueError, RecursionError):
        return f"unreadable {type(value).__name__}"


def _canonical(value: object) -> str:
    """The value as canonical JSON without cache markers."""
    try:
        return _written(_unmarked(value))
    except RecursionError:
        return f"unreadable {type(value).__name__}"


def _arguments(value: object) -> str:
    """Arguments of a call as canonical JSON; text that is not JSON only loses outer space."""
    if isinstance(value, str):
        text = value.strip()
        try:
            value = _parse(text) if text else None
        except (ValueError, RecursionError):
            return text
    return "{}" if value is None else _written(value)


def _split(content: object) -> tuple[str, list[object]]:
    """Text of a message's content, and its parts that are not text."""
    if content is None:
        return "", []
    if isinstance(content, str):
        return content.strip(), []
    if not isinstance(content, list):
        return "", [content]
    texts, others = [], []
    for part in content:
        if isinstance(part, str):
            texts.append(part)
        elif not isinstance(part, dict):
            others.append(part)
        elif part.get("type") in _TEXT_PARTS and isinstance(part.get("text"), str):
            texts.append(part["text"])
        elif part.get("type") not in _VOLATILE_PARTS:
            others.append(part)
    return "".join(texts).strip(), others


def _is_part(value: object, kind: str) -> bool:
    return isinstance(value, dict) and value.get("type") == kind


class Reader:
    """Reads messages in order as digests of atoms, knowing which calls the next results answer.

    An atom is what somebody says, a call or a result, 16 bytes each. A reply is a row of atoms, so
    it does not matter how a client cuts it into messages. `turns` counts the assistant turns read
    (consecutive assistant messages are one), `call_ids` are those of the latest turn, in order, ""
    where the client sent none; `answered` counts their results.
    """

    __slots__ = ("answered", "call_ids", "in_turn", "turns")

    def __init__(
        self, call_ids: Sequence[str] = (), answered: int = 0, in_turn: bool = False, turns: int = 0
    ) -> None:
        self.call_ids = list(call_ids)
        self.answered = answered
        self.in_turn = in_turn
        self.turns = turns

    def atoms(self, message: object) -> list[bytes]:
        """The atoms of the next message; none for what leaves no trace."""
        if not isinstance(message, dict):
            return self._other("unreadable", _canonical(message))
        role = message.get("role")
        if role == "assistant":
            return self._assistant(message)
        if role in RESULT_ROLES:
            return [self._result(message.get("tool_call_id"), message.get("content"))]
        if role in SYSTEM_ROLES:
            return []
        if role is None and isinstance(message.get("type"), str):
            return self._item(message)
        return self._speaker(role if isinstance(role, str) else _canonical(role), message)

    def _assistant(self, message: Mapping[str, object]) -> list[bytes]:
        self._begin_turn()
        text, others = _split(message.get("content"))
        plain = [_canonical(part) for part in others if not _is_part(part, "tool_use")]
        calls = [part for part in others if _is_part(part, "tool_use")]
        listed = message.get("tool_calls")
        if isinstance(listed, list):
            calls += listed
        if message.get("function_call"):
            calls.append(message["function_call"])
        atoms = [digest_fields("says", "assistant", text, *plain)] if text or plain else []
        atoms += map(self._call, calls)
        return atoms or [digest_fields("says", "assistant", "")]

    def _speaker(self, role: str, message: Mapping[str, object]) -> list[bytes]:
        text, others = _split(message.get("content"))
        atoms, plain = [], []
        for part in others:
            if isinstance(part, dict) and _is_part(part, "tool_result"):
                atoms.append(self._result(part.get("tool_use_id"), part.get("content")))
            else:
                plain.append(_canonical(part))
        if text or plain or not atoms:
            atoms += self._other("says", role, text, *plain)
        return atoms

    def _item(self, item: Mapping[str, object]) -> list[bytes]:
        kind = item["type"]
        if kind in _CALL_ITEMS:
            self._begin_turn()
            return [self._call(item)]
        if kind in _RESULT_ITEMS:
            return [self._result(item.get("call_id"), item.get("output"))]
        if kind in _VOLATILE_PARTS:
            return []
        if kind == REFERENCE:
            return [digest_fields("reference", _canonical(item.get("id")))]
        kept = {key: value for key, value in item.items() if key not in _VOLATILE_KEYS}
        return [digest_fields("item", _canonical(kept))]

    def _other(self, *fields: str) -> list[bytes]:
        self.in_turn = False
        return [digest_fields(*fields)]

    def _begin_turn(self) -> None:
        if not self.in_turn:
            self.in_turn = True
            self.turns += 1
            self.call_ids.clear()
            self.answered = 0

    def _call(self, call: object) -> bytes:
        if not isinstance(call, dict):
            self.call_ids.append("")
            return digest_fields("call", "", _canonical(call))
        call_id = call.get("call_id") or call.get("id")
        self.call_ids.append(call_id if isinstance(call_id, str) else "")
        inner = call.get("function") or call.get("custom")
        function = inner if isinstance(inner, dict) else call
        name = function.get("name")
        arguments = function.get("arguments") or function.get("input")
        named = name if isinstance(name, str) else _canonical(name)
        return digest_fields("call", named, _arguments(arguments))

    def _result(self, call_id: object, content: object) -> bytes:
        known = isinstance(call_id, str) and call_id and call_id in self.call_ids
        ordinal = self.call_ids.index(str(call_id)) if known else self.answered
        self.answered += 1
        self.in_turn = False
        text, others = _split(content)
        return digest_fields("result", str(ordinal), text, *map(_canonical, others))


def fold(atoms: Sequence[bytes]) -> bytes | None:
    """One digest for the atoms of one message, 16 bytes; None when there are none."""
    if len(atoms) < 2:
        return atoms[0] if atoms else None
    return blake2b(b"".join(atoms), digest_size=DIGEST_BYTES, person=VERSION).digest()


def message_digest(message: object, call_ids: Sequence[str] = ()) -> bytes | None:
    """Digest of one message by itself, 16 bytes; None for what leaves no trace (system messages).

    `call_ids`: ids of the calls a tool message may answer, in order; its own is replaced by its
    place among them.
    """
    return fold(Reader(call_ids).atoms(message))


def reply_message(message: object) -> dict[str, object]:
    """A choice's `message`, whole or assembled from a stream, as the client will echo it at best.

    Only what the digest is made of is kept: `content`, `tool_calls`, `function_call`.
    """
    given = message if isinstance(message, dict) else {}
    kept = {key: given[key] for key in ("content", "tool_calls", "function_call") if given.get(key)}
    return {"role": "assistant", **kept}


def content_text(content: object) -> str:
    """The text of a message's content, its parts joined, white space at the ends cut."""
    return _split(content)[0]


def is_result(message: object) -> bool:
    """Whether a message brings results of calls, in any dialect."""
    if not isinstance(message, dict):
        return False
    if message.get("role") in RESULT_ROLES or str(message.get("type")).endswith("_output"):
        return True
    content = message.get("content")
    return isinstance(content, list) and any(_is_part(part, "tool_result") for part in content)


def history(body: Mapping[str, object]) -> Sequence[object]:
    """The transcript of a request body: `messages`, or the `input` items of a Responses request."""
    messages = body.get("messages", body.get("input"))
    if isinstance(messages, str):
        return [{"role": "user", "content": messages}]
    return messages if isinstance(messages, (list, KnownMessages)) else []


def system_text(body: Mapping[str, object]) -> str:
    """The system texts before the history and beside it, one a line."""
    texts = [content_text(body.get("system")), content_text(body.get("instructions"))]
    for message in history(body):
        if not isinstance(message, dict) or message.get("role") not in SYSTEM_ROLES:
            break
        texts.append(content_text(message.get("content")))
    return "\n".join(filter(None, texts))


def tool_names(body: Mapping[str, object]) -> tuple[str, ...]:
    """Names of the tools (or legacy functions) a request offers, in its order.

    A tool that has a type and no name, as those a provider runs itself, is named by its type.
    """
    names = []
    for key in ("tools", "functions"):
        offered = body.get(key)
        for tool in offered if isinstance(offered, list) else ():
            if isinstance(tool, dict):
                inner = tool.get("function")
                named = inner if isinstance(inner, dict) else tool
                names.append(str(named.get("name") or tool.get("type") or ""))
    return tuple(names)
