"""The gateway's file with every table in it, for the server and every command alike."""

from __future__ import annotations

from gateway.stores.settings import StorageSettings
from gateway.stores.sqlite.database import Database
from gateway.stores.sqlite.key_schema import KEY_MIGRATIONS
from gateway.stores.sqlite.pattern_schema import PATTERN_MIGRATIONS, load_vector_extension
from gateway.stores.sqlite.schema import CONNECTION_HOOKS, MIGRATIONS

ALL_MIGRATIONS = (*MIGRATIONS, *PATTERN_MIGRATIONS, *KEY_MIGRATIONS)
"""What a file may need; one opened with less is refused as written by a newer version."""


async def open_gateway_file(settings: StorageSettings, *, vectors: bool = False) -> Database:
    """The file at `settings.path`, made or migrated as needed.

    With `vectors` its connections can search patterns, for which they need an extension of SQLite.

    Raises: StoreError, ValueError; as Database.open.
    """
    return await Database.open(
        settings,
        migrations=ALL_MIGRATIONS,
        hooks=(*CONNECTION_HOOKS, load_vector_extension) if vectors else CONNECTION_HOOKS,
    )
