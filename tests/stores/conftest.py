"""Empty stores to test: SQLite in a file, and SQLite in memory."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from gateway.backends import Stores, open_stores
from gateway.config.storage import IN_MEMORY, StorageSettings
from gateway.stores.sqlite.connection import load_vector_extension
from gateway.stores.sqlite.database import Database

PLACES: dict[str, Callable[[Path], str]] = {
    "file": lambda directory: str(directory / "gateway.db"),
    "memory": lambda _directory: IN_MEMORY,
}
"""`storage.path` of every store there is; a new one is a line here."""


@asynccontextmanager
async def opened(place: str, directory: Path, *, store_content: bool) -> AsyncIterator[Stores]:
    """The stores of one place, as the gateway opens them."""
    settings = StorageSettings(path=PLACES[place](directory), store_content=store_content)
    stores = await open_stores(settings, vectors=True)
    yield stores
    await stores.close()


@pytest.fixture(params=PLACES)
async def stores(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Stores]:
    async with opened(request.param, tmp_path, store_content=True) as found:
        yield found


@pytest.fixture(params=PLACES)
async def stores_without_content(
    request: pytest.FixtureRequest, tmp_path: Path
) -> AsyncIterator[Stores]:
    async with opened(request.param, tmp_path, store_content=False) as found:
        yield found


@pytest.fixture
async def database(tmp_path: Path) -> AsyncIterator[Database]:
    found = await Database.open(StorageSettings(path=str(tmp_path / "gateway.db")))
    yield found
    await found.close()


async def open_database(path: Path) -> Database:
    """The file at `path`, ready for searches of patterns."""
    return await Database.open(StorageSettings(path=str(path)), hooks=(load_vector_extension,))
