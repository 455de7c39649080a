"""Scripted hosts of the seats: each takes only the credential, paths and methods of its kind.

A real server on loopback with WebSocket. What is not right is answered as the provider answers it:
401 without its own credential, 403 for another account, 404 for a path of another host. The model
asks once for a shell that the client knows, then ends the task.
"""

from __future__ import annotations

import base64
import gzip
import json
import re
import time
import tomllib
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import orjson

from gateway.wire.compression import zstd
from gateway.wire.message_identity import tool_names
from steering_gateway_testing import AppServer, ReceivedRequest, chat, gemini, messages, responses
from steering_gateway_testing.aws import EVENT_STREAM, chunk_frame, signature_is_right
from steering_gateway_testing.exchange import Answer
from steering_gateway_testing.server import quiet_config
from steering_gateway_testing.values import Reply, ToolCall, Usage

OPENAI_KEY = "sk-proj-made-up-for-the-test"
ANTHROPIC_KEY = "sk-ant-api03-made-up-for-the-test"
OAUTH_TOKEN = "sk-ant-oat01-made-up-for-the-test"
GOOGLE_KEY = "AIzaMadeUpForTheTest"
GITHUB_TOKEN = "gho_madeupmadeupmadeupmadeupmadeupmade"
GOOGLE_TOKEN = "ya29.made-up-for-the-test"
AWS_KEY, AWS_SECRET = "AKIAMADEUPFORTESTS", "made/up/secret/of/the/test"
AWS_BEARER = "ABSKmade-up-for-the-test"
REGION, PROJECT = "us-east-1", "made-up-project"
ACCOUNT = "acc-0000-made-up"

DATA: dict[str, Any] = tomllib.loads(Path(__file__).with_suffix(".toml").read_text())
SHELL = "echo seen-by-the-shell"
CALLS = {name: ToolCall(name, arguments) for name, arguments in DATA["calls"].items()}
USAGE = Usage(prompt_tokens=1200, completion_tokens=34, cached_tokens=200)
FULL = Usage(prompt_tokens=95_000, completion_tokens=34, cached_tokens=200)
"""What a call has used that leaves no room in the context of a `narrow` seat."""
SUMMARY = (
    "<state_snapshot>The shell shall be looked at.</state_snapshot>"
    "<summary>The shell shall be looked at.</summary>"
)
TOKENS = "/token"
"""Where Google's libraries change a made-up identity for a token."""


def made_up_jwt() -> str:
    """A token like that of a ChatGPT login, for a hundred years; nobody signed it."""
    parts = ({"alg": "RS256", "typ": "JWT"}, DATA["claims"])
    encoded = [base64.urlsafe_b64encode(json.dumps(p).encode()).rstrip(b"=") for p in parts]
    return b".".join([*encoded, b"c2lnbmF0dXJl"]).decode()


CHATGPT_TOKEN = made_up_jwt()


@dataclass(frozen=True, slots=True)
class Refusal(Exception):
    """What the host does not take."""

    status: int
    message: str


def _bearer(request: ReceivedRequest) -> str:
    return (request.header("authorization") or "").removeprefix("Bearer ")


def _need(ok: bool, status: int, message: str) -> None:
    if not ok:
        raise Refusal(status, message)


def _openai(request: ReceivedRequest) -> None:
    _need(_bearer(request) == OPENAI_KEY, 401, "Incorrect API key provided.")
    _need(request.header("chatgpt-account-id") is None, 401, "Not an account of this API.")


def _chatgpt(request: ReceivedRequest) -> None:
    _need(_bearer(request) == CHATGPT_TOKEN, 401, "Could not validate your token.")
    _need(request.header("chatgpt-account-id") == ACCOUNT, 403, "Another account's token.")


def _anthropic(request: ReceivedRequest) -> None:
    if _bearer(request) == OAUTH_TOKEN:
        betas = (request.header("anthropic-beta") or "").replace(" ", "").split(",")
        _need("oauth-2025-04-20" in betas, 401, "OAuth authentication is not supported.")
    else:
        _need(request.header("x-api-key") == ANTHROPIC_KEY, 401, "invalid x-api-key")
    if request.path != "/":
        _need(bool(request.header("anthropic-version")), 400, "anthropic-version: required")


