"""OpenAI's Responses: a history of typed items, which the upstream may store for the client."""

import json
from collections.abc import Sequence
from typing import Any

from msgspec.structs import replace

from gateway.core.edits import (
    AppendToResult,
    Edit,
    InsertMessage,
    InsertSystem,
    Message,
    SystemAppend,
)
from gateway.core.placement import TEXT_RESULTS
from gateway.dialects import own_answers
from gateway.dialects.base import (
    ANSWER_ID,
    ECHO,
    ChatView,
    Dialect,
    LiteLLMCall,
    SteeredRequest,
    StreamRead,
    WithFirst,
    events_of,
    known_events,
    reference_of,
)
from gateway.errors import GatewayError
from gateway.steering.transcript.content import CLIENT_CALLS, item_call
from gateway.values import FieldDict, Fields
from gateway.wire.body_prefix import KnownMessages
from gateway.wire.coerce import as_mapping, as_text, mapping_at, objects, text_at
from gateway.wire.echo import EchoFilter
from gateway.wire.message_identity import REFERENCE, SYSTEM_ROLES
from gateway.wire.parsing import Loads
from gateway.wire.request import Splice, append_to_message, insert_message
from gateway.wire.response_tee import NamedEnd
from gateway.wire.sse import encode_event
from gateway.wire.upstream_errors import Refusal, refusal_of

# `incomplete_details.reason` -> finish reason of chat.
_REASONS = {"max_output_tokens": "length", "content_filter": "content_filter"}

_SETTLED = ("response.completed", "response.incomplete", "response.failed")
_COMPACTIONS = ("compaction", "compaction_summary")
_UNDER_WAY = ("queued", "in_progress")
_PARAMETERS = frozenset({"temperature", "top_p", "metadata", "service_tier", "reasoning", "user"})


