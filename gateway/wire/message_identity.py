"""Digests of messages for conversation identity: each message is normalised, then hashed.

Clients do not send a reply back exactly as they received it. The changes they are known to make
(text as parts, null for empty, white space at the ends, re-serialised arguments, replaced call ids,
moved cache markers, one reply as two messages) do not change a digest; a change that a model could
notice does. Chat messages, Responses items and Anthropic messages are read alike. System and
developer messages have no digest, because clients write dates and repository states into them.
Nothing here raises on a malformed message."""

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from hashlib import blake2b

from gateway.values import Fields
from gateway.wire.body_prefix import KnownMessages
from gateway.wire.coerce import objects, text_at

# Stored prefix hashes are comparable only under one normalisation: a change needs a new number.
VERSION = b"gw-message-1"
# Source: with 128 bits a collision among 2^32 stored hashes has a probability of 2^-64.
DIGEST_BYTES = 16
_NOTHING_YET = blake2b(digest_size=DIGEST_BYTES, person=VERSION)

SYSTEM_ROLES = ("system", "developer")
RESULT_ROLES = ("tool", "function")
_TEXT_PARTS = ("text", "input_text", "output_text", None)
# Clients keep these, drop them or sign them again.
_VOLATILE_PARTS = ("thinking", "redacted_thinking", "reasoning", "refusal")
_CALL_ITEMS = ("function_call", "custom_tool_call")
_RESULT_ITEMS = ("function_call_output", "custom_tool_call_output")
# The type of an item that refers to one which the server stores, by its id.
REFERENCE = "item_reference"

# Responses clients drop or add these; cache markers move to the newest message on each call.
_VOLATILE_KEYS = ("cache_control", "id", "status")


def _number(text: str) -> float | int:
    """A JSON number as JavaScript clients write it: 1.0 becomes 1."""
    value = float(text)
    if value.is_integer():
        return int(value)
    return value


# What `json.JSONDecoder.decode` calls, without the four calls around it.
_scan: Callable[[str, int], tuple[object, int]] = vars(json.JSONDecoder(parse_float=_number))[
    "scan_once"
]
_serialise = json.JSONEncoder(
    sort_keys=True, separators=(",", ":"), ensure_ascii=False, check_circular=False, default=str
).encode


def digest_fields(*fields: str) -> bytes:
    """The digest of a tuple of texts, 16 bytes."""
    # Lengths keep ("ab", "c") and ("a", "bc") apart; JSON escapes can yield lone surrogates.
    return _digest("".join([f"{len(text)}:{text}" for text in fields]))


def _digest(joined: str) -> bytes:
    """Returns the digest of joined fields, from a cache for frequent ones."""
    digest = _NOTHING_YET.copy()
    digest.update(joined.encode("utf-8", "surrogatepass"))
    return digest.digest()


def digest_bytes(data: bytes) -> bytes:
    """The digest of bytes, 16 bytes."""
    digest = _NOTHING_YET.copy()  # half of what a new one takes
    digest.update(data)
    return digest.digest()


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
        if not text:
            return "{}"
        try:
            value, end = _scan(text, 0)
        except (ValueError, RecursionError, StopIteration):
            return text
        if end < len(text):
            return text
    if value is None:
        return "{}"
    return _written(value)


def _split(content: object) -> tuple[str, list[object]]:
    """(text of a message's content, its parts that are not text)."""
    if content is None:
        return "", []
    if isinstance(content, str):
        return content.strip(), []
    if not isinstance(content, list):
        return "", [content]
    texts = []
    others = []
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


