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

    Nothing is put where the start would make another one: in memory, for a provider's embedder.
    """
    path = Path(settings.storage.path)
    if settings.storage.in_memory or path.exists() or not path.parent.is_dir():
        return
    embedder = ""
    if settings.etraces.enabled:
        embedder = settings.embedding.embedder
        if settings.embedding.model:
            return
    path.write_bytes(new_database(embedder))
    path.chmod(0o600)


@functools.cache
def new_database(embedder: str = "") -> bytes:
    """A database file after a start and a stop. `embedder`: one of the gateway's own, whose vectors
    of the starter patterns are in it; "" = no patterns."""
    with tempfile.TemporaryDirectory() as directory:
        path = Path(directory) / "gateway.db"
        # In a thread: the caller may be on an event loop.
        making = threading.Thread(target=lambda: asyncio.run(_make(str(path), embedder)))
        making.start()
        making.join()
        return path.read_bytes()


async def _make(path: str, name: str) -> None:
    stores = await open_stores(StorageSettings(path=path), vectors=bool(name))
    if name:
        embedder = await open_embedder(EmbeddingSettings(embedder=name))
        await PatternLibrary(stores.patterns, embedder, EtraceSettings()).prepare()
        await embedder.close()
    await stores.close()
