"""The servers of the demo, on loopback ports: a provider with a scripted model, and a gateway."""

from __future__ import annotations

import json
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import uvicorn

from gateway.demo.model import ScriptedModel

LOOPBACK = "127.0.0.1"
START_S = 120.0
"""Longest wait for the gateway's start-up, and for its end."""
_POLL_S = 0.01


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


@contextmanager
def served(config: uvicorn.Config) -> Iterator[str]:
    """Serve an application in a thread, with its lifespan; yields its address.

    Raises:
        RuntimeError: the start-up fails or takes too long.
    """
    server = uvicorn.Server(config)
    listener = socket.socket()
    listener.bind((LOOPBACK, 0))
    thread = threading.Thread(target=server.run, args=([listener],), daemon=True)
    thread.start()
    deadline = time.monotonic() + START_S
    while not server.started:
        if not thread.is_alive() or time.monotonic() > deadline:
            raise RuntimeError("the gateway did not start")
        time.sleep(_POLL_S)
    try:
        yield f"http://{LOOPBACK}:{listener.getsockname()[1]}"
    finally:
        server.should_exit = True
        thread.join(START_S)
