"""Checks of StateStore: saving a conversation and loading it again."""

from __future__ import annotations

import asyncio

from msgspec.structs import replace

from gateway.backends import Stores
from gateway.stores.protocols import StoreClosed, StoreError, VersionConflict
from gateway.stores.records import ConversationRecord
from steering_gateway_testing.store_conformance.check import Check, raises
from steering_gateway_testing.store_conformance.records import (
    START,
    TENANT,
    a_call,
    a_chat,
    a_conversation,
    a_first_step,
    a_head,
    a_run,
    a_step,
    an_injection,
    history,
    one_run,
)


async def returns_what_was_saved(stores: Stores) -> None:
    """A conversation comes back equal, at version 1."""
    assert await stores.states.version(TENANT, "c1") == 0
    record = a_conversation(
        parent_id="p", external_key="header:x", state=b"\x00\xff", signature=b"", has_tools=False
    )
    assert await stores.states.commit(a_call(conversation=record)) == 1
    assert await stores.states.load(TENANT, "c1") == replace(record, version=1)
    assert await stores.states.version(TENANT, "c1") == 1


async def knows_no_other_conversation(stores: Stores) -> None:
    """An unknown id and another tenant's id both give None, and version 0."""
    await stores.states.commit(a_call())
    assert await stores.states.load(TENANT, "c2") is None
    assert await stores.states.load("other", "c1") is None
    asked = ((TENANT, "c1"), (TENANT, "c2"), ("other", "c1"), (TENANT, "c1"))
    assert await asyncio.gather(*(stores.states.version(*each) for each in asked)) == [1, 0, 0, 1]


async def saves_over_the_version_it_was_made_from(stores: Stores) -> None:
    """A save from the stored version replaces the fields that may change and keeps the others."""
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
    """A save from another version names both versions in its error and stores nothing."""
    await stores.states.commit(a_call())
    for stale in (0, 2):
        late = a_call(
            conversation=a_conversation(version=stale, state=b"late"),
            heads=(a_head("c1", history("late", 3)),),
            runs=(a_run("late"),),
            steps=(a_first_step("late"),),
        )
        with raises(VersionConflict) as caught:
            await stores.states.commit(late)
        assert (caught.value.expected, caught.value.actual) == (stale, 1)
    kept = await stores.states.load(TENANT, "c1")
    assert kept is not None
    assert (kept.version, kept.state) == (1, b'{"v": 1}')
    assert await stores.states.find_prefix_hashes(TENANT, history("late", 3)) == []
    assert await stores.runs.get_run("late", tenant=TENANT) is None


async def refuses_to_update_an_unknown_conversation(stores: Stores) -> None:
    """A save that expects a version of an unknown conversation is a conflict with version 0."""
    with raises(VersionConflict) as caught:
        await stores.states.commit(a_call(conversation=a_conversation(version=4)))
    assert (caught.value.expected, caught.value.actual) == (4, 0)


async def loses_none_of_many_concurrent_saves(stores: Stores) -> None:
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
    """A step or an injection of a run that the call does not name refuses the whole call."""
    for parts in ({"steps": (a_step(1, "r2"),)}, {"injections": (an_injection(1, "r2"),)}):
        with raises(ValueError, "r2"):
            await stores.states.commit(a_call(**parts))
    assert await stores.states.load(TENANT, "c1") is None


async def refuses_ids_of_another_tenant(stores: Stores) -> None:
    """A tenant cannot write to another's conversation or run, whatever version it claims."""
    await stores.states.commit(a_call())
    theirs = a_conversation(tenant="other")
    for call in (
        a_call(conversation=theirs, runs=(), steps=()),
        a_call(conversation=replace(theirs, version=1), runs=(), steps=()),
        a_call(conversation=replace(theirs, id="c2")),
    ):
        with raises(StoreError) as caught:
            await stores.states.commit(call)
        # Not a conflict: there is nothing to reload.
        assert not isinstance(caught.value, VersionConflict)
    trace = await stores.runs.get_run("r1", tenant=TENANT)
    assert trace is not None
    assert len(trace.steps) == 1
    assert await stores.states.load("other", "c2") is None


async def takes_any_text(stores: Stores) -> None:
    """Unpaired surrogates, NUL, control characters and huge integers do not prevent a commit."""
    strange = "\ud800 \x00 \x1b[31m <script> \U0001f600"
    step = a_first_step(content=None, failure_type=strange, evidence={strange: strange})
    call = a_call(
        conversation=a_conversation(external_key=strange),
        runs=(a_run(task_preview=strange, agent=strange),),
        steps=(replace(step, call=a_chat("q1", input_tokens=10**30)),),
    )
    assert await stores.states.commit(call) == 1
    trace = await stores.runs.get_run("r1", tenant=TENANT)
    assert trace is not None
    assert trace.run.task_preview.endswith("\x00 \x1b[31m <script> \U0001f600")


async def works_after_reopening(stores: Stores) -> None:
    """What is asked and saved after `reopen` finds a store that works, however often."""
    for number in (1, 2):
        await stores.states.reopen()
        await stores.states.ping()
        call = one_run(number)
        assert await stores.states.commit(call) == 1
        assert await stores.states.load(TENANT, call.conversation.id) is not None


async def answers_a_ping_until_closed(stores: Stores) -> None:
    """An open store answers a ping; a closed one refuses pings and commits; closing twice works."""
    await stores.states.ping()
    await stores.states.commit(a_call())
    await stores.states.close()
    await stores.states.close()
    with raises(StoreClosed):
        await stores.states.ping()
    with raises(StoreClosed):
        await stores.states.commit(a_call(conversation=a_conversation("c2")))


async def saves_many_conversations_at_once(stores: Stores) -> None:
    """A hundred conversations saved at the same time are all stored, each at version 1."""
    records = [a_conversation(f"c{number}", state=b"%d" % number) for number in range(100)]
    calls = [a_call(conversation=record, runs=(), steps=()) for record in records]
    assert await asyncio.gather(*map(stores.states.commit, calls)) == [1] * 100
    loaded: list[ConversationRecord | None] = [
        await stores.states.load(TENANT, record.id) for record in records
    ]
    assert loaded == [replace(record, version=1) for record in records]


STATE_CHECKS: tuple[Check, ...] = (
    returns_what_was_saved,
    knows_no_other_conversation,
    saves_over_the_version_it_was_made_from,
    refuses_a_stale_version,
    refuses_to_update_an_unknown_conversation,
    loses_none_of_many_concurrent_saves,
    refuses_a_step_of_an_unnamed_run,
    refuses_ids_of_another_tenant,
    takes_any_text,
    works_after_reopening,
    answers_a_ping_until_closed,
    saves_many_conversations_at_once,
)
