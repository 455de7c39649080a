"""The demo's agent, a plain tool loop on the official `openai` client, with a real repository; and
the scripted model that answers it: it repeats itself until guidance tells it to stop."""

import json
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import msgspec
from msgspec import Struct
from openai import OpenAI

from gateway.steering.guidance.lessons import LEARNED
from gateway.steering.transcript.content import FRAME_OPEN

Move = tuple[str, str, dict[str, str]]


class _Script(Struct, frozen=True):
    """The repository, and what the model says and does in it: moves are a text, a tool and its
    arguments. It explores, then doubts and turns the rounding to and fro, until it recovers."""

    files: dict[str, str]
    explore: tuple[Move, ...]
    doubt: str
    rounding: tuple[str, str]
    recover: tuple[Move, ...]
    done: str


SCRIPT = msgspec.json.decode(Path(__file__).with_name("script.json").read_bytes(), type=_Script)


class Workspace:
    """A folder with the repository; each tool returns the text that the agent reads."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        for name, text in SCRIPT.files.items():
            (folder / name).write_text(text, encoding="utf-8")

    def list_files(self) -> str:
        """Names, one a line."""
        return "\n".join(sorted(p.name for p in self.folder.iterdir() if p.is_file()))

    def read_file(self, path: str) -> str:
        """The text of one file."""
        found = self.folder / Path(path).name
        return found.read_text(encoding="utf-8") if found.exists() else f"no such file: {path}"

    def edit_file(self, path: str, old: str, new: str) -> str:
        """Replace one piece of text."""
        found = self.folder / Path(path).name
        text = found.read_text(encoding="utf-8")
        if old not in text:
            return f"error: the text to replace does not occur in {path}"
        found.write_text(text.replace(old, new, 1), encoding="utf-8")
        return f"{path}: 1 replacement"

    def run_tests(self) -> str:
        """The output of unittest, without its time."""
        done = subprocess.run(
            [sys.executable, "-B", "-m", "unittest", "-q", "test_orders"],
            cwd=self.folder,
            capture_output=True,
            text=True,
            timeout=30,
            check=False,
        )
        return "\n".join(x for x in done.stderr.splitlines() if not x.startswith("Ran ")).strip()


TOOLS: Mapping[Callable[..., str], tuple[str, ...]] = {
    Workspace.list_files: (),
    Workspace.read_file: ("path",),
    Workspace.edit_file: ("path", "old", "new"),
    Workspace.run_tests: (),
}
"""The tools with their parameters, all of them texts."""


def tool_definitions() -> list[dict[str, Any]]:
    """The tools as a chat request offers them."""
    definitions = []
    for tool, names in TOOLS.items():
        properties = {name: {"type": "string"} for name in names}
        parameters = {"type": "object", "properties": properties, "required": list(names)}
        about = {"name": tool.__name__, "description": tool.__doc__, "parameters": parameters}
        definitions.append({"type": "function", "function": about})
    return definitions


SYSTEM = "You are a careful engineer. Repair the repository with the tools you have."
TASK = "test_orders.py fails. Find out why and repair it."


@dataclass(frozen=True, slots=True, kw_only=True)
class Turn:
    """One model call: the gateway's response headers, and what the agent did next."""

    headers: dict[str, str]
    action: str
    failed: bool
    prompt_tokens: int
    completion_tokens: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """The calls of a run, and how it ended."""

    turns: tuple[Turn, ...]
    answer: str | None  # None when the agent gave up at its limit of calls


def run_agent(
    client: OpenAI,
    workspace: Workspace,
    *,
    model: str,
    max_calls: int,
    on_turn: Callable[[Turn], None],
) -> Outcome:
    """Call the model until it answers without a tool call, or the limit is reached."""
    messages: list[Any] = [{"role": "system", "content": SYSTEM}, {"role": "user", "content": TASK}]
    tools: Any = tool_definitions()
    turns: list[Turn] = []
    for _ in range(max_calls):
        raw = client.chat.completions.with_raw_response.create(
            model=model, messages=messages, tools=tools
        )
        completion = raw.parse()
        message = completion.choices[0].message
        messages.append(message.model_dump(exclude_none=True))
        action, failed = "", False
        for call in message.tool_calls or ():
            if call.type != "function":
                continue
            arguments = json.loads(call.function.arguments)
            result: str = getattr(workspace, call.function.name)(**arguments)
            messages.append({"role": "tool", "tool_call_id": call.id, "content": result})
            failed = "FAILED" in result or result.startswith("error")
            action = " ".join([call.function.name, *list(arguments.values())[:1]])
        usage = completion.usage
        turn = Turn(
            headers=dict(raw.headers),
            action=action,
            failed=failed,
            prompt_tokens=usage.prompt_tokens if usage else 0,
            completion_tokens=usage.completion_tokens if usage else 0,
        )
        turns.append(turn)
        on_turn(turn)
        if not message.tool_calls:
            return Outcome(turns=tuple(turns), answer=message.content)
    return Outcome(turns=tuple(turns), answer=None)


