"""The databases as the statements of this package see them."""

from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Coroutine, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, nullcontext
from math import inf
from typing import Any, Protocol

from gateway.config.storage import StorageSettings
from gateway.stores.records import CallRecord
from gateway.values import FieldDict, Fields, T, Value, by_name

Row = Sequence[Any]


Text = Callable[[str], str]
Text2 = Callable[[str, str], str]
Text3 = Callable[[str, str, str], str]


class JsonForms(Value):
    """The SQL by which a database reads JSON. `column` is SQL; `name` names a value."""

    # (column, member): a value of a JSON object that is kept as text, as text; NULL without one.
    member: Text2
    # (column, member): the texts of a list in such an object, as a table with the column `value`.
    elements: Text2
    # (column, name, member): whether the object `member` in a column of counters has a key.
    has: Text3
    # (column, name): the text of a key in a column of tags; NULL without one.
    entry: Text2
    # (column, member): an object in a column of counters, as a table `k` of `key` and `value`.
    keys: Text2


class SqlForms(JsonForms):
    """The SQL that each database writes in its own way."""

    # The order of bytes, as a suffix of a text expression.
    bytewise: str
    # The order of the columns that are no names, as such a suffix.
    plain: str
    # The statement that finds the conversations with some of the hashes `digests` of one root, in
    # the order of these, and the newest conversation first.
    find_heads: str
    # (column, name, kind): whether a column is one of a list of values of the type `kind`.
    among: Text3
    # (table): suffix of a SELECT: lock its rows of the table, and leave out those that others lock.
    locked: Text
    # (column, name): place of the first occurrence of a text in a column, from 1; 0 without one.
    position: Text2
    # (column): the date (UTC) of seconds since 1970, as text.
    day: Text
    # (words, whether the last one may go on): a value of `found`: these words next to each other.
    phrase: Callable[[Sequence[str], bool], str]
    # (name): whether the texts of `runs AS r` contain a phrase, as a condition; no run of a lower
    # key than the value `first` does.
    found: Text
    # The value `vector` as the table of vectors has it.
    vector: str
    # The cosine distance of the column `vector` from the value; NaN or above 2 without one.
    distance: str
    # The dimensions of the column `vector`.
    dimensions: str
    # The numbers in the column `vector`: a list, or float32 as bytes.
    floats: str


class Connection(ABC):
    """Runs statements: inside one transaction, or each for itself. `raw`: the driver's own."""

    raw: Any  # the driver's own connection

    @abstractmethod
    async def fetch(self, statement: str, /, **values: Any) -> Sequence[Row]:
        """The rows that a statement returns. A value that is a list is for `SqlForms.among`."""

    @abstractmethod
    async def execute_many(self, statement: str, rows: Sequence[Fields]) -> None:
        """Run a statement once for each of the rows of values."""

    async def computed(self, compute: Callable[[Sequence[Row]], T], rows: Sequence[Row]) -> T:
        """`compute` of all rows, where many delay nothing else."""
        return compute(rows)

    async def made(self, make: Callable[[Row], T], rows: Sequence[Row]) -> list[T]:
        """`make` of each row, where many rows delay nothing else."""
        return await self.computed(lambda found: [make(row) for row in found], rows)

    @abstractmethod
    async def take_turn(self, table: str) -> None:
        """Let others only read the table until the transaction ends."""

    @abstractmethod
    async def lock(self, names: Sequence[str], kind: int) -> None:
        """Lock names until the transaction ends; those of another `kind` are other names."""

    async def row(self, statement: str, /, **values: Any) -> Row | None:
        """The first row; None without one."""
        rows = await self.fetch(statement, **values)
        if rows:
            return rows[0]
        return None

    async def value(self, statement: str, /, **values: Any) -> Any:
        """The first column of the first row; None without one."""
        rows = await self.fetch(statement, **values)
        if rows:
            return rows[0][0]
        return None


# Awaits nothing but the connection. It may run a second time when its transaction is lost.
Work = Callable[[Connection], Coroutine[Any, Any, T]]


# Steps whose results one transaction brings into the search: commits wait for it.
STEPS_AT_ONCE = 200


class Upkeep(ABC):
    """The parts of a round of retention that each database does in its own way."""

    runs_at_once: int  # rows that one transaction removes: short enough for the commits of requests
    # rows that one transaction removes, which is short enough for the commits of requests
    conversations_at_once: int

    used: str  # the statement for the bytes in use
    # the statement that brings the results of the newest STEPS_AT_ONCE steps into the search that
    # are not there yet, and returns the number of these steps
    index_results: str
    room: float = inf  # most bytes that may be in use after a round

    async def begin(self) -> bool:
        """Prepare a round; False when another gateway does it."""
        return True

    async def remove_days(self, older_than: float, kept: list[int]) -> int:
        """Remove days of old runs that are kept together, but for days with a run of a conversation
        in `kept`; the number of runs."""
        return 0

    async def choose(
        self, pks: list[int], surplus: float, connection: Connection
    ) -> tuple[list[int], int | None]:
        """The conversations to remove now, until `surplus` bytes are free, and the bytes that this
        frees; None when only a measurement can tell."""
        return pks, None

    async def scrub(self) -> None:
        """Overwrite what was removed, if the database is one file."""
        return

    @abstractmethod
    async def remove_heads(self, removed: int) -> None:
        """Remove the hashes of removed conversations, which match nothing any longer."""


