"""A provider's answers in the form that LiteLLM's adapters can read. Pure.

The adapters raise at a field of an unexpected type, at any depth, although nothing of the answer
depends on it. So a count that is none, an odd role or a null list are left out here; what the
fields mean is not changed, and fields that are not known are kept."""

import json
from contextlib import suppress
from typing import Any

import orjson

from gateway.values import FieldDict, Fields
from gateway.wire.coerce import (
    as_int,
    as_list,
    as_mapping,
    as_number,
    as_text,
    list_at,
    mapping_at,
    objects,
)
from gateway.wire.toolcalls import arguments_text

_TEXTS = ("id", "object", "model", "system_fingerprint", "service_tier")
_OPTIONAL = ("annotations", "images", "thinking_blocks", "reasoning_details", "tool_calls")
_OPTIONAL_MAPPINGS = ("audio", "function_call", "provider_specific_fields")
_OPTIONAL_TEXTS = ("reasoning_content", "reasoning", "refusal")
_STARTS = frozenset({"message_start", "content_block_start", "content_block_delta"})
_OF_MESSAGES = _STARTS | {"content_block_stop", "message_delta", "message_stop", "message", "ping"}
_BLOCK_TEXTS = ("text", "thinking", "signature", "data", "partial_json")


MOST_DEEP = 200  # LiteLLM's models cut what is deeper than 255 off, without an error


class TooDeep(ValueError):
    """JSON that is nested deeper than can be translated."""


def parsed(data: bytes) -> Any:
    """The JSON value in `data`, whose text may have bytes that are no UTF-8. Raises: TooDeep: it is
    nested deeper than can be parsed; ValueError: it is no JSON."""
    try:
        return orjson.loads(data)
    except ValueError:
        try:
            return json.loads(data.decode("utf-8", "replace").removeprefix("\ufeff"), strict=False)
        except RecursionError as exc:
            raise TooDeep("nested too deep") from exc


def refuse_depth(value: Any) -> None:
    """Raises: TooDeep: an answer in one piece is nested deeper than can be translated."""
    level = [value]
    for _ in range(MOST_DEEP):
        lists = [each.values() if isinstance(each, dict) else as_list(each) for each in level]
        if not (level := [inner for each in lists for inner in each]):
            return
    raise TooDeep("nested too deep")


def encoded(value: Any) -> bytes:
    """JSON in ASCII, without the marks that LiteLLM looks for in the text of a line. Its line
    reader takes U+2028 and the like for line ends, and `[DONE]` anywhere for the end."""
    return json.dumps(value, separators=(",", ":")).replace("[DONE]", "[DONE\\u005d").encode()


def normal(value: Any) -> Any:
    """The normal form of an answer, or of an event, that is known here; else the value as it is."""
    if not isinstance(value, dict):
        return value
    if not value.get("error"):
        value.pop("error", None)
    if _is_chat(value):
        return _chat(value)
    if is_known(value):
        return _messages(value)
    return value


def is_known(value: Any) -> bool:
    """Whether a value is an answer, or a part of one, in a form that is known here."""
    if not isinstance(value, dict):
        return False
    kind = value.get("type")
    return _is_chat(value) or (isinstance(kind, str) and kind in _OF_MESSAGES)


def _is_chat(value: FieldDict) -> bool:
    return not value.get("error") and (
        "choices" in value or str(value.get("object")).startswith("chat.")
    )


def _chat(answer: FieldDict) -> FieldDict:
    _keep_texts(answer, _TEXTS)
    if "created" in answer and as_int(answer["created"], None) is None:
        created = as_number(answer.pop("created"), None)
        if created is not None and created == created and abs(created) < 2**53:
            answer["created"] = int(created)
    _set_usage(answer)
    choices = list_at(answer, "choices")
    whole = any("message" in as_mapping(choice) for choice in choices)
    streamed = answer.get("object") == "chat.completion.chunk" or not whole
    # Adapters read these without looking.
    if streamed:
        for name, nothing in (("id", ""), ("created", 0), ("model", "")):
            answer.setdefault(name, nothing)
    else:
        answer.setdefault("service_tier", None)
    answer["choices"] = [
        _choice(choice, at, streamed=streamed)
        for at, choice in enumerate(choices)
        if isinstance(choice, dict)
    ]
    return answer


def _choice(choice: FieldDict, at: int, *, streamed: bool) -> FieldDict:
    choice["index"] = _index(choice.get("index"), at)
    if streamed:
        given = choice.pop("message", None)
        choice["delta"] = _message(choice.get("delta") or given)
    elif "message" in choice:
        message = choice["message"] = {**_message(choice["message"]), "role": "assistant"}
        for call in message.get("tool_calls") or ():
            function = call.get("function")
            if isinstance(function, dict) and not function.get("arguments"):
                function["arguments"] = "{}"
    choice["finish_reason"] = _as_reason(choice.get("finish_reason") or None)
    if "logprobs" in choice and not _are_logprobs(choice["logprobs"]):
        del choice["logprobs"]
    return choice


def _as_reason(value: Any) -> str | None:
    if value is None:
        return None
    return str(value)


