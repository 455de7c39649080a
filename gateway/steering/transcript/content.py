"""The content of one message, in any of its forms, without guidance; reading never raises.

A message is one of Chat Completions or Messages, or an item of the Responses API (source: OpenAI
API reference, Responses, input and output items)."""

import json
import re
import zlib
from collections.abc import Mapping, Sequence

from msgspec import Struct

from gateway.core.guidance_text import FRAME_CLOSE, FRAME_OPEN
from gateway.values import FieldDict, Fields, Value
from gateway.wire.coerce import as_text, objects, text_at

_OPENING = re.compile(rf"^{re.escape(FRAME_OPEN)}$", re.MULTILINE)
_CLOSING = re.compile(rf"^{re.escape(FRAME_CLOSE)}$\s*", re.MULTILINE)


def without_guidance(text: str) -> str:
    """`text` without framed guidance and the white space around it."""
    if FRAME_OPEN not in text:
        return text
    kept = []
    at = 0
    while (opening := _OPENING.search(text, at)) and (
        closing := _CLOSING.search(text, opening.end())
    ):
        kept.append(text[at : opening.start()].rstrip())
        at = closing.end()
    return "\n\n".join([*kept, text[at:]]).strip("\n")


_TURNED_DOWN = re.compile(  # openings of what clients send for a person who stops the agent
    r"(?i)(?:error: )?(?:permission to use .{1,60} has been denied"
    r"|the user doesn't want to (?:proceed|take)|\[request interrupted by user"
    r"|<turn_aborted>|(?:the )?user (?:has )?(?:rejected|denied|declined|cancell?ed|aborted"
    r"|interrupted)\b"
    r"|(?:exec )?(?:command |call |patch )?(?:rejected|aborted|denied|declined) by (?:the )?user)"
)
_TEXT_PARTS = ("text", "input_text", "output_text", None)
_REASONING_FIELDS = ("reasoning_content", "reasoning")
_IMAGE_FIELDS = ("image_url", "url", "source", "data", "file_id")


class RequestedCall(Value):
    """A call as the model asked for it."""

    name: str = ""  # of the tool; "" when it could not be read
    arguments: str = ""  # as the model wrote them, mostly JSON
    id: str = ""  # by which its result refers to it; "" without one
    # the result, when the message that makes the call also holds it as text
    observation: str | None = None


class Result(Value):
    """The answer to a call."""

    text: str  # its text parts, joined
    id: str = ""  # of the call that it answers; "" without one
    name: str = ""  # of the tool, when the message has it
    is_error: bool = False  # the protocol flags it as an error
    image: int = 0  # checksum of its images; 0 without any


class Content(Struct, kw_only=True):
    """A message's content taken apart."""

    text: str = ""  # all text parts, joined
    reasoning: str = ""  # text of the model's reasoning, where the client sends it back
    calls: list[RequestedCall] = []  # in the order of the message
    results: list[Result] = []  # in the order of the message
    image: int = 0  # checksum of its images; 0 without any
    # there was text, and nothing of it is left without our own guidance
    guidance_only: bool = False


def read_content(value: object) -> Content:
    """A message's `content` by kind of part; parts of other kinds (files) are left out."""
    if isinstance(value, str):
        if FRAME_OPEN not in value:
            return Content(text=value)
        text = without_guidance(value)
        return Content(text=text, guidance_only=bool(value) and not text)
    content = Content()
    texts = []
    reasoning = []
    for part in _parts(value):
        kind = part.get("type")
        if kind in _TEXT_PARTS:
            texts.append(text_at(part, "text"))
        elif kind == "refusal":
            texts.append(text_at(part, "refusal"))
        elif kind in ("thinking", "reasoning"):
            reasoning.append(text_at(part, "thinking") or text_at(part, "text"))
        elif kind == "tool_use":
            content.calls.append(_call(part, part))
        elif kind == "tool_result":
            content.results.append(read_result(part, part.get("tool_use_id")))
        else:
            content.image = image_sum(part, content.image)
    joined = "".join(texts)
    content.text = without_guidance(joined)
    content.guidance_only = bool(joined) and not content.text
    content.reasoning = "\n".join(reasoning)
    return content


def _parts(value: object) -> list[FieldDict]:
    """The parts of a content that is no text; a bare text or number counts as a text part."""
    if isinstance(value, int | float) and not isinstance(value, bool):
        value = json_text(value)
    if isinstance(value, list | tuple):
        parts = value
    else:
        parts = [value]
    found = [{"text": part} if isinstance(part, str) else part for part in parts]
    return [part for part in found if isinstance(part, dict)]


def read_result(message: Mapping[str, object], call_id: object) -> Result:
    """The result in a tool message or a tool_result part; an error only where it is flagged."""
    value = message.get("content")
    if isinstance(value, str):
        text = value
    else:
        texts = [part for part in _parts(value) if part.get("type") in _TEXT_PARTS]
        text = "".join([text_at(part, "text") for part in texts])
    return Result(
        image=images_sum(value),
        text=without_guidance(text),
        id=as_text(call_id, ""),
        name=text_at(message, "name"),
        is_error=message.get("is_error") is True,
    )


