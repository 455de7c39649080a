"""The official OpenAI client on `/v1/responses`, nothing but its base URL changed."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from steering_gateway_testing import AppServer, Fault, FaultKind, Reply, ScriptedUpstream, ToolCall
from steering_gateway_testing.looping import GUIDANCE, STEERING, Start, looping_model, states
from steering_gateway_testing.official import openai

TOOL: Any = {
    "type": "function",
    "name": "bash",
    "description": "run a command",
    "parameters": {"type": "object", "properties": {"command": {"type": "string"}}},
    "strict": False,
}
TASK = "Repair the parser."
OUTPUT = "FAILED tests/test_parser.py::test_empty - AssertionError"


_open: list[openai.OpenAI] = []


@pytest.fixture(autouse=True)
def _closed() -> Iterator[None]:
    yield
    while _open:
        _open.pop().close()


def client_of(server: AppServer) -> openai.OpenAI:
    _open.append(openai.OpenAI(api_key="sk-client", base_url=server.base_url, max_retries=0))
    return _open[-1]


def run_by_id(client: openai.OpenAI, steps: int, **extra: Any) -> list[Any]:
    """A tool loop that leaves the history to the server."""
    answers = [client.responses.create(model="gpt-5", input=TASK, tools=[TOOL], **extra)]
    for _ in range(steps):
        calls = [item for item in answers[-1].output if item.type == "function_call"]
        results: Any = [
            {"type": "function_call_output", "call_id": call.call_id, "output": OUTPUT}
            for call in calls
        ]
        answers.append(
            client.responses.create(
                model="gpt-5",
                input=results,
                previous_response_id=answers[-1].id,
                tools=[TOOL],
                **extra,
            )
        )
    return answers


def run_resending(client: openai.OpenAI, steps: int, **extra: Any) -> list[Any]:
    """The same loop of a client that sends everything again."""
    history: list[Any] = [{"role": "user", "content": TASK}]
    answers = []
    for _ in range(steps + 1):
        answer = client.responses.create(model="gpt-5", input=history, tools=[TOOL], **extra)
        answers.append(answer)
        history += [item.model_dump(exclude_none=True) for item in answer.output]
        history += [
            {"type": "function_call_output", "call_id": item.call_id, "output": OUTPUT}
            for item in answer.output
            if item.type == "function_call"
        ]
    return answers


def test_a_text_goes_through_and_comes_back(
    gateway_server: Start, upstream: ScriptedUpstream
) -> None:
    """One request and its answer, and the answer's id is the upstream's."""
    upstream.script(Reply("Hello.", id="resp_one"))
    answer = client_of(gateway_server(STEERING)).responses.create(model="gpt-5", input="Hi")
    assert (answer.id, answer.output_text) == ("resp_one", "Hello.")
    assert upstream.last.path == "/v1/responses"
    assert upstream.last.header("authorization") == "Bearer sk-client"


@pytest.mark.parametrize("extra", [{}, {"store": False}, {"instructions": "Be brief."}])
def test_guidance_arrives_in_a_tool_loop(
    gateway_server: Start, upstream: ScriptedUpstream, extra: dict[str, Any]
) -> None:
    """A client that resends its items is followed: steps, readings and guidance as it loops."""
    upstream.default = looping_model(6)
    server = gateway_server(STEERING)
    answers = run_resending(client_of(server), 6, **extra)
    assert answers[-1].output_text == "The suite passes now."
    assert [row[0] for row in states(server)] == list(range(7))
    assert {"streak", "test_repeat"} & set(states(server)[-1][3])
    told = [r.body.decode().count(GUIDANCE) for r in upstream.requests]
    assert told == sorted(told)
    assert told[-1] >= 2
    for request in upstream.requests:
        instructions = request.fields.get("instructions") or ""
        assert instructions.startswith(extra.get("instructions", ""))


@pytest.mark.parametrize("how", ["whole", "stream", "background"])
@pytest.mark.parametrize("given", [None, "Be \u201cbrief\u201d.\n/now"])
def test_an_answer_repeats_the_clients_own_instructions(
    gateway_server: Start, upstream: ScriptedUpstream, given: str | None, how: str
) -> None:
    """Guidance goes out in `instructions`, and the echo in the answer is free of it: also when the
    stored answer is asked for later."""
    upstream.default = looping_model(6)
    client = client_of(gateway_server(STEERING))
    history: list[Any] = [{"role": "user", "content": TASK}]
    extra: dict[str, Any] = {} if given is None else {"instructions": given}
    for _ in range(7):
        body: dict[str, Any] = {"model": "gpt-5", "input": history, "tools": [TOOL], **extra}
        if how == "stream":
            events = list(client.responses.create(stream=True, **body))
            answers = [event.response for event in events if hasattr(event, "response")]
        else:
            answers = [client.responses.create(background=how == "background", **body)]
        while how != "stream" and (len(answers) < 2 or answers[-1].status != "completed"):
            answers.append(client.responses.retrieve(answers[0].id))
        assert {answer.instructions for answer in answers} == {given}
        items = answers[-1].output
        history += [item.model_dump(exclude_none=True) for item in items]
        history += [
            {"type": "function_call_output", "call_id": item.call_id, "output": OUTPUT}
            for item in items
            if item.type == "function_call"
        ]
    asked = [r.fields["instructions"] for r in upstream.requests if "instructions" in r.fields]
    assert GUIDANCE in asked[-1]
    assert given is None or asked[-1].startswith(given)


def test_routing_rewrites_the_model(gateway_server: Start, upstream: ScriptedUpstream) -> None:
    """The model of a state is asked for, and the client is told."""
    upstream.default = looping_model(3)
    server = gateway_server({**STEERING, "model_routing": {"NORMAL": "big", "SLOW": "big"}})
    raw = client_of(server).responses.with_raw_response
    first = raw.create(model="gpt-5", input=TASK, tools=[TOOL]).parse()
    calls: Any = [
        {"type": "function_call_output", "call_id": item.call_id, "output": OUTPUT}
        for item in first.output
        if item.type == "function_call"
    ]
    second = raw.create(model="gpt-5", input=calls, previous_response_id=first.id, tools=[TOOL])
    assert [r.model for r in upstream.requests] == ["gpt-5", "big"]
    assert second.headers["x-gateway-model"] == "big"
    assert second.headers["x-gateway-identity"] == "body:previous_response_id"


def test_the_history_kept_by_the_server_counts(
    gateway_server: Start, upstream: ScriptedUpstream
) -> None:
    """A client that names the last response gets the readings of one that resends everything."""
    upstream.default = looping_model(6)
    kept, resent = gateway_server(STEERING), gateway_server(STEERING)
    run_by_id(client_of(kept), 6)
    run_resending(client_of(resent), 6)
    assert states(kept) == states(resent)
    assert len(states(kept)) == 7


def test_guidance_is_not_told_twice_to_a_server_that_keeps_it(
    gateway_server: Start, upstream: ScriptedUpstream
) -> None:
    """What stands among the items is kept by the server; only instructions are told each time."""
    upstream.default = looping_model(6)
    settings = {**STEERING, "injection": {"placement": "tail"}}
    run_by_id(client_of(gateway_server(settings)), 6)
    told = [
        item["content"]
        for request in upstream.requests
        for item in request.fields["input"]
        if isinstance(item, dict) and GUIDANCE in str(item.get("content"))
    ]
    assert told
    assert len(told) == len(set(told))


def go_on(client: openai.OpenAI, answer: Any, output: str = OUTPUT) -> Any:
    """The next call of a tool loop that leaves the history to the server."""
    results: Any = [
        {"type": "function_call_output", "call_id": item.call_id, "output": output}
        for item in answer.output
        if item.type == "function_call"
    ]
    return client.responses.create(
        model="gpt-5", input=results, previous_response_id=answer.id, tools=[TOOL]
    )


@pytest.mark.parametrize("suite", ["robust", "reference"])
@pytest.mark.parametrize("stops", [{1}, {4, 6}])
def test_a_restart_goes_on_from_a_response(
    gateway_server: Start, upstream: ScriptedUpstream, tmp_path: Path, suite: str, stops: set[int]
) -> None:
    """A gateway restarted on its database reads every later step as one that never stopped."""
    upstream.default = looping_model(9)
    settings = {**STEERING, "monitors": {"suite": suite}}
    storage = {**settings, "storage": {"path": str(tmp_path / "kept.db")}}
    steady, server = gateway_server(settings), gateway_server(storage)
    with client_of(steady) as client:
        answers = run_by_id(client, 8)
    with client_of(server) as client:
        answer = client.responses.create(model="gpt-5", input=TASK, tools=[TOOL])
    for step in range(8):
        if step in stops:
            server.stop()
            server = gateway_server(storage)
        with client_of(server) as client:
            answer = go_on(client, answer)
    assert states(server) == states(steady)
    assert len(states(server)) == len(answers) == 9


def test_a_forgotten_transcript_is_read_back(
    gateway_server: Start, upstream: ScriptedUpstream
) -> None:
    """Of two conversations with room for one in memory, each keeps its readings."""
    upstream.default = looping_model(9)
    narrow = {"steering": {**STEERING["steering"], "max_transcripts_in_memory": 1}}
    steady, server = gateway_server(STEERING), gateway_server(narrow)
    with client_of(steady) as client:
        run_by_id(client, 6)
    with client_of(server) as client:
        answers = [
            client.responses.create(model="gpt-5", input=task, tools=[TOOL])
            for task in (TASK, "Another.")
        ]
        for _ in range(6):
            answers = [go_on(client, answer) for answer in answers]
    alone = [row[:4] for row in states(steady)]
    both = [row[:4] for row in states(server)]
    assert both == alone * 2


def test_a_fork_reads_what_it_shares(
    gateway_server: Start, upstream: ScriptedUpstream, tmp_path: Path
) -> None:
    """A line that leaves another, and one that leaves that after a restart, have the readings of
    one that went the same way alone."""
    upstream.default = looping_model(20)
    storage = {**STEERING, "storage": {"path": str(tmp_path / "kept.db")}}
    steady, server = gateway_server(STEERING), gateway_server(storage)
    way = [OUTPUT, OUTPUT, "other", OUTPUT, OUTPUT, "another", OUTPUT, OUTPUT]
    with client_of(steady) as client:
        answer = client.responses.create(model="gpt-5", input=TASK, tools=[TOOL])
        for output in way:
            answer = go_on(client, answer, output)
    with client_of(server) as client:
        answers = run_by_id(client, 4)
        answer = answers[2]
        for output in [*way[2:5], OUTPUT]:
            left, answer = answer, go_on(client, answer, output)
    server.stop()
    server = gateway_server(storage)
    with client_of(server) as client:
        for output in way[5:]:
            left = go_on(client, left, output)
    expected = {row[0]: row[1:4] for row in states(steady)}
    found = states(server)
    for step in range(3, 9):
        assert expected[step] in [row[1:4] for row in found if row[0] == step]
    assert {row[0] for row in found} == set(range(9))


def test_a_fork_from_an_older_response(gateway_server: Start, upstream: ScriptedUpstream) -> None:
    """Two requests that go on from one response part: the second is a conversation of its own."""
    upstream.default = looping_model(9)
    server = gateway_server(STEERING)
    client = client_of(server)
    answers = run_by_id(client, 3)
    call = next(item for item in answers[1].output if item.type == "function_call")
    result: Any = [{"type": "function_call_output", "call_id": call.call_id, "output": "other"}]
    raw = client.responses.with_raw_response.create(
        model="gpt-5", input=result, previous_response_id=answers[1].id, tools=[TOOL]
    )
    assert raw.headers["x-gateway-identity"] == "fork"
    assert raw.headers["x-gateway-step"] == "2"


def test_a_retry_from_a_response_advances_nothing(
    gateway_server: Start, upstream: ScriptedUpstream
) -> None:
    """The same request again after a failure is the same step, with the same guidance."""
    upstream.default = looping_model(9)
    server = gateway_server({**STEERING, "router": {"num_retries": 0}})
    client = client_of(server)
    answers = run_by_id(client, 2)
    upstream.script(Fault(FaultKind.SERVER_ERROR))
    call = next(item for item in answers[-1].output if item.type == "function_call")
    body = {
        "model": "gpt-5",
        "input": [{"type": "function_call_output", "call_id": call.call_id, "output": OUTPUT}],
        "previous_response_id": answers[-1].id,
        "tools": [TOOL],
    }
    failed = httpx.post(f"{server.base_url}/responses", json=body)
    again = httpx.post(f"{server.base_url}/responses", json=body)
    assert (failed.status_code, again.status_code) == (500, 200)
    assert again.headers["x-gateway-identity"] == "retry"
    assert again.headers["x-gateway-step"] == failed.headers["x-gateway-step"] == "3"
    assert upstream.requests[-1].body == upstream.requests[-2].body


def test_a_server_side_conversation(gateway_server: Start, upstream: ScriptedUpstream) -> None:
    """`conversation` leaves the history to the server too."""
    upstream.default = looping_model(3)
    server = gateway_server(STEERING)
    client = client_of(server)
    raw = client.responses.with_raw_response
    seen = []
    items: Any = TASK
    for _ in range(4):
        answer = raw.create(model="gpt-5", input=items, conversation="conv_1", tools=[TOOL])
        seen.append(answer.headers["x-gateway-step"])
        items = [
            {"type": "function_call_output", "call_id": item.call_id, "output": OUTPUT}
            for item in answer.parse().output
            if item.type == "function_call"
        ]
    assert seen == ["0", "1", "2", "3"]


def test_a_final_answer_ends_the_run(gateway_server: Start, upstream: ScriptedUpstream) -> None:
    """What the user asks next begins another run of the same conversation."""
    upstream.default = looping_model(2)
    server = gateway_server(STEERING)
    client = client_of(server)
    answers = run_by_id(client, 2)
    raw = client.responses.with_raw_response.create(
        model="gpt-5", input="And now the lexer.", previous_response_id=answers[-1].id, tools=[TOOL]
    )
    assert (raw.headers["x-gateway-step"], raw.headers["x-gateway-state"]) == ("0", "END")
    runs = httpx.get(f"{server.url}/api/runs").json()["runs"]
    assert [(run["sequence"], run["totals"]["scored_steps"]) for run in runs] == [(1, 0), (0, 2)]
    assert len({run["conversation_id"] for run in runs}) == 1


async def test_streams_are_relayed_and_recorded(
    gateway_server: Start, upstream: ScriptedUpstream
) -> None:
    """Every event arrives, and the step is committed when the last one is there."""
    upstream.default = looping_model(2)
    server = await asyncio.to_thread(gateway_server, STEERING)
    async with openai.AsyncOpenAI(api_key="k", base_url=server.base_url, max_retries=0) as client:
        history: list[Any] = [{"role": "user", "content": TASK}]
        for step in range(3):
            stream = await client.responses.create(
                model="gpt-5", input=history, tools=[TOOL], stream=True, store=False
            )
            events = [event async for event in stream]
            done = events[-1]
            assert done.type == "response.completed"
            assert [e.sequence_number for e in events] == list(range(len(events)))
            assert len(await asyncio.to_thread(states, server)) == step + 1
            history += [item.model_dump(exclude_none=True) for item in done.response.output]
            history += [
                {"type": "function_call_output", "call_id": item.call_id, "output": OUTPUT}
                for item in done.response.output
                if item.type == "function_call"
            ]


def test_a_custom_tool_is_a_step(gateway_server: Start, upstream: ScriptedUpstream) -> None:
    """A call with free text for input counts like one with arguments."""
    patch = "*** Begin Patch\n*** End Patch"
    upstream.script(Reply("Patching.", tool_calls=(ToolCall("apply_patch", patch, id="c1"),)))
    server = gateway_server(STEERING)
    client = client_of(server)
    tools: Any = [{"type": "custom", "name": "apply_patch", "description": "edit files"}]
    history: list[Any] = [{"role": "user", "content": TASK}]
    first = client.responses.create(model="gpt-5", input=history, tools=tools)
    assert [item.type for item in first.output] == ["message", "custom_tool_call"]
    history += [item.model_dump(exclude_none=True) for item in first.output]
    history.append({"type": "custom_tool_call_output", "call_id": "c1", "output": "Done!"})
    client.responses.create(model="gpt-5", input=history, tools=tools)
    run = httpx.get(f"{server.url}/api/runs").json()["runs"][0]["id"]
    step = httpx.get(f"{server.url}/api/runs/{run}").json()["steps"][1]
    [action] = step["content"]["actions"]
    assert (action["name"], action["arguments"]) == ("apply_patch", patch)
    assert action["observation"] == "Done!"


def test_bad_requests_are_told_by_their_key(gateway_server: Start) -> None:
    """What is wrong with the envelope is said in OpenAI's form."""
    server = gateway_server(STEERING)
    for body, key in (({"input": "x"}, "model"), ({"model": "m", "input": 3}, "input")):
        answer = httpx.post(f"{server.base_url}/responses", json=body)
        assert answer.status_code == 400
        assert answer.json()["error"]["param"] == key


def test_a_refused_websocket(gateway_server: Start, upstream: ScriptedUpstream) -> None:
    """The upstream's own 426 is relayed, which makes clients fall back to HTTP."""
    server = gateway_server(STEERING)
    headers = {"connection": "Upgrade", "upgrade": "websocket", "sec-websocket-version": "13"}
    answer = httpx.get(f"{server.base_url}/responses", headers=headers)
    assert answer.status_code == 426
    assert "websocket_not_supported" not in answer.text
