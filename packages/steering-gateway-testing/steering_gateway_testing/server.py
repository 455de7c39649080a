"""Any ASGI application on a real uvicorn, in a thread, on a loopback port."""

from __future__ import annotations

import asyncio
import socket
import threading
import time
from contextlib import suppress
from typing import Any, Literal

import uvicorn

from steering_gateway_testing.ports import LOOPBACK

START_S = 120.0
"""Longest wait for the application's start-up, and for its end."""
POLL_S = 0.005
_TICK_S = 0.1  # as in uvicorn


def quiet_config(app: Any, *, lifespan: Literal["on", "off"] = "on", **more: Any) -> uvicorn.Config:
    """uvicorn's for tests: it logs errors alone, adds no header and ends soon."""
    return uvicorn.Config(
        app,
        lifespan=lifespan,
        log_level="error",
        access_log=False,
        server_header=False,
        date_header=False,
        timeout_graceful_shutdown=1,
        **more,
    )


class AppServer:
    """Runs an ASGI application with its lifespan between `start()` and `stop()`.

    config: uvicorn's; its host and port are not used. None takes a quiet default.
    """

    def __init__(self, app: Any, *, config: uvicorn.Config | None = None) -> None:
        self.app = app
        self._config = config or quiet_config(app)
        self._server: _Server | None = None
        self._thread: threading.Thread | None = None
        self.port = 0

    def __enter__(self) -> AppServer:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def start(self) -> None:
        """Serve. Raises: RuntimeError when the application's start-up fails or takes too long."""
        listener = socket.socket()
        listener.bind((LOOPBACK, 0))
        self.port = listener.getsockname()[1]
        server = self._server = _Server(self._config)
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
        self._server.leave()
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


class _Server(uvicorn.Server):
    """uvicorn's, without the pauses of its end where nobody is left to wait for."""

    _loop: asyncio.AbstractEventLoop | None = None

    def leave(self) -> None:
        """End, at once rather than at the next tick; from any thread."""
        self.should_exit = True
        if self._loop is not None:
            with suppress(RuntimeError):  # it has ended by itself
                self._loop.call_soon_threadsafe(self._leaving.set)

    async def main_loop(self) -> None:
        self._leaving = asyncio.Event()
        self._loop = asyncio.get_running_loop()
        counter = 0
        while not await self.on_tick(counter):
            counter += 1
            with suppress(TimeoutError):
                async with asyncio.timeout(_TICK_S):
                    await self._leaving.wait()

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        if self.server_state.connections or self.server_state.tasks:
            await super().shutdown(sockets)
            return
        for server in self.servers:
            server.close()
        for each in sockets or []:
            each.close()
        await self.lifespan.shutdown()


def _run(server: _Server, listener: socket.socket) -> None:
    # uvicorn exits the process when the application does not start; here that ends the thread.
    with suppress(SystemExit):
        server.run(sockets=[listener])
