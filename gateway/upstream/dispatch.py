"""One request to its targets: headers, retries, fallbacks; returns the first usable answer.

Also the providers that refuse `stream_options`, which are later asked without it, and the calls
that the gateway makes for itself to a model of its deployments (`ask`), which are never steered."""

import asyncio
import re
import time
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from dataclasses import KW_ONLY, dataclass
from functools import lru_cache, partial
from math import inf
from typing import Protocol

import orjson
from cachetools import LRUCache
from msgspec import Struct
from yarl import URL

from gateway.config import RouterSettings
from gateway.config.base_url import BaseURL
from gateway.dialects import CHAT, Dialect
from gateway.errors import GatewayError, LoopDetected, NotFound, UpstreamFailure
from gateway.observability.metrics import Metrics
from gateway.tasks import off_loop
from gateway.upstream import credentials, providers, retries
from gateway.upstream.base import LaneResponse, retry_after_s
from gateway.upstream.cloud_credentials import CloudSigner
from gateway.upstream.deployments import DeploymentTable, Target
from gateway.upstream.dry_seats import DrySeat, DrySeats, credential_key, limit_ends
from gateway.upstream.http1 import Http1Answer
from gateway.upstream.litellm_package import can_translate
from gateway.upstream.native import NativeLane
from gateway.upstream.seats import Seat
from gateway.upstream.translation import TranslatingLane
from gateway.values import Fields, Value
from gateway.wire.coerce import as_text
from gateway.wire.compression import codings_of, packed
from gateway.wire.headers import RawHeaders, end_to_end, header, readable
from gateway.wire.response_tee import ResponseWatch
from gateway.wire.upstream_errors import Kind, kind_of, refusal_of, status_of

INSTANCE_HEADER = b"x-gateway-instance"

# Set for each connection separately, or meant for the gateway itself.
_OWN_HEADERS = frozenset({b"host", b"content-length", b"expect", b"x-conversation-id"})

# The beginning of the names in `router.fallbacks` for a kind of refusal.
_FALLBACKS_FOR = {"length": "context_window:", "policy": "content_policy:"}
_FAILS = re.compile(b"error|failed")
# Longest wait for the first event of an answer before its head is sent: clients and proxies wait a
# minute for a head.
_SHOWN_S = 5.0
_PACKED_AT_ONCE = 2**15  # bytes that take about a millisecond to pack


class PackedBody(Value):
    """A client's compressed body."""

    content: bytes  # its own bytes
    coding: bytes  # name of the compression, as in `content-encoding`
    plain: bytes  # what is in them, as UTF-8


class OpenConnection(Protocol):
    """A connection that a client keeps open to one upstream, and over which it is asked."""

    target: Target  # the upstream at its other end
    # the id by which a later request on it can continue the newest answer; empty: none
    answer_id: str

    async def ask(self, body: bytes) -> LaneResponse:
        """The answer to a request. Raises: UpstreamFailure."""


