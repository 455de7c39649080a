"""Opens the stores that the settings name. The only module that knows which stores exist."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path

from gateway.config.storage import StorageSettings
from gateway.stores.alerts import AlertStore
from gateway.stores.budgets import BudgetStore, ControlStore
from gateway.stores.exchanges import AnswerStore, RawStore
from gateway.stores.learning import LearningStore, WorkloadStore
from gateway.stores.patterns import PatternStore
from gateway.stores.protocols import KeyStore, RunStore, Signals, StateStore, StoreUnavailable
from gateway.stores.usage import AttributionStore


@dataclass(frozen=True, slots=True, kw_only=True)
class Stores:
    """Everything a gateway stores. `close` ends all of them.

    `budgets` and `controls` None: the store keeps none; then each gateway keeps its own in memory.
    `attribution` None: it cannot sum up trees and groups. `raw` None: it keeps no raw calls.
    `answers` None: it keeps nothing of answers. `signals` None: no other gateway tells of its
    changes. `identity`: the same for all gateways on the store; empty for a store of one.
    """

    states: StateStore
    runs: RunStore
    patterns: PatternStore
    keys: KeyStore
    learning: LearningStore
    alerts: AlertStore
    close: Callable[[], Awaitable[None]]
    budgets: BudgetStore | None = None
    controls: ControlStore | None = None
    attribution: AttributionStore | None = None
    raw: RawStore | None = None
    signals: Signals | None = None
    workloads: WorkloadStore | None = None
    answers: AnswerStore | None = None
    identity: str = ""


async def open_stores(
    settings: StorageSettings, *, vectors: bool = False, existing: bool = False
) -> Stores:
    """The stores at `settings.url` or `settings.path`, created or migrated as needed.

    `:memory:` is a new, empty database that ends with `close`. `vectors`: patterns will be
    searched. `existing`: only open what a gateway has recorded, never create a database.

    To add a store, add a branch here, before SQLite's: `docs/architecture.md`.

    Raises:
        StoreError: the store cannot be opened; with `existing`, there is none.
    """
    if settings.url is not None:
        return await _open_postgres(settings, vectors=vectors)
    return await _open_sqlite(settings, vectors=vectors, existing=existing)


async def _open_postgres(settings: StorageSettings, *, vectors: bool) -> Stores:
    try:
        from gateway.stores.postgres.alerts import PostgresAlertStore
        from gateway.stores.postgres.answers import PostgresAnswerStore
        from gateway.stores.postgres.attribution import PostgresAttributionStore
        from gateway.stores.postgres.budgets import PostgresBudgetStore
        from gateway.stores.postgres.controls import PostgresControlStore
        from gateway.stores.postgres.database import Database
        from gateway.stores.postgres.keys import PostgresKeyStore
        from gateway.stores.postgres.learning import PostgresLearningStore
        from gateway.stores.postgres.patterns import PostgresPatternStore
        from gateway.stores.postgres.raw import PostgresRawStore
        from gateway.stores.postgres.runs import PostgresRunStore
        from gateway.stores.postgres.signals import PostgresSignals
        from gateway.stores.postgres.states import PostgresStateStore
        from gateway.stores.postgres.workloads import PostgresWorkloadStore
    except ModuleNotFoundError as error:
        raise _no_driver(error) from error

    database = await Database.open(settings, vectors=vectors)
    return Stores(
        states=PostgresStateStore(database),
        runs=PostgresRunStore(database),
        patterns=PostgresPatternStore(database),
        keys=PostgresKeyStore(database),
        learning=PostgresLearningStore(database),
        alerts=PostgresAlertStore(database),
        close=database.close,
        budgets=PostgresBudgetStore(database),
        controls=PostgresControlStore(database),
        attribution=PostgresAttributionStore(database),
        raw=PostgresRawStore(database),
        signals=PostgresSignals(database),
        workloads=PostgresWorkloadStore(database),
        answers=PostgresAnswerStore(database),
        identity=database.identity,
    )


async def copy_to_postgres(
    source: StorageSettings,
    target: StorageSettings,
    progress: Callable[[int, int], None],
    *,
    vectors: bool = True,
) -> dict[str, int]:
    """Copy the SQLite file of `source` to the empty database of `target`: rows by table.

    `progress` is called with the rows done and their total. `vectors`: those of the patterns, too;
    they need the extension pgvector. Raises: StoreError.
    """
    from gateway.stores.sqlite.database import Database as SQLiteDatabase
    from gateway.stores.sqlite.export import SQLiteExport

    try:
        from gateway.stores.postgres.copying import copy_all
        from gateway.stores.postgres.database import Database as PostgresDatabase
    except ModuleNotFoundError as error:
        raise _no_driver(error) from error

    _require_file(source)
    file = await SQLiteDatabase.open(source)
    try:
        database = await PostgresDatabase.open(target, vectors=vectors)
        try:
            return await copy_all(SQLiteExport(file), database, progress, vectors=vectors)
        finally:
            await database.close()
    finally:
        await file.close()


def file_has_run(path: str, name: str) -> bool:
    """Whether a SQLite file has a run or conversation of this name; False if it is unreadable."""
    from gateway.stores.sqlite.connection import has_run

    return has_run(path, name)


async def _open_sqlite(settings: StorageSettings, *, vectors: bool, existing: bool) -> Stores:
    # Imported here: SQLite's library is loaded only when it is used.
    from gateway.stores.sqlite.alerts import SQLiteAlertStore
    from gateway.stores.sqlite.answers import SQLiteAnswerStore
    from gateway.stores.sqlite.attribution import SQLiteAttributionStore
    from gateway.stores.sqlite.budgets import SQLiteBudgetStore
    from gateway.stores.sqlite.connection import load_vector_extension
    from gateway.stores.sqlite.controls import SQLiteControlStore
    from gateway.stores.sqlite.database import Database
    from gateway.stores.sqlite.keys import SQLiteKeyStore
    from gateway.stores.sqlite.learning import SQLiteLearningStore
    from gateway.stores.sqlite.patterns import SQLitePatternStore
    from gateway.stores.sqlite.raw import SQLiteRawStore
    from gateway.stores.sqlite.runs import SQLiteRunStore
    from gateway.stores.sqlite.states import SQLiteStateStore
    from gateway.stores.sqlite.workloads import SQLiteWorkloadStore

    if existing:
        _require_file(settings)
    hooks = (load_vector_extension,) if vectors else ()
    database = await Database.open(settings, hooks=hooks)
    return Stores(
        states=SQLiteStateStore(database),
        runs=SQLiteRunStore(database),
        patterns=SQLitePatternStore(database),
        keys=SQLiteKeyStore(database),
        learning=SQLiteLearningStore(database),
        alerts=SQLiteAlertStore(database),
        raw=SQLiteRawStore(database),
        workloads=SQLiteWorkloadStore(database),
        answers=SQLiteAnswerStore(database),
        close=database.close,
        budgets=SQLiteBudgetStore(database),
        controls=SQLiteControlStore(database),
        attribution=SQLiteAttributionStore(database),
    )


def _no_driver(error: ModuleNotFoundError) -> StoreUnavailable:
    return StoreUnavailable(
        f"PostgreSQL needs the package {error.name}: install steering-gateway[postgres]"
    )


def _require_file(settings: StorageSettings) -> None:
    if settings.in_memory:
        raise StoreUnavailable(
            "storage.path is :memory:, only the running gateway's /api can read its data"
        )
    if not Path(settings.path).exists():
        raise StoreUnavailable(f"storage.path: there is no database at {settings.path!r} yet")