class ResponsesDialect(Dialect):
    """`POST /v1/responses`. Source: OpenAI API reference, "Responses" and its streaming events."""

    name = "responses"
    path = "/responses"
    routes = ("/v1/responses", "/responses", "/backend-api/codex/responses", "/copilot/responses")
    list_key = "input"
    route = "responses"
    end = NamedEnd(*_SETTLED)
    always_reports_usage = True
    litellm = LiteLLMCall(
        function="aresponses",
        fields=frozenset(
            {"include", "input", "instructions", "max_output_tokens", "metadata"}
            | {"parallel_tool_calls", "reasoning", "safety_identifier", "service_tier", "store"}
            | {"temperature", "text", "tool_choice", "tools", "top_p", "truncation", "user"}
        ),
        stored_history=("previous_response_id", "conversation"),
    )

    def wrong_list(self, body: Fields) -> str:
        fits = isinstance(body.get("input"), (str, list, KnownMessages, type(None)))
        if fits:
            return ""
        return "must be a string or an array"

    def history(self, request: SteeredRequest) -> Sequence[Any]:
        given = request.body.get("input")
        if isinstance(given, str):
            return [{"role": "user", "content": given}]
        return request.messages

    def placeable(self, request: SteeredRequest) -> Sequence[Message]:
        items = self.history(request)
        if not _has_front(request):
            return items
        return WithFirst({"role": "system", "content": request.body.get("instructions")}, items)

    def splices(self, request: SteeredRequest, edits: Sequence[Edit]) -> list[Splice]:
        fronted = _has_front(request)
        splices = []
        inserts = []
        for edit in edits:
            match edit:
                case SystemAppend() if not fronted:
                    splices += append_to_message(
                        request, edit.index, edit.texts, part_type="input_text"
                    )
                case SystemAppend() | InsertSystem():
                    splices += _instruct(request, edit.texts)
                case InsertMessage():
                    inserts.append(edit)
                case AppendToResult():
                    splices += _append(request, edit.index - fronted, edit.texts)
        if inserts and isinstance(request.body.get("input"), str):
            # Plain text becomes an equivalent list of items.
            start, end = request.spans("input")[-1]
            added = "".join(f", {json.dumps({'role': i.role, 'content': i.text})}" for i in inserts)
            head = Splice(start=start, end=start, text='[{"role": "user", "content": ')
            return [*splices, head, Splice(start=end, end=end, text=f"}}{added}]")]
        return splices + [
            insert_message(request, edit.position - fronted, edit.role, text=edit.text)
            for edit in inserts
        ]

    repeats_instructions = True

    def echo(self, request: SteeredRequest, edits: Sequence[Edit]) -> EchoFilter | None:
        """See Dialect. An answer repeats the `instructions` that it was asked with."""
        given = request.body.get("instructions")
        if not isinstance(given, (str, type(None))) or not _has_front(request):
            return None
        sent = given or ""
        for edit in edits:
            if isinstance(edit, (SystemAppend, InsertSystem)):
                sent = "\n\n".join([*filter(None, [sent]), *edit.texts])
        if sent != (given or ""):
            return EchoFilter(sent, given)
        return None

    def previous_response_id(self, request: SteeredRequest) -> str | None:
        return text_at(request.body, "previous_response_id") or None

    def in_conversation(self, request: SteeredRequest) -> bool:
        return bool(request.body.get("conversation"))

    def references(self, request: SteeredRequest) -> list[str]:
        if REFERENCE.encode() not in request.raw:
            return []
        return [name for item in self.history(request) if (name := reference_of(item))]

    def in_background(self, request: SteeredRequest) -> bool:
        return request.body.get("background") is True

    def takes(self, parameter: str) -> bool:
        return parameter in _PARAMETERS

    def is_side_request(self, request: SteeredRequest) -> bool:
        """See Dialect. Codex warms up a connection with a request that generates nothing."""
        return request.body.get("generate") is False

    def compacts(self, request: SteeredRequest) -> bool:
        """See Dialect. The last item may ask for one that stands for the history."""
        if request.messages:
            last = as_mapping(request.messages[-1])
        else:
            last = {}
        return last.get("type") == "compaction_trigger" or super().compacts(request)

    def read_stream(self, stream: bytes, loads: Loads) -> StreamRead:
        settled = _settled_last(stream, loads)
        if settled is None:
            return _read_all(stream, loads)
        return _read(settled, ended=True)

    def read_answer(self, body: FieldDict) -> ChatView | None:
        return chat_view(body)

    def pending_id(self, body: Fields) -> str | None:
        if body.get("status") in _UNDER_WAY:
            return as_text(body.get("id"), None)
        return None

    def own_answer(self, request: SteeredRequest, text: str, number: str, at: int) -> bytes:
        return own_answers.responses(request.body, text, number, at=at)

    def error_event(self, error: GatewayError) -> bytes:
        detail = {"code": error.code or error.type, "message": error.message, "param": error.param}
        return encode_event({"type": "error", **detail, "sequence_number": 0}, event="error")


def _settled_last(stream: bytes, loads: Loads) -> FieldDict | None:
    """The response in a stream's last event, which contains everything in the events before. None
    when the last event is of another type or leaves the output out."""
    begins = stream.rfind(b"\n\n", 0, len(stream) - 2) + 2
    for data in events_of(stream[begins:], loads):
        response = data.get("response")
        if data.get("type") in _SETTLED and isinstance(response, dict) and response.get("output"):
            return response
    return None


def _read_all(stream: bytes, loads: Loads) -> StreamRead:
    items = []
    begun = {}
    settled = {}
    ended = False
    known, failure, odd = known_events(events_of(stream, loads), "response.")
    for data in known:
        kind = data["type"]
        response = data.get("response")
        if kind == "response.output_item.done":
            items.append(data.get("item"))
        elif kind in _SETTLED or f"response.{as_mapping(response).get('status')}" in _SETTLED:
            settled = dict(as_mapping(response))
            ended = True
        elif isinstance(response, dict):
            begun = response
    if settled and not settled.get("output"):
        settled = {**settled, "output": items}
    read = replace(_read(settled, ended=ended, failure=failure), began=bool(known), odd=odd)
    if ended:
        return read
    if begun.get("background") is True:
        return replace(read, pending_id=RESPONSES.pending_id(begun))
    said = "".join(text_at(data, "delta") for data in known)
    broken = known and read.failure is None
    return replace(read, partial={"choices": [{"message": {"content": said}}]} if broken else None)