class MessageReader:
    """Reads messages in order and digests their atoms; keeps the calls that await results. An atom
    is a text of one role, a tool call or a result; its digest has 16 bytes. A reply is a sequence
    of atoms, so it does not matter how a client divides it into messages. `turns` counts the
    assistant turns (consecutive assistant messages are one turn). `call_ids` are the ids of the
    latest turn's calls in order, "" for a call without one; `answered` counts their results."""

    def __init__(
        self, call_ids: Sequence[str], answered: int = 0, in_turn: bool = False, turns: int = 0
    ):
        self.call_ids: list[str] = []
        self._ordinals: dict[str, int] = {}
        for call_id in call_ids:
            self._expect(call_id)
        self.answered = answered
        self.in_turn = in_turn
        self.turns = turns

    def atoms(self, message: object) -> list[bytes]:
        """The digests of the next message's atoms; none for a system message or reasoning."""
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
        content = message.get("content")
        calls = []
        atoms = []
        if isinstance(content, str):
            if text := content.strip():
                atoms.append(_digest(f"4:says9:assistant{len(text)}:{text}"))
        else:
            text, others = _split(content)
            plain = [_canonical(part) for part in others if not _is_part(part, "tool_use")]
            calls += [part for part in others if _is_part(part, "tool_use")]
            if text or plain:
                atoms.append(digest_fields("says", "assistant", text, *plain))
        listed = message.get("tool_calls")
        if isinstance(listed, list):
            calls += listed
        if message.get("function_call"):
            calls.append(message["function_call"])
        atoms += map(self._call, calls)
        return atoms or [digest_fields("says", "assistant", "")]

    def _speaker(self, role: str, message: Mapping[str, object]) -> list[bytes]:
        text, others = _split(message.get("content"))
        atoms = []
        plain = []
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
            self._ordinals.clear()
            self.answered = 0

    def _expect(self, call_id: str) -> None:
        """The result of a call is to come."""
        self._ordinals.setdefault(call_id, len(self.call_ids))
        self.call_ids.append(call_id)

    def _call(self, call: object) -> bytes:
        if not isinstance(call, dict):
            self._expect("")
            return digest_fields("call", "", _canonical(call))
        call_id = call.get("call_id") or call.get("id")
        self._expect(call_id if isinstance(call_id, str) else "")
        inner = call.get("function") or call.get("custom")
        function = call
        if isinstance(inner, dict):
            function = inner
        name = function.get("name")
        arguments = function.get("arguments") or function.get("input")
        if isinstance(name, str):
            named = name
        else:
            named = _canonical(name)
        asked = _arguments(arguments)
        return _digest(f"4:call{len(named)}:{named}{len(asked)}:{asked}")

    def _result(self, call_id: object, content: object) -> bytes:
        ordinal = self.answered
        if isinstance(call_id, str) and call_id:
            ordinal = self._ordinals.get(call_id, ordinal)
        self.answered += 1
        self.in_turn = False
        number = str(ordinal)
        if isinstance(content, str):
            text = content.strip()
            return _digest(f"6:result{len(number)}:{number}{len(text)}:{text}")
        text, others = _split(content)
        return digest_fields("result", number, text, *map(_canonical, others))


def fold(atoms: Sequence[bytes]) -> bytes | None:
    """Returns one digest, 16 bytes, for the atoms of one message; None if it has no atoms."""
    if len(atoms) < 2:
        if atoms:
            return atoms[0]
        return None
    return digest_bytes(b"".join(atoms))


def reply_message(message: object) -> dict[str, object]:
    """A choice's `message` as the client is expected to send it back. Only the fields that have
    part in the digest are kept: `content`, `tool_calls` and `function_call`."""
    given = {}
    if isinstance(message, dict):
        given = message
    kept = {key: given[key] for key in ("content", "tool_calls", "function_call") if given.get(key)}
    return {"role": "assistant", **kept}


def content_text(content: object) -> str:
    """The text of a message's content: its parts joined, stripped of white space."""
    return _split(content)[0]


def is_result(message: object) -> bool:
    """Whether a message contains results of calls, in any dialect."""
    if not isinstance(message, dict):
        return False
    if message.get("role") in RESULT_ROLES or str(message.get("type")).endswith("_output"):
        return True
    content = message.get("content")
    return isinstance(content, list) and any(_is_part(part, "tool_result") for part in content)


def history(body: Mapping[str, object]) -> Sequence[object]:
    """The messages of a request body under their usual keys: `messages`, or `input`."""
    messages = body.get("messages", body.get("input"))
    if isinstance(messages, str):
        return [{"role": "user", "content": messages}]
    if isinstance(messages, (list, KnownMessages)):
        return messages
    return []


def system_text(body: Mapping[str, object], messages: Sequence[object]) -> str:
    """The system texts in fields of the body and in its first messages, one a line."""
    texts = [content_text(body.get("system")), content_text(body.get("instructions"))]
    for message in messages:
        if not isinstance(message, dict) or message.get("role") not in SYSTEM_ROLES:
            break
        texts.append(content_text(message.get("content")))
    return "\n".join(filter(None, texts))


def offered_tools(body: Mapping[str, object]) -> Iterator[Fields]:
    """Yields the tools (or legacy functions) that a request offers, in any dialect and in its
    order; the tools of a namespace one by one. Codex puts its tools into an item of the history,
    before the first message that is not the system's."""
    for key in ("tools", "functions"):
        yield from _flat(body.get(key))
    items = body.get("input")
    for item in items if isinstance(items, (list, KnownMessages)) else ():
        if not isinstance(item, dict) or item.get("role") not in SYSTEM_ROLES:
            break
        if item.get("type") == "additional_tools":
            yield from _flat(item.get("tools"))


def _flat(tools: object) -> Iterator[Fields]:
    for tool in tools if isinstance(tools, list) else ():
        if isinstance(tool, dict):
            if tool.get("type") == "namespace":
                yield from objects(tool.get("tools"))
            else:
                yield tool


def tool_names(body: Mapping[str, object]) -> tuple[str, ...]:
    """Names of the tools that a request offers. A tool without a name, such as one that the
    provider runs itself, is named by its type."""
    return tuple(map(_tool_name, offered_tools(body)))


def _tool_name(tool: Fields) -> str:
    inner = tool.get("function") or tool.get("custom")
    named = tool
    if isinstance(inner, dict):
        named = inner
    name = named.get("name")
    if isinstance(name, str) and name:
        return name
    return text_at(tool, "type")
