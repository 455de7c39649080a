"""Anthropic's Messages: the system prompt is a field of its own, content is a list of blocks."""

import json
from collections.abc import Iterable, Sequence
from typing import Any, ClassVar

from gateway.core.edits import AppendToResult, Edit, InsertMessage, SystemAppend
from gateway.core.placement import GuidanceTarget
from gateway.dialects import own_answers
from gateway.dialects.base import (
    Api,
    ChatView,
    Dialect,
    LiteLLMCall,
    SteeredRequest,
    StreamRead,
    WithFirst,
    events_of,
    known_events,
)
from gateway.errors import GatewayError, RunRefused
from gateway.steering.transcript.content import json_text
from gateway.values import FieldDict, Fields, Texts
from gateway.wire.coerce import as_mapping, mapping_at, objects
from gateway.wire.message_identity import content_text
from gateway.wire.parsing import Loads, array_spans, scannable
from gateway.wire.request import Splice, append_to_message, insert_message, part
from gateway.wire.response_tee import NamedEnd
from gateway.wire.sse import encode_event
from gateway.wire.upstream_errors import name_of

# Type of a delta -> the field that it contains; a call's input is put together from JSON text.
_DELTAS = {
    "text_delta": "text",
    "thinking_delta": "thinking",
    "signature_delta": "signature",
    "input_json_delta": "partial_json",
}


class BlockAssembler:
    """Adds event after event; malformed ones are skipped, never raised."""

    def __init__(self) -> None:
        self._head: FieldDict = {}
        self._blocks: dict[int, FieldDict] = {}
        self._parts: dict[tuple[int, str], list[str]] = {}
        self.usage: FieldDict | None = None

    def add(self, event: Fields) -> None:
        """One parsed event."""
        index = event.get("index")
        delta = event.get("delta")
        match event.get("type"):
            case "message_start":
                self._head = {**mapping_at(event, "message")}
                self._count(self._head.get("usage"))
            case "content_block_start":
                block = event.get("content_block")
                if isinstance(block, dict) and isinstance(index, int):
                    self._blocks[index] = dict(block)
            case "content_block_delta" if isinstance(index, int) and isinstance(delta, dict):
                field = _DELTAS.get(str(delta.get("type")), "")
                if isinstance(piece := delta.get(field), str) and field:
                    if index not in self._blocks:  # Converse has no event where a text begins
                        self._blocks[index] = {"type": field}
                    self._parts.setdefault((index, field), []).append(piece)
            case "message_delta" | "message_stop":
                self._head.update(as_mapping(delta))
                self._count(event.get("usage"))

    def message(self) -> FieldDict | None:
        """The complete message; None when none began."""
        if not self._head:
            return None
        for (index, field), parts in self._parts.items():
            if (block := self._blocks.get(index)) is not None:
                text = "".join(parts)
                if field == "partial_json":
                    block["input"] = _parsed(text)
                else:
                    block[field] = (block.get(field) or "") + text
        content = [self._blocks[index] for index in sorted(self._blocks)]
        return {**self._head, "content": content, "usage": self.usage}

    def _count(self, usage: object) -> None:
        # The counts of the last event are totals; it leaves out what does not change.
        if isinstance(usage, dict):
            known = {key: value for key, value in usage.items() if value is not None}
            self.usage = {**(self.usage or {}), **known}


def _parsed(text: str) -> Any:
    try:
        if text.strip():
            return json.loads(text)
        return {}
    except (ValueError, RecursionError):
        return text  # cut by a limit, the part that came; or nested too deeply


# `stop_reason` -> finish reason of chat; others are kept. Source: Messages reference; the last
# two: Bedrock's API reference, `Converse`.
FINISH: Texts = {
    "end_turn": "stop",
    "stop_sequence": "stop",
    "tool_use": "tool_calls",
    "max_tokens": "length",
    "model_context_window_exceeded": "length",
    "refusal": "content_filter",
    "content_filtered": "content_filter",
    "guardrail_intervened": "content_filter",
}

# Models known to accept system messages after a user turn. Source: Anthropic's documentation,
# "Mid-conversation system messages".
_LATE_SYSTEM_MODELS = ("claude-opus-4-8",)


_PROBES = ("quota", "count")  # all that is said in one. Source: Claude Code 2.1.332