def _read(response: FieldDict, *, ended: bool, failure: Refusal | None = None) -> StreamRead:
    usage = response.get("usage")
    failure = failure or refusal_of(response)
    return StreamRead(
        completion=None if failure else chat_view(response),
        usage=usage if isinstance(usage, dict) else None,
        ended=ended,
        failure=failure,
    )


def chat_view(response: Fields) -> ChatView | None:
    """Returns a response in the form of a chat completion; None if it failed or is not finished."""
    status = response.get("status")
    output = response.get("output")
    if status not in ("completed", "incomplete", None) or not isinstance(output, list):
        return None
    items = objects(output)
    found = [item_call(item) for item in items if item.get("type") in CLIENT_CALLS]
    calls = [
        {
            "id": call.id,
            "type": "function",
            "function": {"name": call.name, "arguments": call.arguments},
        }
        for call in found
        if call is not None
    ]
    reply: FieldDict = {"role": "assistant", "content": "".join(map(_text, items))}
    if calls:
        reply["tool_calls"] = calls
    if status == "incomplete":
        reason = mapping_at(response, "incomplete_details").get("reason")
        finish = _REASONS.get(str(reason), "length")
    elif any(item.get("type") in _COMPACTIONS for item in items):
        finish = "compaction"  # a summary of the history, and no text for the user
    else:
        finish = "stop"
        if calls:
            finish = "tool_calls"
    choice = {"index": 0, "message": reply, ECHO: items, "finish_reason": finish}
    return {
        ANSWER_ID: response.get("id") if response.get("store") is not False else None,
        "model": response.get("model"),
        "service_tier": response.get("service_tier"),
        "choices": [choice],
        "usage": response.get("usage"),
    }


def _text(item: Fields) -> str:
    if item.get("type") != "message":
        return ""
    parts = objects(item.get("content"))
    return "".join(str(part.get("text") or part.get("refusal") or "") for part in parts)


def _has_front(request: SteeredRequest) -> bool:
    """True if guidance goes into `instructions`, not into the client's leading item. An upstream
    that stores responses stores their items, too, and adds them to the next request. It does not
    store `instructions`, so that only these can be sent with every request."""
    body = request.body
    if body.get("instructions") is not None or body.get("store") is not False:
        return True
    if body.get("type") == "response.create":
        return True  # over a WebSocket, where the connection keeps the items
    first = None
    if request.messages:
        first = request.messages[0]
    return not isinstance(first, dict) or first.get("role") not in SYSTEM_ROLES


def _instruct(request: SteeredRequest, texts: Sequence[str]) -> list[Splice]:
    given = request.body.get("instructions")
    if not isinstance(given, (str, type(None))):
        return []  # the upstream refuses it
    return _append_to_member(request, "instructions", texts)


def _append(request: SteeredRequest, index: int, texts: Sequence[str]) -> list[Splice]:
    """`texts` at the end of an item of the user or with a result; the input may be one text."""
    if isinstance(request.body.get("input"), str):
        return _append_to_member(request, "input", texts)
    key = "content"
    if request.messages[index].get("type") in TEXT_RESULTS:
        key = "output"
    return append_to_message(request, index, texts, part_type="input_text", key=key)


def _append_to_member(request: SteeredRequest, key: str, texts: Sequence[str]) -> list[Splice]:
    if not request.body.get(key):
        return request.set_value(key, "\n\n".join(texts))
    _, end = request.spans(key)[-1]
    added = json.dumps("".join(f"\n\n{text}" for text in texts))[1:-1]
    return [Splice(start=end - 1, end=end - 1, text=added)]


RESPONSES = ResponsesDialect()