class UpstreamCall(Struct, kw_only=True):
    """One request to be sent upstream."""

    method: str  # of HTTP
    path: str  # below the target's `api_base`, with a leading slash
    headers: RawHeaders  # end-to-end ones as the client sent them
    dialect: Dialect | None = None  # None on a route that only some upstreams know
    query: bytes = b""  # without the question mark
    # the client's headers that held gateway keys: never forwarded
    key_headers: frozenset[bytes] = frozenset()
    # the client's own bytes, which are sent when `body` gives what is in them unchanged. Then
    # `headers` do not name a coding.
    packed: PackedBody | None = None
    seat: Seat | None = None  # None: an API of OpenAI's or Anthropic's
    path_at: Callable[[Target], str] | None = None  # the path at a target, where that is not `path`
    # whether the default upstream alone is asked: the body cannot be read, not even its model, or
    # no other answers in its form
    opaque: bool = False
    # whether body and answer are in envelopes, which only the client's own host has: it is asked
    # first, and as fallbacks those that speak the dialect without
    enveloped: bool = False
    # the bytes to send to a target
    body: Callable[[Target], bytes] = lambda target: b""
    # the same as a JSON object, for the LiteLLM lane
    parsed: Callable[[Target], Fields] = lambda target: {}
    conversation: str = ""  # its id, by which it keeps its deployment; "" for a call without one
    # the only target that can answer: it stores the answer that the request is about
    at: Target | None = None
    # whether a fallback may be asked; None: any may
    admits: Callable[[Target], Awaitable[bool]] | None = None
    # the answer where the operator's key would be spent; None: it may be
    instead_of_operator_key: GatewayError | None = None
    connection: OpenConnection | None = None  # None: as the target is reached by itself
    # the client's credential whose limit holds, so that another target is asked
    dry: DrySeat | None = None
    # when a target that has failed may be asked again, in the loop's seconds, by its `id`
    rests: dict[int, float] = {}
    attempts: list[str] = []  # the result of each attempt: `<deployment>:<status or error label>`

    @property
    def api(self) -> str:
        """Whose API the client speaks, and so whose credentials it brings."""
        if self.seat is not None:
            return self.seat.api
        if self.dialect is not None:
            return self.dialect.api
        own = [header for header in self.headers if header[0] not in self.key_headers]
        if credentials.speaks_anthropic(own):
            return "anthropic"
        return "openai"


class TargetAnswer(Value):
    """The answer to relay, and the target that gave it."""

    response: LaneResponse  # its body is read once
    target: Target  # the one that gave it
    # the status of the answer, or the one that an error stands for with which it begins
    status: int
    kind: Kind | None = None  # why a request was refused that the gateway had changed


