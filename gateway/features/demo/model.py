"""The demo's agent, a plain tool loop on the official `openai` client, with a real repository; and
the scripted model that answers it: it repeats itself until guidance tells it to stop."""

import json
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import msgspec
from msgspec import Struct
from openai import OpenAI

from gateway.core.guidance_text import FRAME_OPEN
from gateway.values import FieldDict, frozen

Move = tuple[str, str, dict[str, str]]
LOOPBACK = "127.0.0.1"
# Texts of the gateway that the model ignores while it repeats itself, before it listens.
_NOTES_NEEDED = 2


class _Script(Struct, frozen=True):
    """The script of the demonstration. The model explores, then doubts and turns the rounding to
    and fro, until it recovers."""

    messages: list[Any]  # the agent's first ones
    tools: list[Any]  # definitions that the agent offers
    files: dict[str, str]  # the repository, text by path
    explore: tuple[Move, ...]  # moves at the beginning; a move is a text, a tool and its arguments
    doubt: str  # text of the model while it is stuck
    rounding: tuple[str, str]  # the two versions of a line between which it turns
    recover: tuple[Move, ...]  # moves after guidance came
    done: str  # the final answer


SCRIPT = msgspec.json.decode(Path(__file__).with_name("script.json").read_bytes(), type=_Script)


def _use(folder: Path, tool: str, path: str = "", old: str = "", new: str = "") -> str:
    """The text that the agent reads after it has used a tool."""
    file = folder / Path(path).name
    if tool == "list_files":
        return "\n".join(sorted(each.name for each in folder.iterdir() if each.is_file()))
    if tool == "run_tests":
        run = [sys.executable, "-B", "-m", "unittest", "-q", "test_orders"]
        done = subprocess.run(  # noqa: S603 - the demo's own test
            run, cwd=folder, capture_output=True, text=True, timeout=30, check=False
        )
        return "\n".join(x for x in done.stderr.splitlines() if not x.startswith("Ran ")).strip()
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
    failed: bool  # the action failed
    answer: str | None  # the final one; None before


def run_agent(client: OpenAI, folder: Path, *, model: str, max_calls: int) -> Iterator[Turn]:
    """Call the model until it answers without a tool call, or the limit is reached."""
    for name, text in SCRIPT.files.items():
        (folder / name).write_text(text, encoding="utf-8")
    messages = list(SCRIPT.messages)
    tools = SCRIPT.tools
    for _ in range(max_calls):
        raw = client.chat.completions.with_raw_response.create(
            model=model, messages=messages, tools=tools
        )
        said = json.loads(raw.text)
        message = said["choices"][0]["message"]
        action = ""
        failed = False
        messages.append(message)
        for call in message.get("tool_calls", ()):
            name = call["function"]["name"]
            arguments = json.loads(call["function"]["arguments"])
            result = _use(folder, name, **arguments)
            messages.append({"role": "tool", "tool_call_id": call["id"], "content": result})
            failed = "FAILED" in result
            action = " ".join([name, *list(arguments.values())[:1]])
        if action:
            answer = None
        else:
            answer = message["content"]
        about: Any = {"headers": dict(raw.headers), "usage": said["usage"], "action": action}
        yield Turn(**about, failed=failed, answer=answer)
        if answer is not None:
            return


class ScriptedModel:
    """Answers one agent; `advice` is the guidance that made it change its approach."""

    def __init__(self) -> None:
        self._step = self._recovery = self._frames_before = 0
        self.advice = ""

    def completion(self, body: bytes) -> FieldDict:
        """The next chat completion; of the request, only the model and the guidance are read."""
        request = json.loads(body)
        text, name, arguments = self._next(_guidance(request["messages"]))
        message: FieldDict = {"role": "assistant", "content": text}
        if name:
            function = {"name": name, "arguments": json.dumps(arguments)}
            call_id = f"call_{self._step + self._recovery}"
            message["tool_calls"] = [{"id": call_id, "type": "function", "function": function}]
        choice = {"index": 0, "message": message, "finish_reason": "tool_calls" if name else "stop"}
        # The usual rule of thumb: four characters per token.
        sent = len(body) // 4
        received = 40 + len(text) // 4
        usage = {"prompt_tokens": sent, "completion_tokens": received}
        about = {"id": "chatcmpl-demo", "object": "chat.completion", "created": int(time.time())}
        usage["total_tokens"] = sent + received
        return {**about, "model": request["model"], "choices": [choice], "usage": usage}

    def _next(self, frames: list[str]) -> Move:
        turn = self._step - len(SCRIPT.explore)
        if turn < 0:
            self._frames_before = len(frames)
            self._step += 1
            return SCRIPT.explore[turn]
        if not self.advice and len(frames) >= self._frames_before + _NOTES_NEEDED:
            self.advice = frames[-1]
        if not self.advice:
            # Alternate between running the test and changing the rounding back and forth.
            self._step += 1
            if turn % 2 == 0:
                return SCRIPT.doubt, "run_tests", {}
            old, new = SCRIPT.rounding if turn % 4 == 1 else SCRIPT.rounding[::-1]
            return SCRIPT.doubt, "edit_file", {"path": "pricing.py", "old": old, "new": new}
        self._recovery += 1
        return next(iter(SCRIPT.recover[self._recovery - 1 :]), (SCRIPT.done, "", {}))


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
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://{LOOPBACK}:{server.server_port}/v1"
        server.shutdown()
