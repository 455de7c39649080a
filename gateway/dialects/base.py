"""Interface of dialects: reads requests and answers for the core, and changes the text."""

import json
import re
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from typing import Any, ClassVar, Literal
from urllib.parse import quote, unquote

from gateway.core.edits import Edit, Message
from gateway.core.placement import GuidanceTarget
from gateway.dialects import own_answers
from gateway.errors import BadRequest, GatewayError
from gateway.steering.identity.branch import asks_for_summary, split_ending
from gateway.values import FieldDict, Fields, Value
from gateway.wire.body_prefix import BodyPrefix, KnownMessages, MessagesView
from gateway.wire.coerce import as_text
from gateway.wire.echo import EchoFilter
from gateway.wire.message_identity import REFERENCE, system_text
from gateway.wire.parsing import BeyondParser, Loads, Span, parse_object, skim
from gateway.wire.prefix_hash import ChainState
from gateway.wire.request import ChatRequest, Splice
from gateway.wire.response_tee import NamedEnd
from gateway.wire.sse import SSEDecoder, encode_event
from gateway.wire.upstream_errors import Refusal, refusal_of

Api = Literal["openai", "anthropic", "google", "vertex", "bedrock"]
# A finished answer in the shape of a chat completion: `choices`, `model`, `usage`.
ChatView = FieldDict
# Key in a choice: the items that a client sends back for it, when they differ from its message.
ECHO = "gateway.echo"
# Key in a view: the id under which the upstream stores the answer, for a later request.
ANSWER_ID = "gateway.answer"


class StreamRead(Value):
    """Content of a complete event stream."""

    completion: ChatView | None = None  # None when there is no complete reply
    partial: ChatView | None = None  # what arrived of such a reply, where the dialect knows it
    usage: FieldDict | None = None  # as the upstream reported it; None when it did not
    began: bool = False  # any part of a reply came; not always set for one that `ended`
    ended: bool = False  # the end mark came
    odd: bool = False  # a part of it was not understood, so that nobody knows whether it is cut
    failure: Refusal | None = None  # the error that the upstream itself reported
    pending_id: str | None = None  # of an answer that is still being made in the background

    @property
    def accepted(self) -> bool:
        """Whether the stream counts as complete without its end mark, too."""
        return self.completion is not None or self.failure is not None


class LiteLLMCall(Value):
    """LiteLLM's call on behalf of a dialect that the upstream does not speak."""

    # LiteLLM's function; it answers in the dialect's own form
    function: Literal["acompletion", "aresponses", "anthropic_messages", "agenerate_content"]
    # the fields of the body that are passed on; others could be taken for LiteLLM's controls
    fields: frozenset[str] = frozenset()
    # fields that refer to a history which the upstream stores: refused, as LiteLLM has none
    stored_history: tuple[str, ...] = ()


class Addressed(Value):
    """The model and the kind of answer that a path names, where in other APIs the body does. The
    parts of the path are as the client sent them."""

    before: str  # the path up to the model's name
    named: str  # the name, with the encoding of paths
    after: str  # the rest of the path
    stream: bool = False  # the path asks for a stream
    # what is before the name at a deployment's host; "" where that does not differ. None: no other
    # host answers in this form
    elsewhere: str | None = ""
    query: bytes = b""  # without the question mark
    enveloped: bool = False  # what the dialect reads is in a member of the body, beside the model
    agent: str = ""  # id of the sub-agent that asks, where an envelope names it

    @property
    def model(self) -> str:
        """The name without the encoding of paths."""
        return unquote(self.named)

    def at(self, model: str, *, seat: bool = True) -> str:
        """The path that asks for a model, at the client's own host or at a deployment's; the
        client's own for the name that it sent."""
        if seat and self.enveloped:
            return self.before
        if seat:
            before = self.before
        else:
            before = self.elsewhere or self.before
        if model == self.model:
            named = self.named
        else:
            named = quote(model, safe=":@")
        return f"{before}{named}{self.after}"

    def members(self) -> FieldDict:
        """The same as members of the body, for whoever reads the parsed request."""
        return {"model": self.model, "stream": self.stream}

    def packed(self, body: bytes, model: str) -> bytes:
        """A body as the client's own host gets it, asked for a model."""
        return body


