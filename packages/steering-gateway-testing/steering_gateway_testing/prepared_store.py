"""New databases for gateways in tests, copied instead of made.

Most of a gateway's start on a new database is its tables and the starter patterns. Tests start
thousands; a copy is what such a start leaves behind.
"""

from __future__ import annotations

import asyncio
import functools
import tempfile
import threading
from pathlib import Path

from gateway.backends import open_stores
from gateway.config import Settings
from gateway.config.storage import StorageSettings
from gateway.core.guidance_settings import EtraceSettings
from gateway.embedding import EmbeddingSettings, open_embedder
from gateway.library import PatternLibrary


def put_database(settings: Settings) -> None:
    """Put a new gateway's database where these settings want it, unless there is one.

    Nothing is put where the start would make another one: in memory, for another embedder.
    """
    path = Path(settings.storage.path)
    searched = settings.etraces.enabled
    if settings.storage.in_memory or path.exists() or not path.parent.is_dir():
        return
    if searched and settings.embedding != EmbeddingSettings():
        return
    path.write_bytes(new_database(searched))
    path.chmod(0o600)


@functools.cache
def new_database(searched: bool) -> bytes:
    """A database file after a start and a stop; `searched`: with the starter patterns."""
    with tempfile.TemporaryDirectory() as directory:
        path = Path(directory) / "gateway.db"
        # In a thread: the caller may be on an event loop.
        making = threading.Thread(target=lambda: asyncio.run(_make(str(path), searched)))
        making.start()
        making.join()
        return path.read_bytes()


async def _make(path: str, searched: bool) -> None:
    stores = await open_stores(StorageSettings(path=path), vectors=searched)
    if searched:
        embedder = await open_embedder(EmbeddingSettings())
        await PatternLibrary(stores.patterns, embedder, EtraceSettings()).prepare()
        await embedder.close()
    await stores.close()
