"""`ScriptedUpstream`: a real HTTP server that answers like a provider, following a script."""

from __future__ import annotations

import asyncio
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence

from steering_gateway_testing.connection import Connection
from steering_gateway_testing.exchange import FramedAnswer
from steering_gateway_testing.patience import ANSWER_S
from steering_gateway_testing.ports import LOOPBACK
from steering_gateway_testing.received import ReceivedRequest
from steering_gateway_testing.routes import ApiRoute, ReplyRouter, route_of
from steering_gateway_testing.text import echo
from steering_gateway_testing.values import Fault, Reply

Script = Reply | Fault | Callable[[ReceivedRequest], Reply | Fault]
"""One entry of a script. A callable sees the request and decides, on the server's thread."""

START_S = 120.0
"""Longest wait for the server's thread to listen, or to end."""


class ScriptedUpstream:
    """An OpenAI- and Anthropic-like provider on a loopback port, in its own thread.

    Every POST takes the next matching entry of the script; when none is left, `default` answers.
    By default the last user text is sent back. Requests are recorded in `requests`, oldest first.
    What a callable entry raises is answered with status 500, kept in `errors`, and raised again
    when the `with` block ends.

        with ScriptedUpstream() as upstream:
            upstream.script(Fault(FaultKind.RATE_LIMIT, times=2), Reply("done"))
            client = OpenAI(base_url=upstream.base_url, api_key="any")

    Waiting blocks the calling thread: in a coroutine use `asyncio.to_thread`.

    default: answers what no script entry matches; a fault here strikes for ever.
    models: names that `/v1/models` lists. port: 0 takes a free one.
    record: keep at most so many requests (None keeps all).
    """

    def __init__(
        self,
        default: Script = echo,
        *,
        models: Sequence[str] = ("scripted-model", "scripted-small"),
        host: str = LOOPBACK,
        port: int = 0,
        record: int | None = None,
    ) -> None:
        self.default = default
        self.host = host
        self.port = port
        self.requests: deque[ReceivedRequest] = deque(maxlen=record)
        self.errors: list[Exception] = []
        self.connections_opened = 0
        self._sequence = 0
        self._queue: deque[tuple[str | None, Script]] = deque()
        self._open: set[Connection] = set()
        self._changed = threading.Condition()
        self._router = ReplyRouter(models)
        self._thread: threading.Thread | None = None
        self._loop: asyncio.AbstractEventLoop | None = None

    # Starting and stopping.

    def __enter__(self) -> ScriptedUpstream:
        self.start()
        return self

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        self.stop()
        if error is None and self.errors:
            raise self.errors[0]

    def start(self) -> None:
        """Listen. Raises: OSError when the port is taken, RuntimeError after too long a wait."""
        failure: list[OSError] = []
        ready = threading.Event()
        self._thread = threading.Thread(
            target=self._run, args=(ready, failure), name="scripted-upstream", daemon=True
        )
        self._thread.start()
        started = ready.wait(START_S)
        if failure:
            self._thread.join()
            self._thread = None
            raise failure[0]
        if not started:
            raise RuntimeError("the upstream did not start")

    def stop(self) -> None:
        """Drop every connection and end the thread; a second call does nothing."""
        thread, loop = self._thread, self._loop
        if thread is None or loop is None:
            return
        self._thread = self._loop = None
        loop.call_soon_threadsafe(loop.stop)
        thread.join(START_S)

    @property
    def url(self) -> str:
        """`http://host:port`, without a path (what the Anthropic client wants)."""
        return f"http://{self.host}:{self.port}"

    @property
    def base_url(self) -> str:
        """`http://host:port/v1` (what the OpenAI client wants)."""
        return f"{self.url}/v1"

    # Scripting.

    def script(self, *entries: Script, path: str | None = None) -> None:
        """Queue answers, used in order, one per request (`times` per fault).

        path: only requests whose path ends so take these entries, of any method; None serves every
        POST but `count_tokens`.
        """
        with self._changed:
            for entry in entries:
                times = entry.times if isinstance(entry, Fault) else 1
                self._queue.extend((path, entry) for _ in range(times))

    @property
    def pending(self) -> int:
        """Answers queued and not used yet."""
        return len(self._queue)

    def reset(self) -> None:
        """Forget the queued script and the recorded requests; connections stay."""
        with self._changed:
            self._queue.clear()
            self.requests.clear()

    # Watching.

    @property
    def open_connections(self) -> int:
        """Client connections open now, idle ones included."""
        return len(self._open)

    @property
    def active_requests(self) -> int:
        """Recorded requests whose exchange has not ended."""
        with self._changed:
            return sum(not request.ended.is_set() for request in self.requests)

    @property
    def last(self) -> ReceivedRequest:
        """The newest request. Raises: IndexError before the first."""
        return self.requests[-1]

    def wait_for_requests(
        self, count: int = 1, timeout_s: float = ANSWER_S
    ) -> list[ReceivedRequest]:
        """Wait until `count` requests are recorded; all of them. Raises: TimeoutError."""
        self._wait(lambda: len(self.requests) >= count, timeout_s, f"{count} requests")
        return list(self.requests)

    def wait_for_connections(self, count: int = 0, timeout_s: float = ANSWER_S) -> None:
        """Wait until at most `count` connections are open. Raises: TimeoutError."""
        self._wait(lambda: len(self._open) <= count, timeout_s, f"{count} open connections")

    def _wait(self, reached: Callable[[], bool], timeout_s: float, what: str) -> None:
        with self._changed:
            if not self._changed.wait_for(reached, timeout_s):
                raise TimeoutError(f"waited {timeout_s} s for {what}")

    # What connections ask; on the server's thread.

    def opened(self, connection: Connection) -> int:
        """Note a new connection; its number, from 1."""
        with self._changed:
            self._open.add(connection)
            self.connections_opened += 1
            return self.connections_opened

    def closed(self, connection: Connection) -> None:
        """Note the end of a connection."""
        with self._changed:
            self._open.discard(connection)
            self._changed.notify_all()

    def echoes(self, request: ReceivedRequest) -> bool:
        """Whether a chunked body of an unscripted route is streamed back while it arrives."""
        chunked = request.header("transfer-encoding") == "chunked"
        return chunked and route_of(request) is ApiRoute.ECHO and self._match(request) is None

    def respond(self, request: ReceivedRequest) -> FramedAnswer:
        """Record `request` and play the script's next entry."""
        self._record(request)
        try:
            exchange = self._router.exchange(request, self._take(request), self.default)
        except Exception as error:
            self.errors.append(error)
            exchange = self._router.failed(request, error)
        return exchange.numbered(request.sequence)

    def abandoned(self, request: ReceivedRequest) -> None:
        """Record a request whose client went away before it was complete."""
        self._record(request)

    def _record(self, request: ReceivedRequest) -> None:
        with self._changed:
            self._sequence += 1
            request.sequence = self._sequence
            self.requests.append(request)
            self._changed.notify_all()

    def _match(self, request: ReceivedRequest) -> int | None:
        served = request.method == "POST" and not request.path.endswith("/count_tokens")
        with self._changed:
            for index, (path, _) in enumerate(self._queue):
                if served if path is None else request.path.endswith(path):
                    return index
        return None

    def _take(self, request: ReceivedRequest) -> Script | None:
        with self._changed:
            index = self._match(request)
            if index is None:
                return None
            entry = self._queue[index][1]
            del self._queue[index]
            return entry

    # The server's thread.

    def _run(self, ready: threading.Event, failure: list[OSError]) -> None:
        loop = self._loop = _new_loop()
        try:
            server = loop.run_until_complete(
                loop.create_server(lambda: Connection(self, loop), self.host, self.port)
            )
            self.port = server.sockets[0].getsockname()[1]
            ready.set()
            loop.run_forever()
            server.close()
            self._drop_all(loop)
        except OSError as error:
            failure.append(error)
        finally:
            ready.set()
            loop.close()

    def _drop_all(self, loop: asyncio.AbstractEventLoop) -> None:
        for connection in list(self._open):
            connection.abort()
        deadline = time.monotonic() + START_S
        while self._open and time.monotonic() < deadline:
            loop.run_until_complete(asyncio.sleep(0))


def _new_loop() -> asyncio.AbstractEventLoop:
    try:
        import uvloop
    except ImportError:
        return asyncio.new_event_loop()
    loop: asyncio.AbstractEventLoop = uvloop.new_event_loop()
    return loop
