"""What a person does in a run is kept as a fact of it, from live requests of each dialect."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx
import pytest

from gateway.steering.transcript.interventions import Intervention
from gateway.stores.filters import RunFilter
from gateway.stores.lists import PageRequest
from gateway.stores.traces import RunTrace
from steering_gateway_testing import AppServer, Reply, ScriptedUpstream, ToolCall
from steering_gateway_testing.agents import PLAIN, run_log
from steering_gateway_testing.control_plane import CONTROL

TASK = "Rename the helper in report.py."
DONE = "Done. I renamed the helper to total and updated its callers."
WRONG = "No, that's wrong. You broke the tests again, revert that."
SECRET = "sk-ant-api03-" + "Ab3dE6gH9j" * 9
REJECTED = (
    "The user doesn't want to proceed with this tool use. The tool use was rejected (eg. if it was "
    "a file edit, the new_string was NOT written to the file). To tell you how to proceed, the "
    f"user said:\nnever delete it, and use {SECRET} " + "really " * 100
)
Item = tuple[str, ...]


def chat(items: list[Item]) -> dict[str, Any]:
    def message(item: Item) -> dict[str, Any]:
        match item:
            case ("user", text):
                return {"role": "user", "content": text}
            case ("said", text):
                return {"role": "assistant", "content": text}
            case ("call", id, name, arguments):
                function = {"name": name, "arguments": arguments}
                calls = [{"id": id, "type": "function", "function": function}]
                return {"role": "assistant", "content": None, "tool_calls": calls}
            case (_, id, text):
                return {"role": "tool", "tool_call_id": id, "content": text}
        raise AssertionError(item)

    tool = {"type": "function", "function": {"name": "Edit", "parameters": {"type": "object"}}}
    return {"messages": list(map(message, items)), "tools": [tool]}


def messages(items: list[Item]) -> dict[str, Any]:
    def message(item: Item) -> dict[str, Any]:
        match item:
            case ("user", text):
                return {"role": "user", "content": [{"type": "text", "text": text}]}
            case ("said", text):
                return {"role": "assistant", "content": [{"type": "text", "text": text}]}
            case ("call", id, name, arguments):
                use = {"type": "tool_use", "id": id, "name": name, "input": json.loads(arguments)}
                return {"role": "assistant", "content": [use]}
            case (_, id, text):
                result = {"type": "tool_result", "tool_use_id": id, "content": text}
                return {"role": "user", "content": [result]}
        raise AssertionError(item)

    tools = [{"name": "Edit", "input_schema": {"type": "object"}}]
    return {"messages": list(map(message, items)), "tools": tools, "max_tokens": 100}


def responses(items: list[Item]) -> dict[str, Any]:
    def message(item: Item) -> dict[str, Any]:
        match item:
            case ("user", text):
                part = {"type": "input_text", "text": text}
                return {"type": "message", "role": "user", "content": [part]}
            case ("said", text):
                part = {"type": "output_text", "text": text}
                return {"type": "message", "role": "assistant", "content": [part]}
            case ("call", id, name, arguments):
                call = {"type": "function_call", "call_id": id, "name": name}
                return call | {"arguments": arguments}
            case (_, id, text):
                return {"type": "function_call_output", "call_id": id, "output": text}
        raise AssertionError(item)

    tool = {"type": "function", "name": "Edit", "parameters": {"type": "object"}}
    return {"input": list(map(message, items)), "tools": [tool]}


DIALECTS = {"chat/completions": chat, "messages": messages, "responses": responses}
Send = Callable[..., Any]


class Person:
    """A person and a client of one dialect, that keeps the history."""

    def __init__(self, client: httpx.AsyncClient, server: AppServer, path: str) -> None:
        self.client, self.server, self.path = client, server, path
        self.history: list[Item] = []
        self.headers: dict[str, str] = {}

    def body(self) -> dict[str, Any]:
        return {"model": "scripted", **DIALECTS[self.path](self.history)}

    async def send(self, *items: Item) -> None:
        self.history += items
        url = f"{self.server.base_url}/{self.path}"
        answer = await self.client.post(url, json=self.body(), headers=self.headers)
        assert answer.status_code == 200, answer.text

    async def break_off(self, *items: Item) -> None:
        """Ask for a stream, and leave as soon as it begins."""
        self.history += items
        body = self.body() | {"stream": True}
        url = f"{self.server.base_url}/{self.path}"
        async with self.client.stream("POST", url, json=body) as answer:
            async for _ in answer.aiter_bytes():
                break


@pytest.fixture
def database(tmp_path: Path) -> Path:
    return tmp_path / "runs.db"


@pytest.fixture
def gateway(gateway_server: Callable[..., AppServer], database: Path) -> AppServer:
    settings = {"storage": {"path": str(database)}, "learning": {"interval_s": 3600}}
    return gateway_server({**PLAIN, **settings})


@pytest.fixture(params=list(DIALECTS))
def person(request: pytest.FixtureRequest, http: httpx.AsyncClient, gateway: AppServer) -> Person:
    return Person(http, gateway, request.param)


async def runs_in(database: Path) -> list[RunTrace]:
    async with run_log(database) as log:
        found = (await log.list_runs(RunFilter(), PageRequest())).runs
        traces = [await log.get_run(run.id, tenant=None) for run in found]
    return sorted(filter(None, traces), key=lambda t: (t.run.started_at, t.run.sequence))


def acts(trace: RunTrace) -> list[tuple[int, Intervention]]:
    return [(s.step_index, act) for s in trace.steps if s.content for act in s.content.human]


def call(id: str, name: str, **arguments: str) -> tuple[Item, Reply]:
    made = ("call", id, name, json.dumps(arguments))
    return made, Reply(tool_calls=(ToolCall(name, arguments, id=id),))


async def test_words_alone_are_no_intervention(
    person: Person, upstream: ScriptedUpstream, database: Path
) -> None:
    """A message that corrects the answer is read by nobody here: it is no fact of the run."""
    upstream.script(Reply(DONE), Reply("Sorry, I reverted it."))
    await person.send(("user", TASK))
    await person.send(("said", DONE), ("user", WRONG))
    assert [trace.run.totals.human for trace in await runs_in(database)] == [{}, {}]


@pytest.mark.parametrize("text", ["Great, thanks. Now write the manual.", "go ahead", "continue"])
async def test_going_on_is_no_intervention(
    person: Person, upstream: ScriptedUpstream, database: Path, text: str
) -> None:
    """A next task, an approval, a result and a reminder of the client are no interventions; only a
    next task begins another run."""
    made, reply = call("call_a1b2c3", "Edit", file_path="/a.py")
    upstream.script(reply, Reply(DONE), Reply("Written."))
    await person.send(("user", TASK))
    await person.send(made, ("result", "call_a1b2c3", "1 test failed, that is wrong"))
    reminder = "<system-reminder>No, that is wrong, revert it.</system-reminder>"
    await person.send(("said", DONE), ("user", reminder), ("user", text))
    begun = 2 if "manual" in text else 1
    assert [trace.run.totals.human for trace in await runs_in(database)] == [{}] * begun


async def test_a_summary_is_no_message_of_the_person(
    person: Person, upstream: ScriptedUpstream, database: Path
) -> None:
    """A client that makes its history shorter puts what was said into a user message."""
    made, reply = call("call_a1b2c3", "Edit", file_path="/a.py")
    upstream.script(reply, Reply(DONE), Reply("I go on."))
    person.headers = {"x-session-id": "a-session-of-this-test"}
    await person.send(("user", TASK))
    await person.send(made, ("result", "call_a1b2c3", "The file was saved."))
    person.history.clear()
    await person.send(("user", f"{WRONG}\n{DONE}"))
    found = await runs_in(database)
    assert {trace.run.conversation_id for trace in found} == {found[0].run.conversation_id}
    assert [trace.run.totals.human for trace in found] == [{}] * len(found)


async def test_a_call_is_rejected(
    person: Person, upstream: ScriptedUpstream, database: Path
) -> None:
    """With the person's words, masked and then cut; also on the page, in the API and exports."""
    made, reply = call("call_a1b2c3", "Edit", file_path="/a.py")
    upstream.script(reply, Reply("What should I do instead?"))
    await person.send(("user", TASK))
    await person.send(made, ("result", "call_a1b2c3", REJECTED))
    (trace,) = await runs_in(database)
    ((step, act),) = acts(trace)
    assert (step, act.kind, act.of_reply, len(act.words)) == (1, "reject", False, 400)
    assert act.words.startswith("never delete it, and use [")
    assert SECRET[:20] not in act.words
    assert trace.run.totals.human == {"reject": 1}
    client, url = person.client, person.server.url
    page = (await client.get(f"{url}/dashboard/runs/{trace.run.id}")).text
    assert page.count("call rejected") == 2  # in a line at the top, and at the step
    assert "never delete it" in page
    for kind, count in (("reject", 1), ("undo", 0)):
        found = await client.get(f"{url}/api/runs?intervention={kind}", headers=CONTROL)
        assert len(found.json()["runs"]) == count
        listed = (await client.get(f"{url}/dashboard/runs?intervention={kind}")).text
        assert (trace.run.id in listed) is bool(count)
    shown = (await client.get(f"{url}/api/runs/{trace.run.id}", headers=CONTROL)).json()
    assert shown["run"]["totals"]["human"] == {"reject": 1}
    assert shown["steps"][1]["content"]["human"][0]["kind"] == "reject"
    export = await client.get(f"{url}/api/export?format=jsonl", headers=CONTROL)
    assert json.loads(export.text)["steps"][1]["content"]["human"][0]["words"] == act.words
    table = await client.get(f"{url}/api/export?format=csv", headers=CONTROL)
    assert ",interventions," in table.text.splitlines()[0]


