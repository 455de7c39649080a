"""Checks of StateStore: finding a conversation by its history, its external id, its items."""

from __future__ import annotations

from msgspec.structs import replace

from gateway.backends import Stores
from gateway.stores.protocols import MAX_BRANCHES, MAX_HEADS
from gateway.stores.records import ItemRecord
from steering_gateway_testing.store_conformance.check import Check
from steering_gateway_testing.store_conformance.records import (
    START,
    TENANT,
    a_call,
    a_conversation,
    a_head,
    history,
)


async def finds_the_longest_prefix(stores: Stores) -> None:
    """A longer history finds the hashes of its prefixes, of every kind, the longest first."""
    whole = history("task", 6)
    heads = (
        a_head("c1", whole[:2], kind="served", step=0),
        a_head("c1", whole[:3], kind="reply", step=0),
        a_head("c1", whole[:5], kind="served", step=1),
        a_head("c1", whole[:5], kind="reply:other", step=1),
    )
    await stores.states.commit(a_call(heads=heads))
    found = await stores.states.find_prefix_hashes(TENANT, whole)
    assert {head.kind for head in found[:2]} == {"served", "reply:other"}
    assert found[2:] == [heads[1], heads[0]]
    assert await stores.states.find_prefix_hashes(TENANT, whole[:4]) == [heads[1], heads[0]]
    assert await stores.states.find_prefix_hashes(TENANT, whole[:2]) == [heads[0]]


async def finds_nothing_for_unknown_histories(stores: Stores) -> None:
    """No digests, an unknown history, another tenant or another root find nothing."""
    whole = history("task", 3)
    await stores.states.commit(a_call(heads=(a_head("c1", whole),)))
    assert await stores.states.find_prefix_hashes(TENANT, []) == []
    assert await stores.states.find_prefix_hashes(TENANT, history("other", 3)) == []
    assert await stores.states.find_prefix_hashes("other", whole) == []
    assert await stores.states.find_prefix_hashes(TENANT, [history("x", 1)[0], *whole]) == []


async def finds_prefixes_in_a_history_of_any_length(stores: Stores) -> None:
    """A hash is found at any position of two thousand messages, and those just before it too."""
    whole = history("long", 2000)
    for number, position in enumerate((1, 700, 701, 1960, 1930, 1961, 1999)):
        head = a_head(f"c{number}", whole[:position])
        await stores.states.commit(
            a_call(conversation=a_conversation(f"c{number}"), heads=(head,), runs=(), steps=())
        )
        found = await stores.states.find_prefix_hashes(TENANT, whole[:position])
        assert found[0] == head
    positions = [head.position for head in await stores.states.find_prefix_hashes(TENANT, whole)]
    assert positions[:4] == [1999, 1961, 1960, 1930][: len(positions)]
    positions = [
        head.position for head in await stores.states.find_prefix_hashes(TENANT, whole[:800])
    ]
    assert positions == [701, 700, 1]
    positions = [
        head.position for head in await stores.states.find_prefix_hashes(TENANT, whole[:1998])
    ]
    assert positions[:3] == [1961, 1960, 1930]


async def finds_each_of_parallel_conversations(stores: Stores) -> None:
    """Conversations that share a history are all found, the newest first, up to a bound."""
    whole, count = history("shared", 3), MAX_HEADS + 10
    for number in range(count):
        heads = tuple(
            a_head(f"c{number}", whole[: 2 + reply], kind=kind)
            for reply, kind in enumerate(("served", "reply"))
        )
        call = a_call(conversation=a_conversation(f"c{number}"), heads=heads, runs=(), steps=())
        await stores.states.commit(call)
    found = await stores.states.find_prefix_hashes(TENANT, whole)
    assert len(found) == MAX_HEADS
    assert {head.position for head in found} == {3}
    newest = [f"c{number}" for number in reversed(range(count))]
    assert [head.conversation_id for head in found] == newest[:MAX_HEADS]


async def stores_a_hash_once(stores: Stores) -> None:
    """Storing the same hash again, as a retry does, changes nothing."""
    whole = history("retry", 2)
    await stores.states.commit(a_call(heads=(a_head("c1", whole, step=3),)))
    again = a_call(
        conversation=a_conversation(version=1),
        heads=(a_head("c1", whole, step=4), a_head("c1", whole, kind="reply", step=3)),
    )
    await stores.states.commit(again)
    found = await stores.states.find_prefix_hashes(TENANT, whole)
    kinds = {(head.conversation_id, head.kind, head.step) for head in found}
    assert kinds == {("c1", "served", 3), ("c1", "reply", 3)}
    assert len(found) == 2


async def finds_a_digest_that_is_its_own_root(stores: Stores) -> None:
    """A digest that is its own root, such as that of a response id, finds its conversation."""
    alias = history("resp_123", 1)
    await stores.states.commit(a_call(heads=(a_head("c1", alias, kind="response"),)))
    (found,) = await stores.states.find_prefix_hashes(TENANT, alias)
    assert (found.conversation_id, found.kind) == ("c1", "response")


async def lists_the_branches_of_an_external_id(stores: Stores) -> None:
    """All the tenant's conversations of an external id come back, last used first."""
    records = [
        a_conversation("root", external_key="k", updated_at=START + 2),
        a_conversation("fork", external_key="k", parent_id="root", updated_at=START + 3),
        a_conversation("other", external_key="k2"),
        a_conversation("none"),
        a_conversation("theirs", external_key="k", tenant="other"),
    ]
    for record in records:
        await stores.states.commit(a_call(conversation=record, runs=(), steps=()))
    found = await stores.states.branches(TENANT, "k")
    assert found == [replace(records[1], version=1), replace(records[0], version=1)]
    assert await stores.states.branches(TENANT, "missing") == []


async def bounds_the_branches(stores: Stores) -> None:
    """Of more than MAX_BRANCHES branches the last used come back."""
    for number in range(MAX_BRANCHES + 3):
        record = a_conversation(f"c{number}", external_key="k", updated_at=START + number)
        await stores.states.commit(a_call(conversation=record, runs=(), steps=()))
    found = await stores.states.branches(TENANT, "k")
    assert len(found) == MAX_BRANCHES
    assert min(record.updated_at for record in found) == START + 3


async def finds_items_by_their_ids(stores: Stores) -> None:
    """Items of the tenant come back as last saved, until their conversation is removed."""
    items = (ItemRecord(id="fc_1", content=b"{}"), ItemRecord(id='a"b', content=b"\x00\xff"))
    await stores.states.commit(a_call(items=items))
    ids = ["fc_1", "fc_2", 'a"b', "\ud800"]
    assert await stores.states.find_items(TENANT, ids) == {"fc_1": b"{}", 'a"b': b"\x00\xff"}
    assert await stores.states.find_items("other", ids) == {}
    assert await stores.states.find_items(TENANT, []) == {}
    other = a_conversation("c2", created_at=START + 50, updated_at=START + 50)
    news = (ItemRecord(id="fc_1", content=b"[]"),)
    await stores.states.commit(a_call(conversation=other, runs=(), steps=(), items=news))
    await stores.runs.prune(older_than=START + 25)
    assert await stores.states.find_items(TENANT, ids) == {"fc_1": b"[]"}


HISTORY_CHECKS: tuple[Check, ...] = (
    finds_the_longest_prefix,
    finds_nothing_for_unknown_histories,
    finds_prefixes_in_a_history_of_any_length,
    finds_each_of_parallel_conversations,
    stores_a_hash_once,
    finds_a_digest_that_is_its_own_root,
    lists_the_branches_of_an_external_id,
    bounds_the_branches,
    finds_items_by_their_ids,
)
