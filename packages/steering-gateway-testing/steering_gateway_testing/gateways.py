"""A gateway on a real socket, configured as in production."""

from __future__ import annotations

from gateway.app import build_app
from gateway.config import Settings
from gateway.server import uvicorn_config
from steering_gateway_testing.server import AppServer


def gateway_of(settings: Settings) -> AppServer:
    """A gateway with these settings, which is not started yet; their host and port are not used.
    `app.runtime` gives access to its services."""
    app = build_app(settings)
    return AppServer(app, config=uvicorn_config(app, settings))
