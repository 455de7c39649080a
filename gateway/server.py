"""Running the gateway: uvicorn, signals, config reloads."""

import asyncio
import ctypes
import os
import signal
import socket
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from functools import partial
from itertools import chain
from pathlib import Path
from threading import Thread
from typing import cast

import uvicorn

from gateway.app import build_app
from gateway.auth.authenticator import process_key
from gateway.config import (
    Settings,
    ignored_keys,
    misspelt_variables,
    read_file,
    removed_keys,
    unset_variables,
)
from gateway.config.own_address import is_loopback_name
from gateway.config.values import is_cut
from gateway.endpoints.edge import Edge
from gateway.endpoints.http11 import HttpProtocol
from gateway.errors import ConfigError
from gateway.hooks import given
from gateway.observability.logging import configure_logging, get_logger, label_lines
from gateway.observability.metrics import SharedMetrics
from gateway.process.running_gateways import announced
from gateway.process.start_checks import check
from gateway.process.workers import (
    Supervisor,
    WorkerPlace,
    bind,
    freeze_startup_objects,
    shared_sockets,
)
from gateway.runtime import Runtime
from gateway.tasks import spawn
from gateway.text.formatting import counted

_WATCH_PERIOD_S = 1.0
_QUIET_S = 0.3  # a file that is written in place stops growing for less than this
_DRAIN_POLL_S = 0.05
_START_S = 120.0  # longest wait for a gateway in a thread of this process
_POLL_S = 0.01
_CLOSE_S = 1.0  # to close connections that have no request
# Longest time for which a thread runs Python code while another one waits: the event loop waits so
# long in each of its turns beside a thread that reads a large body. Python's own is ten times it.
_SWITCH_S = 0.0005


def serve(
    settings: Settings,
    load: Callable[[], Settings],
    config_path: Path | None,
    listening: Callable[[str], None] | None = None,
) -> bool:
    """Serve until SIGTERM or SIGINT, then let running requests end (`server.drain_s`). Returns
    whether it served and lost no record; if not, the log says why. `listening` is called once, with
    the address without `/v1`. SIGHUP, or a change of the config file, reloads the settings through
    `load`. Raises ConfigError: an upstream is the gateway itself, or the address is in use."""
    loaded = read_now(config_path)
    configure_logging(settings.logging)
    check(settings)
    log = get_logger("gateway")
    if config_path:
        written = read_file(config_path)
    else:
        written = {}
    for name, instead in removed_keys(written, os.environ).items():
        log.warning(f"{name} {instead}")
    if ignored := ignored_keys(written):
        unmet = [path for path, here in ignored.items() if here]
        log.warning("unused keys of the LiteLLM proxy", keys=list(ignored), not_honoured=unmet)
    for name, meant in misspelt_variables(os.environ):
        log.warning(f"{name} sets nothing: two underscores, {meant}")
    for line in unset_variables(settings):
        log.warning(line)
    sock = bind(settings.server.host, settings.server.port)
    process_key()  # one for all workers, which are forked from here

    def work(place: WorkerPlace | None, own: socket.socket) -> bool:
        """Serve in this process; `place`: which worker it is."""
        sys.setswitchinterval(_SWITCH_S)
        with suppress(TypeError, AttributeError):  # another C library
            # glibc's M_MMAP_THRESHOLD: blocks from 1 MiB on are given back when they are freed. By
            # itself it grows with what is freed, up to 32 MiB: bodies lie in the heap, between
            # small values that stay.
            ctypes.CDLL(None).mallopt(-3, 2**20)
        app = build_app(settings)
        reloads = Reloads(app.runtime, load, config_path, loaded=loaded)
        server = GatewayServer(uvicorn_config(app, settings), app, place, reloads=reloads)
        server.listening = listening
        # uvicorn raises the signal again after the drain; a requested end has exit status 0.
        signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
        try:
            with suppress(SystemExit):  # raised by uvicorn when the start failed
                server.run(sockets=[own])
        finally:
            if app.runtime.lost:
                lost = counted(app.runtime.lost, "record")
                sys.stderr.write(f"gateway: {lost} lost: storage and its spool cannot be written\n")
        return server.started and not app.runtime.lost

    if settings.server.workers == 1:
        return work(None, sock)
    sockets = shared_sockets(sock, settings.server.workers)
    return Supervisor(sockets, work, settings.server.drain_s).run()


