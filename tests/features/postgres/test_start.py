"""A gateway that starts while its database is away waits for it, and says so."""

from __future__ import annotations

import itertools
import json
import signal
from pathlib import Path

import asyncpg
import pytest

from gateway.backends import Stores, open_stores
from gateway.config.storage import StorageSettings
from gateway.config.values import Secret
from gateway.features.postgres import schema
from gateway.lifecycle import StartWait
from gateway.stores.protocols import StoreError, StoreUnreachable
from steering_gateway_testing import ScriptedUpstream
from steering_gateway_testing.fleet import ENVIRONMENT
from steering_gateway_testing.postgres import new_folder
from steering_gateway_testing.processes import GatewayProcess
from steering_gateway_testing.store_conformance.keys import kept_keys
from tests.postgres import new_database, shared_server
from tests.replicas.config import shared


class Absent:
    """A server whose socket is not there until `appear`."""

    def __init__(self, url: str) -> None:
        self._server = shared_server().folder
        self._folder = new_folder() / "socket"
        self.url = url.replace(str(self._server), str(self._folder))

    def appear(self) -> None:
        """From now on the server can be reached."""
        self._folder.symlink_to(self._server)


@pytest.fixture
def absent(postgres_url: str) -> Absent:
    return Absent(postgres_url)


def settings_of(url: str, start_wait_s: float = 60.0) -> StorageSettings:
    """Of a database that is tried ten times a second."""
    return StorageSettings(url=Secret(url), start_wait_s=start_wait_s, probe_interval_s=0.1)


async def test_the_start_waits_for_a_server_that_comes_later(absent: Absent) -> None:
    """It is tried again until it answers; then everything is opened."""
    settings, tries = settings_of(absent.url), itertools.count(1)

    async def open_at_third() -> Stores:
        if next(tries) == 3:
            absent.appear()
        return await open_stores(settings)

    stores = await StartWait(settings, lambda: False)(open_at_third)
    assert next(tries) == 4
    assert not await kept_keys(stores).list_keys()
    await stores.close()


@pytest.mark.parametrize(("limit_s", "stopping"), [(0.0, False), (60.0, True)])
async def test_the_wait_ends(absent: Absent, limit_s: float, stopping: bool) -> None:
    """After the limit, and when the process is told to end."""
    settings = settings_of(absent.url, limit_s)
    wait = StartWait(settings, lambda: stopping)
    with pytest.raises(StoreUnreachable, match="cannot be reached"):
        await wait(lambda: open_stores(settings))


async def test_a_start_says_that_it_waits_for_another(monkeypatch: pytest.MonkeyPatch) -> None:
    """While another gateway changes the tables; and goes on when that has ended."""
    monkeypatch.setattr(schema, "_TURN_S", 1)
    settings = settings_of(url := new_database())
    other = await asyncpg.connect(url)
    await other.execute("SELECT pg_advisory_lock($1)", schema.LOCK)
    with pytest.raises(StoreUnreachable, match="another gateway is changing its tables"):
        await open_stores(settings)
    await other.close()
    await (await open_stores(settings)).close()


async def test_what_time_does_not_mend_is_not_waited_for(postgres_url: str) -> None:
    """A database that does not exist ends the start at once."""
    settings = settings_of(postgres_url.replace("/test_", "/nowhere_"))
    wait = StartWait(settings, lambda: False)
    with pytest.raises(StoreError, match="does not exist on the server") as caught:
        await wait(lambda: open_stores(settings))
    assert not isinstance(caught.value, StoreUnreachable)


@pytest.mark.slow
def test_a_process_waits_for_the_database(
    upstream: ScriptedUpstream, tmp_path: Path, absent: Absent
) -> None:
    """It listens once the database is there; before that SIGTERM ends it."""
    config = json.dumps(shared(upstream, absent.url))
    waiting = "the database does not answer: the start waits for it"
    for comes in (False, True):
        (folder := tmp_path / str(comes)).mkdir()
        gateway = GatewayProcess(folder, config, env=ENVIRONMENT)
        gateway.start()
        try:
            reason = gateway.wait_for(waiting)["reason"]
            assert "no PostgreSQL answers at the local socket" in reason
            if comes:
                absent.appear()
                gateway.wait_for("listening")
            gateway.process.send_signal(signal.SIGTERM)
            assert gateway.end() == (0 if comes else 1)
        finally:
            gateway.process.kill()
            gateway.close()