class SteeredRequest(ChatRequest):
    """A request in any dialect, over the client's own bytes."""

    addressed: Addressed | None  # None: the body names the model
    dialect: "Dialect"  # API that it is written in
    earlier: "EarlierHistory | None"  # what the upstream stores and the client does not send
    named: Fields  # the items that the request refers to by id, as far as they are known
    opaque: bool  # whether nothing of the body can be read: `body` has an empty model and no more

    def __init__(
        self,
        raw: bytes,
        body: FieldDict,
        dialect: "Dialect",
        known: BodyPrefix | None = None,
        skimmed: dict[str, list[Span]] | None = None,
        *,
        addressed: Addressed | None,
        opaque: bool = False,
    ):
        super().__init__(raw, body, dialect.list_key, known, skimmed)
        self.addressed = addressed
        self.dialect = dialect
        self.opaque = opaque
        self.earlier = None
        self.named = {}
        # The id of the stored answer that the request continues instead of sending its history.
        self.previous_response_id = dialect.previous_response_id(self)

        # The messages or items that the request itself contains.
        self.own_messages = dialect.history(self)

        # The complete history as the core reads it, including what the upstream stores.
        self.transcript = self.own_messages

    def complete(self, named: Fields, earlier: "EarlierHistory | None") -> None:
        """Add the part of the history that the upstream stores to the transcript."""
        self.named = named
        self.earlier = earlier
        own = self.own_messages
        if named:
            own = ResolvedReferences(own, named)
        if earlier is None:
            self.transcript = own
        else:
            self.transcript = earlier.followed_by(own)

    def with_model(self, model: str) -> list[Splice]:
        """The splices that ask for another model; none where the path names it."""
        if self.addressed is not None:
            return []
        return super().with_model(model)

    @property
    def wants_usage(self) -> bool:
        """Whether the answer reports its usage to the client without a change of the request."""
        return self.dialect.always_reports_usage or super().wants_usage


