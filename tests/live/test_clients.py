"""Real agents with nothing but their base URL changed: two conversations at once, kept apart.

`GATEWAY_CLIENT_ENVS` names a directory with an environment per client (`<name>/bin/python`); a
client without one is skipped by name. `tests/live/clients/README.md` says how to make them.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest

from gateway.stores.traces import RunTrace
from gateway.wire.message_identity import content_text
from steering_gateway_testing import AppServer, ReceivedRequest, Reply, ScriptedUpstream, ToolCall
from steering_gateway_testing.agents import GUIDING, PLAIN, run_log
from steering_gateway_testing.strict import OWN_FIELDS, StrictProvider

# Read before the fixture that hides the gateway's own variables from tests.
ENVIRONMENTS = os.environ.get("GATEWAY_CLIENT_ENVS", "")
PROGRAMS = Path(__file__).parent / "clients"
TRAVELLERS = ("Ann", "Ben")
CITIES = ("Oslo", "Lima", "Bonn", "Kyiv", "Rome")

Start = Callable[..., AppServer]
pytestmark = pytest.mark.slow


def traveller_of(request: ReceivedRequest) -> str:
    texts = [content_text(m.get("content")) for m in request.messages if m.get("role") == "user"]
    return next(name for name in TRAVELLERS if f"for {name}," in texts[0])


def turn_of(request: ReceivedRequest) -> int:
    """The number of replies in the history."""
    return sum(m.get("role") == "assistant" for m in request.messages)


def calling(request: ReceivedRequest) -> Reply:
    """A model for agents with tools: five calls, then a final answer."""
    turn = turn_of(request)
    if turn == len(CITIES):
        return Reply(f"Done, {traveller_of(request)}.")
    return Reply(f"Now {CITIES[turn]}.", tool_calls=(ToolCall("look_up", {"city": CITIES[turn]}),))


def calling_to_the_end(request: ReceivedRequest) -> Reply:
    """The same for an agent whose final answer is a tool call."""
    if turn_of(request) < len(CITIES):
        return calling(request)
    answer = {"answer": f"Done, {traveller_of(request)}."}
    return Reply("That is all.", tool_calls=(ToolCall("final_answer", answer),))


def coding(request: ReceivedRequest) -> Reply:
    """A model for an agent that runs the code in its replies."""
    turn = turn_of(request)
    if turn == len(CITIES):
        code = f'final_answer("Done, {traveller_of(request)}.")'
    else:
        code = f'print(look_up(city="{CITIES[turn]}"))'
    return Reply(f"Thought: next.\n<code>\n{code}\n</code>")


def in_shell(request: ReceivedRequest) -> Reply:
    """A model for an agent with a shell alone, as a tool or as a block in its text."""
    turn, traveller = turn_of(request), traveller_of(request)
    command = f"echo '{CITIES[turn]}: 21 degrees, says {traveller}'" if turn < len(CITIES) else ""
    command = command or f"echo COMPLETE_TASK_AND_SUBMIT_FINAL_OUTPUT && echo 'Done, {traveller}.'"
    if request.fields.get("tools"):
        return Reply("THOUGHT: next.", tool_calls=(ToolCall("bash", {"command": command}),))
    return Reply(f"THOUGHT: next.\n\n```mswea_bash_command\n{command}\n```")


@dataclass(frozen=True)
class Client:
    """A program, the environment that runs it, and the model it calls."""

    environment: str
    program: str
    model: Callable[[ReceivedRequest], Reply]
    argument: str = ""


CLIENTS = {
    "langgraph": Client("langgraph", "langgraph_agent.py", calling),
    "openai-agents": Client("openai-agents", "openai_agents.py", calling),
    "pydantic-ai": Client("pydantic-ai", "pydantic_ai_agent.py", calling),
    "smolagents ToolCallingAgent": Client("smolagents", "smolagents_agent.py", calling_to_the_end),
    "smolagents CodeAgent": Client("smolagents", "smolagents_agent.py", coding, "code"),
    "mini-swe-agent": Client("mini-swe-agent", "mini_swe_agent.py", in_shell),
    "mini-swe-agent in text": Client("mini-swe-agent", "mini_swe_agent.py", in_shell, "text"),
}


def run_client(name: str, base_url: str, directory: Path) -> list[str]:
    """The answers of its two conversations."""
    client = CLIENTS[name]
    python = Path(ENVIRONMENTS) / client.environment / "bin" / "python"
    if not ENVIRONMENTS or not python.exists():
        pytest.skip(f"{name} has no environment: see tests/live/clients/README.md")
    ended = subprocess.run(
        [str(python), str(PROGRAMS / client.program), base_url, *filter(None, [client.argument])],
        cwd=directory,
        env={
            "PATH": os.environ["PATH"],
            "HOME": str(directory),
            "PYTHONPATH": str(PROGRAMS),
            # The client may reach the gateway only.
            "LITELLM_LOCAL_MODEL_COST_MAP": "True",
        },
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert ended.returncode == 0, ended.stderr[-4000:]
    answers = json.loads(ended.stdout.splitlines()[-1])
    assert isinstance(answers, list)
    return answers


async def recorded_runs(path: Path) -> dict[str, RunTrace]:
    """The one run of each traveller, by name; more, or others, fail the test."""
    found = {}
    async with run_log(path) as log:
        page = await log.list_conversations(tenant=None)
        for conversation in page.conversations:
            run = await log.get_run(f"{conversation.id}.0", tenant=None)
            assert run is not None
            name = re.search(r"for (Ann|Ben),", run.run.task_preview)
            assert name is not None, run.run.task_preview
            assert name[1] not in found, f"{name[1]} has several runs"
            assert await log.get_run(f"{conversation.id}.1", tenant=None) is None
            found[name[1]] = run
    return found


@pytest.mark.parametrize("guided", [False, True], ids=["plain", "guided"])
@pytest.mark.parametrize("name", CLIENTS)
async def test_a_real_agent(
    gateway_server: Start, upstream: ScriptedUpstream, tmp_path: Path, name: str, guided: bool
) -> None:
    """Two conversations at a time before a strict provider: each is recorded with its steps,
    actions and observations."""
    own = OWN_FIELDS["mini"] if CLIENTS[name].environment == "mini-swe-agent" else frozenset()
    upstream.default = strict = StrictProvider(CLIENTS[name].model, own)
    path = tmp_path / "runs.db"
    settings = {**(GUIDING if guided else PLAIN), "storage": {"path": str(path)}}
    server = gateway_server(settings)
    answers = run_client(name, server.base_url, tmp_path)
    assert [answer.strip() for answer in answers] == [f"Done, {t}." for t in TRAVELLERS]
    assert strict.refused == []
    assert len(upstream.requests) == len(TRAVELLERS) * (len(CITIES) + 1)
    runs = await recorded_runs(path)
    assert runs.keys() == set(TRAVELLERS)
    for traveller, run in runs.items():
        assert [step.step_index for step in run.steps] == [0, 1, 2, 3, 4, 5]
        assert run.run.totals.calls == 6
        assert run.run.identity_source == "fingerprint"
        for city, step in zip(CITIES, run.steps[1:], strict=True):
            assert step.content is not None
            (action,) = step.content.actions
            assert city in action.arguments
            assert f"{city}: 21 degrees, says {traveller}" in action.observation
            assert not action.is_error
        if guided:
            assert run.run.totals.injections > 0
