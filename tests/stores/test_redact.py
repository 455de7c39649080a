"""`store_content: false` keeps numbers, names, lengths and digests, and no text."""

from __future__ import annotations

import asyncio
import threading
from pathlib import Path
from typing import Any

import pytest
from msgspec import Struct

from gateway.backends import Stores
from gateway.config.storage import StorageSettings
from gateway.stores.filters import RunFilter
from gateway.stores.records import CallRecord, PromptMessage
from gateway.stores.redact import encodable, omit
from gateway.stores.sql.runs import RunStore
from gateway.stores.sql.states import SQLStateStore
from gateway.stores.sqlite.database import Database
from gateway.stores.sqlite.engine import SQLiteEngine
from gateway.tasks import off_loop, spawn
from steering_gateway_testing.store_conformance import records

SECRET = "hunter2"


def _secretive() -> Any:
    step = records.a_step(
        1,
        evidence={"streak": f"{SECRET} x4"},
        content=records.some_content(
            messages=(PromptMessage(role="user", text=SECRET),),
            thought=SECRET,
            reasoning=SECRET,
            reply_text=SECRET * 2,
        ),
    )
    return records.a_call(
        runs=(records.a_run(task_preview=f"Say {SECRET}"),),
        steps=(records.a_first_step(), step),
        injections=(records.an_injection(text=f"Not {SECRET}"),),
    )


async def test_no_text_is_kept(stores_without_content: Stores) -> None:
    """The trace has every number and name, and each text as its length and digest."""
    stores = stores_without_content
    await stores.states.commit(_secretive())
    trace = await stores.runs.get_run("r1", tenant=records.TENANT)
    assert trace is not None
    assert SECRET not in repr(trace)
    step = trace.steps[1]
    assert step.call == records.a_chat("q1")
    assert step.content is not None
    assert step.content.thought == omit(SECRET)
    assert step.content.messages == (PromptMessage(role="user", text=omit(SECRET)),)
    assert "7 characters" in step.content.thought
    assert [action.name for action in step.content.actions] == ["bash"]
    assert step.content.actions[0].observation == omit("a b")
    assert await stores.runs.count_runs(RunFilter(task=SECRET)) == 0
    assert await stores.runs.count_runs(RunFilter(search=SECRET)) == 0


async def test_no_text_reaches_the_disk(tmp_path: Path) -> None:
    """The files of a database without content do not contain it."""
    path = str(tmp_path / "gateway.db")
    database = await Database.open(StorageSettings(path=path, store_content=False))
    await SQLStateStore(SQLiteEngine(database)).commit(_secretive())
    written = _all_bytes(tmp_path)
    assert b"streak" in written
    assert SECRET.encode() not in written
    await database.close()


def _all_bytes(directory: Path) -> bytes:
    return b"".join(file.read_bytes() for file in directory.iterdir())


@pytest.mark.parametrize("text", ["a", "\ud800", "é" * 1000, "\x00"])
def test_omitted_texts_can_be_compared(text: str) -> None:
    """Equal texts give equal digests, others do not, and an empty text stays empty."""
    assert omit(text) == omit(text)
    assert omit(text) != omit(text + " ")
    assert omit("") == ""


def test_encodable_changes_only_what_cannot_be_encoded() -> None:
    """A record that every database can encode is unchanged; others are made encodable."""
    call = records.a_call(steps=(records.a_step(1),), injections=(records.an_injection(),))
    assert encodable(call) == call
    cleaned = encodable(
        records.a_call(runs=(records.a_run(task_preview="a\ud83d\ude00b\udfff", sequence=2**70),))
    )
    assert (cleaned.runs[0].task_preview, cleaned.runs[0].sequence) == ("a😀b\ufffd", 2**63 - 1)
    for text in _texts(cleaned):
        text.encode()


def _texts(value: Any) -> list[str]:
    if isinstance(value, str):
        return [value]
    if isinstance(value, tuple):
        return [text for item in value for text in _texts(item)]
    if isinstance(value, Struct):
        return [t for name in value.__struct_fields__ for t in _texts(getattr(value, name))]
    return []


async def test_a_large_record_holds_no_small_one_up(tmp_path: Path) -> None:
    """While secrets are looked for in a megabyte of text, other records are written; then the large
    one is, without its secrets."""
    database = await Database.open(StorageSettings(path=str(tmp_path / "gateway.db")))
    engine = SQLiteEngine(database)
    masked = engine._redact
    going_on = threading.Event()

    def held(call: CallRecord) -> CallRecord:
        if call.conversation.id == "c0001":
            assert going_on.wait(timeout=60)
        return masked(call)

    engine._redact = held
    text = f"export API_TOKEN=ghp_{'a1B2' * 9} " + "word " * 200_000
    messages = (PromptMessage(role="user", text=text),)
    step = records.a_step(1, "r0001", content=records.some_content(messages=messages))
    try:
        large = spawn(engine.commit(records.one_run(1, steps=(step,))))
        async with asyncio.timeout(60):
            assert await engine.commit(records.one_run(2)) == 1
            assert not large.done()
            going_on.set()
            assert await large == 1
        trace = await RunStore(engine).get_run("r0001", tenant=records.TENANT)
        assert trace is not None
        assert trace.steps[0].content is not None
        stored = trace.steps[0].content.messages[0].text
    finally:
        going_on.set()
        await database.close()
    assert "[masked:github]" in stored
    assert "ghp_" not in stored


async def test_large_records_are_written_one_after_the_other(stores: Stores) -> None:
    """Secrets are looked for in the next one when the one before is stored, so that what is small
    waits for one of them at most."""
    engine: Any = stores.states._engine  # type: ignore[attr-defined]
    events = []
    masked = engine._redact

    def noted(call: CallRecord) -> CallRecord:
        events.append("masked")
        return masked(call)

    engine._redact = noted
    name = "write" if isinstance(engine, SQLiteEngine) else "commit"
    write = getattr(engine.database, name)

    async def written(what: Any) -> Any:
        for _ in range(10):  # what waits for a thread has had one then
            await off_loop(int)
        stored = await write(what)
        if stored is not None:  # it is large: SQLite's thread says so
            events.append("written")
        return stored

    setattr(engine.database, name, written)
    messages = (PromptMessage(role="user", text="word " * 300_000),)
    calls = [
        records.one_run(
            n, steps=(records.a_step(n, content=records.some_content(messages=messages)),)
        )
        for n in (1, 2, 3)
    ]
    async with asyncio.timeout(60):
        assert await asyncio.gather(*map(engine.commit, calls)) == [1, 1, 1]
    assert events == ["masked", "written"] * 3
