"""What a dialect gives the core, and how it takes the core's decision back."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from gateway.dialects.history import Earlier, Resolved, reference_of
from gateway.errors import BadRequest, GatewayError
from gateway.steering.etrace.edits import Edit, Message
from gateway.steering.etrace.target import Target
from gateway.wire.messages import REFERENCE
from gateway.wire.parsing import Loads, parse_object
from gateway.wire.prefix import Prefix
from gateway.wire.request import ChatRequest, Splice
from gateway.wire.watch import NamedEnd

ChatView = dict[str, Any]
"""A finished answer in the shape of a chat completion: `choices`, `model`, `usage`."""

ECHO = "gateway.echo"
"""In a choice: the items that a client sends back for it, where they are not its message."""

ANSWER_ID = "gateway.answer"
"""In a view: the id by which a later request may go on from the answer."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamRead:
    """What a whole event stream says.

    `completion` is None when there is no whole reply. `ended`: the end mark came; `accepted`: also
    without it the stream may count as whole. `failed`: the upstream itself reported an error.
    `under_way`: the id of an answer that is being made in the background, stream or not.
    """

    completion: ChatView | None = None
    usage: dict[str, Any] | None = None
    ended: bool = False
    accepted: bool = False
    failed: bool = False
    under_way: str | None = None


class SteeredRequest(ChatRequest):
    """A request in any dialect, over the client's own bytes."""

    __slots__ = ("dialect", "earlier", "named")

    dialect: Dialect
    earlier: Earlier | None
    """What the server keeps of the history, where the client does not send it."""

    named: Mapping[str, Any]
    """Items that the request brings by their ids alone, as far as they are known."""

    def __init__(
        self, raw: bytes, body: dict[str, Any], dialect: Dialect, known: Prefix | None = None
    ) -> None:
        super().__init__(raw, body, dialect.list_key, known)
        self.dialect = dialect
        self.earlier = None
        self.named = {}

    @property
    def wants_usage(self) -> bool:
        """Whether the answer's usage reaches the client anyway."""
        return self.dialect.always_reports_usage or super().wants_usage

    @property
    def goes_on_from(self) -> str | None:
        """The id of the answer that the request goes on from without its history."""
        return self.dialect.goes_on_from(self)

    @property
    def in_conversation(self) -> bool:
        """Whether the server keeps the history under an id of its own."""
        return self.dialect.name == "responses" and bool(self.body.get("conversation"))

    @property
    def references(self) -> list[str]:
        """The ids of the items that stand in the request by their ids alone."""
        if self.dialect.name != "responses" or REFERENCE.encode() not in self.raw:
            return []
        return [name for item in self.dialect.history(self) if (name := reference_of(item))]

    @property
    def in_background(self) -> bool:
        """Whether the answer is made whether or not anybody waits for it."""
        return self.dialect.name == "responses" and self.body.get("background") is True

    @property
    def earlier_count(self) -> int:
        """How many messages of the history are not at hand."""
        return self.earlier.gone if self.earlier is not None else 0

    @property
    def transcript(self) -> Sequence[Any]:
        """The whole history as the core reads it, with what the client leaves to the server."""
        own = self.dialect.history(self)
        if self.named:
            own = Resolved(own, self.named)
        return own if self.earlier is None else self.earlier.followed_by(own)


class Dialect(Protocol):
    """One wire; stateless, one instance each."""

    @property
    def name(self) -> str:
        """`chat`, `responses` or `messages`: what a deployment's `dialects` lists."""

    @property
    def path(self) -> str:
        """Below the version, with a leading slash."""

    @property
    def list_key(self) -> str:
        """The key of the list of messages or items."""

    @property
    def end(self) -> NamedEnd | None:
        """Matches the event that ends a stream; None for OpenAI's `[DONE]`."""

    @property
    def always_reports_usage(self) -> bool:
        """Whether streams carry usage without being asked."""

    def parse(self, raw: bytes, loads: Loads, known: Prefix | None = None) -> SteeredRequest:
        """The request in `raw`; of one that begins with `known` only what is new is read.

        Raises:
            BadRequest: `param` names the key that is wrong.
        """

    def history(self, request: SteeredRequest) -> Sequence[Any]:
        """The messages or items that the request itself brings."""

    def placeable(self, request: SteeredRequest) -> Sequence[Message]:
        """What placement sees: the system prompt in front, wherever the dialect has it."""

    def target(self, given: Target, request: SteeredRequest, model: str) -> Target:
        """What `given` allows for guidance when it is spoken to in this dialect."""

    def splices(self, request: SteeredRequest, edits: Sequence[Edit]) -> list[Splice]:
        """The edits, in terms of `placeable`, as changes of the client's text."""

    def edited(self, request: SteeredRequest, edits: Sequence[Edit]) -> Mapping[str, Any]:
        """The parsed body with the edits made."""

    def goes_on_from(self, request: SteeredRequest) -> str | None:
        """The id of the answer that the request goes on from, if it names one."""

    def takes(self, parameter: str) -> bool:
        """Whether a deployment's request parameter of that name belongs to this dialect."""

    def is_aside(self, request: SteeredRequest) -> bool:
        """Whether the request is a probe that belongs to no run."""

    def read_stream(self, stream: bytes, loads: Loads) -> StreamRead:
        """What a whole event stream says; never raises."""

    def read_answer(self, body: dict[str, Any]) -> ChatView | None:
        """A complete answer; None when the body is no reply."""

    def under_way(self, body: Mapping[str, Any]) -> str | None:
        """The id of an answer that is still being made, when the body is one."""

    def error_body(self, error: GatewayError) -> bytes:
        """The body of an error answer made here."""

    def error_event(self, error: GatewayError) -> bytes:
        """The same as the last event of a stream."""


def parse_request(
    raw: bytes, loads: Loads, dialect: Dialect, known: Prefix | None
) -> SteeredRequest:
    """The JSON object in `raw`, with a `model` and a `stream` of the right types.

    Raises:
        BadRequest: `param` names the key that is wrong.
    """
    body = known.read(raw, loads) if known is not None else None
    if body is None:
        body, known = parse_object(raw, loads), None
    model = body.get("model")
    if not isinstance(model, str) or not model:
        what = "is required" if model is None else "must be a non-empty string"
        raise BadRequest(f"'model' {what}", param="model")
    if not isinstance(body.get("stream"), (bool, type(None))):
        raise BadRequest("'stream' must be true or false", param="stream")
    return SteeredRequest(raw, body, dialect, known)