@dataclass(eq=False)
class Dispatcher:
    """Tries targets in order until one gives an answer to relay."""

    table: DeploymentTable  # the config's deployments
    native: NativeLane  # relays bytes
    litellm: TranslatingLane  # translates
    settings: RouterSettings  # retries, fallbacks and rests
    metrics: Metrics  # attempts by target and result
    _: KW_ONLY
    dry: DrySeats  # credentials of clients that are at their limit
    instance: bytes  # random mark of this process in forwarded requests, to detect a loop

    def __post_init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self.signer = CloudSigner(self.table)
        # Base URL, path and model of what upstreams have no route for.
        self._unspoken: LRUCache[str, bool] = LRUCache(_MOST_REFUSALS)

    async def send(
        self, call: UpstreamCall, model: str, *, native_only: bool = False, once: bool = False
    ) -> TargetAnswer:
        """The first answer below status 400, else the last attempt's error answer. `native_only`
        leaves out targets of the LiteLLM lane, which serves dialects only. `once`: no target is
        asked again. Raises: UpstreamFailure: the last attempt gave no answer at all."""
        call.rests = {}
        schedule = self._schedule(call, model, native_only, once=once)
        first = schedule[0]
        others = [each for each in schedule if each.name != first.name]
        key = b""
        about = ""
        if others and first.api_key is None:
            about = f"at {first.api_base.host} for {model}"
            given = [each for each in call.headers if each[0] not in call.key_headers]
            key = credential_key(given, about)
            call.dry = self.dry.resting(key, time.time())
            if call.dry and (call.admits is None or await call.admits(others[0])):
                schedule = others
        at = 0
        while True:
            target = schedule[at]
            outcome = await self._attempt(call, target)
            if key and target is first:
                call.dry = await self._noted(key, about, outcome)
                if call.dry is not None:
                    schedule[at + 1 :] = others
            if (
                isinstance(outcome, TargetAnswer)
                and outcome.status in _NO_ROUTE
                and _may_lack_route(call, outcome)
            ):
                outcome = await self._translated(call, model, outcome)
                asked = self._asked(call, target, model)
                schedule = [asked if each is target else each for each in schedule]
            if isinstance(outcome, TargetAnswer) and outcome.status < 400:
                return outcome
            upcoming = None
            pause_s = 0.0
            suited = await self._for_content(call, model, outcome)
            if suited and suited[0] not in schedule:
                schedule[at + 1 :] = suited
                upcoming, pause_s = await self._next(call, schedule, at, outcome=outcome)
            elif retries.may_help(outcome.status, target):
                upcoming, pause_s = await self._next(call, schedule, at, outcome=outcome)
                in_answer = isinstance(outcome, TargetAnswer) and outcome.response.status < 400
                if upcoming is not None or not in_answer:  # else when the answer has been read
                    self.note_end(target, failed=True)
            if upcoming is None:
                if isinstance(outcome, TargetAnswer):
                    return outcome
                raise outcome
            if isinstance(outcome, TargetAnswer):
                await outcome.response.aclose()
            if pause_s > 0:
                await asyncio.sleep(pause_s)
            at = upcoming

    async def _noted(
        self, key: bytes, about: str, outcome: TargetAnswer | UpstreamFailure
    ) -> DrySeat | None:
        """Note how a credential was answered; the seat, if it is at its limit for longer than a
        call waits."""
        now = time.time()
        if outcome.status < 400:
            self.dry.answered(key, now)
        if outcome.status != _LIMIT or not isinstance(outcome, TargetAnswer):
            return None
        content = await begun(outcome.response, lambda text: len(text) > _ERROR_BYTES)
        until = limit_ends(outcome.response.headers, content, now)
        if until - now <= self.settings.max_retry_after_s:
            return None
        return self.dry.note(key, about, now=now, until=until)

    def _schedule(
        self, call: UpstreamCall, model: str, native_only: bool, once: bool
    ) -> list[Target]:
        """The targets in order: where the answer is stored, else the name's own and fallbacks."""
        if call.connection is not None:
            return [call.connection.target]
        if once:
            times = 0
        else:
            times = self.settings.num_retries
        if call.opaque:
            default = self.table.default.for_client(call.dialect, "", call.seat)
            return _in_turn([default], [], num_retries=times)
        now = self._loop.time()
        seated = call.seat is not None or self.table.keeps_names(call.dialect)
        own = self.table.candidates(model, now, call.conversation, seated=seated)
        others = self.table.fallbacks(model, now, call.conversation, seated=seated)
        if call.enveloped:
            own = [self.table.default]
        if call.at is not None:
            key = call.at.key
            storing = [target for target in own if target.key == key]
            others_storing = [target for target in others if target.key == key]
            if storing or others_storing:
                own = storing
                others = others_storing
        own = [self._asked(call, target, model) for target in own]
        if others:
            others = [self._asked(call, target, model) for target in others]
        if native_only or call.enveloped:
            own = [target for target in own if target.lane == "native"]
            others = [target for target in others if target.lane == "native"]
        return _in_turn(own, others, num_retries=times)

    async def _for_content(
        self, call: UpstreamCall, model: str, outcome: TargetAnswer | UpstreamFailure
    ) -> list[Target]:
        """The fallbacks for a request that is too long for its model, or whose content is not
        allowed."""
        if (
            call.enveloped
            or outcome.status not in retries.FOR_CONTENT
            or not self.settings.fallbacks
        ):
            return []
        if isinstance(outcome, TargetAnswer):
            kind, _ = await read_error(outcome.response)
        else:
            kind = kind_of({"": outcome.message, "code": outcome.code})
        if (named := _FALLBACKS_FOR.get(kind)) is None:
            return []
        found = self.table.fallbacks(model, self._loop.time(), call.conversation, kind=named)
        return [self._asked(call, target, model) for target in found]

    def _asked(self, call: UpstreamCall, target: Target, model: str) -> Target:
        """A target as it is asked in the call's dialect."""
        asked = target.for_client(call.dialect, "", call.seat)
        unspoken = asked.lane == "litellm" and not asked.litellm_params  # the default upstream
        known = bool(self._unspoken) and _route(call, asked, model) in self._unspoken
        if unspoken or known:
            return asked.translated(model)
        return asked

    async def _translated(
        self, call: UpstreamCall, model: str, refused: TargetAnswer
    ) -> TargetAnswer | UpstreamFailure:
        """The upstream's answer in chat completions, which is remembered, where it has no route for
        the call's dialect; the refusal, where that has another reason."""
        outcome = await self._attempt(call, refused.target.translated(model))
        answered = isinstance(outcome, TargetAnswer) or outcome.raw_body is not None
        lacks = answered and outcome.status not in _NO_ROUTE
        left = refused if lacks else outcome
        if isinstance(left, TargetAnswer):
            await left.response.aclose()
        if not lacks:
            return refused
        self._unspoken[_route(call, refused.target, model)] = True
        return outcome

    async def _attempt(self, call: UpstreamCall, target: Target) -> TargetAnswer | UpstreamFailure:
        outcome: TargetAnswer | UpstreamFailure
        try:
            response = await self._forward(call, target)
        except UpstreamFailure as exc:
            outcome = exc
            if exc.raw_body is None:
                label = exc.label
            else:
                label = str(exc.status)
        else:
            status = response.status
            if status < 300 and call.dialect is not None and isinstance(response, Http1Answer):
                status = await _shown_status(call.dialect, response)
            elif status < 400:
                self.table.succeeded(target)
            outcome = TargetAnswer(response=response, target=target, status=status)
            label = str(status)
        call.attempts.append(f"{target.name}:{label}")
        self.metrics.attempts.labels(target.name, label).inc()
        return outcome

    def note_end(self, target: Target, *, failed: bool = False) -> None:
        """Count how a call to a target ended."""
        if not failed:
            self.table.succeeded(target)
        elif self.table.failed(target, self._loop.time()):
            self.metrics.deployment_rests.labels(target.name).inc()

    async def _forward(self, call: UpstreamCall, target: Target) -> LaneResponse:
        if target.lane == "litellm":
            assert call.dialect is not None  # other routes ask native targets only
            if call.instead_of_operator_key is not None:
                raise call.instead_of_operator_key
            headers = [h for h in call.headers if h[0] not in call.key_headers]
            return await self.litellm.send(
                target, call.parsed(target), headers, dialect=call.dialect
            )
        if call.connection is not None:
            if call.instead_of_operator_key is not None and target.api_key is not None:
                raise call.instead_of_operator_key
            return await call.connection.ask(call.body(target))
        headers = outgoing_headers(call, target, self.instance)
        if call.path_at is None:
            path = call.path
        else:
            path = call.path_at(target)
        url = target_url(target.api_base, path, call.query)
        body = call.body(target)
        if (given := call.packed) is not None and body is given.plain:
            body = given.content
            if given.coding:
                headers.append((b"content-encoding", given.coding))
        elif given is not None and given.coding and not target.key:
            # The client knows what this upstream accepts; a deployment may read plain bodies only.
            headers.append((b"content-encoding", given.coding))
            body = await _packed_again(body, given.coding)
        if target.seat:
            refusal = call.instead_of_operator_key
            headers = await self.signer.signed(
                target, call.method, url, headers=headers, body=body, refusal=refusal
            )
        return await self.native.send(call.method, url, headers, content=body)

    async def _next(
        self,
        call: UpstreamCall,
        schedule: list[Target],
        at: int,
        outcome: TargetAnswer | UpstreamFailure,
    ) -> tuple[int | None, float]:
        """(index in the schedule of the next attempt, or None; seconds to wait before it, at most
        0 for none)."""
        if isinstance(outcome, TargetAnswer):
            asked = retry_after_s(outcome.response.headers)
            again = outcome.status in retries.AT_SAME_TARGET
        else:
            asked = outcome.retry_after_s
            again = outcome.retryable
        here = schedule[at]
        now = self._loop.time()
        if not again:
            asked = inf
        call.rests[id(here)] = now + retries.pause_s(asked, at, self.settings)
        for index in range(at + 1, len(schedule)):
            upcoming = schedule[index]
            wait_s = call.rests.get(id(upcoming), now) - now
            if wait_s < inf and (
                upcoming is here or call.admits is None or await call.admits(upcoming)
            ):
                return index, wait_s
        return None, 0.0


