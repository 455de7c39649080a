"""Azure's older paths, which name a deployment, at a host that the client names."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from steering_gateway_testing import AppServer, ScriptedUpstream
from steering_gateway_testing.loopback import an_answer
from steering_gateway_testing.looping import GUIDANCE, Start
from steering_gateway_testing.official import openai
from steering_gateway_testing.patience import ANSWER_S, runs_at
from steering_gateway_testing.processes import GatewayProcess
from tests.upstream.intercepting import InterceptingProxy

HOST = "x.openai.azure.com"
PATH = "/openai/deployments/my-gpt-4o/chat/completions?api-version=2024-10-21"
CALL = {"name": "bash", "arguments": '{"command": "pytest"}'}
TOOLS = [{"type": "function", "function": {"name": "bash", "parameters": {}}}]
USAGE = {"prompt_tokens": 1000, "completion_tokens": 10, "total_tokens": 1010}


def an_event(choices: list[Any], **more: Any) -> bytes:
    chunk = {"object": "chat.completion.chunk", "model": "gpt-4o", "choices": choices, **more}
    return b"data: %b\n\n" % json.dumps(chunk).encode()


class Azure(InterceptingProxy):
    """Every host, as one of Azure's whose model runs the same command again and again."""

    def answer(self, host: str, request: bytes) -> bytes:
        asked = json.loads(request.partition(b"\r\n\r\n")[2])
        call = {"id": "c1", "type": "function", "function": CALL}
        said = {"role": "assistant", "content": "Maybe it is stale.", "tool_calls": [call]}
        choice = {"index": 0, "finish_reason": "tool_calls"}
        if not asked.get("stream"):
            choices = [{**choice, "message": said}]
            whole = {"object": "chat.completion", "model": "gpt-4o", "choices": choices}
            body = json.dumps({**whole, "usage": USAGE}).encode()
            return an_answer(body, content_type="application/json")
        delta = {**said, "tool_calls": [{"index": 0, **call}]}
        events = an_event([{**choice, "delta": delta}]) + an_event([], usage=USAGE)
        return an_answer(events + b"data: [DONE]\n\n", content_type="text/event-stream")


def messages(steps: int) -> list[dict[str, Any]]:
    """A history with so many steps that fail."""
    made: list[dict[str, Any]] = [{"role": "user", "content": "Mend the test."}]
    for step in range(steps):
        call = {"id": f"c{step}", "type": "function", "function": CALL}
        made.append({"role": "assistant", "content": "Again.", "tool_calls": [call]})
        made.append({"role": "tool", "tool_call_id": f"c{step}", "content": "FAILED test_a"})
    return made


def served(folder: Path, mode: str, **config: Any) -> Iterator[tuple[Azure, str]]:
    """(the host, the address of the gateway that a client of it has)"""
    with Azure(folder) as azure:
        env = azure.env | {"GATEWAY_STEERING__MODE": mode}
        with GatewayProcess(folder, json.dumps(config), env=env) as gateway:
            yield azure, f"{gateway.url}/at/{HOST}"


@pytest.fixture(params=["off", "shadow"])
def watching(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[tuple[Azure, str]]:
    yield from served(tmp_path, request.param)


@pytest.fixture
def steering(tmp_path: Path) -> Iterator[tuple[Azure, str]]:
    routing = {"SLOW": "my-big one"}
    yield from served(tmp_path, "on", model_routing=routing)


@pytest.mark.slow
@pytest.mark.parametrize("stream", [False, True])
def test_no_byte_changes(watching: tuple[Azure, str], stream: bool) -> None:
    """Path, credential, body and answer are those that were sent."""
    azure, url = watching
    body = {"stream": stream, "messages": messages(3), "tools": TOOLS, "x": {"y": 1.0, "z": 2**70}}
    raw = json.dumps(body, indent=1).encode()
    answer = httpx.post(url + PATH, content=raw, headers={"api-key": "mine-1"}, timeout=ANSWER_S)
    (sent,) = azure.sent
    head, _, content = sent.content.partition(b"\r\n\r\n")
    assert sent.host == HOST
    assert head.startswith(b"POST %b HTTP/1.1\r\n" % PATH.encode())
    assert b"\r\napi-key: mine-1" in head
    assert content == raw
    assert answer.content == azure.answer(HOST, sent.content).partition(b"\r\n\r\n")[2]


@pytest.mark.slow
@pytest.mark.parametrize("stream", [False, True])
def test_a_run_is_read_and_guided(steering: tuple[Azure, str], stream: bool) -> None:
    """The path names the model, whatever the body does; another deployment is asked by the path,
    and the body's own word stays."""
    azure, url = steering
    client = openai.AzureOpenAI(
        azure_endpoint=url,
        azure_deployment="my-gpt-4o",
        api_key="mine-1",
        api_version="2024-10-21",
        max_retries=0,
    )
    for steps in range(8):
        asked: Any = {"model": "of-the-client", "messages": messages(steps), "tools": TOOLS}
        answer: Any = client.chat.completions.create(**asked, stream=stream)
        if stream:
            chunks = list(answer)
            answer = next(chunk.choices[0].delta for chunk in chunks if chunk.choices)
        else:
            answer = answer.choices[0].message
        assert answer.tool_calls[0].function.name == "bash"
    sent = [each.content.partition(b"\r\n\r\n") for each in azure.sent]
    assert {each.host for each in azure.sent} == {HOST}
    assert GUIDANCE.encode() in sent[-1][2]
    assert all(json.loads(body)["model"] == "of-the-client" for _, _, body in sent)
    lines = [head.partition(b"\r\n")[0] for head, _, _ in sent]
    assert lines[0] == b"POST %b HTTP/1.1" % PATH.encode()
    slow = PATH.replace("my-gpt-4o", "my-big%20one").encode()
    assert lines[-1] == b"POST %b HTTP/1.1" % slow
    client.close()
    (run,) = runs_at(url.partition("/at/")[0])
    assert run["model_requested"] == "my-gpt-4o"
    assert run["totals"]["input_tokens"] == 8000


@pytest.mark.parametrize(
    "path",
    ["dear/chat/completions", "d%65ar/chat/completions", "dear/ch%61t/completions"],
)
def test_a_key_for_one_model_gets_no_other(
    gateway_server: Start, upstream: ScriptedUpstream, path: str
) -> None:
    """However its name or the path is written; the body names one that it may use."""
    auth = {"gateway_keys": {"a": "gw-tenant-a-1111"}, "rights": {"*": {"models": ["cheap"]}}}
    server: AppServer = gateway_server({"auth": auth})
    url = f"{server.url}/at/{HOST}/openai/deployments/{path}"
    headers = {"x-gateway-key": "gw-tenant-a-1111", "api-key": "mine-1"}
    body = {"model": "cheap", "messages": messages(0)}
    assert httpx.post(url, json=body, headers=headers).status_code in (403, 404)