def _bedrock(request: ReceivedRequest) -> None:
    if _bearer(request) != AWS_BEARER:
        _need(
            signature_is_right(request, AWS_KEY, AWS_SECRET),
            403,
            "The request signature does not match.",
        )
    if request.method == "POST":
        ours = request.fields.get("anthropic_version") == "bedrock-2023-05-31"
        extra = {"model", "stream"} & set(request.fields)
        _need(ours and not extra, 400, f"Malformed input request: {sorted(extra)}")


def _vertex(request: ReceivedRequest) -> None:
    _need(_bearer(request) == GOOGLE_TOKEN, 401, "Request had invalid credentials.")
    _need(f"/projects/{PROJECT}/" in request.path, 403, "Another project.")
    if "/anthropic/" in request.path and "count-tokens" not in request.path:
        ours = request.fields.get("anthropic_version") == "vertex-2023-10-16"
        _need(ours and "model" not in request.fields, 400, "anthropic_version: required")


def _google(request: ReceivedRequest) -> None:
    _need(request.header("x-goog-api-key") == GOOGLE_KEY, 401, "API key not valid.")
    _need(request.header("authorization") is None, 401, "Two credentials.")


def _code_assist(request: ReceivedRequest) -> None:
    _need(_bearer(request) == GOOGLE_TOKEN, 401, "Request had invalid credentials.")
    _need(request.header("x-goog-api-key") is None, 401, "Two credentials.")
    if KINDS["code_assist"].talk.fullmatch(request.path):
        known = {"model", "project", "user_prompt_id", "request", "enabled_credit_types"}
        _need(set(request.fields) <= known, 400, f"Unknown name: {set(request.fields) - known}")
        _need(request.fields.get("project") == PROJECT, 403, "Another project.")


def _copilot(request: ReceivedRequest) -> None:
    if KINDS["copilot"].talk.fullmatch(request.path) or request.path == "/models":
        _need(_bearer(request) == GITHUB_TOKEN, 401, "Bad credentials.")
        _need(bool(request.header("copilot-integration-id")), 400, "Unknown integration.")


@dataclass(frozen=True, slots=True)
class Kind:
    """One host: its credential, the paths that converse, and those it answers beside them."""

    check: Callable[[ReceivedRequest], None]
    talk: re.Pattern[str]
    other: re.Pattern[str]
    websocket: bool = False


CHECKS: dict[str, Callable[[ReceivedRequest], None]] = {
    "openai": _openai,
    "chatgpt": _chatgpt,
    "anthropic": _anthropic,
    "bedrock": _bedrock,
    "vertex": _vertex,
    "google": _google,
    "code_assist": _code_assist,
    "copilot": _copilot,
}
KINDS = {
    name: Kind(
        CHECKS[name],
        re.compile(paths["talk"]),
        re.compile(paths["other"]),
        websocket="websocket" in paths,
    )
    for name, paths in DATA["kinds"].items()
}


