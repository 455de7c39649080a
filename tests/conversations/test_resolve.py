"""Resolving a request while other requests are in progress."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import orjson
import pytest

from gateway.calls.headers import identity_label
from gateway.config.storage import IN_MEMORY, StorageSettings
from gateway.conversations.conversation import Conversation
from gateway.conversations.loading import ConversationLoader
from gateway.conversations.resolve import Resolved
from gateway.dialects import CHAT
from gateway.stores.protocols import StateStore
from gateway.stores.records import PrefixHashRecord
from gateway.stores.sql.states import SQLStateStore
from gateway.stores.sqlite.database import Database
from gateway.stores.sqlite.engine import SQLiteEngine
from gateway.tasks import spawn
from tests.conversations.driver import a_resolver, an_index

OPENING = [
    {"role": "system", "content": "You repair programs, with care. " * 20},
    {"role": "user", "content": "Fix it."},
]


@pytest.fixture
async def database() -> AsyncIterator[Database]:
    opened = await Database.open(StorageSettings(path=IN_MEMORY))
    yield opened
    await opened.close()


class WaitingStore(SQLStateStore):
    """A store whose look-ups wait for the event `answers`."""

    def __init__(self, database: Database) -> None:
        super().__init__(SQLiteEngine(database))
        self.asked = asyncio.Event()
        self.answers = asyncio.Event()

    async def find_prefix_hashes(self, tenant: str, digests: Any) -> list[PrefixHashRecord]:
        self.asked.set()
        await self.answers.wait()
        return await super().find_prefix_hashes(tenant, digests)


def says(role: str, text: str) -> dict[str, Any]:
    return {"role": role, "content": text}


def resolving(store: StateStore) -> Any:
    """A function that resolves a request with these messages, over the store."""
    index = an_index(100, 100)
    resolver = a_resolver(index, store)

    async def call(*messages: dict[str, Any]) -> tuple[Resolved, Conversation | None]:
        raw = orjson.dumps({"model": "m", "messages": [*OPENING, *messages]})
        known = index.bodies.longest("t", raw, CHAT.list_key)
        return await resolver.resolve(CHAT.parse(raw, orjson.loads, known), {}, "t", 0.0)

    return call


async def test_a_request_remembers_its_own_bytes(database: Database) -> None:
    """A request that waits for the store keeps its own bytes, not those of one that came since."""
    store = WaitingStore(database)
    resolve = resolving(store)
    _, opened = await resolve()
    one = [says("assistant", "One way."), says("user", "On.")]
    other = [says("assistant", "Another."), says("user", "On."), says("assistant", "Yes.")]
    waiting = spawn(resolve(*other, says("user", "And on.")))
    await store.asked.wait()
    moved_on = await resolve(*one)
    store.answers.set()
    parted = await waiting
    assert moved_on[1] is opened
    assert parted[1] is not opened
    for sending, messages in ((moved_on, one), (parted, [*other, says("user", "And on.")])):
        found, conversation = sending
        assert conversation is not None
        prefix = conversation.history.prefix
        assert prefix is not None
        sent = orjson.dumps({"model": "m", "messages": [*OPENING, *messages]})
        assert prefix.raw == sent
        assert (
            len(prefix.spans) == found.incoming.hashes.state.count == len(OPENING) + len(messages)
        )


async def test_an_opening_is_not_looked_up(database: Database) -> None:
    """A first request is new without a query of the store."""
    resolve = resolving(WaitingStore(database))
    found, _ = await asyncio.wait_for(resolve(), 120)
    assert identity_label(found.source, found.match.kind) == "new"


async def test_the_next_request_is_not_looked_up(database: Database) -> None:
    """A request one reply ahead of memory continues without a query of the store."""
    resolve = resolving(WaitingStore(database))
    _, first = await resolve()
    on = resolve(says("assistant", "Hm."), says("user", "On."))
    second, continued = await asyncio.wait_for(on, 120)
    assert identity_label(second.source, second.match.kind) == "prefix"
    assert continued is first


async def test_the_bytes_of_past_requests_are_dropped(database: Database) -> None:
    """Bytes of requests are kept for the transcripts in memory only."""
    index = an_index(50, 3)
    resolver = a_resolver(index, SQLStateStore(SQLiteEngine(database)))
    bodies = [
        orjson.dumps({"messages": [says("user", f"Task {n}. " * 60)], "model": "m"})
        for n in range(20)
    ]
    for raw in bodies:
        found, conversation = await resolver.resolve(CHAT.parse(raw, orjson.loads), {}, "t", 0.0)
        assert conversation is not None
        branch = conversation.history.branch
        conversation.history.branch = branch.failed(found.incoming.hashes.state.digest)
    known = [index.bodies.longest("t", raw, CHAT.list_key) for raw in bodies]
    assert [prefix is not None for prefix in known] == [False] * 17 + [True] * 3
    # Those that went are not counted any more: of the three that stayed the oldest goes next.
    assert len(index._transcripts.use("another", 0)) == 1


async def test_a_conversation_with_a_call_in_progress_is_kept(database: Database) -> None:
    """Only idle conversations are dropped: the state of the others is not stored yet."""
    index = an_index(2, 1)
    resolver = a_resolver(index, SQLStateStore(SQLiteEngine(database)))

    async def opened(n: int) -> tuple[Resolved, Conversation | None]:
        raw = orjson.dumps({"messages": [says("user", f"Task {n}. " * 60)], "model": "m"})
        return await resolver.resolve(CHAT.parse(raw, orjson.loads), {}, "t", 0.0)

    first = [await opened(n) for n in range(4)]
    assert len(index) == 4
    for found, conversation in first:
        assert conversation is not None
        branch = conversation.history.branch
        conversation.history.branch = branch.failed(found.incoming.hashes.state.digest)
    await opened(5)
    assert len(index) == 2


async def test_the_conversation_that_was_used_longest_ago_is_dropped(database: Database) -> None:
    """Not the one that was opened first."""
    index = an_index(2, 10)
    resolver = a_resolver(index, SQLStateStore(SQLiteEngine(database)))

    async def served(task: str, *more: dict[str, Any]) -> str:
        raw = orjson.dumps({"messages": [says("user", task), *more], "model": "m"})
        found, conversation = await resolver.resolve(CHAT.parse(raw, orjson.loads), {}, "t", 0.0)
        assert conversation is not None
        branch = conversation.history.branch
        conversation.history.branch = branch.failed(found.incoming.hashes.state.digest)
        return conversation.id

    first = await served("Fix the parser.")
    second = await served("Write the manual.")
    assert await served("Fix the parser.", says("assistant", "Yes."), says("user", "On.")) == first
    third = await served("Count the files.")
    kept = [name for name in (first, second, third) if index.get(name) is not None]
    assert kept == [first, third]


@pytest.mark.parametrize(("name", "read_on"), [("mine", True), ("other", False)])
async def test_bytes_that_are_known_are_those_of_the_clients_own_conversation(
    database: Database, name: str, read_on: bool
) -> None:
    """Another client that sends the same bytes under another id is read from the first one on."""
    index = an_index(10, 10)
    resolver = a_resolver(index, SQLStateStore(SQLiteEngine(database)))

    async def search(client: str, *more: dict[str, Any]) -> Any:
        raw = orjson.dumps({"model": "m", "messages": [*OPENING, *more]})
        request = CHAT.parse(raw, orjson.loads, index.bodies.longest("t", raw, CHAT.list_key))
        return await resolver._read(request, {"x-session-id": client}, "t"), request

    _, request = await search("mine")
    _, opened = await resolver.resolve(request, {"x-session-id": "mine"}, "t", 0.0)
    assert opened is not None
    found, _ = await search(name, says("assistant", "Yes."), says("user", "On."))
    assert (found.known is not None) is read_on
    assert found.known is None or found.known.id == opened.id


async def test_items_of_answers_are_read_once(database: Database) -> None:
    """From the store the first time, from memory then; unknown ones are asked for each time."""
    asked: list[list[str]] = []

    class Items(SQLStateStore):
        """A store that knows one item."""

        async def find_items(self, tenant: str, ids: Any) -> dict[str, bytes]:
            asked.append(list(ids))
            return {name: b'{"type": "reasoning"}' for name in ids if name == "rs_1"}

    loader = ConversationLoader(an_index(10, 10), Items(SQLiteEngine(database)))
    for _ in range(2):
        assert await loader.items("t", ["rs_1", "rs_2", "rs_1"]) == {"rs_1": {"type": "reasoning"}}
    assert asked == [["rs_1", "rs_2"], ["rs_2"]]
