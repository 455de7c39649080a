"""Answers that the gateway gives to a call itself, because the call may not be sent."""

import time
from collections.abc import AsyncIterator

from gateway import errors
from gateway.calls.call import Call
from gateway.config.control import Ending
from gateway.dialects.own_answers import is_structured
from gateway.observability.logging import get_logger
from gateway.values import FieldDict
from gateway.wire.echo import OWN_ANSWER
from gateway.wire.headers import RawHeaders
from gateway.wire.message_identity import content_text

# After so many of the gateway's own final answers in a request's history its agent gets an error:
# an agent that takes no answer for the end would call for ever.
_IGNORED_ANSWERS = 2

_log = get_logger("gateway.budgets")


def with_status(error: errors.RunRefused, status: int) -> errors.RunRefused:
    """The error with the configured status, if no later attempt changes it."""
    if set(errors.NO_RETRY) <= set(error.headers):
        error.status = status
    return error


class OwnResponse:
    """`LaneResponse` over bytes that are there already; `code`: why no model was asked."""

    status = 200
    usage: FieldDict | None = None  # always None: nothing was used

    def __init__(self, content: bytes, *, stream: bytes, code: str):
        """`stream`: the content type of a stream; empty for a body."""
        self._content = content
        self.headers: RawHeaders = [(b"content-type", stream or b"application/json")]
        if not stream:
            self.headers.append((b"content-length", str(len(content)).encode()))
        self.headers.append((b"x-gateway-stopped", code.encode()))

    async def __aiter__(self) -> AsyncIterator[bytes]:
        yield self._content

    async def aclose(self) -> None:
        """See LaneResponse."""


def own_answer(call: Call, error: errors.RunRefused, ending: Ending, report: str) -> OwnResponse:
    """The final answer of a run whose call is not sent; a sub-agent's has a `report` of what it has
    done. Raises: RunRefused: the client gets an error."""
    request = call.request
    said = error.message.removeprefix(errors.STOPPED).removesuffix(errors.CAN_RAISE)
    call.note_reason(f"{error.label}: {said}{error.go_on}")
    exchange = call.exchange
    exchange.notes["refused"] = error.code
    _log.info(
        "call not sent", reason=error.message, code=error.code, request_id=exchange.request.id
    )
    ended = sum(
        content_text(each.get("content")).startswith(OWN_ANSWER)
        for each in request.transcript
        if each.get("role") == "assistant"  # those in results are of its sub-agents
    )
    # Whether a stream or JSON is expected is in the body.
    if (
        ending == "error"
        or ended >= _IGNORED_ANSWERS
        or request.opaque
        or is_structured(request.body)
    ):
        raise error
    exchange.response.error = error.label
    number = exchange.request.id.removeprefix("req-")
    text = f"{said}\n\n{report}"
    if not report:
        text = error.message.removeprefix(errors.STOPPED)
        text += "\n\nNo model was asked. Until then every call gets this answer."
    content = request.dialect.own_answer(request, OWN_ANSWER + text, number, at=int(time.time()))
    stream = b""
    if request.stream and not content.startswith(b"["):  # Gemini's arrays are JSON
        stream = request.dialect.stream_type
    return OwnResponse(content, stream=stream, code=error.code or "")
