"""Answers that the gateway gives to a call itself, because the call may not be sent."""

from collections.abc import AsyncIterator

from gateway import errors
from gateway.values import FieldDict
from gateway.wire.echo import OWN_ANSWER
from gateway.wire.headers import RawHeaders


def with_status(error: errors.RunRefused, status: int) -> errors.RunRefused:
    """The error with the configured status, if no later attempt changes it."""
    if set(errors.NO_RETRY) <= set(error.headers):
        error.status = status
    return error


def answer_text(message: str, report: str) -> str:
    """A refusal as the final answer of a run; a sub-agent's has a report of what it has done."""
    why = message.removeprefix(errors.STOPPED)
    if report:
        return f"{OWN_ANSWER}{why.removesuffix(errors.CAN_RAISE)}\n\n{report}"
    return f"{OWN_ANSWER}{why}\n\nNo model was asked. Until then every call gets this answer."


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
