"""The database of every store: transactions, order, limits, closing."""

from __future__ import annotations

import asyncio
import os
import stat
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import apsw
import pytest

from gateway.config.storage import StorageSettings
from gateway.stores.protocols import (
    StoreClosed,
    StoreError,
    StoreOverloaded,
    StoreReadOnly,
    StoreUnavailable,
)
from gateway.stores.sqlite.connection import one_view
from gateway.stores.sqlite.database import Database

pytestmark = pytest.mark.usefixtures("table")


@pytest.fixture
async def table(database: Database) -> None:
    await database.write(lambda c: c.execute("CREATE TABLE t (value INTEGER PRIMARY KEY)"))


def put(value: int) -> Any:
    def work(connection: apsw.Connection) -> int:
        connection.execute("INSERT INTO t VALUES (?)", (value,))
        return value

    return work


def values(connection: apsw.Connection) -> list[int]:
    return [value for (value,) in connection.execute("SELECT value FROM t ORDER BY value")]


class Gate:
    """A write that blocks the writer until it is opened."""

    def __init__(self) -> None:
        self.entered = threading.Event()
        self.opened = threading.Event()

    def __call__(self, _connection: apsw.Connection) -> None:
        self.entered.set()
        self.opened.wait(120)


async def test_a_write_is_seen_by_the_next_read(database: Database) -> None:
    """Every reader sees a write that has returned."""
    assert await database.write(put(1)) == 1
    found = await asyncio.gather(*(database.read(values) for _ in range(8)))
    assert found == [[1]] * 8


async def test_a_failed_write_leaves_nothing(database: Database) -> None:
    """When a function raises, its changes are rolled back and the caller gets its exception."""

    def work(connection: apsw.Connection) -> None:
        put(1)(connection)
        raise LookupError("mine")

    with pytest.raises(LookupError, match="mine"):
        await database.write(work)
    assert await database.read(values) == []


async def test_a_failing_write_does_not_affect_its_group(database: Database) -> None:
    """Of writes that share a transaction, only the failing ones are rolled back."""
    gate = Gate()
    held = asyncio.ensure_future(database.write(gate))
    await asyncio.to_thread(gate.entered.wait, 60)
    writes = [database.write(put(value)) for value in (1, 2, 1, 3, 2, 4)]
    group = asyncio.gather(*writes, return_exceptions=True)
    await asyncio.sleep(0)
    gate.opened.set()
    outcomes = await group
    await held
    assert [type(outcome) for outcome in outcomes] == [int, int, StoreError, int, StoreError, int]
    assert await database.read(values) == [1, 2, 3, 4]


async def test_waiting_writes_share_a_transaction(database: Database) -> None:
    """Writes that wait at the same time share one commit, at most 32 of them."""
    gate = Gate()
    commits: list[int] = []

    def counted() -> bool:
        commits.append(1)
        return False  # the commit is not turned into a rollback

    await database.write(lambda c: c.set_commit_hook(counted))
    commits.clear()
    held = asyncio.ensure_future(database.write(gate))
    await asyncio.to_thread(gate.entered.wait, 60)
    writes = asyncio.gather(*(database.write(put(value)) for value in range(50)))
    await asyncio.sleep(0)
    gate.opened.set()
    assert await writes == list(range(50))
    await held
    # The one that was held, then 32, then the remaining 18.
    assert len(commits) == 3


async def test_a_lost_group_runs_again(database: Database) -> None:
    """When one write ends the shared transaction, the others run again and are committed."""
    gate = Gate()
    held = asyncio.ensure_future(database.write(gate))
    await asyncio.to_thread(gate.entered.wait, 60)
    runs: list[int] = []

    def counted(connection: apsw.Connection) -> None:
        runs.append(1)
        put(1)(connection)

    def ruinous(connection: apsw.Connection) -> None:
        connection.execute("ROLLBACK")
        raise apsw.IOError("as SQLite does on some errors")

    group = asyncio.gather(
        database.write(counted),
        database.write(ruinous),
        database.write(put(2)),
        return_exceptions=True,
    )
    await asyncio.sleep(0)
    gate.opened.set()
    outcomes = await group
    await held
    assert outcomes[0] is None
    assert isinstance(outcomes[1], StoreUnavailable)
    assert outcomes[2] == 2
    assert len(runs) == 2
    assert await database.read(values) == [1, 2]


async def test_writes_keep_their_order(database: Database) -> None:
    """Writes run in the order in which they were submitted."""
    order: list[int] = []

    def write(number: int) -> Callable[[Any], None]:
        return lambda _connection: order.append(number)

    await asyncio.gather(*(database.write(write(number)) for number in range(300)))
    assert order == list(range(300))


async def test_readers_cannot_write(database: Database) -> None:
    """A read that tries to write is refused."""
    with pytest.raises(StoreReadOnly):
        await database.read(put(1))


async def test_readers_do_not_wait_for_the_writer(database: Database) -> None:
    """During a write, reads see what was committed before it."""
    await database.write(put(1))
    gate = Gate()

    def work(connection: apsw.Connection) -> None:
        put(2)(connection)
        gate(connection)

    held = asyncio.ensure_future(database.write(work))
    await asyncio.to_thread(gate.entered.wait, 60)
    assert await database.read(values) == [1]
    gate.opened.set()
    await held
    assert await database.read(values) == [1, 2]


