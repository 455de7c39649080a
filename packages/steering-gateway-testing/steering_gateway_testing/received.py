"""What the scripted upstream received, and what became of it."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Mapping
from typing import Any
from urllib.parse import unquote

import orjson

from steering_gateway_testing.patience import ANSWER_S

Header = tuple[bytes, bytes]


class ReceivedRequest:
    """One HTTP request as it arrived, byte for byte, and when its exchange ended.

    method, target: as on the request line. path: decoded, without the query. query: raw text.
    headers: (name, value) pairs as sent, in order. body: raw bytes, transfer coding removed.
    received_at, finished_at, disconnected_at: `time.monotonic()`; the last two None until then.
    sequence: 1 for the first request of this upstream. connection: number of its connection.
    complete: False when the client went away before its request was whole.
    history: Responses API only, the input items including those of `previous_response_id`.
    """

    __slots__ = (
        "_fields",
        "body",
        "complete",
        "connection",
        "disconnected_at",
        "ended",
        "finished_at",
        "headers",
        "history",
        "method",
        "path",
        "query",
        "received_at",
        "sequence",
        "target",
    )

    def __init__(self, *, method: str, target: str, headers: list[Header], connection: int) -> None:
        self.method = method
        self.target = target
        raw_path, _, self.query = target.partition("?")
        self.path = unquote(raw_path) if "%" in raw_path else raw_path
        self.headers = headers
        self.body = b""
        self.connection = connection
        self.sequence = 0
        self.complete = False
        self.received_at = time.monotonic()
        self.finished_at: float | None = None
        self.disconnected_at: float | None = None
        self.ended = threading.Event()
        self.history: list[Any] = []
        self._fields: dict[str, Any] | None = None

    def __repr__(self) -> str:
        return f"<ReceivedRequest {self.sequence}: {self.method} {self.target} {len(self.body)} B>"

    def header(self, name: str) -> str | None:
        """Value of the first header called `name` (any case), or None."""
        wanted = name.lower().encode()
        for key, value in self.headers:
            if key.lower() == wanted:
                return value.decode("latin-1")
        return None

    @property
    def json(self) -> Any:
        """The body as a JSON value, integers of any size exact; None when it is not JSON."""
        try:
            return json.loads(self.body)
        except (ValueError, RecursionError):
            return None

    @property
    def fields(self) -> Mapping[str, Any]:
        """The body when it is a JSON object, else an empty mapping. Parsed once, by orjson."""
        if self._fields is None:
            try:
                value = orjson.loads(self.body)
            except orjson.JSONDecodeError:
                value = self.json
            self._fields = value if isinstance(value, dict) else {}
        return self._fields

    @property
    def model(self) -> str:
        """The requested model, or an empty string."""
        named = self.path.rpartition("/models/")[2] if self._in_path else ""
        value = self.fields.get("model", named.partition(":")[0])
        return value if isinstance(value, str) else ""

    @property
    def stream(self) -> bool:
        """Whether a streamed answer is asked for."""
        asked = self.path.endswith(":streamGenerateContent")
        return asked or self.fields.get("stream") is True

    @property
    def _in_path(self) -> bool:
        """Whether the path says what other requests say in their body."""
        return self.path.endswith((":generateContent", ":streamGenerateContent"))

    @property
    def messages(self) -> list[Any]:
        """`messages` of a chat or Messages request, input items of a Responses request, `contents`
        of Gemini's, with an envelope or without."""
        fields = self.fields
        if self._in_path:
            fields = fields.get("request", fields)
        value = fields.get("messages", fields.get("contents"))
        return value if isinstance(value, list) else self.history

    def wait_disconnected(self, timeout_s: float = ANSWER_S) -> float:
        """Wait until the client went away before the answer was complete; the monotonic stamp.

        Blocks the calling thread. Raises: TimeoutError when the exchange is still open after
        `timeout_s`; AssertionError when the answer was completed instead.
        """
        if not self.ended.wait(timeout_s):
            raise TimeoutError(f"{self!r}: the client is still connected after {timeout_s} s")
        assert self.disconnected_at is not None, f"{self!r}: the answer was completed"
        return self.disconnected_at

    def finish(self, *, disconnected: bool) -> None:
        """Note the end of the exchange; later calls change nothing."""
        if self.ended.is_set():
            return
        now = time.monotonic()
        if disconnected:
            self.disconnected_at = now
        else:
            self.finished_at = now
        self.ended.set()
