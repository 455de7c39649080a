"""Chat completions: the dialect whose messages the core speaks itself."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from gateway.dialects.base import ChatView, Dialect, SteeredRequest, StreamRead, parse_request
from gateway.errors import BadRequest, GatewayError
from gateway.steering.etrace.edits import (
    Edit,
    InsertMessage,
    InsertSystem,
    Message,
    SystemAppend,
    apply,
)
from gateway.steering.etrace.target import Target
from gateway.wire.completion import assemble
from gateway.wire.parsing import Loads
from gateway.wire.prefix import KnownMessages, Prefix
from gateway.wire.request import ChatRequest, Splice
from gateway.wire.splice import append_to_message, insert_message
from gateway.wire.sse import encode_event


class ChatDialect:
    """`POST /v1/chat/completions`. Source: OpenAI API reference, "Chat Completions"."""

    name = "chat"
    path = "/chat/completions"
    list_key = "messages"
    end = None
    always_reports_usage = False

    def parse(self, raw: bytes, loads: Loads, known: Prefix | None = None) -> SteeredRequest:
        """See Dialect."""
        return parse_messages(raw, loads, self, known)

    def history(self, request: SteeredRequest) -> Sequence[Any]:
        """See Dialect."""
        return request.messages

    def placeable(self, request: SteeredRequest) -> Sequence[Message]:
        """See Dialect."""
        return request.messages

    def target(self, given: Target, request: SteeredRequest, model: str) -> Target:
        """See Dialect."""
        return given

    def splices(self, request: SteeredRequest, edits: Sequence[Edit]) -> list[Splice]:
        """See Dialect."""
        return edit_splices(request, edits)

    def edited(self, request: SteeredRequest, edits: Sequence[Edit]) -> Mapping[str, Any]:
        """See Dialect."""
        return {**request.body, "messages": apply(request.messages, edits)}

    def goes_on_from(self, request: SteeredRequest) -> str | None:
        """See Dialect."""
        return None

    def takes(self, parameter: str) -> bool:
        """See Dialect."""
        return True

    def is_aside(self, request: SteeredRequest) -> bool:
        """See Dialect."""
        return False

    def read_stream(self, stream: bytes, loads: Loads) -> StreamRead:
        """See Dialect."""
        assembler, ended = assemble(stream, loads)
        failed = assembler.error is not None
        return StreamRead(
            completion=assembler.completion() if ended or assembler.finished else None,
            usage=assembler.usage,
            ended=ended,
            accepted=failed or assembler.finished,
            failed=failed,
        )

    def read_answer(self, body: dict[str, Any]) -> ChatView | None:
        """See Dialect."""
        return body

    def under_way(self, body: Mapping[str, Any]) -> str | None:
        """See Dialect."""
        return None

    def error_body(self, error: GatewayError) -> bytes:
        """See Dialect."""
        return error.body()

    def error_event(self, error: GatewayError) -> bytes:
        """See Dialect."""
        return encode_event(error.payload())


def parse_messages(
    raw: bytes, loads: Loads, dialect: Dialect, known: Prefix | None
) -> SteeredRequest:
    """A request that brings `messages`.

    Raises:
        BadRequest: `param` names the key that is wrong.
    """
    request = parse_request(raw, loads, dialect, known)
    given = request.body.get("messages")
    if not isinstance(given, (list, KnownMessages)):
        what = "must be an array" if "messages" in request.body else "is required"
        raise BadRequest(f"'messages' {what}", param="messages")
    return request


def edit_splices(request: ChatRequest, edits: Sequence[Edit]) -> list[Splice]:
    """The edits as changes of the client's text."""
    splices: list[Splice] = []
    for edit in edits:
        match edit:
            case SystemAppend():
                splices += append_to_message(request, edit.index, edit.texts, edit.breakpoint)
            case InsertSystem():
                splices.append(insert_message(request, 0, "system", "\n\n".join(edit.texts)))
            case InsertMessage():
                splices.append(insert_message(request, edit.position, edit.role, edit.text))
    return splices


CHAT = ChatDialect()
