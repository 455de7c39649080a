"""The short way of a stream: from the upstream's connection to the client's, without a task."""

from __future__ import annotations

from gateway.endpoints.body import WriteNow
from gateway.endpoints.keepalive import KeepAlive
from gateway.wire.echo import EchoFilter
from gateway.wire.response_tee import ResponseWatch, UsageFilter


class Passing:
    """Passes on what arrives without waking the relay's task, up to what may end the stream."""

    def __init__(
        self,
        watch: ResponseWatch,
        usage_filter: UsageFilter | EchoFilter | None,
        keepalive: KeepAlive | None,
        write: WriteNow,
    ) -> None:
        self._watch = watch
        self._filter = usage_filter
        self._keepalive = keepalive
        self._write = write
        self._is_full = False

    def __call__(self, chunk: bytes) -> bool:
        """Whether the piece was passed on; if not, nothing of it was taken."""
        if self._is_full:  # the task waits until the client has read
            self._is_full = False
            return False
        if not self._watch.take(chunk):
            return False
        out = chunk if self._filter is None else self._filter.feed(chunk)
        self._is_full = not self._write(out)
        if self._keepalive is not None:
            self._keepalive.note(chunk)
        return True
