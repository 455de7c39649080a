"""Opens the stores in a PostgreSQL database."""

from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from gateway.backends import Progress, Stores, stores_over
from gateway.config.storage import StorageSettings
from gateway.stores.protocols import StoreUnavailable
from gateway.stores.sqlite.files import finish, locked

if TYPE_CHECKING:
    from gateway.stores.sqlite.database import Database as SQLiteDatabase


async def open_postgres(settings: StorageSettings, *, vectors: bool, existing: bool) -> Stores:
    """The stores in the PostgreSQL database at `settings.url`, which has to exist."""
    try:
        from gateway.features.postgres.database import Database, PostgresSignals
        from gateway.features.postgres.engine import PostgresEngine, PostgresStateStore
    except ModuleNotFoundError as error:
        raise StoreUnavailable(
            f"PostgreSQL needs the package {error.name}: install steering-gateway[postgres]"
        ) from error

    if folder := settings.spool_folder:
        with suppress(OSError), locked(Path(folder).parent):
            finish(folder)
    if existing:  # who may not change anything does not migrate it either
        database = Database(settings, vectors=vectors)
    else:
        database = await Database.open(settings, vectors=vectors)
    engine = PostgresEngine(database)

    async def copy_from(file: "SQLiteDatabase", progress: Progress) -> dict[str, int]:
        from gateway.features.postgres.copying import copy_all

        return await copy_all(file, database, progress, vectors=vectors)

    return replace(
        stores_over(engine, PostgresStateStore(engine)),
        signals=PostgresSignals(database),
        identity=database.identity,
        copy_from=copy_from,
    )
