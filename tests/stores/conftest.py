"""A state store and a run store per backend."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest

from gateway.stores.base import RunStore, StateStore
from gateway.stores.memory import MemoryRunStore, MemoryStateStore, Tables
from gateway.stores.settings import StorageSettings
from gateway.stores.sqlite.database import Database
from gateway.stores.sqlite.runs import SqliteRunStore
from gateway.stores.sqlite.states import SqliteStateStore


@dataclass(frozen=True)
class Stores:
    """The two stores of one backend, over the same data."""

    states: StateStore
    runs: RunStore


@asynccontextmanager
async def in_memory(_directory: Path, *, store_content: bool) -> AsyncIterator[Stores]:
    tables = Tables(store_content=store_content)
    yield Stores(MemoryStateStore(tables), MemoryRunStore(tables))


@asynccontextmanager
async def in_sqlite(directory: Path, *, store_content: bool) -> AsyncIterator[Stores]:
    path = str(directory / "gateway.db")
    database = await Database.open(StorageSettings(path=path, store_content=store_content))
    yield Stores(SqliteStateStore(database), SqliteRunStore(database))
    await database.close()


Backend = Callable[..., AbstractAsyncContextManager[Stores]]

BACKENDS: dict[str, Backend] = {"memory": in_memory, "sqlite": in_sqlite}
"""Every backend there is; a new one is a line here, and the conformance suite is its proof."""


@pytest.fixture(params=BACKENDS)
async def stores(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Stores]:
    async with BACKENDS[request.param](tmp_path, store_content=True) as opened:
        yield opened


@pytest.fixture(params=BACKENDS)
async def stores_without_content(
    request: pytest.FixtureRequest, tmp_path: Path
) -> AsyncIterator[Stores]:
    async with BACKENDS[request.param](tmp_path, store_content=False) as opened:
        yield opened


@pytest.fixture
async def database(tmp_path: Path) -> AsyncIterator[Database]:
    opened = await Database.open(StorageSettings(path=str(tmp_path / "gateway.db")))
    yield opened
    await opened.close()
