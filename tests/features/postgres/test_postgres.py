"""PostgreSQL: what is wrong with a database is said in one line; days, leaders, replicas."""

from __future__ import annotations

import asyncio
import random
import re
import string
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from types import ModuleType
from typing import Any

import pytest
import structlog
from msgspec.structs import replace

from gateway.backends import Stores, open_stores
from gateway.config import LoggingSettings
from gateway.config.storage import StorageSettings
from gateway.config.values import Secret
from gateway.features.postgres import connection
from gateway.features.postgres.engine import PostgresEngine
from gateway.features.postgres.schema import DAY_BITS, MIGRATIONS
from gateway.observability.logging import configure_logging
from gateway.stores.filters import RunFilter
from gateway.stores.lists import PageRequest
from gateway.stores.protocols import StoreError, VersionConflict
from gateway.stores.records import ItemRecord
from steering_gateway_testing.postgres import WITH_PASSWORD, PostgresServer, new_folder
from steering_gateway_testing.store_conformance import records
from steering_gateway_testing.store_conformance.keys import a_key, kept_keys
from tests.postgres import as_peculiar_user, empty_database, new_database, shared_server

DAY_S = 86_400
PASSWORD = "s3cr3t-of-the-database"


def guarding() -> ModuleType:
    """The guard of stores, if that feature is there."""
    found: ModuleType = pytest.importorskip("gateway.features.store_outages.guarded")
    return found


@pytest.fixture
def url() -> Iterator[str]:
    """The URL of an empty database."""
    with empty_database() as found:
        yield found


@asynccontextmanager
async def gateway_on(url: str, **settings: Any) -> AsyncIterator[Stores]:
    """The stores of one gateway."""
    stores = await open_stores(StorageSettings(url=Secret(url), **settings), vectors=True)
    yield stores
    await stores.close()


def name_of(url: str) -> str:
    """The name of the database in a URL."""
    return url.split("?")[0].rpartition("/")[2]


def wrong_host(url: str) -> str:
    """Nobody listens there."""
    return f"postgresql://postgres:{PASSWORD}@127.0.0.1:1/{name_of(url)}"


def wrong_password(url: str) -> str:
    """A user with another password."""
    server = shared_server()
    server.execute(
        f"DROP ROLE IF EXISTS {WITH_PASSWORD}; CREATE ROLE {WITH_PASSWORD} LOGIN PASSWORD 'other'"
    )
    return url.replace("postgres@", f"{WITH_PASSWORD}:{PASSWORD}@")


def wrong_database(url: str) -> str:
    """A database that does not exist."""
    return url.replace(name_of(url), "nowhere")


def no_schema(url: str) -> str:
    """A user who may connect, and nothing else."""
    change = changed("REVOKE ALL ON SCHEMA public FROM public")
    wrong_password(url)
    shared_server().execute(f"ALTER ROLE {WITH_PASSWORD} PASSWORD '{PASSWORD}'")
    return change(url).replace("postgres@", f"{WITH_PASSWORD}:{PASSWORD}@")


def other_encoding(_url: str) -> str:
    """A database that cannot keep every text."""
    server, url = shared_server(), new_database()
    server.execute(f"DROP DATABASE {name_of(url)}")
    server.execute(f"CREATE DATABASE {name_of(url)} ENCODING 'LATIN1' TEMPLATE template0")
    return url


def changed(*statements: str) -> Callable[[str], str]:
    """Its own new database, after some statements."""

    def change(_url: str) -> str:
        url = new_database()
        for statement in statements:
            shared_server().execute(statement.format(name=name_of(url)), name_of(url))
        return url

    return change


NEWER = """
CREATE TABLE gateway_migrations (name text, applied_at timestamptz, breaks_older boolean);
INSERT INTO gateway_migrations VALUES ('core_900_later', now(), TRUE)
"""


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (wrong_host, r"cannot be reached: no PostgreSQL answers at 127\.0\.0\.1"),
        (wrong_password, "refuses the user or the password"),
        (wrong_database, "does not exist on the server; create it"),
        (changed("CREATE TABLE conversations ()"), "another application; give the gateway a data"),
        (changed(NEWER), "newer version of the gateway .*core_900_later.*; start that version"),
        (
            changed("ALTER DATABASE {name} SET default_transaction_read_only = on"),
            r"is read-only \(it may be a standby server\)",
        ),
        (
            changed("ALTER DATABASE {name} SET extension_control_path = '/nowhere'"),
            "has no extension pgvector.*install it on the server, or set etraces.enabled: false",
        ),
        (no_schema, "may not be written by this user; grant it the rights of the database's owner"),
        (other_encoding, "keeps its texts as LATIN1, .* create it WITH ENCODING 'UTF8'"),
    ],
    ids=[
        *("host", "password", "database", "foreign", "newer", "read-only", "extension", "schema"),
        "encoding",
    ],
)
async def test_what_is_wrong_is_one_line(
    url: str, change: Callable[[str], str], message: str
) -> None:
    """Each says what to do, and shows no password."""
    settings = StorageSettings(url=Secret(change(url)))
    with pytest.raises(StoreError) as caught:
        await open_stores(settings, vectors=True)
    text = str(caught.value)
    assert re.search(message, text), text
    assert "\n" not in text
    assert PASSWORD not in text
    assert PASSWORD not in repr(settings)