def is_turned_down(text: str) -> bool:
    """Whether a client says that the person refused a call, or interrupted the agent."""
    return _TURNED_DOWN.match(text) is not None


def images_sum(value: object) -> int:
    """Checksum of the images among the parts of a content, 0 without any."""
    checksum = 0
    for part in value if isinstance(value, list | tuple) else ():
        if isinstance(part, dict):
            checksum = image_sum(part, checksum)
    return checksum


def image_sum(part: Mapping[str, object], before: int = 0) -> int:
    """`before` extended by the image in a part; unchanged when there is none."""
    kind = part.get("type")
    if not isinstance(kind, str) or not ("image" in kind or "screenshot" in kind):
        return before
    for key in _IMAGE_FIELDS:
        value = part.get(key)
        if isinstance(value, dict):
            value = value.get("url") or value.get("data") or value.get("file_id")
        if isinstance(value, str):
            return zlib.crc32(value.encode("utf-8", "surrogatepass"), before)
    return before


def read_calls(message: Mapping[str, object], content: Content) -> list[RequestedCall]:
    """The calls of an assistant message: `tool_calls`, else tool_use parts, else `function_call`.
    An entry that cannot be read stays as a call without a name, so that its result has a place."""
    listed = message.get("tool_calls")
    entries: Sequence[object] = ()
    if isinstance(listed, list | tuple):
        entries = listed
    elif listed and not isinstance(listed, str | int | float):
        entries = [listed]
    if not entries and not content.calls:
        legacy = message.get("function_call")
        if isinstance(legacy, dict):
            entries = [legacy]
    calls = []
    for entry in entries:
        if not isinstance(entry, dict):
            calls.append(RequestedCall())
            continue
        inner = entry.get("function") or entry.get("custom")
        calls.append(_call(entry, inner if isinstance(inner, dict) else entry))
    return calls or content.calls


def _call(entry: Mapping[str, object], function: Mapping[str, object]) -> RequestedCall:
    arguments = function.get("arguments")
    if not isinstance(arguments, str):
        arguments = json_text(function.get("input") if arguments is None else arguments)
    name = text_at(function, "name")
    return RequestedCall(id=text_at(entry, "id"), name=name, arguments=arguments)


def json_text(arguments: object) -> str:
    """Arguments as text: text as it is, nothing for null, anything else as JSON."""
    if arguments is None or isinstance(arguments, str):
        return arguments or ""
    try:
        return json.dumps(arguments, ensure_ascii=False)
    except (TypeError, ValueError, RecursionError):
        return ""


def read_reasoning(message: Mapping[str, object], content: Content) -> str:
    """Reasoning from the message's own fields, else from the parts of its content."""
    for name in _REASONING_FIELDS:
        shown = message.get(name)
        if isinstance(shown, str) and shown:
            return shown
    return content.reasoning


_ARGUMENT_FIELDS = ("arguments", "input", "action", "operation", "code", "queries")
_RESULT_FIELDS = ("output", "error", "outputs", "results")
_FAILED = ("failed", "incomplete")
# Calls that the client carries out; any other `..._call` has run at the provider.
CLIENT_CALLS = frozenset(
    {"function_call", "custom_tool_call", "local_shell_call", "shell_call", "apply_patch_call"}
    | {"computer_call"}
)


def item_call(item: Fields) -> RequestedCall | None:
    """The call in an item, if it is one, with the result of a call that ran at the provider; a
    built-in tool is named by its type."""
    kind = text_at(item, "type")
    if not kind.endswith("_call"):
        return None
    given = next((item[key] for key in _ARGUMENT_FIELDS if item.get(key) is not None), None)
    shown = next((item[key] for key in _RESULT_FIELDS if item.get(key)), "")
    return RequestedCall(
        id=text_at(item, "call_id") or text_at(item, "id"),
        name=text_at(item, "name") or kind.removesuffix("_call"),
        arguments=json_text(given),
        observation=None if kind in CLIENT_CALLS else without_guidance(_output_text(shown)),
    )


def item_result(item: Fields) -> Result | None:
    """Returns the result that an item holds, or None if it holds none."""
    if not text_at(item, "type").endswith("_output"):
        return None
    output = item.get("output")
    return Result(
        text=without_guidance(_output_text(output)),
        image=image_sum(output) if isinstance(output, dict) else images_sum(output),
        id=text_at(item, "call_id"),
        is_error=item.get("is_error") is True or item.get("status") in _FAILED,
    )


def item_reasoning(item: Fields) -> str:
    """Text of a reasoning item: its content, else its summary; encrypted reasoning is empty."""
    if item.get("type") != "reasoning":
        return ""
    for key in ("content", "summary"):
        shown = [text_at(part, "text") for part in objects(item.get(key))]
        if any(shown):
            return "\n".join(shown)
    return ""


def _output_text(value: object) -> str:
    """Returns the text of an output: a string as it is, the parts of a list joined, and the
    streams that a shell printed, one after another."""
    if isinstance(value, str):
        return value
    if isinstance(value, dict):
        return json_text(value)
    printed = []
    for part in objects(value):
        shown = [text_at(part, key) for key in ("stdout", "stderr", "logs")]
        printed.append("\n".join(filter(None, shown)))
    return "".join(printed) or read_content(value).text