class Dialect(ABC):
    """One wire format that clients speak: a module of this package and a row of `DIALECTS`. A
    dialect has no state and one instance. The defaults are those of an API in the form of chat
    completions whose upstream stores no history."""

    name: ClassVar[str]  # name in a deployment's `dialects`
    path: ClassVar[str]  # the path after the version, with a leading slash
    routes: ClassVar[tuple[str, ...]]  # the paths that the gateway serves it at, as patterns
    passed_on: ClassVar[tuple[str, ...]] = ()  # paths among these that are for no model
    # the paths that name a model: what is before its name, the name, the rest, and in the rest what
    # asks for a stream, but in Azure's, which no other host has. None: the body names it
    form: ClassVar[re.Pattern[str] | None] = None
    foreign: ClassVar[tuple[str, ...]] = ()  # members of a body that its own host alone takes
    list_key: ClassVar[str]  # the key of the list of messages or items
    route: ClassVar[str]  # the label of its requests in metrics, traces and logs
    # owner of the API; decides about base URL, key header and default upstreams
    api: ClassVar[Api] = "openai"
    # whether routes below the path are about answers that the default upstream may store. If not,
    # they are about the model in the body, and only an upstream of that model can answer.
    stores_answers: ClassVar[bool] = True
    end: ClassVar[NamedEnd | None] = None  # the event that ends a stream; None: OpenAI's `[DONE]`
    stream_type: ClassVar[bytes] = b"text/event-stream; charset=utf-8"
    ping: ClassVar[bytes] = b": waiting\n\n"  # keeps a stream alive; empty: its form has none
    always_reports_usage: ClassVar[bool] = False  # whether streams do so without being asked to
    streams_json: ClassVar[bool] = False  # whether an answer labelled JSON may be a stream
    litellm: ClassVar[LiteLLMCall | None] = None  # None: only upstreams that speak it serve it

    @abstractmethod
    def splices(self, request: SteeredRequest, edits: Sequence[Edit]) -> list[Splice]:
        """The edits, whose positions are those of `placeable`, as changes of the client's text."""

    @abstractmethod
    def read_stream(self, stream: bytes, loads: Loads) -> StreamRead:
        """Content of a complete event stream; never raises."""

    def plain(self, answer: bytes, loads: Loads) -> bytes:
        """An answer as people read it, and as secrets in it are found."""
        return answer

    @abstractmethod
    def read_answer(self, body: FieldDict) -> ChatView | None:
        """A complete answer; None when the body is no reply."""

    def addressed(self, path: str) -> Addressed | None:
        """The model that a path of `routes`, as the client sent it, names; None where the body
        does."""
        found = self.form and self.form.fullmatch(path)
        if not found:
            return None
        before, named, after, *stream = found.groups()
        elsewhere = "" if stream else None
        return Addressed(
            before=before, named=named, after=after, stream=any(stream), elsewhere=elsewhere
        )

    def members(self, addressed: Addressed, body: Fields) -> FieldDict:
        """Members of the parsed body that the client's own does not have."""
        return addressed.members()

    def parse(
        self,
        raw: bytes,
        loads: Loads,
        known: BodyPrefix | None = None,
        addressed: Addressed | None = None,
    ) -> SteeredRequest:
        """The request in `raw`; of one that begins with `known` only the new part is parsed.
        Raises: BadRequest: `param` names the key that is wrong."""
        body = None
        if known is not None:
            body = known.read(raw, loads)
        if body is None:
            body = parse_object(raw, loads)
            known = None
        if addressed is not None:
            body |= self.members(addressed, body)
        _check(body)
        if wrong := self.wrong_list(body):
            raise BadRequest(f"{self.list_key!r} {wrong}", param=self.list_key)
        return SteeredRequest(raw, body, self, known=known, addressed=addressed)

    def read(
        self, raw: bytes, loads: Loads, known: BodyPrefix | None, addressed: Addressed | None
    ) -> SteeredRequest:
        """The request in `raw`; without its messages where the parser cannot read these. Raises as
        `parse` does."""
        try:
            return self.parse(raw, loads, known, addressed=addressed)
        except BeyondParser:
            with suppress(BadRequest):
                return self.skim(raw, loads, addressed)
            raise

    def wrong_list(self, body: Fields) -> str:
        """The fault of the list of messages or items, in words; empty if there is none."""
        if isinstance(body.get(self.list_key), (list, KnownMessages)):
            return ""
        if self.list_key in body:
            return "must be an array"
        return "is required"

    def skim(self, raw: bytes, loads: Loads, addressed: Addressed | None = None) -> SteeredRequest:
        """The request in `raw` without its messages, which are too much to read. Raises:
        BadRequest: `param` names the key that is wrong."""
        body, spans = skim(raw, loads)
        if addressed is not None:
            body |= self.members(addressed, body)
        _check(body)
        return SteeredRequest(raw, body, self, skimmed=spans, addressed=addressed)

    def opaque(self, raw: bytes, addressed: Addressed | None = None) -> SteeredRequest:
        """The request in `raw`, which cannot be read: compressed in a way that is not known."""
        if addressed is not None:
            body = addressed.members()
        else:
            body = {"model": ""}
        return SteeredRequest(raw, body, self, skimmed={}, opaque=True, addressed=addressed)

    def history(self, request: SteeredRequest) -> Sequence[Any]:
        """The messages or items that the request itself contains."""
        return request.messages

    def placeable(self, request: SteeredRequest) -> Sequence[Message]:
        """The messages among which guidance is placed, the system prompt first."""
        return request.messages

    def target(self, given: GuidanceTarget, request: SteeredRequest, model: str) -> GuidanceTarget:
        """Target for this dialect, where `given` is what the model accepts in general."""
        return given

    def edited(self, request: SteeredRequest, edits: Sequence[Edit]) -> Fields:
        """The parsed body with the edits made."""
        body: FieldDict = json.loads(request.render(self.splices(request, edits)))
        if request.addressed is None:
            return body
        return body | request.addressed.members()

    # whether answers repeat the instructions of their request; `echo` gives the client's own
    repeats_instructions: ClassVar[bool] = False

    def echo(self, request: SteeredRequest, edits: Sequence[Edit]) -> EchoFilter | None:
        """Returns the filter that removes the edits from an answer that repeats them; None if
        the dialect repeats nothing."""
        return None

    def previous_response_id(self, request: SteeredRequest) -> str | None:
        """The id of the stored answer that the request continues, if it names one."""
        return None

    def in_conversation(self, request: SteeredRequest) -> bool:
        """Whether the upstream stores the history under a conversation id."""
        return False

    def references(self, request: SteeredRequest) -> list[str]:
        """The ids of the stored items that the request sends by id only."""
        return []

    def in_background(self, request: SteeredRequest) -> bool:
        """Whether the answer is made even when the client does not wait for it."""
        return False

    def takes(self, parameter: str) -> bool:
        """Whether the dialect has the request parameter that a deployment sets."""
        return True

    def is_side_request(self, request: SteeredRequest) -> bool:
        """Whether the request is a probe that belongs to no run."""
        return False

    def compacts(self, request: SteeredRequest) -> bool:
        """Whether an agent has its history summarised, to continue with the summary instead."""
        messages = request.own_messages
        tools = request.body.get("tools")
        said = ""
        if messages:
            said = split_ending(messages[-1])[0]
        # opencode adds one tool that is never called.
        few = bool(said) and (not isinstance(tools, list) or len(tools) < 2)
        return asks_for_summary(system_text(request.body, messages) if few else "", said)

    def pending_id(self, body: Fields) -> str | None:
        """The id of an answer that is still being made, when the body is one."""
        return None

    def own_answer(self, request: SteeredRequest, text: str, number: str, at: int) -> bytes:
        """A final answer of the gateway's own, whole or as the events of a complete stream.
        `number`: makes its id unique; `at`: its time in seconds of the epoch."""
        return own_answers.chat(request.body, text, number, at=at)

    def in_envelope(self, events: bytes) -> bytes:
        """Complete server-sent events in the form in which the dialect sends its events."""
        return events

    def error_body(self, error: GatewayError) -> bytes:
        """The body of an error answer of the gateway's own."""
        return error.body()

    def error_event(self, error: GatewayError) -> bytes:
        """The same error as the last event of a stream."""
        return encode_event(error.payload())

    def broken_off(self, error: GatewayError) -> bytes:
        """The last bytes of a stream that ends in the middle, possibly of an event."""
        return b"\n\n" + self.error_event(error)