class Database(Protocol):
    """An open database, shared by every store in it. The methods are those of StateStore."""

    settings: StorageSettings  # the section `storage` of the config

    async def ping(self) -> None: ...

    async def reopen(self) -> str | None: ...

    async def close(self) -> None: ...


class Engine(ABC):
    """One database. Every method may raise StoreError, and what `work` raises."""

    forms: SqlForms  # SQL fragments that differ between databases
    database: Database  # the open one
    upkeep: Upkeep  # how this database does a round of retention
    # Limits the searches of vectors at a time.
    searching: AbstractAsyncContextManager[Any] = nullcontext()
    # Of the admin key of this process, by which what operators set is signed; empty without one.
    secret = b""

    @abstractmethod
    async def read(self, work: Work[T], *, patient: bool = False) -> T:
        """The result of `work`, which only reads; each statement sees the latest commit.
        `patient`: it may take a minute."""

    @abstractmethod
    async def view(self, work: Work[T]) -> T:
        """The same; all statements see the same data."""

    @abstractmethod
    async def transact(self, work: Work[T], *, patient: bool = False) -> T:
        """The result of `work` in one transaction; nothing of it stays when it raises."""

    async def fetch(self, statement: str, /, **values: Any) -> Sequence[Row]:
        """Run one statement that only reads, and return its rows."""
        return await self.read(lambda connection: connection.fetch(statement, **values))

    async def number(self, statement: str, /, **values: Any) -> int:
        """The whole number that a statement gives which only reads."""
        return int((await self.fetch(statement, **values))[0][0])

    async def first(self, make: Callable[[Row], T], statement: str, /, **values: Any) -> T | None:
        """`make` of the first row of a statement that only reads; None without one."""
        rows = await self.fetch(statement, **values)
        if rows:
            return make(rows[0])
        return None

    async def made(self, make: Callable[[Row], T], statement: str, /, **values: Any) -> list[T]:
        """`make` of each row of a statement that only reads; many rows delay nothing else."""

        async def work(connection: Connection) -> list[T]:
            return await connection.made(make, await connection.fetch(statement, **values))

        return await self.read(work)

    @abstractmethod
    async def write(self, statement: str, /, **values: Any) -> Sequence[Row]:
        """Run one statement that writes, and return its rows."""

    @abstractmethod
    async def commit(self, call: CallRecord) -> int:
        """Write one call, together with others that wait. See StateStore."""

    async def announced(self, kind: str, change: Awaitable[T]) -> T:
        """The result of a change, of which the other gateways hear."""
        result = await change
        await self.changed(kind)
        return result

    @abstractmethod
    async def changed(self, kind: str) -> None:
        """Tell the other gateways of a change, if that is possible: they notice it later anyway."""

    @abstractmethod
    def after_reopening(self, work: Work[None]) -> None:
        """Run `work` in a transaction whenever the database was opened again: it may be empty."""


def row_of(record: object, names: Sequence[str]) -> FieldDict:
    """The fields of a record as values of the same names."""
    return {name: getattr(record, name) for name in names}


def record_of(kind: Callable[..., T], names: Sequence[str]) -> Callable[[Row], T]:
    """Returns the function that makes a record of a row of its fields."""
    return lambda row: kind(**by_name(names, row))


def conditions(wanted: Mapping[str, tuple[str, Any]], bound: FieldDict) -> str:
    """The conditions, by the name of their value, whose value is not None; it is added to
    `bound`."""
    used = {name: each for name, each in wanted.items() if each[1] is not None}
    bound |= {name: value for name, (_, value) in used.items()}
    return " AND ".join(["TRUE", *[condition for condition, _ in used.values()]])


def columns(names: Sequence[str], prefix: str = "") -> str:
    """Names as SQL; `prefix`: `alias.` for the columns of a table, `:` for values."""
    return ", ".join([f"{prefix}{name}" for name in names])


def insert(table: str, names: Sequence[str]) -> str:
    """The statement that inserts a row of values of the names of its columns."""
    return f"INSERT INTO {table} ({columns(names)}) VALUES ({columns(names, ':')})"


def assigned(names: Sequence[str]) -> str:
    """Assignments of values to the columns of the same names."""
    return ", ".join([f"{name} = :{name}" for name in names])


def excluded(names: Sequence[str]) -> str:
    """Assignments, in an upsert, of what would have been inserted."""
    return ", ".join([f"{name} = excluded.{name}" for name in names])
