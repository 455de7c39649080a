"""A session read from disk has the readings of the same session played through the gateway."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx
import orjson
import pytest

from gateway.backends import Stores, open_stores
from gateway.config import Settings
from gateway.core.decision_settings import Policy
from gateway.features.history.find import identify
from gateway.features.history.import_as_runs import Keeper
from gateway.features.history.log_file import LogFile
from gateway.features.history.reading import outcomes_of
from gateway.features.history.session import Session
from gateway.steering.transcript.interventions import Intervention
from gateway.stores.filters import RunFilter
from gateway.wire.message_identity import content_text
from steering_gateway_testing import AppServer, ReceivedRequest, Reply, ScriptedUpstream, ToolCall
from steering_gateway_testing.claude_code_sessions import REJECTED, Log
from tests.stores.conftest import stores as stores

WHICH = "x-test-reply"
SUMMARY = "summary of what comes before "
TOOLS = [{"name": "Bash", "description": "Runs a command", "input_schema": {"type": "object"}}]
_SUMMARISE = "Your task is to create a detailed summary of the conversation so far."
Reading = tuple[int, int, float, str, tuple[str, ...]]
"""Run, step, difficulty, state and fired monitors, of one scored step."""


def replies(session: Session) -> Any:
    """A provider that gives the session's own answers."""

    def reply(request: ReceivedRequest) -> Reply:
        which = request.header(WHICH)
        if which is None:
            return Reply("A title.")
        if which.startswith(SUMMARY):
            at = int(which.removeprefix(SUMMARY))
            return Reply(content_text(session.messages[at]["content"]))
        blocks = session.messages[int(which)]["content"]
        text = "".join(b["text"] for b in blocks if b.get("type") == "text")
        calls = tuple(
            ToolCall(b["name"], b["input"], id=b["id"])
            for b in blocks
            if b.get("type") == "tool_use"
        )
        return Reply(text or None, tool_calls=calls)

    return reply


async def play(server: AppServer, session: Session) -> None:
    """Send the session's requests as its client did, with the request that asks for a summary
    before each compaction."""
    start = 0
    compactions = list(session.compactions)
    async with httpx.AsyncClient(timeout=120) as client:

        async def post(messages: list[dict[str, Any]], which: str) -> None:
            sent = [{"role": m["role"], "content": m["content"]} for m in messages]
            body = {
                "model": "claude",
                "max_tokens": 1000,
                "system": "You are a coding agent.",
                "tools": TOOLS,
                "messages": sent,
            }
            answer = await client.post(
                f"{server.url}/v1/messages",
                content=orjson.dumps(body),
                headers={
                    WHICH: which,
                    "content-type": "application/json",
                    "x-claude-code-session-id": session.id,
                },
            )
            assert answer.status_code == 200, answer.text

        for call in session.calls:
            if compactions and compactions[0] < call.position:
                at = compactions.pop(0)
                asks = {"role": "user", "content": [{"type": "text", "text": _SUMMARISE}]}
                await post([*session.messages[start:at], asks], f"{SUMMARY}{at}")
                start = at
            await post(session.messages[start : call.position], str(call.position))


async def acts_stored(server: AppServer, mode: str) -> list[tuple[int, int, Intervention]]:
    """What the person did: run, step and act of all runs of a mode, in order."""
    stores = await open_stores(server.app.runtime.settings.storage)
    try:
        return [
            (trace.run.sequence, step.step_index, act)
            async for trace in stores.runs.export_runs(RunFilter(mode=mode))
            for step in trace.steps
            for act in (step.content.human if step.content else ())
        ]
    finally:
        await stores.close()


async def stored(server: AppServer) -> list[Reading]:
    """The readings of all scored steps in the gateway's store, in order."""
    stores = await open_stores(server.app.runtime.settings.storage)
    try:
        found: list[Reading] = []
        async for trace in stores.runs.export_runs(RunFilter()):
            for step in trace.steps:
                if step.difficulty is not None:
                    about = step.step_index, step.difficulty, step.state
                    found.append((trace.run.sequence, *about, tuple(step.fired)))
    finally:
        await stores.close()
    return sorted(found)


LOGS = Path(__file__).parent / "logs/claude_code/cut"
DEVELOPMENT_LOGS = Path(__file__).parents[4] / "shared/data/session-logs/claude-code"


def sessions_in(path: Path) -> list[Session]:
    """The sessions of one file that are no sub-agents."""
    found = list(identify(path).sessions(LogFile(path)))
    return [session for session in found if not session.parent]


def read_from_disk(session: Session) -> list[Reading]:
    """The readings of the session's scored steps."""
    outcomes, _ = outcomes_of(session, Policy())
    return [
        (o.run, o.index, o.difficulty, o.state.value, tuple(o.readings.fired)) for o in outcomes
    ]


async def compare(
    path: Path, gateway_server: Callable[..., AppServer], upstream: ScriptedUpstream
) -> int:
    """Compare all steps of a log that a request of its session completed; their number."""
    (session,) = sessions_in(path)
    upstream.default = replies(session)
    server = await asyncio.to_thread(gateway_server, {"steering": {"mode": "shadow"}})
    await play(server, session)
    live = await stored(server)
    disk = read_from_disk(session)
    # What follows the last answer was never sent.
    last = {(run, index) for run, index, *_ in live}
    assert [each for each in disk if each[:2] in last] == live
    return len(live)