@dataclass(slots=True)
class Host:
    """A running host. `requests`: all that came; a WebSocket's frames are bodies of requests whose
    method is `FRAME`. `refused`: status and request of those that were not taken."""

    kind: str
    upgrades: bool = True
    """Whether a WebSocket is accepted; else it is refused with 426."""
    certificate: Path | None = None
    """For a second address of it, with TLS: Codex asks for its workspace at no other."""
    compacts: bool = False
    """Whether the third call of a tool leaves no room, so that the client asks for a summary;
    there is one more call of a tool then."""
    summaries: list[ReceivedRequest] = field(default_factory=list)
    requests: list[ReceivedRequest] = field(default_factory=list)
    refused: list[tuple[int, ReceivedRequest]] = field(default_factory=list)
    _asked: int = 0
    _talks: int = 0
    _responses: responses.ResponsesApi = field(default_factory=responses.ResponsesApi)
    _servers: list[AppServer] = field(default_factory=list)

    def __enter__(self) -> Host:
        self._servers.append(self._started({}))
        if self.certificate is not None:
            self._servers.append(self._started({"ssl_certfile": str(self.certificate)}))
        return self

    def __exit__(self, *_: object) -> None:
        while self._servers:
            self._servers.pop().stop()

    def _started(self, more: dict[str, Any]) -> AppServer:
        config = quiet_config(self._serve, lifespan="off", interface="asgi3", ws="wsproto", **more)
        server = AppServer(self._serve, config=config)
        server.start()
        return server

    @property
    def url(self) -> str:
        """Its address without a path."""
        return self._servers[0].url

    @property
    def tls_url(self) -> str:
        """Its second address."""
        return self._servers[-1].url.replace("http:", "https:")

    def talk(self) -> list[ReceivedRequest]:
        """The requests that converse and were taken, in their order."""
        refused = {id(request) for _, request in self.refused}
        asked = filter(self.converses, self.requests)
        return [r for r in asked if r.method in ("POST", "FRAME") and id(r) not in refused]

    def restart(self) -> None:
        """Begin the next task: the model calls its tools as in the first."""
        self._asked = 0

    def converses(self, request: ReceivedRequest) -> bool:
        """Whether a request, or a WebSocket, is for the model."""
        return KINDS[self.kind].talk.fullmatch(request.path) is not None

    def _reply(self, names: set[str], request: ReceivedRequest) -> Reply:
        if self.compacts and summarises(request):
            self.summaries.append(request)
            return Reply(SUMMARY, usage=USAGE)
        known = next((CALLS[name] for name in CALLS if name in names), None)
        if known is None:
            return Reply('{"title": "All done"}', usage=USAGE)
        self._asked += 1
        if self._asked > (4 if self.compacts else 1):
            return Reply("All done.", usage=USAGE)
        full = self.compacts and self._asked == 3
        return Reply("Let me look.", tool_calls=(known,), usage=FULL if full else USAGE)

    async def _serve(self, scope: Any, receive: Any, send: Any) -> None:
        request = self._received(scope)
        if scope["type"] == "websocket":
            await self._websocket(request, receive, send)
            return
        more = True
        while more:
            event = await receive()
            if event["type"] == "http.disconnect":
                return
            request.body += event.get("body", b"")
            more = event.get("more_body", False)
        try:
            answer = self._answered(request)
        except Refusal as refusal:
            answer = self._refused(request, refusal)
        headers = [(b"content-type", answer.content_type.encode())]
        headers += [(name.encode(), value.encode()) for name, value in answer.headers.items()]
        await send({"type": "http.response.start", "status": answer.status, "headers": headers})
        for piece in answer.pieces if request.method != "HEAD" else ():
            await send({"type": "http.response.body", "body": piece, "more_body": True})
        await send({"type": "http.response.body", "body": b""})

    def _received(self, scope: Any) -> ReceivedRequest:
        target = scope["raw_path"].decode("latin-1")
        if scope["query_string"]:
            target += "?" + scope["query_string"].decode("latin-1")
        request = ReceivedRequest(
            method=scope.get("method", "GET"),
            target=target,
            headers=list(scope["headers"]),
            connection=scope["client"][1],
        )
        self.requests.append(request)
        return request

    def _numbered(self, request: ReceivedRequest) -> None:
        """Number the requests that converse alone: ids of answers are equal in every run."""
        self._talks += 1
        request.sequence = self._talks

    def _refused(self, request: ReceivedRequest, refusal: Refusal) -> Answer:
        self.refused.append((refusal.status, request))
        error = {"type": "invalid_request_error", "message": refusal.message}
        body = orjson.dumps({"type": "error", "error": error, "message": refusal.message})
        return Answer(pieces=(body,), status=refusal.status)

    def _answered(self, request: ReceivedRequest) -> Answer:
        kind = KINDS[self.kind]
        if request.path == TOKENS:
            return Answer(pieces=(orjson.dumps(DATA["token"]),))
        parsed = _parsed(request)
        request._fields = parsed if isinstance(parsed, dict) else {}
        talks = self.converses(request)
        _need(talks or kind.other.fullmatch(request.path) is not None, 404, "Not found.")
        if request.method != "HEAD" or request.path != "/":
            kind.check(request)
        if request.path.endswith("/wham/accounts/check"):
            return Answer(pieces=(orjson.dumps({"accounts": [DATA["workspace"]]}),))
        if not talks or request.method != "POST":
            return _side(request)
        if not is_probe(request):
            self._numbered(request)
        return DIALECTS[self.kind](self, request)

    async def _websocket(self, request: ReceivedRequest, receive: Any, send: Any) -> None:
        kind = KINDS[self.kind]
        try:
            _need(self.converses(request), 404, "Not found.")
            kind.check(request)
            _need(kind.websocket and self.upgrades, 426, "Upgrade Required")
        except Refusal as refusal:
            answer = self._refused(request, refusal)
            await receive()
            start = {"type": "websocket.http.response.start", "status": answer.status}
            await send({**start, "headers": [(b"content-type", b"application/json")]})
            await send({"type": "websocket.http.response.body", "body": answer.pieces[0]})
            return
        await receive()
        headers = [(n.encode(), v.encode()) for n, v in DATA["rate_limits"].items()]
        await send({"type": "websocket.accept", "headers": headers})
        while (event := await receive())["type"] == "websocket.receive":
            text = event.get("text") or (event.get("bytes") or b"").decode()
            frame = ReceivedRequest(
                method="FRAME", target=request.target, headers=[], connection=request.connection
            )
            frame.body = text.encode()
            self.requests.append(frame)
            self._numbered(frame)
            for answer_event in self._events(frame):
                await send({"type": "websocket.send", "text": answer_event})

    def _events(self, frame: ReceivedRequest) -> Iterator[str]:
        fields = dict(frame.fields)
        if fields.pop("type", None) != "response.create":
            return
        frame._fields = {**fields, "stream": True, "store": True}
        frame.history = self._responses.history(frame)
        names = set(tool_names(frame.fields)) | set(tool_names({"input": frame.history}))
        reply = Reply(usage=USAGE) if fields.get("generate") is False else self._reply(names, frame)
        for piece in self._response(reply, frame).pieces:
            yield piece.partition(b"data: ")[2].decode().strip()

    def _response(self, reply: Reply, request: ReceivedRequest) -> Answer:
        """A whole response, in which one item stands for the history where that was asked for."""
        answer = self._responses.answer(reply, request)
        if request not in self.summaries or b"compaction_trigger" not in decoded(request):
            return answer
        last = orjson.loads(answer.pieces[-1].partition(b"data: ")[2])
        last["response"]["output"] = [DATA["compaction"]]
        done = {"type": "response.output_item.done", "output_index": 0, "item": DATA["compaction"]}
        events = (done, {**last, "sequence_number": 2})
        pieces = (b"data: " + orjson.dumps(each) + b"\n\n" for each in events)
        return replace(answer, pieces=(answer.pieces[0], *pieces))


