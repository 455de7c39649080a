"""Checks of SessionStore: a session is a tree of conversations with its runs."""

from __future__ import annotations

from typing import Any

from msgspec.structs import replace

from gateway.backends import Stores
from gateway.core.step import Action
from gateway.steering.transcript.interventions import Intervention
from gateway.stores.filters import RunFilter
from gateway.stores.learning import JOBS, ReaderJob
from gateway.stores.lists import SORT_KEYS, PageRequest
from gateway.stores.records import CallRecord, StepContent
from gateway.stores.sessions import SIDE, Session
from gateway.stores.sql.sessions import SessionStore
from steering_gateway_testing.store_conformance import records
from steering_gateway_testing.store_conformance.check import Check, raises


def _store(stores: Stores) -> SessionStore:
    assert stores.sessions is not None
    return stores.sessions


def _in_tree(call: CallRecord, parent: str | None, root: str | None, **about: Any) -> CallRecord:
    conversation = replace(call.conversation, parent_id=parent, root_id=root, **about)
    return replace(call, conversation=conversation)


async def _listed(stores: Stores, wanted: RunFilter = RunFilter(), **page: Any) -> list[str]:  # noqa: B008
    found = await _store(stores).list_sessions(wanted, PageRequest(**page))
    assert await _store(stores).count_sessions(wanted) == len(found.sessions)
    return [session.id for session in found.sessions]


async def _one(stores: Stores, name: str) -> Session:
    tree = await _store(stores).session(name, tenant=None)
    assert tree is not None
    return tree.session


async def a_row_is_the_root_of_a_tree(stores: Stores) -> None:
    """Sub-agents and forks are in the row of their root, however deep, and whether their parent or
    their root is stored; of a tree whose root is gone there is one row."""
    await stores.states.commit(records.one_run(1))
    await stores.states.commit(_in_tree(records.one_run(2), "c0001", "c0001"))
    await stores.states.commit(_in_tree(records.one_run(3), "c0002", "c0001"))
    await stores.states.commit(_in_tree(records.one_run(4), "c0001", None))
    await stores.states.commit(records.one_run(5))
    await stores.states.commit(_in_tree(records.one_run(6), "c-gone", "c-gone"))
    await stores.states.commit(_in_tree(records.one_run(7), "c-gone", "c-gone"))
    assert await _listed(stores) == ["c-gone", "c0005", "c0001"]
    (first,) = (await _store(stores).list_sessions(RunFilter(), PageRequest(limit=1))).sessions
    assert (first.conversations, len(first.runs)) == (2, 2)
    session = await _one(stores, "c0001")
    assert (session.conversations, session.run_count, session.calls, session.steps) == (4, 4, 8, 8)
    assert (session.input_tokens, session.cost_usd, session.tokens) == (800, 2.0, 960)
    assert [run.id for run in session.runs] == ["r0004", "r0003", "r0002", "r0001"]
    assert {run.session_id for run in session.runs} == {"c0001"}


async def pages_and_sorts_sessions(stores: Stores) -> None:
    """By start or by sums over their runs, each session on one page; a session matches a filter if
    one of its runs does, and stays whole."""
    for number in range(1, 6):
        await stores.states.commit(records.one_run(number))
    await stores.states.commit(_in_tree(records.one_run(6, agent="other"), "c0002", "c0002"))
    store = _store(stores)
    for sort, first in (("started_at", "c0005"), ("tokens", "c0002"), ("cost", "c0002")):
        names: list[str] = []
        cursor = None
        while cursor is not None or not names:
            page = PageRequest(limit=2, sort=sort, cursor=cursor)
            found = await store.list_sessions(RunFilter(), page)
            names += [session.id for session in found.sessions]
            cursor = found.next_cursor
        assert names[0] == first
        assert sorted(names) == [f"c000{number}" for number in range(1, 6)]
    for sort in ("updated_at", "duration", "steps", "peak"):
        assert len(await _listed(stores, sort=sort, descending=False)) == 5
    assert await _listed(stores, RunFilter(agent="other")) == ["c0002"]
    (session,) = (await store.list_sessions(RunFilter(agent="other"), PageRequest())).sessions
    assert [run.agent for run in session.runs] == ["other", "coder"]
    assert await _listed(stores, RunFilter(tenant="initech")) == []
    assert await store.session("c0002", tenant="initech") is None
    with raises(ValueError, "cursor"):
        await store.list_sessions(RunFilter(), PageRequest(cursor="?"))


