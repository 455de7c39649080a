"""The demo's agent, a plain tool loop with a real repository; and the scripted model that answers
it: it repeats itself until a text of the gateway says what to do, and then does that."""

import json
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from typing import Any

import httpx
import msgspec
from msgspec import Struct

from gateway.core.guidance_text import FRAME_OPEN
from gateway.values import FieldDict, frozen

Move = tuple[str, str, dict[str, str]]
LOOPBACK = "127.0.0.1"


class _Script(Struct, frozen=True):
    """The script of the demonstration. The model explores, then doubts and turns the rounding to
    and fro, until it reads what to do."""

    messages: list[Any]  # the agent's first ones
    tools: list[Any]  # definitions that the agent offers
    files: dict[str, str]  # the repository, text by path
    explore: tuple[Move, ...]  # moves at the beginning; a move is a text, a tool and its arguments
    doubt: str  # text of the model while it is stuck
    rounding: tuple[str, str]  # the two versions of a line between which it turns
    listens: str  # what a text of the gateway has to say before the model does anything else
    # moves after that: the first does what the text says, the last answers
    obey: tuple[Move, ...]


SCRIPT = msgspec.json.decode(Path(__file__).with_name("script.json").read_bytes(), type=_Script)


def _use(folder: Path, tool: str, path: str = "", old: str = "", new: str = "") -> str:
    """The text that the agent reads after it has used a tool."""
    file = folder / Path(path).name
    if tool == "run_tests":
        run = [sys.executable, "-B", "-m", "unittest", "-q", "test_orders"]
        done = subprocess.run(  # noqa: S603 - the demo's own test
            run, cwd=folder, capture_output=True, text=True, timeout=30, check=False
        )
        said = done.stdout + done.stderr
        return "\n".join(x for x in said.splitlines() if not x.startswith("Ran ")).strip()
    text = file.read_text(encoding="utf-8")
    if tool == "read_file":
        return text
    file.write_text(text.replace(old, new, 1), encoding="utf-8")
    return f"{path}: 1 replacement"


@frozen
class Turn:
    """One model call of the demonstration."""

    headers: dict[str, str]  # of the gateway's response
    usage: dict[str, int]  # tokens of the prompt and of the answer
    action: str  # what the agent did next, in words
    said: str  # what the model said with it
    result: str  # what the agent read after it
    answer: str | None  # the final one; None before


def run_agent(client: httpx.Client, folder: Path, *, model: str, max_calls: int) -> Iterator[Turn]:
    """Call the model until it answers without a tool call, or the limit is reached."""
    for name, text in SCRIPT.files.items():
        (folder / name).write_text(text, encoding="utf-8")
    messages = list(SCRIPT.messages)
    asked = {"model": model, "messages": messages, "tools": SCRIPT.tools}
    for _ in range(max_calls):
        raw = client.post("/v1/chat/completions", json=asked).raise_for_status()
        said = raw.json()
        message = said["choices"][0]["message"]
        action = ""
        result = ""
        messages.append(message)
        for call in message.get("tool_calls", ()):
            name = call["function"]["name"]
            arguments = json.loads(call["function"]["arguments"])
            result = _use(folder, name, **arguments)
            messages.append({"role": "tool", "tool_call_id": call["id"], "content": result})
            action = " ".join([name, *list(arguments.values())[:1]])
        if action:
            answer = None
        else:
            answer = message["content"]
        about = {"headers": dict(raw.headers), "usage": said["usage"], "action": action}
        yield Turn(**about, said=message["content"], result=result, answer=answer)
        if answer is not None:
            return


class ScriptedModel:
    """Answers one agent. `texts` are the gateway's in the newest request."""

    def __init__(self) -> None:
        self.texts: list[str] = []
        self._step = self._obeyed = 0
        self._heard = False

    def completion(self, body: bytes) -> FieldDict:
        """The next chat completion; of the request, only the model and the guidance are read."""
        request = json.loads(body)
        self.texts = _guidance(request["messages"])
        text, name, arguments = self._next()
        message: FieldDict = {"role": "assistant", "content": text}
        if name:
            function = {"name": name, "arguments": json.dumps(arguments)}
            call_id = f"call_{self._step + self._obeyed}"
            message["tool_calls"] = [{"id": call_id, "type": "function", "function": function}]
        choice = {"index": 0, "message": message, "finish_reason": "tool_calls" if name else "stop"}
        # The usual rule of thumb: four characters per token.
        sent = len(body) // 4
        received = 40 + len(text) // 4
        usage = {"prompt_tokens": sent, "completion_tokens": received}
        about = {"id": "chatcmpl-demo", "object": "chat.completion", "created": int(time.time())}
        usage["total_tokens"] = sent + received
        return {**about, "model": request["model"], "choices": [choice], "usage": usage}

    def _next(self) -> Move:
        self._heard |= any(SCRIPT.listens in text for text in self.texts)
        if self._heard:
            self._obeyed += 1
            return SCRIPT.obey[self._obeyed - 1]
        turn = self._step - len(SCRIPT.explore)
        self._step += 1
        if turn < 0:
            return SCRIPT.explore[turn]
        # Alternate between running the test and changing the rounding back and forth.
        if turn % 2 == 0:
            return SCRIPT.doubt, "run_tests", {}
        old, new = SCRIPT.rounding if turn % 4 == 1 else SCRIPT.rounding[::-1]
        return SCRIPT.doubt, "edit_file", {"path": "pricing.py", "old": old, "new": new}


def _guidance(messages: list[Any]) -> list[str]:
    """The gateway's guidance blocks in the messages of a request, in order."""
    roles = ("system", "developer", "tool")
    texts = [each["content"] for each in messages if each["role"] in roles]
    return [frame for text in texts for frame in text.split(FRAME_OPEN)[1:]]


@contextmanager
def provider(model: Callable[[], ScriptedModel]) -> Iterator[str]:
    """The base URL of a server that answers each POST as a chat completion, not streamed, with the
    words of the model at that time."""

    class Completions(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["content-length"]))
            answer = json.dumps(model().completion(body)).encode()
            self.send_response(200)
            self.send_header("content-type", "application/json")
            self.send_header("content-length", str(len(answer)))
            self.end_headers()
            self.wfile.write(answer)

        def log_message(self, *_: object) -> None:
            """Say nothing: the terminal shows the demo."""

    with ThreadingHTTPServer((LOOPBACK, 0), Completions) as server:
        server.daemon_threads = True
        Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://{LOOPBACK}:{server.server_port}/v1"
        server.shutdown()
