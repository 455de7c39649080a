"""A session read from disk has the readings of the same session played through the gateway."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from gateway.backends import open_stores
from gateway.core.policy import Policy
from gateway.features.history.find import identify
from gateway.features.history.keep import Keeper
from gateway.features.history.log_file import LogFile
from gateway.features.history.reading import outcomes_of
from gateway.features.history.session import ModelCall, Session
from steering_gateway_testing import AppServer, ScriptedUpstream
from tests.features.history.live_readings import Reading, acts_stored, play, replies, stored

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
) -> list[str]:
    """Compare what the person did, as kept from a log and read live; its kinds in the log."""
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
    return [act.kind for _, _, act in kept]


async def test_what_a_person_did_agrees_with_live(
    gateway_server: Callable[..., AppServer], upstream: ScriptedUpstream
) -> None:
    """The same acts at the same steps, whether the session is played or its log is kept."""
    session = Session(id="5f1c0b0e-7d0c-4c55-9a58-2f6a4a4f0b11", agent="claude-code")

    def said(role: str, *blocks: dict[str, Any]) -> None:
        if role == "assistant":
            session.calls.append(ModelCall(position=len(session.messages), model="claude"))
        session.messages.append({"role": role, "content": list(blocks)})

    def text(words: str) -> dict[str, Any]:
        return {"type": "text", "text": words}

    def use(id: str) -> dict[str, Any]:
        return {"type": "tool_use", "id": id, "name": "Bash", "input": {"command": "make"}}

    def result(id: str, words: str) -> dict[str, Any]:
        return {"type": "tool_result", "tool_use_id": id, "content": words}

    refused = "The user doesn't want to proceed with this tool use. The user said:\nask me first"
    stopped = "[Request interrupted by user for tool use]"
    said("user", text("Build the report."))
    said("assistant", use("toolu_1"))
    said("user", result("toolu_1", refused), text(stopped), text("Use the script."))
    said("assistant", use("toolu_2"))
    said("user", result("toolu_2", "ok"))
    said("assistant", text("Done. The report is built."))
    said("user", text("No, that's wrong. You broke the tests again, revert that."))
    said("assistant", use("toolu_3"))
    said("user", result("toolu_3", "ok"))
    said("assistant", text("Reverted."))
    said("user", text("Great, thanks. Now write the manual."))
    said("assistant", text("Written."))
    found = await compare_acts(session, gateway_server, upstream)
    assert sorted(found) == ["interrupt", "reject"]


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
