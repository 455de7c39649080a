"""What every StateStore must do, as functions of an empty one and its run store."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import replace
from typing import Protocol

import pytest

from gateway.stores.base import (
    MAX_BRANCHES,
    MAX_HEADS,
    RunStore,
    StateStore,
    StoreClosed,
    StoreError,
    VersionConflict,
)
from gateway.stores.records import ConversationRecord, ItemRecord
from tests.stores.builders import (
    START,
    TENANT,
    a_call,
    a_conversation,
    a_first_step,
    a_head,
    a_run,
    a_step,
    an_injection,
    history,
)


class Stores(Protocol):
    """One backend's two stores."""

    @property
    def states(self) -> StateStore: ...
    @property
    def runs(self) -> RunStore: ...


Check = Callable[[Stores], Awaitable[None]]


async def returns_what_was_saved(stores: Stores) -> None:
    """A conversation comes back equal, at version 1."""
    record = a_conversation(
        parent_id="p", external_key="header:x", state=b"\x00\xff", signature=b"", has_tools=False
    )
    assert await stores.states.commit(a_call(conversation=record)) == 1
    assert await stores.states.load(TENANT, "c1") == replace(record, version=1)


async def knows_no_other_conversation(stores: Stores) -> None:
    """An unknown id, and another tenant's id, are both nothing."""
    await stores.states.commit(a_call())
    assert await stores.states.load(TENANT, "c2") is None
    assert await stores.states.load("other", "c1") is None


async def saves_over_the_version_it_was_made_from(stores: Stores) -> None:
    """A save from the stored version replaces what may change and keeps the rest."""
    first = a_conversation(external_key="k")
    await stores.states.commit(a_call(conversation=first))
    changed = replace(
        first,
        version=1,
        created_at=START + 9,
        source="header",
        updated_at=START + 5,
        served_head=b"new",
        message_count=7,
        has_tools=False,
        state=b"two",
    )
    assert await stores.states.commit(a_call(conversation=changed)) == 2
    expected = replace(changed, version=2, created_at=START, source="prefix")
    assert await stores.states.load(TENANT, "c1") == expected


async def refuses_a_stale_version(stores: Stores) -> None:
    """A save from another version names both versions and leaves nothing behind."""
    await stores.states.commit(a_call())
    for stale in (0, 2):
        late = a_call(
            conversation=a_conversation(version=stale, state=b"late"),
            heads=(a_head("c1", history("late", 3)),),
            runs=(a_run("late"),),
            steps=(a_first_step("late"),),
        )
        with pytest.raises(VersionConflict) as caught:
            await stores.states.commit(late)
        assert (caught.value.expected, caught.value.actual) == (stale, 1)
    kept = await stores.states.load(TENANT, "c1")
    assert kept is not None
    assert (kept.version, kept.state) == (1, b'{"v": 1}')
    assert await stores.states.find_heads(TENANT, history("late", 3)) == []
    assert await stores.runs.get_run("late", tenant=TENANT) is None


async def refuses_to_update_what_it_has_not(stores: Stores) -> None:
    """A save that expects a version of an unknown conversation is a conflict with version 0."""
    with pytest.raises(VersionConflict) as caught:
        await stores.states.commit(a_call(conversation=a_conversation(version=4)))
    assert (caught.value.expected, caught.value.actual) == (4, 0)


async def keeps_every_one_of_many_racing_saves(stores: Stores) -> None:
    """Tasks that reload and retry on conflict lose no increment of a counter."""
    tasks, rounds = 20, 5
    await stores.states.commit(a_call(conversation=a_conversation(state=b"0")))
    conflicts = 0

    async def increment() -> None:
        nonlocal conflicts
        for _ in range(rounds):
            while True:
                record = await stores.states.load(TENANT, "c1")
                assert record is not None
                counted = replace(record, state=b"%d" % (int(record.state) + 1))
                await asyncio.sleep(0)
                try:
                    await stores.states.commit(a_call(conversation=counted))
                except VersionConflict:
                    conflicts += 1
                else:
                    break

    await asyncio.gather(*(increment() for _ in range(tasks)))
    record = await stores.states.load(TENANT, "c1")
    assert record is not None
    assert record.state == b"%d" % (tasks * rounds)
    assert record.version == tasks * rounds + 1
    assert conflicts > 0