def summarises(request: ReceivedRequest) -> bool:
    """Whether a client has its history summarised."""
    said = request.fields.get("messages") or request.fields.get("input") or []
    text = json.dumps([said[-1:], request.fields.get("systemInstruction")])
    return any(sign in text for sign in DATA["summarises"])


def is_probe(request: ReceivedRequest) -> bool:
    """Claude Code asks which models there are, unless another signs for it."""
    return request.fields.get("max_tokens") == 1


def decoded(request: ReceivedRequest) -> bytes:
    """The body without its coding."""
    coding = request.header("content-encoding")
    if coding == "zstd":
        return zstd.decompress(request.body)
    return gzip.decompress(request.body) if coding == "gzip" else request.body


def _parsed(request: ReceivedRequest) -> Any:
    try:
        return orjson.loads(decoded(request) or b"{}")
    except orjson.JSONDecodeError:
        raise Refusal(400, "The body is not JSON.") from None


def _side(request: ReceivedRequest) -> Answer:
    body: dict[str, Any] = {}
    if request.path == "/copilot_internal/user":
        body = DATA["copilot"]["user"]
    elif request.header("copilot-integration-id") and request.path == "/models":
        body = {"object": "list", "data": [DATA["copilot"]["model"]]}
    elif request.path.endswith("/models"):
        body = {"object": "list", "data": [], "models": []}
    elif "count_tokens" in request.path or "count-tokens" in request.path:
        body = {"input_tokens": 100}
    elif request.path.endswith(":loadCodeAssist"):
        body = {"currentTier": {"id": "standard-tier"}, "cloudaicompanionProject": PROJECT}
    elif request.path.endswith(":countTokens"):
        body = {"totalTokens": 100}
    return Answer(pieces=(orjson.dumps(body),))