def _index(value: Any, default: int) -> int:
    number = as_number(value, None)
    if number is None and isinstance(value, str) and value.isdecimal():
        number = float(value[:6])
    if number is not None and 0 <= number < 1e6:
        return int(number)
    return default


def _are_logprobs(value: Any) -> bool:
    """Whether they have OpenAI's form."""
    if not isinstance(value, dict) or not set(value) <= {"content", "refusal"}:
        return False
    lists = [entries for entries in value.values() if entries is not None]
    return all(isinstance(entries, list) for entries in lists) and all(
        isinstance(entry, dict) and isinstance(entry.get("token"), str)
        for entries in lists
        for entry in entries
    )


def _message(message: Any) -> FieldDict:
    if not isinstance(message, dict):
        return {}
    if "role" in message and message["role"] != "assistant":
        del message["role"]
    content = message.get("content")
    if isinstance(content, list):
        parts = (p if isinstance(p, str) else as_mapping(p).get("text") for p in content)
        message["content"] = "".join(as_text(part, "") for part in parts) or None
    elif content is not None and not isinstance(content, str):
        del message["content"]
    for name in _OPTIONAL:
        items = message.get(name)
        if name in message and not (
            items and isinstance(items, list) and all(isinstance(item, dict) for item in items)
        ):
            del message[name]
    for name in _OPTIONAL_MAPPINGS:
        if name in message and not isinstance(message[name], dict):
            del message[name]
    _keep_texts(message, _OPTIONAL_TEXTS)
    for call in message.get("tool_calls", ()):
        if "index" in call:
            call["index"] = _index(call["index"], 0)
        _keep_texts(call, ("id", "type"))
        function = call.get("function")
        if isinstance(function, dict):
            if "arguments" in function and not isinstance(function["arguments"], str):
                function["arguments"] = arguments_text(function["arguments"])
            _keep_texts(function, ("name",))
    return message


def _keep_texts(holder: FieldDict, names: tuple[str, ...]) -> None:
    """Drop what is no text of the fields in `names`; an id or a model may be a number."""
    for name in names:
        if name in holder and not isinstance(holder[name], str):
            value = holder.pop(name)
            if name in ("id", "model") and as_number(value, None) is not None:
                holder[name] = str(value)


def _set_usage(holder: FieldDict) -> None:
    """Counts are whole numbers of zero or more; with none, there is no usage."""
    if "usage" in holder:
        holder["usage"] = _counts(as_mapping(holder["usage"]))
        if not holder["usage"]:
            del holder["usage"]


def _counts(usage: Fields) -> FieldDict:
    out: FieldDict = {}
    for name, value in usage.items():
        if name.endswith(("_tokens", "_requests")):
            count = _count(value)
            if count is not None:
                out[name] = count
        elif name.endswith("_details") or name in ("cache_creation", "server_tool_use"):
            if details := _counts(as_mapping(value)):
                out[name] = details
        elif value is not None:
            out[name] = value
    return out


def _count(value: Any) -> int | None:
    """Returns a count of tokens, which may be written as text or as a float without a fraction."""
    if isinstance(value, str) and value.strip().isdecimal():
        value = int(value.strip()[:18])
    number = as_number(value, None)
    if number is None or not 0 <= number < 2**53 or number != int(number):
        return None
    return int(number)


def _messages(event: FieldDict) -> FieldDict:
    _set_usage(event)
    kind = event["type"]
    if kind == "message_start":
        message = event["message"] = dict(mapping_at(event, "message"))
        message.setdefault("id", "msg_unknown")
        _head_of_message(message)
    elif kind == "message":
        _head_of_message(event)
        blocks = [_block(b) for b in objects(event.get("content"))]
        texts = ("text", "thinking")
        event["content"] = [b for b in blocks if b.get("type") not in texts or b.get(b["type"])]
    elif kind == "content_block_start":
        event["content_block"] = _block(dict(mapping_at(event, "content_block")))
    elif kind in ("content_block_delta", "message_delta"):
        event["delta"] = _block(dict(mapping_at(event, "delta")))
    if kind == "message_delta":
        event.setdefault("usage", {"output_tokens": 0})
    return event


def _head_of_message(message: FieldDict) -> None:
    for name in ("id", "model"):
        if not isinstance(message.get(name), str):
            message[name] = ""
    message["role"] = "assistant"
    _set_usage(message)
    counts = {"input_tokens": 0, "output_tokens": 0}
    message["usage"] = {**counts, **mapping_at(message, "usage")}
    if "stop_reason" in message:
        message["stop_reason"] = _as_reason(message["stop_reason"])


def _block(block: FieldDict) -> FieldDict:
    for name in _BLOCK_TEXTS:
        if name in block and block[name] is None:
            block[name] = ""
    given = block.get("input")
    if block.get("type") == "tool_use" and not isinstance(given, dict):
        value = given
        if isinstance(given, str):  # which may be that of an object
            with suppress(ValueError, RecursionError):
                value = json.loads(given)
        if not isinstance(value, dict):
            if value is None:
                value = {}
            else:
                value = {"arguments": value}
        block["input"] = value
    if "stop_reason" in block:
        block["stop_reason"] = _as_reason(block["stop_reason"])
    return block