def uvicorn_config(app: Edge, settings: Settings) -> uvicorn.Config:
    """uvicorn's settings: fast parsers, no headers and no log lines added."""
    protocol = partial(HttpProtocol, limits=settings.server, refused=app.refused)
    return uvicorn.Config(
        app,
        http=cast(type[asyncio.Protocol], protocol),
        loop="uvloop" if os.name != "nt" else "auto",
        ws="none",
        lifespan="on",
        log_config=None,
        access_log=False,
        server_header=False,
        date_header=False,
        proxy_headers=False,
        timeout_keep_alive=cast(int, settings.server.keep_alive_s),  # and fractions
        timeout_graceful_shutdown=cast(int, settings.server.drain_s),  # and fractions
        backlog=4096,
        h11_max_incomplete_event_size=None,
    )


class GatewayServer(uvicorn.Server):
    """uvicorn with a drain that `/readyz` reports, and with reload on SIGHUP or file change. It
    still listens while it drains: probes are answered and new requests get 503, which load
    balancers and clients handle better than a refused connection."""

    def __init__(
        self,
        config: uvicorn.Config,
        app: Edge,
        place: WorkerPlace | None = None,
        reloads: "Reloads | None" = None,
    ):
        super().__init__(config)
        self._app = app
        self._place = place
        if place is not None:
            runtime = app.runtime
            runtime.instance = place.instance
            runtime.shared_metrics = SharedMetrics(
                place.index, place.count, place.metrics_socket, render=runtime.metrics.render
            )
            label_lines(worker=place.index)
        self._reloads = reloads
        self.listening: Callable[[str], None] | None = None
        self._announced = ExitStack()

    def handle_exit(self, sig: int, frame: object) -> None:
        """Drain at the first signal: refuse new requests and wait for the running ones."""
        self._app.runtime.draining = True
        super().handle_exit(sig, frame)  # type: ignore[arg-type]

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Open the services, listen, and log the address."""
        await super().startup(sockets)
        if not self.started:
            return
        if self._reloads is not None:
            self._announced.enter_context(self._reloads.active())
        freeze_startup_objects()
        runtime = self._app.runtime
        if runtime.shared_metrics is not None and self._place is not None:
            await runtime.shared_metrics.start()
            drain = partial(self._without_parent, self._place.parent)
            asyncio.get_running_loop().add_reader(self._place.parent, drain)
        host = runtime.settings.server.host
        port = self.servers[0].sockets[0].getsockname()[1]
        runtime.port = port
        url = f"http://{f'[{host}]' if ':' in host else host}:{port}"
        first = self._place is None or self._place.index == 0
        if first:
            # Other commands of this user may control it, unless its agent is the same user.
            if runtime.settings.auth.admin_key or runtime.own_key:
                shown = ""
            else:
                shown = process_key()
            self._announced.enter_context(announced(url, runtime.settings.storage.file, shown))
        runtime.log.info(
            "listening",
            url=f"{url}/v1",
            upstream=runtime.settings.default_upstream.api_base,
            models=[d.model_name for d in runtime.settings.model_list],
        )
        found = [each(runtime.settings, runtime.services.catalogue) for each in given("doubts")]
        if doubts := list(chain(*found)):
            runtime.log.warning(
                "budgets in dollars do not know the price of some models",
                models=doubts,
                hint="set input_cost_per_token and output_cost_per_token, or a limit in tokens",
            )
        if exposes_provider_keys(runtime.settings) and not runtime.keys.required:
            runtime.log.warning(
                "anyone who reaches this address can spend the configured provider keys: "
                "set auth.gateway_keys, or create keys with `gateway keys`"
            )
        if self.listening is not None and first:
            self.listening(url)

    def _without_parent(self, parent: int) -> None:
        asyncio.get_running_loop().remove_reader(parent)
        self.handle_exit(signal.SIGTERM, None)

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Wait for running requests, stop listening, close the services."""
        self._announced.close()
        log = self._app.runtime.log
        drain_s = cast(float, self.config.timeout_graceful_shutdown)
        log.info("shutting down", running=len(self.server_state.tasks), drain_s=drain_s)
        ends_at = time.monotonic() + drain_s
        for connection in list(self.server_state.connections):
            connection.shutdown()
        running = self.server_state.tasks
        while running and not self.force_exit and time.monotonic() < ends_at:
            await asyncio.wait(set(running), timeout=_DRAIN_POLL_S)
        left_s = _CLOSE_S
        if running:
            left_s = max(0.0, ends_at - time.monotonic())
        self.config.timeout_graceful_shutdown = cast(int, left_s)
        if self._app.runtime.shared_metrics is not None:
            self._app.runtime.shared_metrics.close()
        await super().shutdown(sockets)
        log.info("stopped")