def _responses_answer(host: Host, request: ReceivedRequest) -> Answer:
    reply = host._reply(set(tool_names(request.fields)), request)
    if request.path.endswith("/chat/completions"):
        return chat.answer(reply, request).numbered(request.sequence)
    request.history = host._responses.history(request)
    answer = host._response(reply, request)
    limits = DATA["rate_limits"] if host.kind == "chatgpt" else {}
    return Answer(pieces=answer.pieces, content_type=answer.content_type, headers=limits)


def _messages_answer(host: Host, request: ReceivedRequest) -> Answer:
    model, _, verb = request.path.rpartition("/models/")[2].partition(":")
    if host.kind == "vertex":
        if "/google/" in request.path:
            return _google_answer(host, request)
        request._fields = {**request.fields, "model": model, "stream": verb.startswith("stream")}
    reply = host._reply(set(tool_names(request.fields)), request)
    return messages.answer(reply, request).numbered(request.sequence)


def _bedrock_answer(host: Host, request: ReceivedRequest) -> Answer:
    model, _, verb = request.path.removeprefix("/model/").rpartition("/")
    stream = verb == "invoke-with-response-stream"
    request._fields = {**request.fields, "model": unquote(model), "stream": stream}
    reply = host._reply(set(tool_names(request.fields)), request)
    answer = messages.answer(reply, request).numbered(request.sequence)
    counts = {
        "X-Amzn-Bedrock-Input-Token-Count": str(USAGE.prompt_tokens),
        "X-Amzn-Bedrock-Output-Token-Count": str(USAGE.completion_tokens),
    }
    if not stream:
        return Answer(pieces=answer.pieces, headers=counts)
    events = [piece.partition(b"data: ")[2].strip() for piece in answer.pieces]
    last = orjson.loads(events[-1])
    last["amazon-bedrock-invocationMetrics"] = {
        "inputTokenCount": USAGE.prompt_tokens - USAGE.cached_tokens,
        "outputTokenCount": USAGE.completion_tokens,
        "cacheReadInputTokenCount": USAGE.cached_tokens,
        "invocationLatency": 900,
        "firstByteLatency": 300,
    }
    events[-1] = orjson.dumps(last)
    pieces = tuple(map(chunk_frame, events))
    return Answer(pieces=pieces, content_type=EVENT_STREAM)


def _google_answer(host: Host, request: ReceivedRequest) -> Answer:
    declared = [d for t in request.fields.get("tools") or [] for d in _declarations(t)]
    reply = host._reply({str(declaration.get("name")) for declaration in declared}, request)
    named = f"call-{request.sequence}"
    calls = tuple(replace(call, id=named) for call in reply.tool_calls)
    made = replace(reply, tool_calls=calls, chunks=1, id=f"r{request.sequence}")
    return gemini.answer(made, request)


def _code_assist_answer(host: Host, request: ReceivedRequest) -> Answer:
    request._fields = {"model": request.model, **request.fields["request"]}
    return _google_answer(host, request)


def _declarations(tool: Any) -> list[Any]:
    return tool.get("functionDeclarations") or tool.get("function_declarations") or []


DIALECTS: dict[str, Callable[[Host, ReceivedRequest], Answer]] = {
    "openai": _responses_answer,
    "chatgpt": _responses_answer,
    "anthropic": _messages_answer,
    "bedrock": _bedrock_answer,
    "vertex": _messages_answer,
    "google": _google_answer,
    "code_assist": _code_assist_answer,
    "copilot": _responses_answer,
}


def login(now: float | None = None) -> dict[str, Any]:
    """Codex's `auth.json` after a login with ChatGPT, refreshed just now."""
    stamp = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(now))
    tokens = {"id_token": CHATGPT_TOKEN, "access_token": CHATGPT_TOKEN, "account_id": ACCOUNT}
    return {
        "auth_mode": "chatgpt",
        "OPENAI_API_KEY": None,
        "tokens": {**tokens, "refresh_token": "rt-made-up"},
        "last_refresh": stamp,
    }
