"""Any ASGI application on a real uvicorn, in a thread, on a loopback port."""

from __future__ import annotations

import socket
import threading
import time
from contextlib import suppress
from types import TracebackType
from typing import Any

import uvicorn

from gateway.testing.ports import LOOPBACK

START_S = 30.0
"""Longest wait for the application's start-up to end."""
POLL_S = 0.005


class AppServer:
    """Runs an ASGI application with its lifespan between `start()` and `stop()`.

    config: uvicorn's; its host and port are not used. None takes a quiet default.
    """

    def __init__(self, app: Any, *, config: uvicorn.Config | None = None) -> None:
        self.app = app
        self._config = config or uvicorn.Config(
            app,
            lifespan="on",
            log_level="error",
            access_log=False,
            server_header=False,
            date_header=False,
            timeout_graceful_shutdown=1,
        )
        self._server: uvicorn.Server | None = None
        self._thread: threading.Thread | None = None
        self.port = 0

    def __enter__(self) -> AppServer:
        self.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.stop()

    def start(self) -> None:
        """Serve. Raises: RuntimeError when the application's start-up fails or takes too long."""
        listener = socket.socket()
        listener.bind((LOOPBACK, 0))
        self.port = listener.getsockname()[1]
        server = self._server = uvicorn.Server(self._config)
        self._thread = threading.Thread(
            target=_run, args=(server, listener), name="app-server", daemon=True
        )
        self._thread.start()
        deadline = time.monotonic() + START_S
        while not server.started:
            if not self._thread.is_alive() or time.monotonic() > deadline:
                self.stop()
                listener.close()
                raise RuntimeError("the application did not start")
            time.sleep(POLL_S)

    def stop(self) -> None:
        """End the application's lifespan and the thread; a second call does nothing."""
        if self._server is None or self._thread is None:
            return
        self._server.should_exit = True
        self._thread.join(START_S)
        self._server = self._thread = None

    @property
    def url(self) -> str:
        """`http://127.0.0.1:port`."""
        return f"http://{LOOPBACK}:{self.port}"

    @property
    def base_url(self) -> str:
        """`http://127.0.0.1:port/v1`."""
        return f"{self.url}/v1"


def _run(server: uvicorn.Server, listener: socket.socket) -> None:
    # uvicorn exits the process when the application does not start; here that ends the thread.
    with suppress(SystemExit):
        server.run(sockets=[listener])
