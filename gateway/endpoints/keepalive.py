"""Comments in a silent event stream, so that nothing on the way takes it for dead."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from gateway.wire.sse import encode_comment

_BLANK_LINES = (b"\n\n", b"\r\n\r\n")


class KeepAlive:
    """Sends a comment whenever nothing has come for `interval_s` and an event is complete.

    One timer for the whole stream, which looks at the clock when it fires.
    """

    def __init__(self, interval_s: float, send: Callable[[bytes], object]) -> None:
        self._interval_s = interval_s
        self._send = send
        self._loop = asyncio.get_running_loop()
        self._heard = self._loop.time()
        self._between_events = True
        self._handle = self._loop.call_later(interval_s, self._ring)

    def hold(self) -> None:
        """Bytes have come and are not sent yet: no comment before them."""
        self._between_events = False

    def note(self, chunk: bytes) -> None:
        """These bytes were sent."""
        self._heard = self._loop.time()
        self._between_events = chunk.endswith(_BLANK_LINES)

    def stop(self) -> None:
        """No further comments."""
        self._handle.cancel()

    def _ring(self) -> None:
        wait_s = self._heard + self._interval_s - self._loop.time()
        if wait_s <= 0:
            wait_s = self._interval_s
            if self._between_events:
                self._send(encode_comment("keep-alive"))
        self._handle = self._loop.call_later(wait_s, self._ring)
