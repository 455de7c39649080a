"""Finding the conversation of a request while other requests go on."""

from __future__ import annotations

import asyncio
from typing import Any

import orjson

from gateway.conversations.index import ConversationIndex
from gateway.conversations.recall import Recall, Recalled
from gateway.dialects import CHAT
from gateway.steering.conversation import ConversationSettings
from gateway.stores.memory import MemoryStateStore, Tables
from gateway.stores.records import HeadRecord
from gateway.tasks import spawn

OPENING = [
    {"role": "system", "content": "You repair programs, with care. " * 20},
    {"role": "user", "content": "Fix it."},
]


class HeldStore(MemoryStateStore):
    """A store whose look-ups wait until they are let go."""

    def __init__(self) -> None:
        super().__init__(Tables())
        self.asked = asyncio.Event()
        self.answers = asyncio.Event()

    async def find_heads(self, tenant: str, digests: Any) -> list[HeadRecord]:
        self.asked.set()
        await self.answers.wait()
        return await super().find_heads(tenant, digests)


def says(role: str, text: str) -> dict[str, Any]:
    return {"role": role, "content": text}


def recalling(store: MemoryStateStore) -> Any:
    """Recall over the store, called with messages alone."""
    index = ConversationIndex(
        store, max_conversations=100, max_prefix_bytes=2**20, max_transcripts=100
    )
    recall = Recall(index, ConversationSettings())

    async def call(*messages: dict[str, Any]) -> Recalled:
        raw = orjson.dumps({"model": "m", "messages": [*OPENING, *messages]})
        known = index.known_prefix("t", raw, CHAT.list_key)
        return await recall(CHAT.parse(raw, orjson.loads, known), {}, "t", 0.0)

    return call


async def test_what_is_remembered_is_the_requests_own() -> None:
    """A request that waits for the store keeps its own bytes, whatever its neighbour did since."""
    store = HeldStore()
    recall = recalling(store)
    opened = await recall()
    one = [says("assistant", "One way."), says("user", "On.")]
    other = [says("assistant", "Another."), says("user", "On."), says("assistant", "Yes.")]
    waiting = spawn(recall(*other, says("user", "And on.")))
    await store.asked.wait()
    moved_on = await recall(*one)
    store.answers.set()
    parted = await waiting
    assert moved_on.conversation is opened.conversation
    assert parted.conversation is not None
    assert parted.conversation is not opened.conversation
    for found, messages in ((moved_on, one), (parted, [*other, says("user", "And on.")])):
        assert found.conversation is not None
        prefix = found.conversation.prefix
        assert prefix is not None
        sent = orjson.dumps({"model": "m", "messages": [*OPENING, *messages]})
        assert prefix.raw == sent
        assert prefix.count == found.incoming.heads.state.count == len(OPENING) + len(messages)


async def test_an_opening_is_asked_of_nobody() -> None:
    """A first request is new without a look into the store; so it waits for nothing."""
    recall = recalling(HeldStore())
    found = await asyncio.wait_for(recall(), 5)
    assert found.label == "new"


async def test_the_next_request_is_asked_of_nobody() -> None:
    """A request one reply ahead of what memory knows goes on without the store."""
    recall = recalling(HeldStore())
    first = await recall()
    second = await asyncio.wait_for(recall(says("assistant", "Hm."), says("user", "On.")), 5)
    assert (second.label, second.conversation_id) == ("prefix", first.conversation_id)


async def test_the_beginnings_of_past_requests_are_forgotten() -> None:
    """What requests begin with is remembered of the transcripts in memory, and of no others."""
    index = ConversationIndex(
        MemoryStateStore(Tables()), max_conversations=50, max_prefix_bytes=2**20, max_transcripts=3
    )
    recall = Recall(index, ConversationSettings())
    bodies = [
        orjson.dumps({"messages": [says("user", f"Task {n}. " * 60)], "model": "m"})
        for n in range(20)
    ]
    for raw in bodies:
        found = await recall(CHAT.parse(raw, orjson.loads), {}, "t", 0.0)
        assert found.conversation is not None
        found.conversation.branch = found.conversation.branch.failed(found.incoming.heads.full)
    known = [index.known_prefix("t", raw, CHAT.list_key) for raw in bodies]
    assert [prefix is not None for prefix in known] == [False] * 17 + [True] * 3
    assert index.openings == 3


async def test_a_conversation_with_a_call_on_its_way_is_kept() -> None:
    """Memory makes room with the conversations at rest; where others stand is not stored yet."""
    index = ConversationIndex(
        MemoryStateStore(Tables()), max_conversations=2, max_prefix_bytes=2**20, max_transcripts=1
    )
    recall = Recall(index, ConversationSettings())

    async def opened(n: int) -> Recalled:
        raw = orjson.dumps({"messages": [says("user", f"Task {n}. " * 60)], "model": "m"})
        return await recall(CHAT.parse(raw, orjson.loads), {}, "t", 0.0)

    first = [await opened(n) for n in range(4)]
    assert len(index) == 4
    for found in first:
        assert found.conversation is not None
        found.conversation.branch = found.conversation.branch.failed(found.incoming.heads.full)
    await opened(5)
    assert len(index) == 2