async def test_the_work_is_interrupted(
    person: Person, upstream: ScriptedUpstream, database: Path
) -> None:
    """By the client's words in a message, within a run and after a final answer."""
    made, reply = call("call_a1b2c3", "Edit", file_path="/a.py")
    upstream.script(reply, Reply(DONE), Reply("All right."))
    await person.send(("user", TASK))
    stopped = ("user", "[Request interrupted by user for tool use]")
    await person.send(made, ("result", "call_a1b2c3", "ok"), stopped, ("user", "Use Ruby."))
    aborted = ("user", "<turn_aborted>The user interrupted the turn.</turn_aborted>")
    await person.send(("said", DONE), aborted, ("user", "Write the manual."))
    first, second = await runs_in(database)
    kinds = [(step, act.kind, act.words, act.of_reply) for step, act in acts(first)]
    assert kinds[0] == (1, "interrupt", "Use Ruby.", False)
    assert (1, "interrupt", "Write the manual.", True) in kinds
    assert first.run.totals.human["interrupt"] == 2
    assert acts(second) == []


async def test_a_stream_is_cut_by_the_client(
    person: Person, upstream: ScriptedUpstream, database: Path
) -> None:
    """Only if the next request brings a new message: a client may also send the same again."""
    slow = Reply("word " * 200, chunk_delay_s=0.05)
    upstream.script(slow, Reply(DONE), slow, Reply(DONE))
    await person.break_off(("user", TASK))
    await asyncio.to_thread(upstream.last.wait_disconnected)
    await person.send()
    assert [trace.run.totals.human for trace in await runs_in(database)] == [{}]
    await person.break_off(("said", DONE), ("user", "Write the manual."))
    await asyncio.to_thread(upstream.last.wait_disconnected)
    await person.send(("user", "In German please, for the whole team."))
    found = [
        (trace.run.sequence, *each) for trace in await runs_in(database) for each in acts(trace)
    ]
    words = "In German please, for the whole team."
    assert found == [(1, 0, Intervention(kind="interrupt", words=words, of_reply=True))]