@contextmanager
def in_thread(server: uvicorn.Server, stop_s: float, runtime: Runtime) -> Iterator[str]:
    """Serve in another thread, on a free port of the loopback interface; yields the address. Raises
    ConfigError: the start fails or takes longer than `_START_S`."""
    sock = socket.socket()
    sock.bind(("127.0.0.1", 0))

    def serve() -> None:
        with suppress(SystemExit):  # uvicorn's way to say that the start failed
            server.run(sockets=[sock])

    thread = Thread(target=serve, daemon=True)
    thread.start()
    deadline = time.monotonic() + _START_S
    while not server.started:
        if not thread.is_alive() or time.monotonic() > deadline:
            raise ConfigError(f"the gateway {runtime.failed}")
        time.sleep(_POLL_S)
    try:
        yield f"http://127.0.0.1:{sock.getsockname()[1]}"
    finally:
        server.should_exit = True
        thread.join(stop_s)


class Reloads:
    """Gives the runtime new settings from `load` on SIGHUP, or when the file at `path` changes.
    `loaded`: the file as the settings in use have it; a worker that takes another's place reads
    what has changed since."""

    def __init__(
        self, runtime: Runtime, load: Callable[[], Settings], path: Path | None, loaded: "Loaded"
    ):
        self._runtime = runtime
        self._load = load
        self._path = path
        self._stamp, self._text = loaded
        self._reloading: asyncio.Task[None] | None = None

    @contextmanager
    def active(self) -> Iterator[None]:
        """Watch for changes and signals while the block runs."""
        watcher = None
        if self._path:
            watcher = spawn(self._watch_file())
        # Windows has no SIGHUP, and a loop outside the main thread gets none; watching still works.
        with suppress(NotImplementedError, ValueError, AttributeError):
            asyncio.get_running_loop().add_signal_handler(signal.SIGHUP, self._reload_soon)
        try:
            yield
        finally:
            if watcher:
                watcher.cancel()

    def _reload_soon(self) -> None:
        """Reload as soon as the file has stopped changing; a second request joins the first."""
        if self._reloading is None or self._reloading.done():
            self._reloading = spawn(self._reload_when_quiet())

    async def _reload_when_quiet(self) -> None:
        before = None
        # Nothing reports that a file is written to its end: it is looked at until it stays.
        while self._path is not None and before != (before := _stamp(self._path)):  # noqa: ASYNC110
            await asyncio.sleep(_QUIET_S)
        self._reload()

    def _reload(self) -> None:
        self._stamp, text = read_now(self._path)

        def checked() -> Settings:
            settings = self._load()
            check(settings)
            if _stamp(self._path) != self._stamp:
                raise ConfigError(f"{self._path}: is being written")
            if is_cut(self._text, text) and settings != self._runtime.settings:
                raise ConfigError(
                    f"{self._path}: is the beginning of the file in use, as if it were cut: "
                    "restart the gateway to remove what is missing"
                )
            return settings

        if self._runtime.replace(checked):
            self._text = text

    async def _watch_file(self) -> None:
        before = self._stamp
        while True:
            await asyncio.sleep(_WATCH_PERIOD_S)
            now = _stamp(self._path)
            # Wait until the file stops changing: a half-written file may be valid, too.
            if now == before and now != self._stamp:
                self._reload()
            before = now


_Stamp = tuple[int, int, int]  # time of the last change in ns, size and number of a file
Loaded = tuple[_Stamp | None, str]  # a file when it was read, and its text


def read_now(path: Path | None) -> Loaded:
    """The file as it is now; without a stamp or text if it cannot be read."""
    stamp = _stamp(path)
    try:
        return stamp, path.read_text(encoding="utf-8", errors="replace") if path else ""
    except OSError:
        return stamp, ""


def _stamp(path: Path | None) -> _Stamp | None:
    try:
        stat = path.stat() if path else None
    except OSError:
        return None
    if stat:
        return (stat.st_mtime_ns, stat.st_size, stat.st_ino)
    return None


def exposes_provider_keys(settings: Settings) -> bool:
    """Whether other machines can use the configured provider keys without a gateway key."""
    keys = [d.litellm_params.get("api_key") for d in settings.model_list]
    local = is_loopback_name(settings.server.host) or settings.auth.names_keys
    return not local and any([settings.default_upstream.api_key, *keys])