def _in_turn(own: list[Target], fallbacks: list[Target], *, num_retries: int) -> list[Target]:
    """Targets in the order of attempts: the requested name's in turn, then each fallback once."""
    if not own:
        own = fallbacks[:1]
        fallbacks = fallbacks[1:]
    turns = max(len(own), 1 + num_retries)
    return [own[i % len(own)] for i in range(turns)] + fallbacks


async def _packed_again(body: bytes, coding: bytes) -> bytes:
    """A body in the coding that the client's own was in; a large one is packed in a thread."""
    work = partial(packed, body, codings_of(coding))
    if len(body) < _PACKED_AT_ONCE:
        return work()
    return await off_loop(work)


_LIMIT = 429  # the status of an answer that a limit refuses
# Answers to a path that a server does not have.
_NO_ROUTE = frozenset({404, 405})


def _may_lack_route(call: UpstreamCall, answer: TargetAnswer) -> bool:
    """True if such a status may mean that the upstream has no route for the call's dialect, in a
    case where nobody has configured that it has one and LiteLLM could translate."""
    dialect = call.dialect
    target = answer.target
    if dialect is None or call.path != dialect.path:
        return False
    host = target.api_base.host
    known = providers.documented_dialects(host, target.provider) | {CHAT.name}
    own = credentials.family_of_host(host) == credentials.ANY and target.lane == "native"
    return own and not call.connection and dialect.name not in known and can_translate()


