"""OpenAI Responses, streamed and not, with stored responses for `previous_response_id`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import orjson

from gateway.wire.message_identity import offered_tools
from steering_gateway_testing import chat
from steering_gateway_testing.exchange import SSE_TYPE, Answer
from steering_gateway_testing.received import ReceivedRequest
from steering_gateway_testing.responses_stream import Item, event, events
from steering_gateway_testing.values import Reply, ToolCall, Usage

INCOMPLETE = {"length": "max_output_tokens", "content_filter": "content_filter"}
"""Finish reason in chat terms -> reason of an incomplete response; all others complete."""

ECHOED: Mapping[str, Any] = {
    "background": False,
    "instructions": None,
    "max_output_tokens": None,
    "max_tool_calls": None,
    "metadata": {},
    "parallel_tool_calls": True,
    "previous_response_id": None,
    "prompt_cache_key": None,
    "reasoning": {"effort": None, "summary": None},
    "service_tier": "default",
    "store": True,
    "temperature": 1.0,
    "text": {"format": {"type": "text"}},
    "tool_choice": "auto",
    "tools": [],
    "top_p": 1.0,
    "truncation": "disabled",
    "user": None,
}
"""Request fields a response repeats, with the value it shows when the request has none."""


BACKGROUND_POLLS = 1
"""How often a background response is still in progress when it is asked for."""


class ResponsesApi:
    """Answers `/v1/responses` and stores the answers, as the API does unless `store` is false.

    A background response is queued first, in progress when it is asked for, and then complete.
    """

    def __init__(self) -> None:
        self._polls: dict[str, int] = {}
        self._streams: dict[str, tuple[bytes, ...]] = {}
        self._responses: dict[str, Item] = {}
        self._inputs: dict[str, list[Item]] = {}
        self._histories: dict[str, list[Item]] = {}

    def missing(self, request: ReceivedRequest) -> Answer | None:
        """The error for a `previous_response_id` that is not stored, if that is the case."""
        previous = request.fields.get("previous_response_id")
        if not previous or previous in self._histories:
            return None
        message = f"Previous response with id '{previous}' not found."
        body = error(400, "invalid_request_error", "previous_response_not_found", message)
        return Answer(pieces=(body,), status=400)

    def history(self, request: ReceivedRequest) -> list[Item]:
        """All input items the model sees: those of the responses before, then the request's own."""
        key = request.fields.get("previous_response_id") or _conversation(request)
        return [*self._histories.get(key or "", []), *input_items(request)]

    def answer(self, reply: Reply, request: ReceivedRequest) -> Answer:
        """The whole reply, as a JSON body or as stream events; stored unless `store` is false."""
        response = _response(reply, request)
        background = request.fields.get("background") is True
        if request.fields.get("store") is not False:
            self._store(response, request)
        if background:
            self._polls[response["id"]] = BACKGROUND_POLLS
            self._streams[response["id"]] = tuple(events(reply, response))
        if not request.stream:
            shown = _unfinished(response, "queued") if background else response
            return Answer(pieces=(orjson.dumps(shown),))
        return _streamed(tuple(events(reply, response)))

    def stored(self, request: ReceivedRequest) -> Answer:
        """GET or DELETE of a stored response, its cancellation, or its input items."""
        wanted, _, rest = request.path.rpartition("/responses/")[2].partition("/")
        if wanted not in self._responses:
            message = f"Response with id '{wanted}' not found."
            return Answer(pieces=(error(404, "invalid_request_error", None, message),), status=404)
        if request.method == "DELETE":
            del self._responses[wanted], self._inputs[wanted], self._histories[wanted]
            body: Item = {"id": wanted, "object": "response", "deleted": True}
        elif rest == "input_items":
            body = {"object": "list", "data": self._inputs[wanted], "has_more": False}
        elif rest == "cancel":
            body = self._responses[wanted] = _unfinished(self._responses[wanted], "cancelled")
            self._polls.pop(wanted, None)
        elif "stream=true" in request.query and wanted in self._streams:
            return _streamed(self._streams[wanted])
        else:
            body = self._polled(wanted)
        return Answer(pieces=(orjson.dumps(body),))

    def _polled(self, wanted: str) -> Item:
        left = self._polls.get(wanted, 0)
        if not left:
            return self._responses[wanted]
        self._polls[wanted] = left - 1
        return _unfinished(self._responses[wanted], "in_progress")

    def _store(self, response: Item, request: ReceivedRequest) -> None:
        key = response["id"]
        self._responses[key] = response
        self._inputs[key] = input_items(request)
        self._histories[key] = [*request.history, *response["output"]]
        if conversation := _conversation(request):
            self._histories[conversation] = self._histories[key]


