"""Running the gateway: uvicorn, signals, reload of the config, the checks before the start."""

from __future__ import annotations

import asyncio
import contextlib
import ipaddress
import os
import signal
import socket
from collections.abc import AsyncIterator, Callable, Iterable
from pathlib import Path
from urllib.parse import urlsplit

import uvicorn

from gateway.app import build_app
from gateway.config import Settings
from gateway.endpoints.edge import Edge
from gateway.endpoints.http11 import HttpProtocol
from gateway.errors import ConfigError
from gateway.observability.logging import configure_logging
from gateway.tasks import spawn

_WATCH_PERIOD_S = 2.0
_ANY_ADDRESS = ("0.0.0.0", "::", "")  # noqa: S104 - compared with, not bound to


def serve(settings: Settings, load: Callable[[], Settings], config_path: Path | None) -> None:
    """Serve until SIGTERM or SIGINT, then let running requests end (`server.drain_s`).

    SIGHUP, or a change of the config file, reloads the settings through `load`.

    Raises:
        ConfigError: an upstream is the gateway itself, or the address cannot be bound.
    """
    configure_logging(settings.logging)
    refuse_self_upstream(settings)
    app = build_app(settings)
    server = GatewayServer(uvicorn_config(app, settings), app)
    sock = _bind(settings.server.host, settings.server.port)
    app.runtime.log.info(
        "listening",
        url=f"http://{settings.server.host}:{sock.getsockname()[1]}/v1",
        upstream=settings.default_upstream.api_base,
        models=[d.model_name for d in settings.model_list],
    )
    server.reload_from(load, config_path)
    server.run(sockets=[sock])


def uvicorn_config(app: Edge, settings: Settings) -> uvicorn.Config:
    """The HTTP server's settings: fast parsers, no headers and no log lines of its own."""
    return uvicorn.Config(
        app,
        http=HttpProtocol,
        loop="uvloop" if os.name != "nt" else "auto",
        ws="none",
        lifespan="on",
        log_config=None,
        access_log=False,
        server_header=False,
        date_header=False,
        proxy_headers=False,
        timeout_keep_alive=75,  # above the 60 s of common load balancers, so that they close first
        timeout_graceful_shutdown=int(settings.server.drain_s) or None,
        backlog=4096,
        h11_max_incomplete_event_size=None,
    )


class GatewayServer(uvicorn.Server):
    """uvicorn with a drain that `/readyz` tells of, and reload on SIGHUP or file change."""

    def __init__(self, config: uvicorn.Config, app: Edge) -> None:
        super().__init__(config)
        self._app = app
        self._load: Callable[[], Settings] | None = None
        self._watched: Path | None = None

    def reload_from(self, load: Callable[[], Settings], path: Path | None) -> None:
        """Where new settings come from."""
        self._load, self._watched = load, path

    def handle_exit(self, sig: int, frame: object) -> None:
        """First signal: drain. uvicorn stops accepting and waits for what is running."""
        self._app.runtime.draining = True
        super().handle_exit(sig, frame)  # type: ignore[arg-type]

    async def serve(self, sockets: list[socket.socket] | None = None) -> None:
        """Serve, with the reload triggers armed while the server runs."""
        async with self._reloads():
            await super().serve(sockets=sockets)

    @contextlib.asynccontextmanager
    async def _reloads(self) -> AsyncIterator[None]:
        loop = asyncio.get_running_loop()
        watcher = spawn(self._watch_file()) if self._watched else None
        with contextlib.suppress(NotImplementedError, ValueError, AttributeError):
            loop.add_signal_handler(signal.SIGHUP, self._reload)
        try:
            yield
        finally:
            if watcher:
                watcher.cancel()

    def _reload(self) -> None:
        if self._load is None:
            return
        load = self._load

        def checked() -> Settings:
            settings = load()
            refuse_self_upstream(settings)
            return settings

        self._app.runtime.replace(checked)

    async def _watch_file(self) -> None:
        path = self._watched
        seen = _stamp(path)
        while True:
            await asyncio.sleep(_WATCH_PERIOD_S)
            now = _stamp(path)
            if now != seen:
                seen = now
                self._reload()


def _stamp(path: Path | None) -> tuple[int, int] | None:
    try:
        stat = path.stat() if path else None
    except OSError:
        return None
    return (stat.st_mtime_ns, stat.st_size) if stat else None


def _bind(host: str, port: int) -> socket.socket:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    sock = socket.socket(family)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        sock.bind((host, port))
    except OSError as exc:
        sock.close()
        raise ConfigError(f"server: cannot listen on {host}:{port}: {exc.strerror}") from exc
    return sock


def refuse_self_upstream(settings: Settings) -> None:
    """Stop a gateway that would call itself for ever.

    Raises:
        ConfigError: an upstream's host and port are the gateway's own.
    """
    for path, url in _upstream_urls(settings):
        parts = urlsplit(url)
        port = parts.port or (443 if parts.scheme == "https" else 80)
        if port == settings.server.port and _is_own(parts.hostname or "", settings.server.host):
            raise ConfigError(
                f"{path}: {url} is this gateway itself; if OPENAI_BASE_URL is set for agents, "
                "unset it for the gateway or set default_upstream.api_base"
            )


def _upstream_urls(settings: Settings) -> Iterable[tuple[str, str]]:
    yield "default_upstream.api_base", settings.default_upstream.api_base
    for i, deployment in enumerate(settings.model_list):
        base = deployment.litellm_params.get("api_base")
        if base:
            yield f"model_list[{i}].litellm_params.api_base", str(base)


def _is_own(host: str, bound: str) -> bool:
    if host == bound or host == socket.gethostname():
        return True
    if bound not in _ANY_ADDRESS and not _is_loopback(bound):
        return False
    return _is_loopback(host)


def _is_loopback(host: str) -> bool:
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False