def _route(call: UpstreamCall, target: Target, model: str) -> str:
    return f"{target.api_base.text}{call.path} {model}"


async def _shown_status(dialect: Dialect, response: Http1Answer) -> int:
    """The status of a successful answer, or that of an error with which it begins: as long as the
    client has no byte of it, another target can be asked."""
    try:
        content = await response.beginning(_SHOWN_S, _tells)
    except BaseException:
        await response.aclose()
        raise
    failure = None
    if _FAILS.search(content):
        with suppress(Exception):  # an upstream may put anything anywhere
            if content.lstrip()[:1] in (b"{", b"["):
                failure = refusal_of(orjson.loads(content))
            else:
                failure = dialect.read_stream(content, orjson.loads).failure
    if failure is None:
        return response.status
    return status_of(failure)


def _tells(content: bytes) -> bool:
    """Whether the beginning of an answer shows if it is an error: an event does, of an object its
    end. Comments say that the upstream is still at work."""
    first = content.lstrip()[:1]
    if first == b"{":
        return len(content) > _ERROR_BYTES
    return first not in (b"", b":") or content.find(b"\ndata:") >= 0


def outgoing_headers(call: UpstreamCall, target: Target, instance: bytes) -> RawHeaders:
    """The client's headers as this target may see them, with the target's own key. Raises:
    Unauthorized: see `credentials.allowed`; GatewayError: that key may not be spent."""
    credentials.refuse_key_in_path(call.path)
    drop = _OWN_HEADERS | call.key_headers
    given = [(k, v) for k, v in end_to_end(call.headers, drop) if not k.startswith(b"x-gateway-")]
    own = [(k.lower().encode(), v.encode()) for k, v in target.headers]
    passed = [value for name, value in call.headers if name == INSTANCE_HEADER]
    own.append((INSTANCE_HEADER, b", ".join([*passed, instance])))
    out = credentials.allowed(given, call.query, target, api=call.api)
    if (key := credentials.operator_key(target)) is not None:
        if call.instead_of_operator_key is not None:
            raise call.instead_of_operator_key
        value = key
        if target.key_header == "authorization":
            value = f"Bearer {key}"
        out.append((target.key_header.encode(), value.encode()))
    if call.enveloped and not target.seat:  # what it answers is put into an envelope
        out = readable(out, plain=True)
    return out + own