# Texts of the gateway that the model ignores while it repeats itself, before it listens.
_NOTES_NEEDED = 2


class ScriptedModel:
    """Answers one agent; `advice` is the guidance that made it change its approach."""

    def __init__(self) -> None:
        self._step = 0
        self._recovery = 0
        self._calls = 0
        self._frames_before = 0
        self.advice = ""
        self.lessons = ""  # the block with lessons from earlier runs, once there was one

    def completion(self, body: bytes) -> dict[str, Any]:
        """The next chat completion; of the request, only the model and the guidance are read."""
        request = json.loads(body)
        text, name, arguments = self._next(request)
        message: dict[str, Any] = {"role": "assistant", "content": text}
        if name:
            self._calls += 1
            function = {"name": name, "arguments": json.dumps(arguments)}
            call = {"id": f"call_{self._calls}", "type": "function", "function": function}
            message["tool_calls"] = [call]
        choice = {"index": 0, "message": message, "finish_reason": "tool_calls" if name else "stop"}
        sent = len(body) // 4  # the usual rule of thumb: four characters per token
        received = 40 + len(text) // 4
        usage = {"prompt_tokens": sent, "completion_tokens": received}
        return {
            "id": "chatcmpl-demo",
            "object": "chat.completion",
            "created": int(time.time()),
            "model": request["model"],
            "choices": [choice],
            "usage": usage | {"total_tokens": sent + received},
        }

    def _next(self, request: Any) -> tuple[str, str | None, dict[str, str]]:
        frames = guidance_frames(request)
        if self._step < len(SCRIPT.explore):
            self._frames_before = len(frames)
            self._step += 1
            return SCRIPT.explore[self._step - 1]
        self.lessons = self.lessons or next((frame for frame in frames if LEARNED in frame), "")
        self.advice = self.advice or self.lessons
        if not self.advice and len(frames) >= self._frames_before + _NOTES_NEEDED:
            self.advice = frames[-1]
        if not self.advice:
            # Alternate between running the test and changing the rounding back and forth.
            self._step += 1
            turn = self._step - len(SCRIPT.explore)
            if turn % 2:
                return SCRIPT.doubt, "run_tests", {}
            old, new = SCRIPT.rounding if turn % 4 else SCRIPT.rounding[::-1]
            return SCRIPT.doubt, "edit_file", {"path": "pricing.py", "old": old, "new": new}
        if self._recovery < len(SCRIPT.recover):
            self._recovery += 1
            return SCRIPT.recover[self._recovery - 1]
        return SCRIPT.done, None, {}


def guidance_frames(body: Any) -> list[str]:
    """The gateway's guidance blocks in a request, in order."""
    messages = body.get("messages", []) if isinstance(body, dict) else []
    texts = [
        part.get("text", "") if isinstance(part, dict) else str(part)
        for m in messages
        if m.get("role") in ("system", "developer", "tool")
        for part in (m["content"] if isinstance(m.get("content"), list) else [m.get("content")])
    ]
    return [frame for text in texts for frame in text.split(FRAME_OPEN)[1:]]


LOOPBACK = "127.0.0.1"


class Provider(ThreadingHTTPServer):
    """Answers each POST as a chat completion, not streamed, with the words of `model`."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__((LOOPBACK, 0), _Completions)
        self.model = ScriptedModel()
        self.base_url = f"http://{LOOPBACK}:{self.server_port}/v1"

    def __enter__(self) -> "Provider":
        threading.Thread(target=self.serve_forever, daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self.shutdown()
        self.server_close()


class _Completions(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: Provider

    def do_POST(self) -> None:
        """Answer a chat request."""
        body = self.rfile.read(int(self.headers["content-length"]))
        answer = json.dumps(self.server.model.completion(body)).encode()
        self.send_response(200)
        self.send_header("content-type", "application/json")
        self.send_header("content-length", str(len(answer)))
        self.end_headers()
        self.wfile.write(answer)

    def log_message(self, *_: object) -> None:
        """Say nothing: the terminal shows the demo."""