async def test_an_old_server_is_refused(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The error names both versions."""
    monkeypatch.setattr(connection, "MIN_VERSION", 99)
    with pytest.raises(StoreError, match=r"is PostgreSQL 18; the gateway needs 99 or newer"):
        await open_stores(StorageSettings(url=Secret(url)))


USERS = pytest.mark.parametrize("user", [str, as_peculiar_user], ids=["plain", "settings"])


@USERS
async def test_gateways_start_on_an_empty_database_together(user: Callable[[str], str]) -> None:
    """One creates the tables, the others wait for it, and all of them work; also where an
    administrator has set a stricter isolation."""
    url = user(new_database())
    settings = StorageSettings(url=Secret(url))
    opened = await asyncio.gather(*(open_stores(settings, vectors=True) for _ in range(4)))
    for number, stores in enumerate(opened):
        await stores.states.commit(records.one_run(number))
    assert await opened[0].runs.count_runs(RunFilter()) == 4
    for stores in opened:
        await stores.close()


async def test_an_unknown_change_that_only_adds_is_no_obstacle(url: str) -> None:
    """During an upgrade the older version works on the newer schema."""
    server, name = shared_server(), name_of(url)
    async with gateway_on(url):
        server.execute("INSERT INTO gateway_migrations (name) VALUES ('core_901_adds')", name)
    async with gateway_on(url) as stores:
        await stores.states.commit(records.a_call())
    server.execute("DELETE FROM gateway_migrations WHERE name = 'core_901_adds'", name)


async def test_the_log_says_what_was_changed(url: str) -> None:
    """From which form, the number of changes, to which; nothing of a database that lacks none."""
    async with gateway_on(url):
        undone = "DROP INDEX jobs_by_run; DELETE FROM gateway_migrations WHERE name LIKE '%_by_run'"
        shared_server().execute(undone, name_of(url))
    configure_logging(LoggingSettings())
    with structlog.testing.capture_logs() as logs:
        for _ in range(2):
            async with gateway_on(url):
                pass
    (said,) = [each for each in logs if "changed for this version" in each["event"]]
    assert said["changes"] == ["learning_006_jobs_by_run"]
    assert (said["from_form"], said["to_form"]) == (len(MIGRATIONS) - 1, len(MIGRATIONS))
    assert PASSWORD not in repr(said)


@USERS
async def test_two_gateways_save_the_same_conversations(
    url: str, user: Callable[[str], str]
) -> None:
    """Each save over a stale version is a conflict; after reloading every step is there once, the
    totals are right, and the server saw no deadlock."""
    shared, rounds = 6, 15

    async def work(stores: Stores, name: str) -> None:
        for number in range(rounds):
            await asyncio.gather(*(save(stores, f"c{c}", f"{name}{number}") for c in range(shared)))

    async def save(stores: Stores, conversation_id: str, step: str) -> None:
        index = int(step[1:]) * 2 + (step[0] == "b")
        version = 0
        while True:
            row = (
                records.a_step(index, conversation_id)
                if index
                else records.a_first_step(conversation_id)
            )
            call = records.a_call(
                conversation=records.a_conversation(conversation_id, version=version),
                heads=(
                    records.a_head(conversation_id, records.history(conversation_id, index + 1)),
                ),
                runs=(records.a_run(conversation_id),),
                steps=(row,),
            )
            try:
                await stores.states.commit(call)
            except VersionConflict as conflict:
                version = conflict.actual
            else:
                return

    async with gateway_on(user(url)) as first, gateway_on(user(url)) as second:
        await asyncio.gather(work(first, "a"), work(second, "b"))
        for number in range(shared):
            trace = await first.runs.get_run(f"c{number}", tenant=None)
            assert trace is not None
            assert [step.step_index for step in trace.steps] == list(range(2 * rounds))
            assert trace.run.totals.calls == 2 * rounds
            assert trace.run.totals.input_tokens == 200 * rounds
    assert "deadlock" not in shared_server().log.read_text()


async def test_what_is_loaded_together_is_one_statement(
    url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of two tenants, and of what is not stored; each gets its own conversation."""
    stores = await open_stores(StorageSettings(url=Secret(url)))
    names = [f"c{number}" for number in range(8)]
    for name in names:
        await stores.states.commit(
            records.a_call(conversation=records.a_conversation(name), runs=(), steps=())
        )
    alone = [await stores.states.load(records.TENANT, name) for name in names]
    statements = 0
    fetch = PostgresEngine.fetch

    async def counted(self: PostgresEngine, *args: Any, **kwargs: Any) -> Any:
        nonlocal statements
        statements += 1
        return await fetch(self, *args, **kwargs)

    monkeypatch.setattr(PostgresEngine, "fetch", counted)
    wanted = [(records.TENANT, name) for name in [*names, "unknown"]] + [("another", "c0")]
    found = await asyncio.gather(*(stores.states.load(*each) for each in wanted))
    assert found == [*alone, None, None]
    assert None not in alone
    assert statements == 1
    await stores.close()


@pytest.mark.slow
async def test_whole_old_days_are_dropped(url: str) -> None:
    """The steps of a day go with its partition when all its runs are old; a run that is used, or
    kept by name, holds back its day, and only that."""
    server, name = shared_server(), name_of(url)
    async with gateway_on(url) as stores:
        for number in range(6):
            run = f"r{number:04}"
            call = records.one_run(
                number, steps=(records.a_first_step(run), records.a_step(1, run))
            )
            await stores.states.commit(replace(call, injections=(records.an_injection(1, run),)))
        for number, back in enumerate((90, 90, 91, 91, 92, 92)):
            move_back(name, f"r{number:04}", back)
        old = float(server.execute("SELECT extract(epoch FROM now())", name)) - 30 * DAY_S
        for table, row in (("runs", "r0002"), ("conversations", "c0002")):
            sql = f"UPDATE {table} SET updated_at = {old + DAY_S} WHERE id = '{row}'"
            server.execute(sql, name)
        report = await stores.runs.prune(older_than=old, keep=["c0005"])
        assert (report.conversations, report.runs) == (4, 4)
        left = (await stores.runs.list_runs(RunFilter(), PageRequest())).runs
        assert {run.id for run in left} == {"r0002", "r0005"}
        for record in left:
            trace = await stores.runs.get_run(record.id, tenant=None)
            assert trace is not None
            assert (len(trace.steps), len(trace.injections)) == (2, 1)
    assert partitions(name) == {91, 92}
    for back in (91, 92):
        server.execute(
            f"DROP TABLE {partition(name, back)}, {partition(name, back, 'injections')}", name
        )


def move_back(name: str, run_id: str, days: int) -> None:
    """Make a run that many days older, with a partition for its day."""
    server = shared_server()
    today = int(server.execute("SELECT floor(extract(epoch FROM now()) / 86400)::bigint", name))
    first, end = (today - days) << DAY_BITS, (today - days + 1) << DAY_BITS
    for table in ("steps", "injections"):
        server.execute(
            f"CREATE TABLE IF NOT EXISTS {partition(name, days, table)} PARTITION OF {table} "
            f"FOR VALUES FROM ({first}) TO ({end})",
            name,
        )
        server.execute(
            f"UPDATE {table} SET run_pk = run_pk - ({days}::bigint << {DAY_BITS}) "
            f"WHERE run_pk = (SELECT pk FROM runs WHERE id = '{run_id}')",
            name,
        )
    server.execute(
        f"UPDATE runs SET pk = pk - ({days}::bigint << {DAY_BITS}) WHERE id = '{run_id}'", name
    )


def partition(name: str, days: int, table: str = "steps") -> str:
    """The name of the partition of a day so long ago."""
    text = f"SELECT to_char((now() AT TIME ZONE 'UTC')::date - {days}, 'YYYYMMDD')"
    return f"{table}_{shared_server().execute(text, name)}"


def partitions(name: str) -> set[int]:
    """How many days ago the days of the old partitions are."""
    found = shared_server().execute(
        "SELECT relname FROM pg_inherits JOIN pg_class ON oid = inhrelid "
        "WHERE inhparent = 'steps'::regclass",
        name,
    )
    return {days for days in (90, 91, 92) if partition(name, days) in found.split()}


async def test_one_gateway_removes_for_all(url: str) -> None:
    """While one does the rounds, another removes nothing."""
    async with gateway_on(url) as first, gateway_on(url) as second:
        await first.states.commit(records.one_run(1))
        await first.runs.prune()
        report = await second.runs.prune(max_bytes=0)
        assert report.runs == 0
        report = await first.runs.prune(max_bytes=0)
        assert report.runs == 1


async def test_a_lost_database_does_not_open_the_gateway() -> None:
    """After the tables are gone, `reopen` makes them again, with the keys that were known."""
    url = new_database()
    async with gateway_on(url) as stores:
        await kept_keys(stores).add_key(a_key("k1"))
        await kept_keys(stores).list_keys()
        await stores.states.commit(records.a_call())
        shared_server().execute("DROP SCHEMA public CASCADE; CREATE SCHEMA public", name_of(url))
        with pytest.raises(StoreError) as caught:
            await stores.states.commit(records.one_run(1))
        assert caught.value.label == "replaced"
        await stores.states.reopen()
        assert list(await kept_keys(stores).list_keys()) == [a_key("k1")]
        assert await stores.states.commit(records.one_run(1)) == 1


@pytest.mark.slow
async def test_a_killed_database_loses_nothing() -> None:
    """With `full`, what was acknowledged before `kill -9` of the server is there afterwards; what
    came meanwhile waited, and is stored once."""
    shared_server()
    server = PostgresServer(new_folder(), "-c", "listen_addresses=")
    server.start()
    settings = StorageSettings(
        url=Secret(server.url("postgres")),
        synchronous="full",
        probe_interval_s=0.1,
        commit_limit_ms=5000,
    )
    stores = await open_stores(settings)
    guarded = guarding().GuardedStateStore(stores.states, settings, lambda kind: None)
    follow = asyncio.ensure_future(guarded.follow())
    try:
        for number in range(5):
            assert await guarded.commit(records.one_run(number)) == 1
        server.stop()
        for number in range(5, 10):
            assert await guarded.commit(records.one_run(number)) == 1
        assert guarded.health.waiting == 5
        await asyncio.to_thread(server.start)
        while guarded.health.waiting or guarded.health.incident:  # noqa: ASYNC110 - no event
            await asyncio.sleep(0.1)
        traces = [await stores.runs.get_run(f"r{number:04}", tenant=None) for number in range(10)]
        assert [trace.run.totals.calls for trace in traces if trace] == [2] * 10
    finally:
        follow.cancel()
        await guarded.close()
        server.stop()


async def test_a_record_that_no_index_takes_spoils_no_other(url: str) -> None:
    """Calls that wait at the same time are one statement: the others are stored without it."""
    draw = random.Random(3)
    name = "".join(draw.choices(string.ascii_letters, k=9000))
    good = [records.one_run(number) for number in (0, 2)]
    bad = replace(records.one_run(1), items=(ItemRecord(id=name, content=b"{}"),))
    async with gateway_on(url) as stores:
        calls = (good[0], bad, good[1])
        done = await asyncio.gather(*map(stores.states.commit, calls), return_exceptions=True)
        assert (done[0], done[2]) == (1, 1)
        assert isinstance(done[1], StoreError)
        assert await stores.runs.count_runs(RunFilter()) == 2


FAILING = """
CREATE FUNCTION fails() RETURNS trigger LANGUAGE plpgsql AS
$$ BEGIN RAISE EXCEPTION 'could not read a block' USING ERRCODE = '{code}'; END $$;
CREATE TRIGGER fails BEFORE INSERT ON steps FOR EACH ROW EXECUTE FUNCTION fails();
"""


@pytest.mark.parametrize("code", ["58030", "58P01", "40001", "42703", "42883", "25P04"])
async def test_what_is_wrong_with_the_server_is_no_fault_of_the_record(url: str, code: str) -> None:
    """A failing disk, a lost file, a change of the schema: the record waits, and is stored once."""
    server, name = shared_server(), name_of(url)
    settings = StorageSettings(url=Secret(url), probe_interval_s=0.1, commit_limit_ms=60_000)
    async with gateway_on(url) as stores:
        guarded = guarding().GuardedStateStore(stores.states, settings, lambda kind: None)
        server.execute(FAILING.format(code=code), name)
        try:
            assert await guarded.commit(records.one_run(0)) == 1
            assert guarded.health.waiting == 1
        finally:
            # The lock first, on all partitions in the order of a commit, which waits for it then.
            server.execute("LOCK TABLE steps; DROP FUNCTION fails CASCADE", name)
        while guarded.health.waiting:  # noqa: ASYNC110 - no event
            await asyncio.sleep(0.05)
        trace = await stores.runs.get_run("r0000", tenant=None)
        assert trace is not None
        assert trace.run.totals.calls == 2
