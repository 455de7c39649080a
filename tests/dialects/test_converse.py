"""AWS's own client of Bedrock's Converse through the gateway, before a scripted host."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import httpx
import pytest
from botocore.config import Config
from botocore.exceptions import ClientError, EventStreamError
from botocore.session import get_session

from gateway.dialects import DIALECTS
from gateway.wire.usage import token_usage
from steering_gateway_testing import ReceivedRequest, Reply, ScriptedUpstream, Usage
from steering_gateway_testing.looping import GUIDANCE, Start, looping_model, states
from steering_gateway_testing.patience import until
from tests.dialects import clouds, converse
from tests.dialects.clouds import BEDROCK_KEY, CLAUDE, REGION, Host, settings_for

CONVERSE = DIALECTS["converse"]
SYSTEM = "You repair programs."
TASK = "Repair the parser."
OUTPUT = "FAILED tests/test_parser.py::test_empty - AssertionError"
SCHEMA = {"json": {"type": "object", "properties": {"command": {"type": "string"}}}}
TOOLS = {"tools": [{"toolSpec": {"name": "bash", "description": "run", "inputSchema": SCHEMA}}]}


@pytest.fixture
def host(monkeypatch: pytest.MonkeyPatch) -> Iterator[Host]:
    clouds.use_own_login(monkeypatch)
    with clouds.running(looping_model(5), BEDROCK_KEY) as host:
        yield host


def client_of(url: str) -> Any:
    """A client that signs; for the host itself that signature is right."""
    return get_session().create_client(
        "bedrock-runtime",
        region_name=REGION,
        endpoint_url=url,
        aws_access_key_id=clouds.ACCESS_KEY,
        aws_secret_access_key=clouds.SECRET,
        config=Config(retries={"max_attempts": 0}),
    )


def run_agent(url: str, *, stream: bool = False, steps: int = 5, **more: Any) -> list[Any]:
    """Stop reasons, and the contents of the answers, until the model calls no tool."""
    client = client_of(url)
    messages: list[Any] = [{"role": "user", "content": [{"text": TASK}]}]
    answers: list[Any] = []
    sent: dict[str, Any] = {"modelId": CLAUDE, "system": [{"text": SYSTEM}], "toolConfig": TOOLS}
    sent |= {"inferenceConfig": {"maxTokens": 4096}, **more}
    for _ in range(steps + 1):
        if stream:
            reason, content = joined(client.converse_stream(messages=messages, **sent)["stream"])
        else:
            answer = client.converse(messages=messages, **sent)
            reason, content = answer["stopReason"], answer["output"]["message"]["content"]
        answers.append((reason, content))
        messages = [*messages, {"role": "assistant", "content": content}]
        results = [
            {"toolResult": {"toolUseId": b["toolUse"]["toolUseId"], "content": [{"text": OUTPUT}]}}
            for b in content
            if "toolUse" in b
        ]
        if not results:
            break
        point = {"cachePoint": {"type": "default"}}
        for message in messages:
            message["content"] = [b for b in message["content"] if b != point]
        messages.append({"role": "user", "content": [*results, point]})
    return answers


def joined(events: Any) -> tuple[str, list[Any]]:
    """The stop reason and the content of a stream, as an agent puts them together."""
    blocks: dict[int, Any] = {}
    reason = ""
    for event in events:
        ((name, data),) = event.items()
        at = data.get("contentBlockIndex")
        match name:
            case "contentBlockStart":
                blocks[at] = {"toolUse": {**data["start"]["toolUse"], "input": ""}}
            case "contentBlockDelta":
                delta = data["delta"]
                if "text" in delta:
                    blocks.setdefault(at, {"text": ""})["text"] += delta["text"]
                elif "toolUse" in delta:
                    blocks[at]["toolUse"]["input"] += delta["toolUse"]["input"]
                else:
                    thought = blocks.setdefault(at, {"reasoningContent": {"reasoningText": {}}})
                    text = thought["reasoningContent"]["reasoningText"]
                    for key, piece in delta["reasoningContent"].items():
                        text[key] = text.get(key, "") + piece
            case "messageStop":
                reason = data["stopReason"]
    for block in blocks.values():
        if "toolUse" in block:
            block["toolUse"]["input"] = json.loads(block["toolUse"]["input"])
    return reason, [blocks[index] for index in sorted(blocks)]


@pytest.mark.parametrize("stream", [False, True])
def test_an_agent_is_steered_and_recorded(gateway_server: Start, host: Host, stream: bool) -> None:
    """Steps, guidance in the system prompt and behind results, tokens with those of the cache,
    cost, stop reason and the call in words; the cache points that move make no new run."""
    script = looping_model(5)

    def counted(request: ReceivedRequest) -> Reply:
        usage = Usage(prompt_tokens=100, completion_tokens=8, cached_tokens=60)
        return replace(script(request), usage=usage)

    host.script = counted
    server = gateway_server({**settings_for(host), "storage": {"raw_mb": 4}})
    answers = run_agent(server.url, stream=stream)
    assert [reason for reason, _ in answers] == ["tool_use"] * 5 + ["end_turn"]
    assert len(states(server)) == 6
    assert any(GUIDANCE.encode() in seen.body for seen in host.received)
    for seen in host.received:  # the parts that the service model knows, and no other
        parts = [
            *seen.fields["system"],
            *(p for m in seen.fields["messages"] for p in m["content"]),
        ]
        assert {len(part) for part in parts} == {1}
        assert "type" not in {name for part in parts for name in part}
    with httpx.Client(base_url=server.url) as control:
        (run,) = control.get("/api/runs").json()["runs"]
        steps = control.get(f"/api/runs/{run['id']}").json()["steps"]
        page = f"/dashboard/runs/{run['id']}/steps/{steps[-1]['step_index']}/raw"
        assert until(lambda: "end_turn" in control.get(page).text)
    assert steps[-1]["content"]["reply_text"] == answers[-1][1][-1]["text"]
    calls = [step["call"] for step in steps]
    assert {(c["input_tokens"], c["cached_tokens"], c["output_tokens"]) for c in calls} == {
        (100, 60, 8)
    }
    assert all(call["cost_usd"] > 0 for call in calls)
    assert [c["finish_reason"] for c in calls] == ["tool_calls"] * 5 + ["stop"]
    assert {call["model_asked"] for call in calls} == {CLAUDE}


@pytest.mark.parametrize("mode", ["off", "shadow"])
@pytest.mark.parametrize("stream", [False, True])
def test_nothing_differs_from_the_direct_way(
    gateway_server: Start, host: Host, stream: bool, mode: str
) -> None:
    """Neither what the host is sent, nor the bytes that it answers."""
    server = gateway_server(settings_for(host, mode))
    found = []
    for url in (host.url, server.url):
        before = len(host.received)
        run_agent(url, stream=stream, steps=2)
        sent = [(seen.target, seen.body) for seen in host.received[before:]]
        headers = {"authorization": f"Bearer {BEDROCK_KEY}", "content-type": "application/json"}
        given = [httpx.post(url + path, content=body, headers=headers) for path, body in sent]
        found.append((sent, [(a.status_code, a.headers["content-type"], a.content) for a in given]))
    assert found[0] == found[1]


@pytest.mark.parametrize("size", [1, 7, 64, 1000])
def test_the_end_of_frames_is_seen_before_it_is_sent(size: int) -> None:
    """In any split: the last bytes wait until the call is on record."""
    call_of: Any = {"toolUseId": "c", "name": "bash", "input": {"command": "ls"}}
    content = [{"text": "metadata \u00e9" * 9}, {"toolUse": call_of}]
    usage = {"inputTokens": 3, "outputTokens": 2, "cacheReadInputTokens": 5}
    usage["cacheWriteInputTokens"] = 7
    answer: Any = {"output": {"message": {"content": content}}, "stopReason": "tool_use"}
    answer |= {"usage": usage, "metrics": {"latencyMs": 1}}
    stream = b"".join(converse.frames(answer))
    read = clouds.read_in_parts(CONVERSE, stream, size)
    assert not read.odd
    assert read.completion == CONVERSE.read_answer(answer)
    assert read.completion is not None
    (choice,) = read.completion["choices"]
    assert choice["finish_reason"] == "tool_calls"
    assert choice["message"]["content"] == [{"type": "text", "text": content[0]["text"]}]
    (call,) = choice["message"]["tool_calls"]
    assert (call["id"], call["function"]) == (
        "c",
        {"name": "bash", "arguments": '{"command": "ls"}'},
    )
    counted = token_usage(read.usage)
    assert (counted.input, counted.output, counted.cached, counted.cache_write) == (15, 2, 5, 7)


@pytest.mark.parametrize("fault", ["cut", "exception"])
def test_a_broken_stream_is_an_error(gateway_server: Start, host: Host, fault: str) -> None:
    """It ends with a frame that the client understands, and is no answer."""
    server = gateway_server(settings_for(host))
    host.faults = [fault]
    with pytest.raises(EventStreamError) as caught:
        run_agent(server.url, stream=True, steps=1)
    assert ("too many tokens" if fault == "exception" else "upstream") in str(caught.value)
    with httpx.Client(base_url=server.url) as control:
        until(lambda: bool(control.get("/api/runs").json()["runs"]))
        (run,) = control.get("/api/runs").json()["runs"]
        steps = control.get(f"/api/runs/{run['id']}").json()["steps"]
    assert all(not (step["call"] or {}).get("finish_reason") for step in steps)


def test_an_error_has_the_form_of_bedrock(gateway_server: Start, host: Host) -> None:
    """The client names it as it names one of the host."""
    server = gateway_server(settings_for(host, default_upstream={"cloud_credentials": False}))
    with pytest.raises(ClientError) as caught:
        run_agent(server.url, steps=0)
    assert caught.value.response["Error"]["Code"] == "AccessDeniedException"


@pytest.mark.parametrize("stream", [False, True])
def test_an_answer_of_the_gateway_is_one_of_converse(
    gateway_server: Start, host: Host, stream: bool
) -> None:
    """Here: that a budget is used up."""
    budget = {"name": "b", "scope": "run", "limits": {"calls": 1}, "stop_with": "answer"}
    server = gateway_server(settings_for(host, budgets=[budget]))
    reason, content = run_agent(server.url, stream=stream, steps=1)[-1]
    assert reason == "end_turn"
    assert "budget" in content[0]["text"].lower()
    assert len(host.received) == 1


@pytest.mark.parametrize("mode", ["off", "on"])
def test_a_block_that_is_not_read_is_sent_on_and_its_call_is_recorded(
    gateway_server: Start, host: Host, mode: str
) -> None:
    """A guarded text, and one of a kind that nobody knows yet, stay where they are."""
    server = gateway_server(settings_for(host, mode))
    guarded = {"guardContent": {"text": {"text": "Guard me", "qualifiers": ["query"]}}}
    content = [guarded, {"newContent": {"bytes": "AAAA"}}, {"text": TASK}]
    body = {"messages": [{"role": "user", "content": content}], "toolConfig": TOOLS}
    headers = {"authorization": f"Bearer {BEDROCK_KEY}"}
    answer = httpx.post(f"{server.url}/model/{CLAUDE}/converse", json=body, headers=headers)
    assert answer.status_code == 200
    (seen,) = host.received
    assert json.loads(seen.body)["messages"][0]["content"][:3] == content
    with httpx.Client(base_url=server.url) as control:
        until(lambda: bool(control.get("/api/runs").json()["runs"]))
        (run,) = control.get("/api/runs").json()["runs"]
    assert run["model_requested"] == CLAUDE


def test_no_other_host_is_asked(
    gateway_server: Start, host: Host, upstream: ScriptedUpstream
) -> None:
    """A deployment of the same name has no form for it."""
    params = {"model": "openai/other", "api_base": upstream.base_url, "api_key": "sk-of-other"}
    deployment = {"model_name": CLAUDE, "litellm_params": params}
    server = gateway_server(settings_for(host, model_list=[deployment]))
    assert run_agent(server.url, steps=1)[-1][0] == "tool_use"
    assert (len(host.received), len(upstream.requests)) == (2, 0)


def test_a_call_cannot_be_tried_again_elsewhere(gateway_server: Start, host: Host) -> None:
    """No other model is asked in this form, and the price says so."""
    server = gateway_server({**settings_for(host), "storage": {"raw_mb": 4}})
    run_agent(server.url, steps=1)
    with httpx.Client(base_url=server.url) as control:
        (run,) = control.get("/api/runs").json()["runs"]
        path = f"/api/runs/{run['id']}/steps/0/tries?model=gpt-4o&guidance=sent"
        assert until(lambda: "Converse" in control.get(path).json()["price"]["problem"])


def test_a_stored_prompt_is_passed_on(gateway_server: Start, host: Host) -> None:
    """It has no messages, and is no step."""
    server = gateway_server(settings_for(host))
    body = {"promptVariables": {"a": {"text": "b"}}}
    path = "/model/arn:aws:bedrock:eu-west-1:1:prompt%2Fx/converse"
    answer = httpx.post(f"{server.url}{path}", json=body)
    assert (answer.status_code, answer.json()) == (200, {"seen": body})
    runs = httpx.get(f"{server.url}/api/runs").json()["runs"]
    assert [run["totals"]["steps"] for run in runs] in ([], [0])


def test_every_kind_of_block_is_read() -> None:
    """Also what no agent needs; a mark of the cache is none."""
    call = {"toolUseId": "c", "name": "look", "input": {"a": 1}}
    shown = [{"json": {"b": 2}}, {"text": "c"}, {"image": {"format": "png", "source": {}}}]
    given = [
        {"role": "user", "content": [{"text": "Hi"}, {"cachePoint": {"type": "default"}}]},
        {"role": "assistant", "content": [{"reasoningContent": {"redactedContent": "eA=="}}]},
        {"role": "assistant", "content": [{"toolUse": call}]},
        {
            "role": "user",
            "content": [{"toolResult": {"toolUseId": "c", "content": shown, "status": "error"}}],
        },
        {"role": "user", "content": [{"document": {"name": "d"}}, 7, {}, {"novel": None}]},
        "nonsense",
        {"role": "user", "content": "text"},
        {"role": "user"},
    ]
    asked = CONVERSE.addressed("/model/m/converse-stream")
    request = CONVERSE.parse(json.dumps({"messages": given}).encode(), json.loads, addressed=asked)
    assert (request.model, request.stream) == ("m", True)
    seen = list(request.own_messages)
    assert seen[0] == {"role": "user", "content": [{"type": "text", "text": "Hi"}]}
    assert len(seen) == len(given)
    (result,) = seen[3]["content"]
    assert result["is_error"]
    assert [part["type"] for part in result["content"]] == ["text", "text", "image"]