def _unfinished(response: Item, status: str) -> Item:
    nothing: Item = {"output": [], "usage": None, "incomplete_details": None, "error": None}
    return {**response, "status": status, **nothing}


def _streamed(pieces: tuple[bytes, ...]) -> Answer:
    return Answer(pieces=pieces, streamed=True, finish_at=len(pieces) - 1, content_type=SSE_TYPE)


def input_items(request: ReceivedRequest) -> list[Item]:
    """The request's own input as items; a plain text is one user message."""
    value = request.fields.get("input")
    if isinstance(value, str):
        content = [{"type": "input_text", "text": value}]
        return [{"type": "message", "role": "user", "content": content}]
    return value if isinstance(value, list) else []


def error(status: int, kind: str, code: str | None, message: str) -> bytes:
    """The body of an error answer."""
    return chat.error(status, kind, code, message)


def error_event(kind: str, code: str | None, message: str) -> bytes:
    """An error in the middle of a stream."""
    detail = {"type": "error", "code": code or kind, "message": message, "param": None}
    return event({**detail, "sequence_number": 0})


def usage_of(usage: Usage) -> Item:
    """The `usage` object of Responses."""
    return {
        "input_tokens": usage.prompt_tokens,
        "input_tokens_details": {"cached_tokens": usage.cached_tokens},
        "output_tokens": usage.completion_tokens,
        "output_tokens_details": {"reasoning_tokens": usage.reasoning_tokens},
        "total_tokens": usage.prompt_tokens + usage.completion_tokens,
    }


def _response(reply: Reply, request: ReceivedRequest) -> Item:
    fields = request.fields
    reason = INCOMPLETE.get(reply.finish)
    return {
        "id": reply.id or f"resp_{request.sequence:08d}",
        "object": "response",
        "created_at": chat.CREATED,
        "status": "incomplete" if reason else "completed",
        "error": None,
        "incomplete_details": {"reason": reason} if reason else None,
        "model": reply.model or request.model or "scripted-model",
        **{key: fields.get(key, usual) for key, usual in ECHOED.items()},
        "output": _output(reply, request),
        "usage": usage_of(reply.usage) if reply.usage else None,
        **reply.extra,
    }


def _output(reply: Reply, request: ReceivedRequest) -> list[Item]:
    number = f"{request.sequence:08d}"
    output: list[Item] = []
    if reply.reasoning:
        summary = [{"type": "summary_text", "text": reply.reasoning}]
        item: Item = {"id": f"rs_{number}", "type": "reasoning", "summary": summary}
        if "reasoning.encrypted_content" in (request.fields.get("include") or []):
            item["encrypted_content"] = reply.signature
        output.append(item)
    if reply.content is not None or reply.refusal:
        message = {"id": f"msg_{number}", "type": "message", "status": "completed"}
        content = [_part(reply)]
        output.append({**message, "role": "assistant", "content": content, **reply.message_extra})
    custom = _custom_tools(request)
    for index, call in enumerate(reply.tool_calls):
        output.append(_call(call, f"{number}_{index}", call.name in custom))
    return output


def _part(reply: Reply) -> Item:
    if reply.refusal:
        return {"type": "refusal", "refusal": reply.refusal}
    return {"type": "output_text", "text": reply.content, "annotations": [], "logprobs": []}


def _call(call: ToolCall, number: str, custom: bool) -> Item:
    head = {"status": "completed", "call_id": call.id or f"call_{number}", "name": call.name}
    if custom:
        return {"id": f"ctc_{number}", "type": "custom_tool_call", **head, "input": call.text}
    named = {"namespace": call.namespace} if call.namespace else {}
    return {"id": f"fc_{number}", "type": "function_call", **head, **named, "arguments": call.text}


def _custom_tools(request: ReceivedRequest) -> set[str]:
    tools = offered_tools(request.fields)
    return {str(tool.get("name")) for tool in tools if tool.get("type") == "custom"}


def _conversation(request: ReceivedRequest) -> str | None:
    value = request.fields.get("conversation")
    return value.get("id") if isinstance(value, dict) else value