async def refuses_a_step_of_an_unnamed_run(stores: Stores) -> None:
    """A step or an injection of a run that the call does not name is refused, with all else."""
    for parts in ({"steps": (a_step(1, "r2"),)}, {"injections": (an_injection(1, "r2"),)}):
        with pytest.raises(ValueError, match="r2"):
            await stores.states.commit(a_call(**parts))
    assert await stores.states.load(TENANT, "c1") is None


async def refuses_ids_of_another_tenant(stores: Stores) -> None:
    """A tenant cannot write to another's conversation or run, whatever version it claims."""
    await stores.states.commit(a_call())
    theirs = a_conversation(tenant="other")
    for foreign in (
        a_call(conversation=theirs, runs=(), steps=()),
        a_call(conversation=replace(theirs, version=1), runs=(), steps=()),
        a_call(conversation=replace(theirs, id="c2")),
    ):
        with pytest.raises(StoreError) as caught:
            await stores.states.commit(foreign)
        # Not a conflict: there is nothing to reload.
        assert not isinstance(caught.value, VersionConflict)
    trace = await stores.runs.get_run("r1", tenant=TENANT)
    assert trace is not None
    assert len(trace.steps) == 1
    assert await stores.states.load("other", "c2") is None


async def finds_the_longest_head(stores: Stores) -> None:
    """A history that goes on finds the heads inside it, the longest first, of every kind."""
    whole = history("task", 6)
    heads = (
        a_head("c1", whole[:2], kind="served", step=0),
        a_head("c1", whole[:3], kind="reply", step=0),
        a_head("c1", whole[:5], kind="served", step=1),
        a_head("c1", whole[:5], kind="reply:other", step=1),
    )
    await stores.states.commit(a_call(heads=heads))
    found = await stores.states.find_heads(TENANT, whole)
    assert {head.kind for head in found[:2]} == {"served", "reply:other"}
    assert found[2:] == [heads[1], heads[0]]
    assert await stores.states.find_heads(TENANT, whole[:4]) == [heads[1], heads[0]]
    assert await stores.states.find_heads(TENANT, whole[:2]) == [heads[0]]


async def finds_nothing_for_strange_histories(stores: Stores) -> None:
    """No digests, an unknown history, another tenant, another root: nothing."""
    whole = history("task", 3)
    await stores.states.commit(a_call(heads=(a_head("c1", whole),)))
    assert await stores.states.find_heads(TENANT, []) == []
    assert await stores.states.find_heads(TENANT, history("other", 3)) == []
    assert await stores.states.find_heads("other", whole) == []
    assert await stores.states.find_heads(TENANT, [history("x", 1)[0], *whole]) == []


async def finds_heads_in_a_history_of_any_length(stores: Stores) -> None:
    """A head is found wherever it lies in two thousand messages, with those just before it."""
    whole = history("long", 2000)
    for number, position in enumerate((1, 700, 701, 1960, 1930, 1961, 1999)):
        head = a_head(f"c{number}", whole[:position])
        await stores.states.commit(
            a_call(conversation=a_conversation(f"c{number}"), heads=(head,), runs=(), steps=())
        )
        found = await stores.states.find_heads(TENANT, whole[:position])
        assert found[0] == head
    positions = [head.position for head in await stores.states.find_heads(TENANT, whole)]
    assert positions[:4] == [1999, 1961, 1960, 1930][: len(positions)]
    positions = [head.position for head in await stores.states.find_heads(TENANT, whole[:800])]
    assert positions == [701, 700, 1]
    positions = [head.position for head in await stores.states.find_heads(TENANT, whole[:1998])]
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
    found = await stores.states.find_heads(TENANT, whole)
    assert len(found) == MAX_HEADS
    assert {head.position for head in found} == {3}
    newest = [f"c{number}" for number in reversed(range(count))]
    assert [head.conversation_id for head in found] == newest[:MAX_HEADS]


async def keeps_a_head_once(stores: Stores) -> None:
    """The same head again, as a retry brings it, changes nothing."""
    whole = history("retry", 2)
    await stores.states.commit(a_call(heads=(a_head("c1", whole, step=3),)))
    again = a_call(
        conversation=a_conversation(version=1),
        heads=(a_head("c1", whole, step=4), a_head("c1", whole, kind="reply", step=3)),
    )
    await stores.states.commit(again)
    found = await stores.states.find_heads(TENANT, whole)
    kinds = {(head.conversation_id, head.kind, head.step) for head in found}
    assert kinds == {("c1", "served", 3), ("c1", "reply", 3)}
    assert len(found) == 2


