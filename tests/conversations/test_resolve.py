"""Resolving a request while other requests are in progress."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import orjson
import pytest

from gateway.calls.headers import identity_label
from gateway.config.storage import IN_MEMORY, StorageSettings
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

    async def call(*messages: dict[str, Any]) -> Resolved:
        raw = orjson.dumps({"model": "m", "messages": [*OPENING, *messages]})
        known = index.bodies.longest("t", raw, CHAT.list_key)
        return await resolver.resolve(CHAT.parse(raw, orjson.loads, known), {}, "t", 0.0)

    return call


async def test_a_request_remembers_its_own_bytes(database: Database) -> None:
    """A request that waits for the store keeps its own bytes, not those of one that came since."""
    store = WaitingStore(database)
    resolve = resolving(store)
    opened = await resolve()
    one = [says("assistant", "One way."), says("user", "On.")]
    other = [says("assistant", "Another."), says("user", "On."), says("assistant", "Yes.")]
    waiting = spawn(resolve(*other, says("user", "And on.")))
    await store.asked.wait()
    moved_on = await resolve(*one)
    store.answers.set()
    parted = await waiting
    assert moved_on.conversation is opened.conversation
    assert parted.conversation is not None
    assert parted.conversation is not opened.conversation
    for found, messages in ((moved_on, one), (parted, [*other, says("user", "And on.")])):
        assert found.conversation is not None
        prefix = found.conversation.history.prefix
        assert prefix is not None
        sent = orjson.dumps({"model": "m", "messages": [*OPENING, *messages]})
        assert prefix.raw == sent
        assert (
            len(prefix.spans) == found.incoming.hashes.state.count == len(OPENING) + len(messages)
        )


async def test_an_opening_is_not_looked_up(database: Database) -> None:
    """A first request is new without a query of the store."""
    resolve = resolving(WaitingStore(database))
    found = await asyncio.wait_for(resolve(), 120)
    assert identity_label(found.source, found.match.kind) == "new"


async def test_the_next_request_is_not_looked_up(database: Database) -> None:
    """A request one reply ahead of memory continues without a query of the store."""
    resolve = resolving(WaitingStore(database))
    first = await resolve()
    second = await asyncio.wait_for(resolve(says("assistant", "Hm."), says("user", "On.")), 120)
    assert identity_label(second.source, second.match.kind) == "prefix"
    assert second.conversation_id == first.conversation_id


async def test_the_bytes_of_past_requests_are_dropped(database: Database) -> None:
    """Bytes of requests are kept for the transcripts in memory only."""
    index = an_index(50, 3)
    resolver = a_resolver(index, SQLStateStore(SQLiteEngine(database)))
    bodies = [
        orjson.dumps({"messages": [says("user", f"Task {n}. " * 60)], "model": "m"})
        for n in range(20)
    ]
    for raw in bodies:
        found = await resolver.resolve(CHAT.parse(raw, orjson.loads), {}, "t", 0.0)
        assert found.conversation is not None
        branch = found.conversation.history.branch
        found.conversation.history.branch = branch.failed(found.incoming.hashes.state.digest)
    known = [index.bodies.longest("t", raw, CHAT.list_key) for raw in bodies]
    assert [prefix is not None for prefix in known] == [False] * 17 + [True] * 3


async def test_a_conversation_with_a_call_in_progress_is_kept(database: Database) -> None:
    """Only idle conversations are dropped: the state of the others is not stored yet."""
    index = an_index(2, 1)
    resolver = a_resolver(index, SQLStateStore(SQLiteEngine(database)))

    async def opened(n: int) -> Resolved:
        raw = orjson.dumps({"messages": [says("user", f"Task {n}. " * 60)], "model": "m"})
        return await resolver.resolve(CHAT.parse(raw, orjson.loads), {}, "t", 0.0)

    first = [await opened(n) for n in range(4)]
    assert len(index) == 4
    for found in first:
        assert found.conversation is not None
        branch = found.conversation.history.branch
        found.conversation.history.branch = branch.failed(found.incoming.hashes.state.digest)
    await opened(5)
    assert len(index) == 2
