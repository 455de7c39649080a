"""Gateways on real sockets, configured as in production but patient, with new databases."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Self

from gateway.app import build_app
from gateway.config import Settings, settings_from_dict
from gateway.server import uvicorn_config
from steering_gateway_testing.patience import DEADLINE_MS
from steering_gateway_testing.prepared_store import put_database
from steering_gateway_testing.server import AppServer
from steering_gateway_testing.text import echo
from steering_gateway_testing.upstream import ScriptedUpstream

RELAY_ONLY: dict[str, Any] = {
    "steering": {"mode": "off", "deadline_ms": DEADLINE_MS},
    "etraces": {"enabled": False},
    "router": {"backoff_s": 0},
    "server": {"drain_s": 1},
}
"""Nothing is steered, and failed calls are repeated without a pause."""

PATIENT: dict[str, Any] = {
    "steering": {"deadline_ms": DEADLINE_MS, "max_wait_ms": DEADLINE_MS},
    "storage": {"commit_limit_ms": DEADLINE_MS},
    "server": {"drain_s": 1},
}
"""Defaults but for the limits of time, which a busy machine would miss, and a short drain."""


def gateway_of(settings: Settings) -> AppServer:
    """A gateway with these settings, which is not started yet; their host and port are not used.
    `app.runtime` gives access to its services."""
    app = build_app(settings)
    return AppServer(app, config=uvicorn_config(app, settings))


def merged(base: Mapping[str, Any], more: Mapping[str, Any]) -> dict[str, Any]:
    """`base` with `more` laid over it, section by section."""
    out = dict(base)
    for key, value in more.items():
        known = out.get(key)
        both = isinstance(known, Mapping) and isinstance(value, Mapping)
        out[key] = {**known, **value} if both else value  # type: ignore[dict-item]
    return out


def a_gateway(
    api_base: str, directory: Path, settings: Mapping[str, Any] | None = None
) -> AppServer:
    """A gateway that only relays and is not started yet, before an upstream."""
    gateways = Gateways(api_base, directory, RELAY_ONLY)
    return gateways.made(settings or {}, directory / "gateway.db", {})


@contextmanager
def relaying(
    directory: Path, settings: Mapping[str, Any] | None = None
) -> Iterator[tuple[ScriptedUpstream, AppServer]]:
    """An upstream, and a gateway before it that only relays, for many tests to share."""
    with (
        ScriptedUpstream() as upstream,
        a_gateway(upstream.base_url, directory, settings) as gateway,
    ):
        yield upstream, gateway


class Gateways:
    """Starts gateways, and stops them at its end, the newest first.

    They use the upstream at `api_base` unless their settings name another one, `base` where their
    settings say nothing, and a database of their own in `directory`.
    """

    def __init__(self, api_base: str, directory: Path, base: Mapping[str, Any] = PATIENT) -> None:
        self._api_base = api_base
        self._directory = directory
        self._base = base
        self._running: list[AppServer] = []

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        while self._running:
            self._running.pop().stop()

    def start(
        self, settings: Mapping[str, Any] | None = None, *, env: Mapping[str, str] | None = None
    ) -> AppServer:
        """Start one more. `env` None: the variables of this process apply."""
        database = self._directory / f"gateway-{len(self._running)}.db"
        server = self.made(settings or {}, database, env)
        server.start()
        self._running.append(server)
        return server

    def made(
        self, settings: Mapping[str, Any], database: Path, env: Mapping[str, str] | None
    ) -> AppServer:
        """A gateway that is not started yet."""
        mapping = merged(self._base, {"storage": {"path": str(database)}})
        mapping["default_upstream"] = {"api_base": self._api_base}
        loaded = settings_from_dict(merged(mapping, settings), env)
        put_database(loaded)
        return gateway_of(loaded)


def replace_settings(server: AppServer, raw: Mapping[str, Any]) -> None:
    """Put new settings of a gateway that only relays in force, as a reload does, on its loop."""
    runtime = server.app.runtime
    # A reload may not take the default upstream away.
    kept = {"default_upstream": {"api_base": runtime.settings.default_upstream.api_base}}
    settings = settings_from_dict(merged(RELAY_ONLY, {**kept, **raw}), {})

    async def put() -> None:
        assert runtime.replace(lambda: settings)

    loop = runtime.services.dispatcher._loop
    asyncio.run_coroutine_threadsafe(put(), loop).result(120)


@contextmanager
def renewed(shared: ScriptedUpstream) -> Iterator[ScriptedUpstream]:
    """A shared upstream with nothing scripted and nothing recorded yet, which echoes; an error of
    it, or a reply that nobody asked for, fails the test."""
    shared.reset()
    shared.default = echo
    yield shared
    assert not shared.errors
    assert not shared.pending
