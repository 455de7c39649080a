"""Opens the stores that the settings name.

A store is a row of `STORES` in `gateway/config/storage.py`: the function that opens it. It gets the
settings and, by name, `vectors` and `existing` (see `open_stores`), and returns `Stores`. Another
package adds one with an entry point of the group `steering_gateway.stores`."""

from collections.abc import Awaitable, Callable, Mapping
from contextlib import AsyncExitStack
from dataclasses import field
from typing import TYPE_CHECKING, Any

from gateway.config.storage import STORES, StorageSettings
from gateway.core.plugins import load_class
from gateway.hooks import given
from gateway.stores.protocols import Signals, StateStore, StoreUnavailable
from gateway.stores.raw_calls_and_answers import AnswerStore, RawStore
from gateway.stores.sql.audit_log import ChangeStore
from gateway.stores.sql.controls import ControlStore
from gateway.stores.sql.engine import Engine
from gateway.stores.sql.learning import LearningStore
from gateway.stores.sql.patterns import PatternStore
from gateway.stores.sql.runs import RunStore
from gateway.stores.sql.sessions import SessionStore
from gateway.stores.sql.states import SQLStateStore
from gateway.stores.sql.usage import AttributionStore
from gateway.stores.sql.workloads import WorkloadStore
from gateway.tasks import on_disk
from gateway.values import T, frozen

if TYPE_CHECKING:
    from gateway.stores.sqlite.database import Database as SQLiteDatabase

# Called with the rows that are copied, and how many there are in all.
Progress = Callable[[int, int], None]


_LOOK_S = 5.0  # longest search for damage before a start


@frozen
class Stores:
    """Everything a gateway stores. A store of None does not exist for this database."""

    states: StateStore  # conversations and their commits
    runs: RunStore  # the run log, as it is read
    patterns: PatternStore  # guidance, with vectors
    learning: LearningStore  # lessons, outcomes and jobs
    close: Callable[[], Awaitable[None]]  # ends all of them
    # stops and pauses; None: each gateway keeps its own in memory
    controls: ControlStore | None = None
    attribution: AttributionStore | None = None  # None: trees and groups cannot be summed up
    raw: RawStore | None = None  # None: no raw calls are kept
    sessions: SessionStore | None = None  # None: runs are not put together
    signals: Signals | None = None  # None: no other gateway tells of its changes
    workloads: WorkloadStore | None = None  # outcomes by workload and model; None: none are counted
    answers: AnswerStore | None = None  # where stored answers are; None: nothing of them is kept
    changes: ChangeStore | None = None  # acts of operators; None: none are kept
    of_features: Mapping[type, Any] = field(default_factory=dict, hash=False)  # by class
    identity: str = ""  # the same for all gateways on the store; "" for a store of one
    # copies all rows of a SQLite file into this store, if it is empty, and returns their number by
    # table; None: it cannot. Raises: StoreError.
    copy_from: Callable[["SQLiteDatabase", Progress], Awaitable[dict[str, int]]] | None = None

    def of(self, kind: type[T]) -> T | None:
        """The store of a feature, by its class; None: this store keeps nothing of it."""
        return self.of_features.get(kind)


async def open_stores(
    settings: StorageSettings, *, vectors: bool = False, existing: bool = False
) -> Stores:
    """The stores at `settings.url` or `settings.path`, created or migrated as needed. `vectors`:
    patterns will be searched. `existing`: do not migrate the database of a server. Raises
    StoreError: they cannot be opened."""
    opener = load_class(__package__, STORES[settings.kind])
    stores: Stores = await opener(settings, vectors=vectors, existing=existing)
    return stores


async def keep_damaged(settings: StorageSettings) -> str:
    """Look for damage in a gateway's SQLite file before it is opened. Returns the name under which
    a damaged one is kept; empty when nothing is damaged, or the file is too large to be read in
    5 s. Raises: StoreError."""
    if settings.kind:
        return ""
    from gateway.stores.sqlite.damage import QUICK, set_aside

    return await on_disk(set_aside, settings.path, QUICK, _LOOK_S)


def has_run(path: str, name: str) -> bool:
    """Whether the file of a database has a run, conversation or budget of `wrap` of this name."""
    from gateway.stores.sqlite import connection

    return connection.has_run(path, name)


async def open_sqlite(settings: StorageSettings, *, vectors: bool, existing: bool) -> Stores:
    """The stores in the SQLite file at `settings.path`, or in memory."""
    # Imported here: SQLite's library is loaded only when it is used.
    from gateway.stores.sqlite.connection import load_vector_extension
    from gateway.stores.sqlite.database import Database
    from gateway.stores.sqlite.engine import SQLiteEngine

    hooks = (load_vector_extension,) if vectors else ()
    engine = SQLiteEngine(await Database.open(settings, hooks=hooks))
    return stores_over(engine, SQLStateStore(engine))


def stores_over(engine: Engine, states: StateStore) -> Stores:
    """The stores of a database with SQL."""
    return Stores(
        states=states,
        runs=RunStore(engine),
        patterns=PatternStore(engine),
        learning=LearningStore(engine),
        raw=RawStore(engine),
        workloads=WorkloadStore(engine),
        answers=AnswerStore(engine),
        close=engine.database.close,
        controls=ControlStore(engine),
        attribution=AttributionStore(engine),
        sessions=SessionStore(engine),
        changes=ChangeStore(engine),
        of_features={kind: kind(engine) for kind in given("store")},
    )


async def copy_to_server(
    source: StorageSettings,
    target: StorageSettings,
    progress: Progress,
    *,
    vectors: bool = True,
) -> dict[str, int]:
    """Copy the SQLite file of `source` to the empty database of `target`: rows by table. `progress`
    gets the rows done and their total. `vectors`: patterns will be searched there. Raises:
    StoreError."""
    from gateway.stores.sqlite.database import Database

    async with AsyncExitStack() as stack:
        file = await Database.open(source)
        stack.push_async_callback(file.close)
        stores = await open_stores(target, vectors=vectors)
        stack.push_async_callback(stores.close)
        if stores.copy_from is None:
            raise StoreUnavailable(f"no file can be copied to {target.place}")
        return await stores.copy_from(file, progress)
