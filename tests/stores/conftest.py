"""Empty stores to test: SQLite in a file, SQLite in memory, and PostgreSQL."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AbstractContextManager, asynccontextmanager, contextmanager, nullcontext
from pathlib import Path
from typing import Any

import pytest

from gateway.backends import Stores, open_stores
from gateway.config.storage import IN_MEMORY, StorageSettings
from gateway.config.values import Secret
from gateway.stores.sqlite.connection import load_vector_extension
from gateway.stores.sqlite.database import Database
from steering_gateway_testing.prepared_store import new_database
from tests.pooler import through_pooler
from tests.postgres import as_peculiar_user, empty_database

Place = Callable[[Path], AbstractContextManager[dict[str, Any]]]


@contextmanager
def _in_file(directory: Path) -> Iterator[dict[str, Any]]:
    path = directory / "gateway.db"
    path.write_bytes(new_database())
    yield {"path": str(path)}


@contextmanager
def _on_postgres(_directory: Path) -> Iterator[dict[str, Any]]:
    with empty_database() as url:
        yield {"url": Secret(url)}


@contextmanager
def _through_pooler(_directory: Path) -> Iterator[dict[str, Any]]:
    with empty_database() as url:
        through = through_pooler(url)
        own = {"listen_url": Secret(url), "prepared_statements": False}
        yield {"url": Secret(through), **own}


@contextmanager
def _with_settings(_directory: Path) -> Iterator[dict[str, Any]]:
    with empty_database() as url:
        yield {"url": Secret(as_peculiar_user(url))}


PLACES: dict[str, Place] = {
    "file": _in_file,
    "memory": lambda _directory: nullcontext({"path": IN_MEMORY}),
    "postgres": _on_postgres,
}
"""The settings of every store there is; a new one is a line here."""

_MORE: dict[str, Place] = {"pooler": _through_pooler, "settings": _with_settings}
# A store in memory is the one in a file at another path, and `test_stores_agree` compares the two.
_NIGHTLY = ("memory", *_MORE)
_PARAMETERS = [
    *(place for place in PLACES if place not in _NIGHTLY),
    *(pytest.param(place, marks=pytest.mark.nightly) for place in _NIGHTLY),
]


@asynccontextmanager
async def opened(place: str, directory: Path, *, store_content: bool) -> AsyncIterator[Stores]:
    """The stores of one place, as the gateway opens them."""
    with (PLACES | _MORE)[place](directory) as where:
        settings = StorageSettings(**where, store_content=store_content)
        stores = await open_stores(settings, vectors=True)
        yield stores
        await stores.close()


@pytest.fixture(params=_PARAMETERS)
async def stores(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Stores]:
    async with opened(request.param, tmp_path, store_content=True) as found:
        yield found


@pytest.fixture(params=_PARAMETERS)
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
