"""What is stored on disk, what is not, and for how long."""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import Callable
from pathlib import Path

import apsw
import httpx
import pytest

from steering_gateway_testing import AppServer, ReceivedRequest, Reply, ScriptedUpstream, ToolCall
from steering_gateway_testing.agents import (
    GUIDING,
    PLAIN,
    Agent,
    guidance_frames,
    opening,
    run_log,
    trace,
    worker,
)
from steering_gateway_testing.patience import ANSWER_S

Start = Callable[..., AppServer]

# One for each place where a conversation can have text.
SECRETS = {
    place: f"{word}-Quokka-7391"
    for place, word in {
        "system prompt": "Aardvark",
        "task": "Badger",
        "thought": "Caracal",
        "reasoning": "Dormouse",
        "arguments": "Echidna",
        "observation": "Fossa",
        "later user message": "Gerenuk",
        "final answer": "Hutia",
    }.items()
}


def indiscreet(request: ReceivedRequest) -> Reply:
    """A model in a loop that repeats the secrets in all its texts, with hedging words."""
    turn = sum(m.get("role") == "assistant" for m in request.messages)
    if turn == 7:
        return Reply(f"It is {SECRETS['final answer']}.")
    arguments = {"command": f"pytest {SECRETS['arguments']}"}
    call = ToolCall("bash", arguments, id=f"call_{turn}")
    thought = f"Maybe the error is in {SECRETS['thought']}, wait, perhaps it fails because of it."
    return Reply(thought, reasoning=f"{SECRETS['reasoning']}?", tool_calls=(call,))


async def spill(agent: Agent) -> str:
    """Make a run that contains all the secrets; the id of its conversation."""
    result = f"FAILED test_it - AssertionError: {SECRETS['observation']} is wrong"
    await agent.run(4, result)
    agent.messages.append({"role": "user", "content": SECRETS["later user message"]})
    answers = await agent.run(4, result)
    return answers[-1].conversation


def files(directory: Path) -> bytes:
    """Everything on disk, the write-ahead log included."""
    return b"".join(path.read_bytes() for path in sorted(directory.iterdir()))


@pytest.mark.parametrize("suite", ["reference", "robust"])
@pytest.mark.parametrize("kept", [True, False])
async def test_content_is_not_stored_when_configured_so(
    gateway_server: Start,
    upstream: ScriptedUpstream,
    http: httpx.AsyncClient,
    tmp_path: Path,
    kept: bool,
    suite: str,
) -> None:
    """With `store_content: false` no text of a conversation is in the file or its log."""
    upstream.default = indiscreet
    directory = tmp_path / "data"
    directory.mkdir()
    storage = {"path": str(directory / "runs.db"), "store_content": kept}
    settings = {**GUIDING, "monitors": {"suite": suite}, "storage": storage}
    server = gateway_server(settings)
    messages = opening(SECRETS["task"])
    messages[0]["content"] = f"You are {SECRETS['system prompt']}."
    agent = Agent(http, server.base_url, messages)
    conversation = await spill(agent)
    assert guidance_frames(upstream.last.json), "guidance quotes the conversation"
    during = files(directory)
    await asyncio.to_thread(server.stop)
    after = files(directory)
    for place, secret in SECRETS.items():
        found = [secret.encode() in content for content in (during, after)]
        assert found == [kept, kept], place
    async with run_log(directory / "runs.db") as log:
        found_run = await log.get_run(f"{conversation}.0", tenant=None)
    assert found_run is not None
    assert [step.step_index for step in found_run.steps] == list(range(8))
    assert found_run.steps[-1].scores.keys() >= {"streak", "hedge"}


async def test_a_run_continues_without_its_content(
    gateway_server: Start, upstream: ScriptedUpstream, http: httpx.AsyncClient, tmp_path: Path
) -> None:
    """What a restarted gateway needs is stored: step, state, model, and the guidance given."""
    upstream.default = indiscreet
    storage = {"path": str(tmp_path / "runs.db"), "store_content": False}
    first = gateway_server({**GUIDING, "storage": storage})
    agent = Agent(http, first.base_url)
    before = (await agent.run(4))[-1]
    given = [frame.strip() for frame in guidance_frames(upstream.last.json)]
    await asyncio.to_thread(first.stop)
    agent.url = gateway_server({**GUIDING, "storage": storage}).base_url
    after = await agent.turn()
    again = [frame.strip() for frame in guidance_frames(upstream.last.json)]
    assert (after.conversation, after.gateway("step")) == (before.conversation, "4")
    assert again[: len(given)] == given != []