async def test_a_person_goes_back(
    person: Person, upstream: ScriptedUpstream, database: Path
) -> None:
    """Another message takes the place of an earlier one: the run left behind has the fact, and is
    read again for its outcome."""
    made, reply = call("call_a1b2c3", "Edit", file_path="/a.py")
    upstream.script(Reply(DONE), reply, Reply("Written."), Reply("Merged."), Reply("Pushed."))
    await person.send(("user", TASK))
    await person.send(("said", DONE), ("user", "Write the manual."))
    await person.send(made, ("result", "call_a1b2c3", "ok"))
    del person.history[2:]
    await person.send(("user", "Merge the branch instead."))
    await person.send(("said", "Merged."), ("user", "Push it."))
    traces = {trace.run.task_preview: trace for trace in await runs_in(database)}
    words = "Merge the branch instead."
    left = traces["Write the manual."]
    assert acts(left) == [(1, Intervention(kind="rewind", words=words, of_reply=True))]
    learner = person.server.app.runtime.learning.learner
    assert learner is not None
    assert learner._touched[left.run.id].ended
    others = [trace for trace in traces.values() if trace is not left]
    assert [acts(trace) for trace in others if acts(trace)] == []


async def test_an_edit_is_changed_before_it_is_saved(
    person: Person, upstream: ScriptedUpstream, database: Path
) -> None:
    """As the client says in the result."""
    made, edits = call("call_a1b2c3", "Edit", file_path="/a.py")
    said = "The file /a.py has been updated.  The user modified your proposed changes before"
    upstream.script(edits, Reply(DONE))
    await person.send(("user", TASK))
    await person.send(made, ("result", "call_a1b2c3", f"{said} accepting them. "))
    (trace,) = await runs_in(database)
    assert acts(trace) == [(1, Intervention(kind="undo"))]
