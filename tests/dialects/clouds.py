"""Scripted hosts of Amazon Bedrock and Vertex AI, which check credentials as the real ones do."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import rsa
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import Route

from gateway.dialects.base import Dialect, StreamRead
from gateway.wire.response_tee import stream_watch
from steering_gateway_testing import AppServer, Reply, messages
from steering_gateway_testing.aws import (
    EVENT_STREAM,
    chunk_frame,
    error_frame,
    signature_is_right,
)
from steering_gateway_testing.received import ReceivedRequest
from tests.dialects import converse

ACCESS_KEY, SECRET = "AKIAMADEUPFORTESTS", "made-up-secret"
BEDROCK_KEY = "bedrock-api-key-of-the-client"
GOOGLE_TOKEN = "ya29.of-the-client"
REGION = "eu-west-1"
CLAUDE = "eu.anthropic.claude-haiku-4-5-20251001-v1:0"
ON_VERTEX = "claude-haiku-4-5@20251001"

Script = Callable[[ReceivedRequest], Reply]


def use_own_login(monkeypatch: pytest.MonkeyPatch) -> None:
    """Log in to Amazon with the key that the hosts know, and with nothing of this machine."""
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", ACCESS_KEY)
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", SECRET)
    monkeypatch.setenv("AWS_REGION", REGION)
    monkeypatch.setenv("AWS_DEFAULT_REGION", REGION)
    for name in ("AWS_BEARER_TOKEN_BEDROCK", "AWS_PROFILE", "AWS_SESSION_TOKEN"):
        monkeypatch.delenv(name, raising=False)


def read_in_parts(dialect: Dialect, stream: bytes, size: int) -> StreamRead:
    """A stream that arrives in parts of so many bytes: its end is seen with the last of them."""
    watch = stream_watch(b"", 2**20, dialect.end)
    for at in range(0, len(stream), size):
        assert not dialect.read_stream(watch.content, json.loads).ended
        watch.feed(stream[at : at + size])
    assert watch.ended
    read = dialect.read_stream(watch.content, json.loads)
    assert read.ended
    return read


class Host:
    """Answers with the replies of a script; `faults` come first, one for each request."""

    def __init__(self, script: Script, credentials: tuple[str, ...]) -> None:
        self.script = script
        self.credentials = credentials
        self.received: list[ReceivedRequest] = []
        self.faults: list[str] = []
        self.url = ""
        self.tokens = 0

    async def answer(self, request: Request) -> Response:
        seen = ReceivedRequest(
            method=request.method,
            target=_target(request),
            headers=request.headers.raw,
            connection=0,
        )
        seen.body = await request.body()
        if seen.path == "/token":
            self.tokens += 1
            return JSONResponse({"access_token": GOOGLE_TOKEN, "expires_in": 3600})
        self.received.append(seen)
        if not self._is_known(seen):
            return JSONResponse({"message": "The signature does not match."}, 403)
        if self.faults and self.faults[0].isdigit():
            return JSONResponse({"message": "slow down"}, int(self.faults.pop(0)))
        verb = seen.path.rpartition("/")[2]
        streamed = "stream" in verb
        parsed = dict(seen.fields)
        if verb.startswith("converse") and "messages" in parsed:
            return self._converse(parsed, streamed)
        if "anthropic_version" not in parsed or "count" in verb:
            return JSONResponse({"seen": parsed})
        asked = ReceivedRequest(method="POST", target="/v1/messages", headers=[], connection=1)
        asked.body = json.dumps({**parsed, "model": "claude", "stream": streamed}).encode()
        reply = messages.answer(self.script(asked), asked).numbered(len(parsed["messages"]))
        if not streamed:
            return Response(b"".join(reply.pieces), media_type="application/json")
        pieces, kind = list(reply.pieces), "text/event-stream"
        if seen.path.startswith("/model/"):
            events = (piece.partition(b"data: ")[2].strip() for piece in pieces)
            pieces, kind = list(map(chunk_frame, events)), EVENT_STREAM
        return StreamingResponse(self._stream(pieces), media_type=kind)

    def _converse(self, parsed: dict[str, Any], streamed: bool) -> Response:
        """An answer in the words of Converse to a request in the same."""
        asked = ReceivedRequest(method="POST", target="/v1/messages", headers=[], connection=1)
        given = [{**m, "content": converse.in_messages(m["content"])} for m in parsed["messages"]]
        asked.body = json.dumps({"model": "claude", "messages": given}).encode()
        reply = messages.answer(self.script(asked), asked).numbered(len(given))
        answer = converse.from_messages(json.loads(b"".join(reply.pieces)))
        if not streamed:
            return JSONResponse(answer)
        return StreamingResponse(self._stream(converse.frames(answer)), media_type=EVENT_STREAM)

    async def _stream(self, pieces: list[bytes]) -> AsyncIterator[bytes]:
        fault = self.faults.pop(0) if self.faults else ""
        for at, piece in enumerate(pieces):
            if at == len(pieces) // 2 and fault == "cut":
                raise ConnectionResetError
            if at == len(pieces) // 2 and fault == "exception":
                yield error_frame("throttlingException", "too many tokens")
                return
            # No event comes in one piece.
            yield piece[:9]
            yield piece[9:]

    def _is_known(self, seen: ReceivedRequest) -> bool:
        given = seen.header("authorization") or ""
        if given.startswith("AWS4-HMAC-SHA256"):
            return f"/{REGION}/" in given and signature_is_right(seen, ACCESS_KEY, SECRET)
        return given.removeprefix("Bearer ") in self.credentials


def _target(request: Request) -> str:
    query = f"?{request.url.query}" if request.url.query else ""
    path: bytes = request.scope["raw_path"]
    return path.decode() + query


def service_account(host: Host, file: Path) -> None:
    """Put an account of Google's into a file, whose tokens come from the host."""
    key = rsa.generate_private_key(public_exponent=65537, key_size=2048).private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    account = {"type": "service_account", "client_email": "a@example.com"}
    account |= {"token_uri": f"{host.url}/token", "private_key": key.decode()}
    file.write_text(json.dumps(account))


@contextmanager
def running(script: Script, *credentials: str) -> Iterator[Host]:
    host = Host(script, credentials)
    routes = [Route("/{rest:path}", host.answer, methods=["GET", "POST"])]
    with AppServer(Starlette(routes=routes)) as server:
        host.url = server.url
        yield host


def settings_for(host: Host, mode: str = "on", **more: Any) -> dict[str, Any]:
    """A gateway before the host, which may sign for it."""
    upstream = {"bedrock_api_base": host.url, "vertex_api_base": host.url}
    upstream |= more.pop("default_upstream", {"cloud_credentials": True})
    own = {"api_base": "http://127.0.0.1:9/v1"}  # nothing may go there
    return {
        "default_upstream": {**own, **upstream},
        "steering": {"mode": mode},
        "router": {"backoff_s": 0},
        **more,
    }