class MessagesDialect(Dialect):
    """`POST /v1/messages`. Source: Anthropic API reference, "Messages"."""

    name = "messages"
    path = "/messages"
    routes: ClassVar[tuple[str, ...]] = ("/v1/messages", "/copilot/v1/messages")
    list_key = "messages"
    route = "messages"
    ping = b'event: ping\ndata: {"type": "ping"}\n\n'
    api: ClassVar[Api] = "anthropic"
    stores_answers = False
    end = NamedEnd("message_stop")
    always_reports_usage = True
    part_type = "text"  # of a text; "" where parts have no type, and no late system message
    litellm: ClassVar[LiteLLMCall | None] = LiteLLMCall(
        function="anthropic_messages",
        fields=frozenset(
            {"context_management", "max_tokens", "messages", "metadata", "output_config"}
            | {"output_format", "stop_sequences", "system", "temperature", "thinking"}
            | {"tool_choice", "tools", "top_k", "top_p"}
        ),
    )

    def placeable(self, request: SteeredRequest) -> Sequence[Any]:
        system = {"role": "system", "content": request.body.get("system")}
        return WithFirst(system, request.own_messages)

    def target(self, given: GuidanceTarget, request: SteeredRequest, model: str) -> GuidanceTarget:
        """See Dialect. A system message among the client's shows that the model accepts them."""
        named = any(known in model for known in _LATE_SYSTEM_MODELS)
        shown = model == request.model and any(
            as_mapping(message).get("role") == "system" for message in request.messages
        )
        return GuidanceTarget(
            late_system=(named or shown) and bool(self.part_type), breakpoints=True
        )

    def splices(self, request: SteeredRequest, edits: Sequence[Edit]) -> list[Splice]:
        """See Dialect. The upstream refuses a system prompt of a wrong type."""
        splices = []
        for edit in edits:
            match edit:
                case SystemAppend():
                    splices += _append(
                        request, edit.texts, edit.breakpoint, part_type=self.part_type
                    )
                case InsertMessage():
                    at = edit.position - 1
                    splices.append(insert_message(request, at, edit.role, text=edit.text))
                case AppendToResult():
                    at = edit.index - 1
                    splices += append_to_message(
                        request, at, edit.texts, as_parts=True, part_type=self.part_type
                    )
        return splices

    def takes(self, parameter: str) -> bool:
        return parameter in ("max_tokens", "temperature", "top_k", "top_p", "thinking", "metadata")

    def is_side_request(self, request: SteeredRequest) -> bool:
        """See Dialect. Claude Code asks for a title, and for one token to check its quota or to
        count those of its tools."""
        body = request.body
        if len(request.messages) != 1:
            return False
        if body.get("max_tokens") == 1:
            return content_text(as_mapping(request.messages[0]).get("content")) in _PROBES
        if body.get("tools"):
            return False
        formatted = bool(mapping_at(body, "output_config").get("format"))
        session = "session_id" in str(mapping_at(body, "metadata").get("user_id"))
        return formatted and session

    def read_stream(self, stream: bytes, loads: Loads) -> StreamRead:
        assembler = BlockAssembler()
        events = self.events(stream, loads)
        known, failure, odd = known_events(events, "message_", "content_block_")
        for data in known:
            assembler.add(data)
        ended = any(data["type"] == "message_stop" for data in known)
        message = assembler.message() or {}
        stopped = ended or bool(message.get("stop_reason"))
        whole = stopped and failure is None and bool(message)
        return StreamRead(
            completion=chat_view(message) if whole else None,
            usage=assembler.usage,
            began=bool(known),
            ended=ended,
            odd=odd,
            failure=failure,
        )

    def events(self, stream: bytes, loads: Loads) -> Iterable[FieldDict]:
        """The events of a complete stream in Anthropic's form."""
        return events_of(stream, loads)

    def read_answer(self, body: FieldDict) -> ChatView | None:
        if isinstance(body.get("content"), list):
            return chat_view(body)
        return None

    def own_answer(self, request: SteeredRequest, text: str, number: str, at: int) -> bytes:
        return own_answers.messages(request.body, text, number)

    def error_body(self, error: GatewayError) -> bytes:
        return json.dumps(_error(error), ensure_ascii=False).encode("utf-8", "replace")

    def error_event(self, error: GatewayError) -> bytes:
        return encode_event(_error(error), event="error")


def chat_view(message: Fields) -> ChatView:
    """A complete message in the shape of a chat completion. Text and the blocks of tools that ran
    at the provider stay in the content; calls are separate."""
    content = []
    calls = []
    for block in objects(message.get("content")):
        if block.get("type") == "tool_use":
            function = {"name": block.get("name"), "arguments": json_text(block.get("input"))}
            calls.append({"id": block.get("id"), "type": "function", "function": function})
        else:
            content.append(block)
    reply = {"role": "assistant", "content": content}
    if calls:
        reply["tool_calls"] = calls
    reason = message.get("stop_reason")
    choice = {"index": 0, "message": reply, "finish_reason": FINISH.get(str(reason), reason)}
    return {"model": message.get("model"), "choices": [choice], "usage": message.get("usage")}


def _append(
    request: SteeredRequest, texts: Sequence[str], breakpoint: Texts | None, part_type: str
) -> list[Splice]:
    """`texts` as separate blocks after the client's system prompt. A prompt that is a string
    becomes its own block, because providers that check how an agent's prompt begins look at the
    first block. The client's last block gets the cache breakpoint."""
    blocks = [part(text, part_type) for text in texts]
    if not request.body.get("system"):
        return request.set_value("system", blocks)
    start, end = request.spans("system")[-1]
    text = scannable(request.raw[start:end])
    added = "".join(f", {json.dumps(block)}" for block in blocks)
    marker = ""
    if breakpoint:
        marker = f', "cache_control": {json.dumps(dict(breakpoint))}'
    if text[0] == '"':
        head = Splice(start=start, end=start, text='[{"type": "text", "text": ')
        return [head, Splice(start=end, end=end, text=f"{marker}}}{added}]")]
    first, last = array_spans(text, 0)[-1]
    splices = [Splice(start=start + last, end=start + last, text=added)]
    if marker and text[first] == "{":
        inside = start + last - 1
        splices.insert(0, Splice(start=inside, end=inside, text=marker))
    return splices


def _error(error: GatewayError) -> FieldDict:
    detail = {"type": name_of("anthropic", error.status), "message": error.message}
    if isinstance(error, RunRefused) and error.code:
        detail["code"] = error.code  # Anthropic has no codes, and its clients ignore them
    return {"type": "error", "error": detail}


MESSAGES = MessagesDialect()
