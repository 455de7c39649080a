"""Amazon Bedrock's Converse: Messages in other words, for the models of all makers."""

from collections.abc import Iterable, Sequence
from typing import Any

from gateway.data_files import read_toml
from gateway.dialects import own_answers
from gateway.dialects.base import Addressed, ChatView, SteeredRequest
from gateway.dialects.gemini import Contents
from gateway.dialects.messages_cloud import BedrockDialect, event_frame
from gateway.steering.transcript.content import json_text
from gateway.values import FieldDict, Fields
from gateway.wire.coerce import as_mapping, mapping_at, objects
from gateway.wire.parsing import Loads

_WORDS = read_toml(__package__, "converse.toml")


class ConverseDialect(BedrockDialect):
    """`Converse` and `ConverseStream`."""

    name = "converse"
    path = "/model/{model}/converse"
    routes = ("/model/{model:path}/converse", "/model/{model:path}/converse-stream")
    route = "converse"
    part_type = ""
    litellm = None

    def members(self, addressed: Addressed, body: Fields) -> FieldDict:
        """See Dialect. The core asks in the words of the other dialects."""
        offered = objects(mapping_at(body, "toolConfig").get("tools"))
        return {
            **addressed.members(),
            "tools": [mapping_at(tool, "toolSpec") for tool in offered],
            "max_tokens": mapping_at(body, "inferenceConfig").get("maxTokens"),
            "response_format": mapping_at(body, "outputConfig").get("textFormat"),
        }

    def is_side_request(self, request: SteeredRequest) -> bool:
        """See Dialect. A stored prompt is asked without messages."""
        return not request.messages

    def history(self, request: SteeredRequest) -> Sequence[Any]:
        return _Messages(request.messages)

    def events(self, stream: bytes, loads: Loads) -> Iterable[FieldDict]:
        return map(_event, super().events(stream, loads))

    def read_answer(self, body: FieldDict) -> ChatView | None:
        message = mapping_at(mapping_at(body, "output"), "message")
        return super().read_answer({**_renamed(body), "content": message and _blocks(message)})

    def own_answer(self, request: SteeredRequest, text: str, number: str, at: int) -> bytes:
        made = own_answers.filled("converse", text=text)
        if not request.stream:
            return own_answers.whole(made["whole"])
        sent = made["events"].items()
        return b"".join([event_frame(name, own_answers.whole(event)) for name, event in sent])


class _Messages(Contents):
    """Messages of Converse in Anthropic's form."""

    def at(self, index: int) -> Any:
        message = as_mapping(self._contents[index])
        return {"role": message.get("role"), "content": _blocks(message)}


def _blocks(message: Fields) -> list[FieldDict]:
    """The blocks of a message, without the marks of the cache, which move at each call."""
    return [_block(each) for each in objects(message.get("content")) if "cachePoint" not in each]


def _block(given: Fields) -> FieldDict:
    """A block, whose only member names its kind; all that a kind may have is in each."""
    kind, value = next(iter(given.items()), ("", None))
    held = as_mapping(value)
    block = {**held, **mapping_at(held, "reasoningText"), "type": _WORDS["names"].get(kind, kind)}
    if block["type"] == "text":
        return {"type": "text", "text": json_text(value)}
    block["id"] = block["tool_use_id"] = held.get("toolUseId")
    block["content"] = _blocks(held)
    block["is_error"] = held.get("status") == "error"
    return block


def _event(given: FieldDict) -> FieldDict:
    """An event of a stream, whose only member names it; all that an event may have is in each."""
    kind, value = next(iter(given.items()), ("", None))
    if kind not in _WORDS["names"]:
        return given
    held = as_mapping(value)
    start = mapping_at(held, "start")
    delta = _renamed(held)
    for name, piece in mapping_at(held, "delta").items():
        said = as_mapping(piece)
        delta["type"], field = _WORDS["deltas"].get(name, ("", ""))
        delta[field] = said.get("input", said.get("text", piece))
    return {
        **_renamed(held),
        "type": _WORDS["names"][kind],
        "message": {"role": "assistant"},
        "content_block": (start and _block(start)) or None,
        "delta": delta,
    }


def _renamed(values: Fields) -> FieldDict:
    """The members in Anthropic's words, those of the usage, too."""
    return {
        _WORDS["names"].get(name, name): _renamed(value) if name == "usage" else value
        for name, value in values.items()
    }


CONVERSE = ConverseDialect()