async def test_old_runs_are_removed(
    gateway_server: Start, upstream: ScriptedUpstream, http: httpx.AsyncClient, tmp_path: Path
) -> None:
    """Runs older than `retention_days` go, with everything by which they could be found."""
    upstream.default = worker(9)
    path = tmp_path / "runs.db"
    storage = {"path": str(path), "retention_days": 1.0, "retention_interval_s": 0.1}
    first = gateway_server({**PLAIN, "storage": storage})
    old, new = Agent(http, first.base_url, opening("Old.")), Agent(http, first.base_url)
    gone = (await old.run(3))[-1].conversation
    kept = (await new.run(3))[-1].conversation
    await asyncio.to_thread(first.stop)
    with apsw.Connection(str(path)) as connection:
        connection.set_busy_timeout(120_000)
        for table, begun in (("runs", "started_at"), ("conversations", "created_at")):
            two_days_ago = f"{begun} = {begun} - 172800, updated_at = updated_at - 172800"
            connection.execute(f"UPDATE {table} SET {two_days_ago} WHERE id LIKE ? || '%'", (gone,))

    server = gateway_server({**PLAIN, "storage": storage})
    old.url = new.url = server.base_url

    async def left() -> list[str]:
        async with run_log(path) as log:
            return [c.id for c in (await log.list_conversations(tenant=None)).conversations]

    async with asyncio.timeout(ANSWER_S):
        while await left() != [kept]:  # noqa: ASYNC110 - nothing tells
            await asyncio.sleep(0.05)
    assert (await trace(path, kept)).run.totals.calls == 3
    assert (await new.turn()).gateway("step") == "3"
    # The history of the removed run is new to the gateway; it is recorded again.
    assert (await old.turn()).gateway("step") == "3"


async def test_nothing_is_written_in_memory(
    gateway_server: Start,
    upstream: ScriptedUpstream,
    http: httpx.AsyncClient,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """`storage.path: ":memory:"` steers and records like a file, and leaves no file."""
    upstream.default = worker(5)
    monkeypatch.chdir(tmp_path)
    server = gateway_server({**GUIDING, "storage": {"path": ":memory:"}})
    agent = Agent(http, server.base_url)
    answers = await agent.run(6)
    assert [answer.gateway("step") for answer in answers] == list("012345")
    assert [bool(answer.gateway("guidance")) for answer in answers][0::3] == [True, True]
    assert (await http.get(f"{server.url}/readyz")).status_code == 200
    run = (await http.get(f"{server.url}/api/runs/{answers[0].conversation}.0")).json()
    assert [step["step_index"] for step in run["steps"]] == list(range(6))
    patterns = (await http.get(f"{server.url}/api/patterns")).json()
    assert patterns
    assert os.listdir(tmp_path) == []


async def test_a_store_in_memory_respects_store_content(
    gateway_server: Start, upstream: ScriptedUpstream, http: httpx.AsyncClient
) -> None:
    """Without content a store in memory has lengths and digests only, too."""
    upstream.default = indiscreet
    storage = {"path": ":memory:", "store_content": False}
    server = gateway_server({**GUIDING, "storage": storage})
    conversation = await spill(Agent(http, server.base_url, opening(SECRETS["task"])))
    answer = await http.get(f"{server.url}/api/runs/{conversation}.0")
    assert answer.status_code == 200
    assert [place for place, secret in SECRETS.items() if secret in answer.text] == []
    assert "omitted" in answer.text


async def test_without_the_vector_extension_a_gateway_without_patterns_serves(
    gateway_server: Start,
    upstream: ScriptedUpstream,
    http: httpx.AsyncClient,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """As the error message about the missing extension says."""
    monkeypatch.setitem(sys.modules, "sqlite_vec", None)
    upstream.default = worker(3)
    server = gateway_server({"etraces": {"enabled": False}})
    answer = await Agent(http, server.base_url).turn()
    assert answer.gateway("step") == "0"
