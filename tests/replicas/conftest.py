"""A PostgreSQL server of a test's own."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from steering_gateway_testing.postgres import PostgresServer, new_folder
from tests.postgres import shared_server


@pytest.fixture
def server() -> Iterator[PostgresServer]:
    """A server of the test's own."""
    shared_server()
    server = PostgresServer(new_folder(), "-c", "listen_addresses=")
    server.start()
    yield server
    server.stop()
