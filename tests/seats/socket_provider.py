"""A provider of Responses over a WebSocket, and a client of it, on real sockets."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from typing import Any

import aiohttp
from aiohttp import web

Event = dict[str, Any]
Script = Callable[[Event], list[Event]]


def answer(body: Event, number: int, item: Event | None = None) -> list[Event]:
    """The events of one answer, as the provider sends them: the last repeats everything."""
    name = f"resp_{number}"
    call = {
        "type": "function_call",
        "id": f"fc_{number}",
        "call_id": f"call_{number}",
        "name": "shell",
        "arguments": json.dumps({"command": ["ls", str(number)]}),
        "status": "completed",
    }
    output = [] if body.get("generate") is False else [item or call]
    response = {
        "id": name,
        "object": "response",
        "model": body["model"],
        "status": "in_progress",
        "instructions": body.get("instructions"),
        "store": body.get("store", True),
        "output": [],
        "usage": None,
    }
    usage = {"input_tokens": 50 + number, "output_tokens": 7, "total_tokens": 57 + number}
    ended = {**response, "status": "completed", "output": output, "usage": usage}
    events: list[Event] = [{"type": "response.created", "response": response}]
    events += [{"type": "response.output_item.done", "item": done} for done in output]
    return [*events, {"type": "response.completed", "response": ended}]


class Provider:
    """Answers each `response.create` by `script`, and keeps what it received."""

    def __init__(self) -> None:
        self.heads: list[web.Request] = []
        self.texts: list[str] = []
        self.sent: list[str] = []
        self.closed: list[int | None] = []
        self.refusal: tuple[int, Any] | None = None
        self.close_with: tuple[int, bytes] | None = None
        self.cut_after: int | None = None
        self.held = asyncio.Event()
        self.held.set()
        self.number = 0
        self.script: Script | None = None
        self.url = ""

    @property
    def bodies(self) -> list[Event]:
        """The messages that came."""
        return [json.loads(text) for text in self.texts]

    async def handle(self, request: web.Request) -> web.StreamResponse:
        """One connection."""
        self.heads.append(request)
        if self.refusal is not None:
            return web.json_response(self.refusal[1], status=self.refusal[0])
        socket = web.WebSocketResponse(max_msg_size=0, autoping=False)
        await socket.prepare(request)
        try:
            async for message in socket:
                match message.type:
                    case aiohttp.WSMsgType.TEXT:
                        self.texts.append(message.data)
                        await self._answer(socket, json.loads(message.data))
                    case aiohttp.WSMsgType.PING:
                        await socket.pong(message.data)
                    case _:
                        await socket.send_bytes(message.data)
        except ConnectionError:
            pass  # the client is gone
        finally:
            self.closed.append(socket.close_code)
        return socket

    async def _answer(self, socket: web.WebSocketResponse, body: Event) -> None:
        if body.get("type") != "response.create":
            await socket.send_str(json.dumps({"type": "noted", "of": body.get("type")}))
            return
        self.number += 1
        events = self.script(body) if self.script else answer(body, self.number)
        for place, event in enumerate(events):
            if "stream_id" in body:
                event["stream_id"] = body["stream_id"]
            if place == self.cut_after:
                self.heads[-1].transport.abort()  # type: ignore[union-attr]
                return
            await self.held.wait()
            self.sent.append(json.dumps(event, indent=1 if place == 0 else None))
            await socket.send_str(self.sent[-1])
        if self.close_with is not None:
            await socket.close(code=self.close_with[0], message=self.close_with[1])


@asynccontextmanager
async def running(*paths: str) -> AsyncIterator[Provider]:
    """A running provider."""
    provider, app = Provider(), web.Application()
    for path in paths or ("/v1/responses", "/backend-api/codex/responses"):
        app.router.add_get(path, provider.handle)
    runner = web.AppRunner(app)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    host, port = runner.addresses[0][:2]
    provider.url = f"http://{host}:{port}"
    try:
        yield provider
    finally:
        provider.held.set()
        await runner.cleanup()


class Client:
    """A client of one connection, which keeps the text of each message that it gets."""

    def __init__(self, socket: aiohttp.ClientWebSocketResponse) -> None:
        self.socket = socket
        self.url = ""
        self.server: Any = None  # the gateway that it is connected to
        self.texts: list[str] = []

    async def ask(self, body: Mapping[str, Any]) -> list[Event]:
        """The events that answer one message, up to the last."""
        await self.socket.send_str(json.dumps(body))
        return await self.events()

    async def events(self) -> list[Event]:
        """The events of one answer."""
        found: list[Event] = []
        while True:
            self.texts.append(await self.socket.receive_str(timeout=120))
            found.append(json.loads(self.texts[-1]))
            kind = found[-1]["type"]
            if kind in ("response.completed", "response.failed", "error"):
                return found


def message(text: str, role: str = "user") -> Event:
    """An item of a history."""
    return {"type": "message", "role": role, "content": [{"type": "input_text", "text": text}]}


def create(*items: Event, thread: str = "thread-1", **more: Any) -> Event:
    """A request as Codex sends it over a WebSocket."""
    metadata = json.dumps({"session_id": thread, "thread_id": thread})
    return {
        "type": "response.create",
        "model": "gpt-5.2-codex",
        "instructions": "You are a coding agent.",
        "input": list(items),
        "tools": [{"type": "function", "name": "shell", "parameters": {}}],
        "store": False,
        "stream": True,
        "include": ["reasoning.encrypted_content"],
        "prompt_cache_key": thread,
        "client_metadata": {"x-codex-turn-metadata": metadata},
        **more,
    }


def result(events: list[Event], output: str = "ok") -> Event:
    """The result of the call in an answer."""
    call = events[-1]["response"]["output"][0]
    return {"type": "function_call_output", "call_id": call["call_id"], "output": output}
