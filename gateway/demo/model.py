"""The scripted model, and its provider's server on a loopback port. The model works well, then
repeats itself until guidance tells it to stop."""

from __future__ import annotations

import json
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from gateway.steering.guidance.lessons import LEARNED
from gateway.steering.transcript.content import FRAME_OPEN

Move = tuple[str, str, dict[str, str]]

_EXPLORE: tuple[Move, ...] = (
    ("I start with the files there are.", "list_files", {}),
    ("Reading the entry point.", "read_file", {"path": "orders.py"}),
    ("Reading the test.", "read_file", {"path": "test_orders.py"}),
    ("Reading the pricing module.", "read_file", {"path": "pricing.py"}),
    ("Reading the customers module.", "read_file", {"path": "customers.py"}),
    ("Reading the report module.", "read_file", {"path": "report.py"}),
    ("Reading the notes.", "read_file", {"path": "README.md"}),
)

_DOUBT = "The test failed again. Maybe the error is still in the rounding of pricing.line_total."
_ROUND, _PLAIN = "round(price * count * (1 + VAT))", "int(price * count * (1 + VAT) + 0.5)"

_REPAIR = {"path": "rates.py", "old": "VAT = 0.16", "new": "VAT = 0.19"}
_RECOVER: tuple[Move, ...] = (
    ("The law file says what the rate must be.", "read_file", {"path": "LAW.md"}),
    ("The rate is out of date, the rounding was fine.", "edit_file", _REPAIR),
    ("Running the tests on the new rate.", "run_tests", {}),
    ("Checking that the change is what I meant.", "read_file", {"path": "rates.py"}),
    ("Checking that pricing is as it was.", "read_file", {"path": "pricing.py"}),
    ("Looking for files left behind.", "list_files", {}),
)
_DONE = "The tax rate was out of date. It is set to 19 percent in rates.py, and the tests pass."

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
        if self._step < len(_EXPLORE):
            self._frames_before = len(frames)
            self._step += 1
            return _EXPLORE[self._step - 1]
        self.lessons = self.lessons or next((frame for frame in frames if LEARNED in frame), "")
        self.advice = self.advice or self.lessons
        if not self.advice and len(frames) >= self._frames_before + _NOTES_NEEDED:
            self.advice = frames[-1]
        if not self.advice:
            # Alternate between running the test and changing the rounding back and forth.
            self._step += 1
            turn = self._step - len(_EXPLORE)
            if turn % 2:
                return _DOUBT, "run_tests", {}
            old, new = (_ROUND, _PLAIN) if turn % 4 else (_PLAIN, _ROUND)
            return _DOUBT, "edit_file", {"path": "pricing.py", "old": old, "new": new}
        if self._recovery < len(_RECOVER):
            self._recovery += 1
            return _RECOVER[self._recovery - 1]
        return _DONE, None, {}


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

    def __enter__(self) -> Provider:
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