def _check(body: Fields) -> None:
    model = body.get("model")
    if not isinstance(model, str) or not model:
        what = "must be a non-empty string"
        if model is None:
            what = "is required"
        raise BadRequest(f"'model' {what}", param="model")
    if not isinstance(body.get("stream"), (bool, type(None))):
        raise BadRequest("'stream' must be true or false", param="stream")


Known = tuple[list[FieldDict], Refusal | None, bool]


def known_events(events: Iterable[FieldDict], *beginnings: str) -> Known:
    """(those of a stream's events whose types begin like this, the error that another one reports,
    whether others are not understood)."""
    known = []
    failure = None
    odd = False
    for data in events:
        kind = str(data.get("type"))
        if kind.startswith(beginnings):
            known.append(data)
        elif kind != "ping":
            failure = refusal_of(data) or failure
            odd = odd or failure is None
    return known, failure, odd


_DATA = b"\ndata: "


def events_of(stream: bytes, loads: Loads) -> Iterator[FieldDict]:
    """The JSON objects of a complete stream, in order; anything else as an empty one, and nothing
    for a last event that is cut."""
    parsed = _plain(stream, loads)
    if parsed is None:
        decoder = SSEDecoder()
        # Comments, times to wait and ids have no data; anything else without is odd.
        given = [e for e in decoder.feed(stream) if e.data or e.raw.strip()[:1] not in b":ri"]
        parsed = [_payload(event.data, loads) for event in given]
        parsed += filter(None, [_payload(event.data, loads) for event in decoder.flush()])
    for data in parsed:
        yield data if isinstance(data, dict) else {}


def _plain(stream: bytes, loads: Loads) -> list[Any] | None:
    """All payloads in one parse, for a stream of `event:` and `data:` lines; None for any other."""
    # `find`, because `in` raises and drops an error before it searches bytes (CPython 3.11).
    if stream.find(b"\r") >= 0 or not stream.endswith(b"\n\n"):
        return None
    payloads = []
    for block in stream[:-2].split(b"\n\n"):
        head, mark, data = block.partition(_DATA)
        named = mark and head.startswith(b"event: ") and head.find(b"\n") < 0
        if not named or data.find(b"\n") >= 0:
            return None
        payloads.append(data)
    try:
        parsed = loads(b"[" + b",".join(payloads) + b"]")
    except ValueError:
        return None
    return parsed if len(parsed) == len(payloads) else None


def _payload(data: bytes, loads: Loads) -> Any:
    """The value in `data`, None if it is not JSON; bytes that are not UTF-8 are replaced."""
    with suppress(ValueError):
        return loads(data)
    with suppress(ValueError, RecursionError):
        return json.loads(data.decode("utf-8", "replace"))
    return None


# Replaces a message that is not available: a developer message without text or digest.
_GONE = {"role": "developer"}


class EarlierHistory(Value):
    """The history before a request, which the upstream stores."""

    chain: ChainState  # hash state after the request that was answered last
    reply: tuple[Any, ...] = ()  # items of that answer; empty when they are not available

    @property
    def gone(self) -> int:
        """Number of messages before the reply that are not available."""
        return self.chain.count

    def followed_by(self, own: Sequence[Any]) -> Sequence[Any]:
        """The whole history of a request that contains `own`."""
        return WithFirst(_GONE, (*self.reply, *own), self.gone)


def reference_of(item: Any) -> str | None:
    """The id in an item that is only a reference; its type may be left out."""
    if isinstance(item, dict) and (item.get("type") == REFERENCE or item.keys() == {"id"}):
        return as_text(item.get("id"), None)
    return None


class ResolvedReferences(MessagesView):
    """A history with references replaced by the known items, on access."""

    def __init__(self, items: Sequence[Any], known: Fields):
        self._items = items
        self._known = known

    def __len__(self) -> int:
        return len(self._items)

    def at(self, index: int) -> Any:
        found = self._items[index]
        return self._known.get(reference_of(found) or "", found)


class WithFirst(MessagesView):
    """A list after one first element, `times` over; costs the same for any list and number."""

    def __init__(self, first: Any, rest: Sequence[Any], times: int = 1):
        self._first = first
        self._rest = rest
        self._times = times

    def __len__(self) -> int:
        return self._times + len(self._rest)

    def at(self, index: int) -> Any:
        if index >= self._times:
            return self._rest[index - self._times]
        return self._first
