"""The answer that both lanes return, its headers, and the time limits on reading it."""

import asyncio
import contextlib
import math
import time
from collections.abc import AsyncIterator
from email.utils import parsedate_to_datetime
from typing import Any, Protocol

from gateway.values import FieldDict
from gateway.wire.headers import RawHeaders, header


class LaneResponse(Protocol):
    """An upstream's answer. Iterate once for the body; always `aclose()`."""

    status: int  # of HTTP, or the one that the lane makes of an error
    # end-to-end headers, names in lower case, repeated ones kept, content-length when known
    headers: RawHeaders
    # token usage, where the lane knows it (LiteLLM); None where it is in the body
    usage: FieldDict | None

    def __aiter__(self) -> AsyncIterator[bytes]:
        """The body as it arrives. Raises: UpstreamFailure: it broke off or stalled."""
        ...

    async def aclose(self) -> None:
        """Release the connection; ends the upstream call if it is still running."""
        ...


def retry_after_s(headers: RawHeaders) -> float | None:
    """Seconds the upstream asks to wait, as a number or as a date; None when it does not say."""
    for name, unit in ((b"retry-after-ms", 1000.0), (b"retry-after", 1.0)):
        value = header(headers, name).decode("latin-1")
        with contextlib.suppress(ValueError, OverflowError):
            seconds = float(value) / unit
            if math.isnan(seconds):
                return None
            return max(0.0, seconds)
        with contextlib.suppress(ValueError, TypeError, OverflowError):
            return max(0.0, parsedate_to_datetime(value).timestamp() - time.time())
    return None


class IdleGuard:
    """Ends a `with` block with TimeoutError when it lasts longer than a limit. `limit_s` counts
    from the start of each block, `total_s` from the creation of the guard; 0 is no limit. There is
    one timer per stream, which checks the clock when it fires, instead of one per chunk: a stream
    of a thousand chunks needs a handful of timers."""

    def __init__(self, limit_s: float, total_s: float = 0) -> None:
        self.limit_s = limit_s
        self.total_s = total_s
        self._loop = asyncio.get_running_loop()
        if total_s:
            self._ends_at = self._loop.time() + total_s
        else:
            self._ends_at = math.inf
        self._task: asyncio.Task[Any] | None = None
        self._entered = 0.0
        self._handle: asyncio.TimerHandle | None = None
        self._expired = False

    def __enter__(self) -> None:
        if self.limit_s or self.total_s:
            self._entered = self._loop.time()
            self._task = asyncio.current_task()
            if self._handle is None:
                self._handle = self._loop.call_at(self._due(), self._ring)

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        task = self._task
        self._task = None
        if self._expired and task is not None:
            self._expired = False
            if task.uncancel() == 0 and kind is asyncio.CancelledError:
                raise TimeoutError

    @property
    def verdict(self) -> str:
        """The limit that a block with TimeoutError exceeded, in words, with its setting."""
        if self._loop.time() >= self._ends_at:
            return f"took longer than {self.total_s:g} s (timeouts.total_s)"
        return f"stalled for {self.limit_s:g} s (timeouts.idle_s)"

    def restart(self) -> None:
        """Count the limit of the block that is running from now."""
        self._entered = self._loop.time()

    def relimit(self, limit_s: float) -> None:
        """Set the limit of the next blocks."""
        self.stop()
        self.limit_s = limit_s

    def stop(self) -> None:
        """Disarm the timer."""
        if self._handle is not None:
            self._handle.cancel()
            self._handle = None

    def _due(self) -> float:
        if self._task is not None:
            start = self._entered
        else:
            start = self._loop.time()
        return min(start + self.limit_s if self.limit_s else math.inf, self._ends_at)

    def _ring(self) -> None:
        self._handle = None
        due = self._due()
        if due > self._loop.time():
            self._handle = self._loop.call_at(due, self._ring)
        elif self._task is not None:
            self._expired = True
            self._task.cancel()
