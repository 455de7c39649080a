"""A routed model refuses a call in any dialect and lane: the client's own model answers."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import httpx
import pytest

from steering_gateway_testing import AppServer, Fault, ReceivedRequest, Reply, ScriptedUpstream
from steering_gateway_testing.agents import PLAIN, TOOLS
from tests.examples import by_day
from tests.live.test_refused_routes import REFUSALS, ROUTED, SILENT_S

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning")  # inside LiteLLM

Start = Callable[..., AppServer]
Json = dict[str, Any]
ANSWER = "Here is what I found."
TOOL: Json = {"name": "bash", "parameters": {"type": "object"}}


def chat(task: str, steps: int) -> Json:
    """A chat request after so many steps."""
    messages: list[Json] = [{"role": "user", "content": task}]
    for step in range(steps):
        call = {"name": "bash", "arguments": f'{{"command": "step {step}"}}'}
        calls = [{"id": f"c{step}", "type": "function", "function": call}]
        messages += [
            {"role": "assistant", "content": f"Step {step}.", "tool_calls": calls},
            {"role": "tool", "tool_call_id": f"c{step}", "content": f"result {step}"},
        ]
    return {"messages": messages, "tools": TOOLS}


def responses(task: str, steps: int) -> Json:
    """The same for the Responses API."""
    items: list[Json] = [{"role": "user", "content": task}]
    for step in range(steps):
        said = [{"type": "output_text", "text": f"Step {step}."}]
        items += [
            {"type": "message", "role": "assistant", "content": said},
            {
                "type": "function_call",
                "call_id": f"c{step}",
                "name": "bash",
                "arguments": f'{{"command": "step {step}"}}',
            },
            {"type": "function_call_output", "call_id": f"c{step}", "output": f"result {step}"},
        ]
    return {"input": items, "tools": [{"type": "function", **TOOL}]}


def messages(task: str, steps: int) -> Json:
    """The same for the Messages API."""
    turns: list[Json] = [{"role": "user", "content": task}]
    for step in range(steps):
        use = {"type": "tool_use", "id": f"c{step}", "name": "bash", "input": {"command": step}}
        result = {"type": "tool_result", "tool_use_id": f"c{step}", "content": f"result {step}"}
        turns += [
            {"role": "assistant", "content": [{"type": "text", "text": f"Step {step}."}, use]},
            {"role": "user", "content": [result]},
        ]
    tools = [{"name": "bash", "input_schema": {"type": "object"}}]
    return {"messages": turns, "tools": tools, "max_tokens": 100}


DIALECTS: dict[str, Callable[[str, int], Json]] = {
    "chat/completions": chat,
    "responses": responses,
    "messages": messages,
}


@pytest.fixture
def refusing(upstream: ScriptedUpstream) -> ScriptedUpstream:
    """A provider whose model `routed` refuses in the way that the task names."""

    def answer(request: ReceivedRequest) -> Reply | Fault:
        if request.model != "routed":
            return Reply(ANSWER)
        return next(f for name, f in REFUSALS.items() if f"({name})".encode() in request.body)

    upstream.default = answer
    return upstream


def deployed(upstream: ScriptedUpstream, name: str, provider: str) -> Json:
    """A deployment that is asked through LiteLLM."""
    base = upstream.url if provider == "anthropic" else upstream.base_url
    params = {"model": f"{provider}/{name}", "api_base": base, "api_key": "sk-not-a-real-key"}
    return {"model_name": name, "litellm_params": params, "lane": "litellm"}


LANES: dict[str, Callable[[ScriptedUpstream], list[Json]]] = {
    "no model_list": lambda _: [],
    "routed to openai by LiteLLM": lambda up: [deployed(up, "routed", "openai")],
    "routed to anthropic by LiteLLM": lambda up: [deployed(up, "routed", "anthropic")],
    "requested by LiteLLM": lambda up: [deployed(up, "usual", "openai")],
}


async def ask(http: httpx.AsyncClient, url: str, path: str, stream: bool, **body: Any) -> Any:
    headers = {"authorization": "Bearer sk-client", "anthropic-version": "2023-06-01"}
    made = {"model": "usual", "stream": stream, **body}
    return await http.post(f"{url}/{path}", json=made, headers=headers)


@pytest.mark.parametrize(
    "both_ways", [False, pytest.param(True, marks=pytest.mark.nightly)], ids=["one way", "both"]
)
@pytest.mark.parametrize("lane", by_day(LANES, 2))
@pytest.mark.parametrize("path", by_day(DIALECTS, 2))
async def test_the_requested_model_answers_in_every_dialect(
    path: str,
    lane: str,
    both_ways: bool,
    gateway_server: Start,
    refusing: ScriptedUpstream,
    http: httpx.AsyncClient,
) -> None:
    """Streamed or not, whatever the refusal: one call more, and the refused model rests.

    `both_ways` asks for each refusal streamed and whole; otherwise it is one of them and every
    second refusal, the others in the next dialect and lane.
    """
    server = gateway_server({**ROUTED, "model_list": LANES[lane](refusing)})
    wrong = []
    turn = list(DIALECTS).index(path)
    names = [name for name in REFUSALS if name != "silent"]
    for number, name in enumerate(names):
        if not both_ways and (number + turn + list(LANES).index(lane)) % 2:
            continue
        for stream in (False, True) if both_ways else ((number // 2 + turn) % 2 == 0,):
            task = f"Fix the failing test ({name}), {stream}."
            for steps, asked in ((1, ["routed", "usual"]), (2, ["usual"])):
                refusing.requests.clear()
                body = DIALECTS[path](task, steps)
                answer = await ask(http, server.base_url, path, stream, **body)
                # LiteLLM asks OpenAI-like servers a second time after a 422.
                models = list(dict.fromkeys(request.model for request in refusing.requests))
                told = [answer.headers.get(f"x-gateway-{n}") for n in ("model", "attempts")]
                served = answer.status_code == 200 and ANSWER.split()[-1] in answer.text
                attempts = len(asked)
                if name == "not found" and steps == 1 and path != "chat/completions":
                    attempts += "routed" not in lane  # asked again natively, in chat completions
                if not served or models != asked or told != ["usual", str(attempts)]:
                    wrong.append((name, stream, steps, told, models, answer.text[:300]))
    assert not wrong, "\n".join(map(str, wrong))


@pytest.mark.parametrize("lane", LANES)
async def test_a_silent_model_is_not_waited_for(
    lane: str, gateway_server: Start, refusing: ScriptedUpstream, http: httpx.AsyncClient
) -> None:
    """A routed model that sends nothing within `timeouts.first_byte_s` is one that refused."""
    server = gateway_server(
        {
            **PLAIN,
            **ROUTED,
            "timeouts": {"first_byte_s": SILENT_S},
            "model_list": LANES[lane](refusing),
        }
    )
    for path, stream in (("responses", True), ("messages", False)):
        refusing.requests.clear()
        body = DIALECTS[path](f"Fix the failing test (silent), {path}.", 1)
        answer = await ask(http, server.base_url, path, stream, **body)
        assert answer.status_code == 200
        assert [request.model for request in refusing.requests] == ["routed", "usual"]