def refuse_loop(headers: RawHeaders, instance: bytes) -> None:
    """Refuse a request that this gateway itself has sent. Raises: LoopDetected: it carries the mark
    of this process, or of a gateway on the same database."""
    marks = [value for name, value in headers if name == INSTANCE_HEADER]
    if any(mark.strip() == instance for value in marks for mark in value.split(b",")):
        raise LoopDetected(
            "the request came back to the gateway that sent it: an api_base (or OPENAI_BASE_URL in "
            "the gateway's own environment) points at the gateway itself"
        )


@lru_cache(maxsize=512)  # parsing a URL is slow
def target_url(base: BaseURL, path: str, query: bytes) -> URL:
    """The upstream URL with the path and the query byte for byte. The base's own query, which some
    providers need (`?api-version=...`), comes before the client's. Raises: NotFound: the path would
    continue the name of the host, as `%2F@other.host` does."""
    if path[:1] != "/":
        raise NotFound("no such route: the path has an encoded slash (%2F) where one is needed")
    text = base.stem.rstrip("/") + path
    asked = "&".join(part for part in (base.query, query.decode("latin-1")) if part)
    return URL(f"{text}?{asked}" if asked else text, encoded=True)


_USAGE_OPTIONS = (b"stream_options", b"include_usage")
_ERROR_BYTES = 2**16  # errors are short; a longer answer says something else
_MOST_REFUSALS = 1000  # models are named by clients


async def read_error(response: LaneResponse) -> tuple[Kind, bool]:
    """(why an answer refuses a request, whether it names `stream_options`)."""
    content = await begun(response, lambda text: len(text) > _ERROR_BYTES)
    answer = None
    with suppress(ValueError):
        answer = refusal_of(orjson.loads(content))
    # One of no known form is read as text.
    kind = kind_of(answer or {"": content.decode("utf-8", "replace")})
    return kind, any(name in content for name in _USAGE_OPTIONS)


async def begun(response: LaneResponse, is_enough: Callable[[bytes], bool]) -> bytes:
    """The beginning of an answer, decompressed, which is still to be read; empty where the lane
    does not know it before."""
    beginning = getattr(response, "beginning", None)
    if beginning is None:
        return b""
    content: bytes = await beginning(_SHOWN_S, is_enough)
    if encoding := header(response.headers, b"content-encoding"):
        watch = ResponseWatch(encoding, _ERROR_BYTES)
        watch.feed(content)
        return watch.content
    return content


Messages = Sequence[Fields]


class ModelRefused(ValueError):
    """The answer is an error: nothing was generated."""


class OwnAnswer(Value):
    """A model's answer to a question of the gateway's own."""

    text: str  # of the reply
    usage: Fields | None  # as it was reported; None when it was not
    target: Target  # the one that gave it


async def ask(
    dispatcher: Dispatcher,
    model: str,
    messages: Messages,
    *,
    admits: Callable[[Target], Awaitable[bool]] | None = None,
) -> OwnAnswer:
    """Ask the model of that name, with nothing of any client's request. `admits`: whether a
    fallback may be asked. Raises: UpstreamFailure: no deployment answered; ModelRefused: the answer
    is an error; ValueError, LookupError, TypeError: it is no chat completion."""

    def parsed(target: Target) -> Fields:
        if target.lane == "native":
            own = target.params
        else:
            own = {}
        return {**own, "model": target.model or model, "messages": list(messages)}

    call = UpstreamCall(
        method="POST",
        path=CHAT.path,
        dialect=CHAT,
        headers=[(b"content-type", b"application/json"), (b"accept-encoding", b"identity")],
        body=lambda target: orjson.dumps(parsed(target)),
        parsed=parsed,
        admits=admits,
    )
    delivery = await dispatcher.send(call, model)
    response = delivery.response
    try:
        body = b"".join([chunk async for chunk in response])
    finally:
        await response.aclose()
    if delivery.status != 200:
        raise ModelRefused(f"status {delivery.status}")
    dispatcher.note_end(delivery.target)
    completion = orjson.loads(body)
    text = as_text(completion["choices"][0]["message"]["content"], "")
    usage = response.usage or completion.get("usage")
    return OwnAnswer(text=text, usage=usage, target=delivery.target)