async def a_filter_leaves_the_order_as_it_is(stores: Stores) -> None:
    """In every order the sessions that match are listed page by page, and counted, without those
    between them; one of several runs that match is one."""
    for number in range(1, 9):
        made = records.one_run(number, agent=("coder", "other")[number % 2])
        await stores.states.commit(made)
    for number in (9, 10):
        made = records.one_run(number, agent="other")
        await stores.states.commit(_in_tree(made, "c0005", "c0005"))
    store = _store(stores)
    wanted = RunFilter(agent="other")
    for sort in SORT_KEYS:
        for descending in (True, False):
            page = PageRequest(sort=sort, descending=descending)
            every = [each.id for each in (await store.list_sessions(RunFilter(), page)).sessions]
            names: list[str] = []
            cursor = None
            while cursor is not None or not names:
                page = PageRequest(limit=2, sort=sort, descending=descending, cursor=cursor)
                found = await store.list_sessions(wanted, page)
                names += [session.id for session in found.sessions]
                cursor = found.next_cursor
            assert names == [name for name in every if int(name[1:]) % 2], sort
        aside = await store.list_sessions(wanted, PageRequest(sort=sort), side=True)
        assert aside.sessions == (), sort
    assert await store.count_sessions(wanted) == 4
    assert await store.count_sessions(wanted, most=2) == 3
    assert await store.count_sessions(wanted, side=True) == 0


async def a_filter_names_its_sessions(stores: Stores) -> None:
    """The newest runs that match name their sessions, of which a page and a count can be read."""
    for number in range(1, 5):
        await stores.states.commit(records.one_run(number))
    await stores.states.commit(_in_tree(records.one_run(5, agent="other"), "c0002", "c0002"))
    store = _store(stores)
    nothing = await stores.runs.newest_runs(RunFilter(agent="nobody"))
    assert (nothing.sessions, nothing.every, nothing.spread.runs) == ((), True, 0)
    found = await stores.runs.newest_runs(RunFilter(agent="other"))
    assert (found.sessions, found.every, found.spread.runs) == (("c0002",), True, 1)
    assert found.oldest > (await _one(stores, "c0002")).runs[0].started_at
    wanted = ("c0001", "c0002")
    page = await store.list_sessions(RunFilter(), PageRequest(), among=wanted)
    assert [session.id for session in page.sessions] == ["c0002", "c0001"]
    assert await store.count_sessions(RunFilter(), among=wanted) == 2
    assert await store.count_sessions(RunFilter(), most=1) == 2


async def every_session_has_a_title(stores: Stores) -> None:
    """A person's first words; else the agent's task; else the first call, or what was said; else
    the client and its model. A text that a client wrote is no title."""
    note = "System: Potential loop detected. Details: x"
    await stores.states.commit(records.one_run(1, task_preview="Fix the test"))
    await stores.states.commit(records.one_run(2, task_preview=note))
    kept = {"agent_kind": "Explore", "task": "find the parser"}
    await stores.states.commit(_in_tree(records.one_run(3, task_preview=""), None, None, **kept))
    said = StepContent(reply_text="Hello there.")
    spoke = records.a_first_step(content=said)
    did = records.a_step(
        1, content=StepContent(reply_actions=(Action(name="grep", arguments="x"),))
    )
    await stores.states.commit(records.one_run(4, task_preview="", steps=(spoke, did)))
    await stores.states.commit(
        records.one_run(5, task_preview="", steps=(spoke, records.a_step(1, content=None)))
    )
    nothing = (records.a_first_step(content=None), records.a_step(1, content=None))
    await stores.states.commit(records.one_run(6, task_preview="", steps=nothing))
    titles = [(await _one(stores, f"c000{number}")).title for number in range(1, 7)]
    assert titles == [
        "Fix the test",
        "bash: ls",
        "find the parser",
        "grep: x",
        "Hello there.",
        "coder: 2 calls to large",
    ]


async def side_calls_are_no_sessions(stores: Stores) -> None:
    """Requests that a client makes for itself are in its session, or in a list of their own; a
    question that was answered is a session."""
    asked = (records.a_first_step(),)
    await stores.states.commit(records.one_run(1, steps=asked))
    await stores.states.commit(records.one_run(2, steps=asked, task_preview=""))
    await stores.states.commit(
        _in_tree(records.one_run(3, steps=asked), None, None, agent_kind=SIDE)
    )
    await stores.states.commit(
        _in_tree(records.one_run(4, steps=asked), "c0001", "c0001", agent_kind=SIDE)
    )
    assert await _listed(stores) == ["c0001"]
    store = _store(stores)
    aside = await store.list_sessions(RunFilter(), PageRequest(), side=True)
    assert [session.id for session in aside.sessions] == ["c0003", "c0002"]
    assert await store.count_sessions(RunFilter(), side=True) == 2