async def finds_a_digest_of_its_own(stores: Stores) -> None:
    """A digest that is its own root, such as a response id's, finds its conversation."""
    alias = history("resp_123", 1)
    await stores.states.commit(a_call(heads=(a_head("c1", alias, kind="response"),)))
    (found,) = await stores.states.find_heads(TENANT, alias)
    assert (found.conversation_id, found.kind) == ("c1", "response")


async def lists_the_branches_of_an_external_id(stores: Stores) -> None:
    """All conversations of an outside id come back whole, last used first, within the tenant."""
    records = [
        a_conversation("root", external_key="k", updated_at=START + 2),
        a_conversation("fork", external_key="k", parent_id="root", updated_at=START + 3),
        a_conversation("other", external_key="k2"),
        a_conversation("none"),
        a_conversation("foreign", external_key="k", tenant="other"),
    ]
    for record in records:
        await stores.states.commit(a_call(conversation=record, runs=(), steps=()))
    found = await stores.states.branches(TENANT, "k")
    assert found == [replace(records[1], version=1), replace(records[0], version=1)]
    assert await stores.states.branches(TENANT, "missing") == []


async def bounds_the_branches(stores: Stores) -> None:
    """Of very many branches only the last used come back."""
    for number in range(MAX_BRANCHES + 3):
        record = a_conversation(f"c{number}", external_key="k", updated_at=START + number)
        await stores.states.commit(a_call(conversation=record, runs=(), steps=()))
    found = await stores.states.branches(TENANT, "k")
    assert len(found) == MAX_BRANCHES
    assert min(record.updated_at for record in found) == START + 3


async def takes_any_text(stores: Stores) -> None:
    """Unpaired surrogates, NUL, control characters and huge numbers do not stop a commit."""
    strange = "\ud800 \x00 \x1b[31m <script> \U0001f600"
    step = a_first_step(content=None, failure_type=strange, evidence={strange: strange})
    call = a_call(
        conversation=a_conversation(external_key=strange),
        runs=(a_run(task_preview=strange, agent=strange),),
        steps=(replace(step, call=replace(a_step().call, input_tokens=10**30)),),
    )
    assert await stores.states.commit(call) == 1
    trace = await stores.runs.get_run("r1", tenant=TENANT)
    assert trace is not None
    assert trace.run.task_preview.endswith("\x00 \x1b[31m <script> \U0001f600")


async def answers_a_ping_until_closed(stores: Stores) -> None:
    """A store answers while it is open; closed, it refuses to commit, and closing again is fine."""
    await stores.states.ping()
    await stores.states.commit(a_call())
    await stores.states.close()
    await stores.states.close()
    with pytest.raises(StoreClosed):
        await stores.states.ping()
    with pytest.raises(StoreClosed):
        await stores.states.commit(a_call(conversation=a_conversation("c2")))


async def survives_many_conversations_at_once(stores: Stores) -> None:
    """A hundred conversations saved together are all there, each at its own version."""
    records = [a_conversation(f"c{number}", state=b"%d" % number) for number in range(100)]
    calls = [a_call(conversation=record, runs=(), steps=()) for record in records]
    assert await asyncio.gather(*map(stores.states.commit, calls)) == [1] * 100
    loaded: list[ConversationRecord | None] = [
        await stores.states.load(TENANT, record.id) for record in records
    ]
    assert loaded == [replace(record, version=1) for record in records]


async def finds_items_by_their_ids(stores: Stores) -> None:
    """Those of this tenant, as last saved, until their conversation is removed."""
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


STATE_CHECKS: tuple[Check, ...] = (
    returns_what_was_saved,
    knows_no_other_conversation,
    saves_over_the_version_it_was_made_from,
    refuses_a_stale_version,
    refuses_to_update_what_it_has_not,
    keeps_every_one_of_many_racing_saves,
    refuses_a_step_of_an_unnamed_run,
    refuses_ids_of_another_tenant,
    finds_the_longest_head,
    finds_nothing_for_strange_histories,
    finds_heads_in_a_history_of_any_length,
    finds_each_of_parallel_conversations,
    keeps_a_head_once,
    finds_a_digest_of_its_own,
    lists_the_branches_of_an_external_id,
    bounds_the_branches,
    takes_any_text,
    answers_a_ping_until_closed,
    survives_many_conversations_at_once,
    finds_items_by_their_ids,
)