async def compare_acts(
    session: Session, gateway_server: Callable[..., AppServer], upstream: ScriptedUpstream
) -> list[tuple[str, str]]:
    """Compare what the person did, as kept from a log and read live; its kinds and words in the
    log. What follows the last answer was never sent."""
    last = session.calls[-1].position
    session.human = [turn for turn in session.human if turn.position <= last]
    upstream.default = replies(session)
    server = await asyncio.to_thread(gateway_server, {"steering": {"mode": "shadow"}})
    await play(server, session)
    settings = server.app.runtime.settings
    stores = await open_stores(settings.storage)
    try:
        await Keeper(stores, settings, tenant="log").keep(session)
    finally:
        await stores.close()
    kept = await acts_stored(server, "imported")
    assert sorted(kept, key=repr) == sorted(await acts_stored(server, "shadow"), key=repr)
    return [(act.kind, act.words) for _, _, act in kept]


STOPPED = "[Request interrupted by user for tool use]"
PLAN = "Implement the following plan:\n\n# Plan: one row"


@pytest.mark.parametrize(
    ("lines", "acts"),
    [
        ([f"{REJECTED}The user said:\nask me first", STOPPED, "Go."], [("reject", "ask me first")]),
        ([REJECTED, STOPPED, "Use the script."], [("reject", "Use the script.")]),
        ([REJECTED, "Use the script."], [("reject", "Use the script.")]),
        ([REJECTED, STOPPED, PLAN], []),
        (["ok", STOPPED, "no", "not so"], [("interrupt", "no\nnot so")]),
        (["ok", STOPPED, "no", STOPPED, "not so"], [("interrupt", "no"), ("interrupt", "not so")]),
        ([REJECTED, STOPPED, "no", STOPPED, "stop"], [("interrupt", "stop"), ("reject", "no")]),
        (["ok", STOPPED, STOPPED, "no"], [("interrupt", "no")]),
        ([STOPPED, STOPPED, "no"], [("interrupt", "no")]),
        (["ok", "go on"], []),
    ],
)
async def test_what_a_person_did_agrees_with_live(
    lines: list[str],
    acts: list[tuple[str, str]],
    tmp_path: Path,
    gateway_server: Callable[..., AppServer],
    upstream: ScriptedUpstream,
) -> None:
    """The same acts at the same steps, whether the session is played or its log is kept, and as
    many as the first screen counts. What a client writes of the stop after a rejected call is the
    rejection; a plan that was accepted for a fresh start is none."""
    log = Log(1).user("Build the report.").bash("ls", "a file")
    log.answer("", ("Bash", {"command": "make"})).result(lines[0])
    for line in lines[1:]:
        log.user(line)
    log.bash("ls", "ok").answer("Done. The report is built.").user("Great, thanks.").answer("So.")
    (session,) = sessions_in(log.write(tmp_path))
    found = await compare_acts(session, gateway_server, upstream)
    assert sorted(found) == acts
    shown = [turn.kind for turn in session.human if turn.kind != "message"]
    assert sorted(shown) == [kind for kind, _ in acts]


@pytest.mark.parametrize("after", [[REJECTED], [REJECTED, STOPPED], ["ok", STOPPED, "no"]])
async def test_what_a_person_did_at_the_end_is_kept_once(
    after: list[str], tmp_path: Path, stores: Stores
) -> None:
    """It stands on the last answer, which no later request tells of; kept again when the session
    has gone on, it is there as often."""
    log = Log(1).user("Build the report.").answer("", ("Bash", {"command": "ls"}))
    log.result(after[0])
    for line in after[1:]:
        log.user(line)
    for _ in range(2):
        (session,) = sessions_in(log.write(tmp_path))
        await Keeper(stores, Settings()).keep(session)
        acts = [
            act
            async for trace in stores.runs.export_runs(RunFilter())
            for step in trace.steps
            for act in (step.content.human if step.content else ())
        ]
        assert [(act.kind, act.of_reply) for act in acts] == [
            (turn.kind, True) for turn in session.human if turn.kind != "message"
        ]
        log.user("Go on.").answer("Done.")


@pytest.mark.nightly
@pytest.mark.parametrize("path", sorted(DEVELOPMENT_LOGS.glob("*.gz")), ids=lambda p: p.name[:8])
async def test_acts_in_every_development_log_agree_with_live(
    path: Path, gateway_server: Callable[..., AppServer], upstream: ScriptedUpstream
) -> None:
    """What people did in real sessions."""
    (session,) = sessions_in(path)
    await compare_acts(session, gateway_server, upstream)


@pytest.mark.parametrize("path", sorted(LOGS.glob("*.jsonl")), ids=lambda p: p.name[:8])
async def test_a_cut_of_a_log_agrees_with_live(
    path: Path, gateway_server: Callable[..., AppServer], upstream: ScriptedUpstream
) -> None:
    """The same of the parts of four of them that are kept with the tests; one has a compaction."""
    assert await compare(path, gateway_server, upstream) > 3


@pytest.mark.nightly
@pytest.mark.parametrize("path", sorted(DEVELOPMENT_LOGS.glob("*.gz")), ids=lambda p: p.name[:8])
async def test_every_development_log_agrees_with_live(
    path: Path, gateway_server: Callable[..., AppServer], upstream: ScriptedUpstream
) -> None:
    """Difficulty, state and monitors of every step are those that the gateway stored."""
    assert await compare(path, gateway_server, upstream) > 10