async def a_session_knows_its_members(stores: Stores) -> None:
    """Each conversation has its role, kind, task, depth and runs; any id in it finds the session,
    the client's own too."""
    await stores.states.commit(_in_tree(records.one_run(1), None, None, external_key="client-1"))
    kind = {"agent_kind": "Explore", "task": "find the parser", "signature": b"\x03"}
    await stores.states.commit(_in_tree(records.one_run(2), "c0001", "c0001", **kind))
    await stores.states.commit(_in_tree(records.one_run(3), "c0002", "c0001"))
    await stores.states.commit(_in_tree(records.one_run(4), "c0001", "c0001"))
    aside = (records.a_first_step(), records.a_step(-7, composite=None, scores={}))
    bare = {"signature": b"\x04", "has_tools": False}
    calls = _in_tree(records.one_run(5, steps=aside), "c0001", "c0001", **bare)
    await stores.states.commit(calls)
    store = _store(stores)
    for name in ("c0001", "c0003", "r0002", "client-1"):
        tree = await store.session(name, tenant=records.TENANT)
        assert tree is not None
        members = tree.members
        shown = [(m.id, m.role, m.depth, [run.id for run in m.runs]) for m in members]
        assert shown == [
            ("c0001", "main", 0, ["r0001"]),
            ("c0002", "sub_agent", 1, ["r0002"]),
            ("c0003", "sub_agent", 2, ["r0003"]),
            ("c0004", "fork", 1, ["r0004"]),
            ("c0005", "side_call", 1, ["r0005"]),
        ]
    assert (members[1].kind, members[1].task) == ("Explore", "find the parser")
    assert [member.side_calls for member in members] == [0, 0, 0, 0, 1]
    assert await store.session("c-unknown", tenant=None) is None


async def gives_the_calls_of_a_session(stores: Stores) -> None:
    """In order of time, of its runs and no others, with the texts that were sent and what the
    reader used; texts of a step only where a person acted."""
    act = Intervention(kind="interrupt", words="no", of_reply=True)
    steps = (
        records.a_first_step(content=records.some_content(human=(act,))),
        records.a_step(1, fired=("streak",), call=records.a_chat(error="timeout", status=504)),
    )
    given = (
        records.an_injection(1, "r0001", text="x" * 40),
        records.an_injection(1, "r0001", ordinal=1, applied=False),
    )
    first = replace(records.one_run(1, steps=steps), injections=given)
    await stores.states.commit(replace(first, runs=(replace(first.runs[0], id="r0001"),)))
    await stores.states.commit(_in_tree(records.one_run(2), "c0001", "c0001"))
    await stores.states.commit(records.one_run(3))
    for name, run_id in (("a", "r0002"), ("b", "r0003")):
        job = ReaderJob(
            kind=JOBS,
            key=name,
            tenant=records.TENANT,
            payload={"run": run_id, "question": "title", "step": 0},
            created_at=1.0,
            tokens=70,
            cost_usd=0.5,
        )
        await stores.learning.enqueue(job)
    found = await _store(stores).calls(await _one(stores, "c0001"))
    places = [(step.run_id, step.step_index, step.fired) for step in found.steps]
    assert places == [
        ("r0001", 0, ()),
        ("r0002", 0, ()),
        ("r0001", 1, ("streak",)),
        ("r0002", 1, ()),
    ]
    assert [step.began_at for step in found.steps[:2]] == [records.START - 1.5] * 2
    assert [step.content is not None for step in found.steps] == [True, False, False, False]
    assert [(text.step_index, len(text.text)) for text in found.texts] == [(1, 40)]
    assert (found.reader_tokens, found.reader_usd) == (70, 0.5)


SESSION_CHECKS: tuple[Check, ...] = (
    a_row_is_the_root_of_a_tree,
    pages_and_sorts_sessions,
    a_filter_leaves_the_order_as_it_is,
    a_filter_names_its_sessions,
    every_session_has_a_title,
    side_calls_are_no_sessions,
    a_session_knows_its_members,
    gives_the_calls_of_a_session,
)