async def test_one_view_sees_one_state(database: Database) -> None:
    """All statements inside `one_view` see the same data, also after a write between them."""
    between, go_on = threading.Event(), threading.Event()

    def twice(connection: apsw.Connection) -> tuple[list[int], list[int]]:
        first = values(connection)
        between.set()
        go_on.wait(120)
        return first, values(connection)

    reading = asyncio.ensure_future(database.read(one_view(twice)))
    await asyncio.to_thread(between.wait, 60)
    await database.write(put(1))
    go_on.set()
    assert await reading == ([], [])
    assert await database.read(values) == [1]


async def test_the_loop_runs_while_the_store_works(database: Database) -> None:
    """The event loop keeps running while the writer and every reader are blocked."""
    gates = [Gate() for _ in range(3)]
    held = [
        asyncio.ensure_future(database.write(gates[0])),
        asyncio.ensure_future(database.read(gates[1])),
        asyncio.ensure_future(database.read(gates[2])),
    ]
    for _ in range(50):
        await asyncio.sleep(0)
    assert not any(future.done() for future in held)
    for gate in gates:
        gate.opened.set()
    await asyncio.gather(*held)


async def test_a_cancelled_write_is_still_done(database: Database) -> None:
    """A cancelled caller does not stop its write, nor the writer."""
    gate = Gate()
    held = asyncio.ensure_future(database.write(gate))
    leaving = asyncio.ensure_future(database.write(put(1)))
    await asyncio.to_thread(gate.entered.wait, 60)
    leaving.cancel()
    with pytest.raises(asyncio.CancelledError):
        await leaving
    gate.opened.set()
    await held
    assert await database.write(put(2)) == 2
    assert await database.read(values) == [1, 2]


async def test_too_much_waiting_is_refused(tmp_path: Path) -> None:
    """Beyond `queue_limit` a write is refused at once, and accepted again later."""
    settings = StorageSettings(path=str(tmp_path / "small.db"), queue_limit=3)
    database = await Database.open(settings)
    gate = Gate()
    held = [asyncio.ensure_future(database.write(gate)) for _ in range(3)]
    await asyncio.sleep(0)
    with pytest.raises(StoreOverloaded, match="queue_limit"):
        await database.write(gate)
    gate.opened.set()
    await asyncio.gather(*held)
    await database.write(gate)
    await database.close()


async def test_close_finishes_what_was_accepted(tmp_path: Path) -> None:
    """Writes and reads accepted before `close` are answered; later ones are refused."""
    path = tmp_path / "own" / "closing.db"
    database = await Database.open(StorageSettings(path=str(path)))
    await database.write(lambda c: c.execute("CREATE TABLE t (value INTEGER PRIMARY KEY)"))
    writes = [asyncio.ensure_future(database.write(put(value))) for value in range(50)]
    read = asyncio.ensure_future(database.read(values))
    await asyncio.sleep(0)
    await asyncio.gather(database.close(), database.close())
    assert [await write for write in writes] == list(range(50))
    await read
    for operation in (database.write(put(99)), database.read(values), database.ping()):
        with pytest.raises(StoreClosed):
            await operation
    assert os.listdir(path.parent) == ["closing.db"]
    assert values(apsw.Connection(str(path))) == list(range(50))


async def test_the_file_is_private(tmp_path: Path) -> None:
    """Only its owner can read a new file, whose directory is created as needed."""
    path = tmp_path / "deep" / "er" / "gateway.db"
    database = await Database.open(StorageSettings(path=str(path)))
    await database.write(lambda c: c.execute("CREATE TABLE t (value)"))
    for file in path.parent.iterdir():
        assert stat.S_IMODE(file.stat().st_mode) == 0o600
    await database.close()


async def test_the_log_stays_bounded(database: Database, tmp_path: Path) -> None:
    """Checkpoints empty the write-ahead log between writes."""

    def work(connection: apsw.Connection) -> None:
        connection.execute("INSERT INTO t2 VALUES (randomblob(400000))")

    await database.write(lambda c: c.execute("CREATE TABLE t2 (value)"))
    for _ in range(120):
        await database.write(work)
    assert (tmp_path / "gateway.db").stat().st_size > 30e6
    assert (tmp_path / "gateway.db-wal").stat().st_size < 25e6


@pytest.mark.parametrize("level", ["normal", "full"])
async def test_connections_are_as_configured(level: str, tmp_path: Path) -> None:
    """WAL, the configured durability, hooks on every connection, readers that cannot write."""
    hooked: list[apsw.Connection] = []
    settings = StorageSettings(path=str(tmp_path / "x.db"), synchronous=level, reader_threads=3)
    database = await Database.open(settings, hooks=(hooked.append,))
    assert len(hooked) == 4
    assert await database.write(lambda c: c.pragma("journal_mode")) == "wal"
    assert (
        await database.write(lambda c: c.pragma("synchronous")) == {"normal": 1, "full": 2}[level]
    )
    assert await database.read(lambda c: c.readonly("main")) is True
    await database.close()
