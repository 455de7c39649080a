"""A receiver of alerts on a real port."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import orjson
import pytest

from gateway.hooks import features


class Receiver:
    """Keeps every message that it answers in time; with `status`, after `hold` is set."""

    def __init__(self) -> None:
        self.status = 200
        self.messages: list[dict[str, Any]] = []
        self.bodies: list[bytes] = []
        self.headers: list[dict[str, str]] = []
        self.arrived = threading.Semaphore(0)
        self.hold = threading.Event()
        self.hold.set()
        self.waits_for_us = False  # whether who sends is still there when `hold` is set
        outer = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["content-length"]))
                outer.arrived.release()
                held = not outer.hold.is_set()
                outer.hold.wait(120)
                if outer.status < 300 and (outer.waits_for_us or not held):
                    outer.bodies.append(body)
                    outer.messages.append(orjson.loads(body))
                    outer.headers.append({k.lower(): v for k, v in self.headers.items()})
                self.send_response(outer.status)
                self.send_header("content-length", "0")
                self.end_headers()

            def log_message(self, *_: object) -> None:
                """Nothing."""

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        self._thread = threading.Thread(
            target=self._server.serve_forever, args=(0.05,), daemon=True
        )
        self._thread.start()

    @property
    def url(self) -> str:
        """With something in it that nobody is to see."""
        return f"http://127.0.0.1:{self._server.server_port}/hook/T0PSECRET?token=T0PSECRET"

    def titles(self) -> list[str]:
        """Of every alert that has arrived, in webhook form."""
        return [alert["title"] for message in self.messages for alert in message["alerts"]]

    def close(self) -> None:
        """Stop listening."""
        self.hold.set()
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()


def alerting(receiver: Receiver, **more: Any) -> dict[str, Any]:
    """The section `alerts` of a config: to the receiver, at once."""
    sinks = [{"name": "ops", "url": receiver.url}]
    return {"sinks": sinks, "check_interval_s": 0.1, "group_wait_s": 0, "retry_s": 0.1, **more}


@pytest.fixture
def receiver() -> Iterator[Receiver]:
    """A receiver; a test with one is skipped where the feature is gone."""
    if "alerts" not in features():
        pytest.skip("needs the feature alerts")
    server = Receiver()
    yield server
    server.close()
