"""A small agent: keeps its history, calls a gateway, and answers the tool calls it gets."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import orjson

from gateway.config.storage import StorageSettings
from gateway.core.guidance_text import FRAME_OPEN
from gateway.stores.sql.runs import RunStore
from gateway.stores.sqlite.database import Database
from gateway.stores.sqlite.engine import SQLiteEngine
from gateway.stores.traces import RunTrace
from gateway.wire.chat_assembly import assemble
from steering_gateway_testing.patience import DEADLINE_MS
from steering_gateway_testing.received import ReceivedRequest
from steering_gateway_testing.values import Reply, ToolCall

Message = dict[str, Any]
TOOLS = [{"type": "function", "function": {"name": "bash", "parameters": {"type": "object"}}}]
_GUIDED_ROLES = ("system", "developer", "tool")
RETRIED = {"x-stainless-retry-count": "1"}
# The reference's formulas, which fix at which step something happens.
GUIDING: dict[str, Any] = {
    "steering": {"deadline_ms": DEADLINE_MS},
    "difficulty": {"scorer": "heuristic"},
    "monitors": {"suite": "reference"},
}
# The same without guidance, for tests of identity, steps, states and routes.
PLAIN: dict[str, Any] = {
    **GUIDING,
    "etraces": {"enabled": False},
    "injection": {"monitor_guidance": False, "skip_directive": False},
}


def opening(task: str = "Fix the failing test.") -> list[Message]:
    """The messages every conversation of these tests begins with."""
    return [
        {"role": "system", "content": "You repair programs, with care and with the tools given."},
        {"role": "user", "content": task},
    ]


def worker(steps: int = 5) -> Callable[[ReceivedRequest], Reply]:
    """A model that calls one tool a turn, and answers after `steps` of them.

    Its text names the turn and the task, so that conversations with different tasks differ.
    """

    def reply(request: ReceivedRequest) -> Reply:
        turn = sum(m.get("role") == "assistant" for m in request.messages)
        task = next((m["content"] for m in request.messages if m.get("role") == "user"), "")
        if turn >= steps:
            return Reply(f"Done: {task}")
        call = ToolCall("bash", {"command": f"step {turn}"}, id=f"call_{turn}")
        return Reply(f"Turn {turn} of {task}", tool_calls=(call,))

    return reply


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """A gateway's answer; `message` is that of the first choice, None in an error."""

    status: int
    headers: httpx.Headers
    content: bytes
    message: Message | None

    def gateway(self, name: str) -> str | None:
        """The value of the header `x-gateway-<name>`."""
        value: str | None = self.headers.get(f"x-gateway-{name}")
        return value

    @property
    def conversation(self) -> str:
        return self.gateway("conversation-id") or ""

    @property
    def identity(self) -> str:
        return self.gateway("identity") or ""

    @property
    def place(self) -> tuple[str | None, ...]:
        """The headers about the run: step, state, difficulty, monitors."""
        return tuple(map(self.gateway, ("step", "state", "difficulty", "monitors")))


class Agent:
    """One conversation: `messages` is its history, `sent` the body of its latest request."""

    def __init__(
        self,
        client: httpx.AsyncClient,
        url: str,
        messages: Sequence[Message] | None = None,
        *,
        headers: Mapping[str, str] | None = None,
        **body: Any,
    ) -> None:
        self._client = client
        self.url = url
        self.messages = list(opening() if messages is None else messages)
        self.headers = dict(headers or {})
        self.body = {"model": "scripted", "tools": TOOLS, **body}
        self.sent = b""

    async def send(self, messages: Sequence[Any] | None = None, **changes: Any) -> Answer:
        """One request, with the history or with `messages`; the history stays as it is."""
        headers = {**self.headers, **changes.pop("headers", {})}
        timeout = changes.pop("timeout", httpx.USE_CLIENT_DEFAULT)
        body = {"messages": self.messages if messages is None else messages, **self.body, **changes}
        body = {key: value for key, value in body.items() if value is not None}
        self.sent = orjson.dumps(body)
        answer = await self._client.post(
            f"{self.url}/chat/completions", content=self.sent, headers=headers, timeout=timeout
        )
        return Answer(
            status=answer.status_code,
            headers=answer.headers,
            content=answer.content,
            message=_message(answer),
        )

    async def again(self) -> Answer:
        """The same request once more, marked as a retry as the SDKs do."""
        return await self.send(headers=RETRIED)

    async def turn(self, result: str = "ok") -> Answer:
        """One request; adds the reply and a result for each of its calls to the history."""
        answer = await self.send()
        if answer.message is not None:
            self.take(answer.message, result)
        return answer

    async def run(self, turns: int, result: str = "ok") -> list[Answer]:
        """Some turns, one after the other."""
        return [await self.turn(result) for _ in range(turns)]

    def take(self, message: Message, result: str = "ok") -> None:
        """Add a reply and its results to the history."""
        self.messages.append(message)
        for call in message.get("tool_calls") or ():
            self.messages.append({"role": "tool", "tool_call_id": call["id"], "content": result})


def _message(answer: httpx.Response) -> Message | None:
    if answer.status_code != 200:
        return None
    if answer.headers["content-type"].startswith("text/event-stream"):
        assembler, _ = assemble(answer.content, orjson.loads)
        completion = assembler.completion()
    else:
        completion = orjson.loads(answer.content)
    message = completion["choices"][0]["message"]
    kept = ("role", "content", "reasoning_content", "tool_calls")
    return {key: message[key] for key in kept if message.get(key) is not None}


@asynccontextmanager
async def run_log(path: Path) -> AsyncIterator[RunStore]:
    """The run log of a database that a gateway may be writing to."""
    database = await Database.open(StorageSettings(path=str(path)))
    try:
        yield RunStore(SQLiteEngine(database))
    finally:
        await database.close()


async def trace(path: Path, conversation: str, run: int = 0) -> RunTrace:
    """One run as recorded."""
    async with run_log(path) as log:
        found = await log.get_run(f"{conversation}.{run}", tenant=None)
    assert found is not None, f"run {run} of {conversation} is not recorded"
    return found


def guidance_frames(body: Any) -> list[str]:
    """The gateway's guidance blocks in a chat request, in order."""
    messages = body.get("messages", []) if isinstance(body, dict) else []
    contents = [each.get("content") for each in messages if each.get("role") in _GUIDED_ROLES]
    parts = [part for each in contents for part in (each if isinstance(each, list) else [each])]
    texts = [part.get("text", "") if isinstance(part, dict) else str(part) for part in parts]
    return [frame for text in texts for frame in text.split(FRAME_OPEN)[1:]]
