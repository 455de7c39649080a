"""Malformed requests are forwarded once, and no part of steering fails."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import httpx
import pytest
from hypothesis import given
from hypothesis import strategies as st

from steering_gateway_testing import AppServer, Reply, ScriptedUpstream
from steering_gateway_testing.agents import GUIDING, TOOLS
from tests.examples import examples
from tests.live.test_recorded_runs import synthetic_runs
from tests.steering.builders import assistant, call, system, tool, user

Start = Callable[..., AppServer]
JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**53), 2**53)
    | st.floats(allow_nan=False)
    | st.text(max_size=30)
    | st.sampled_from(["\ud800", "a\udfff"]),  # as escapes in the JSON
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.dictionaries(st.sampled_from(["type", "text", "role", "id", "x"]), inner, max_size=4)
    ),
    max_leaves=12,
)
FIELDS = [
    "role",
    "content",
    "tool_calls",
    "function_call",
    "tool_call_id",
    "refusal",
    "reasoning_content",
    "name",
]
NATIVE = list(synthetic_runs(1, 5)[0]["messages"])
LEGACY = [
    system(),
    user(),
    {"role": "assistant", "content": None, "function_call": {"name": "f", "arguments": "{}"}},
    {"role": "function", "name": "f", "content": "done"},
    assistant(None, call("a", id="1"), call("b", id="2")),
    tool("one", "1"),
    tool("two", "2"),
]
WRITTEN = [
    system("Answer with a ```bash block."),
    user(),
    assistant("Look.\n```bash\nls\n```"),
    user("<returncode>0</returncode>"),
    assistant("Thought: more\nAction: search\nAction Input: x"),
    user("Observation: nothing"),
]


@st.composite
def malformed_run(draw: st.DrawFn) -> list[Any]:
    """The beginning of a run with one malformed message."""
    run = draw(st.sampled_from([NATIVE, LEGACY, WRITTEN]))
    messages = list(run[: draw(st.integers(1, len(run)))])
    at = draw(st.integers(0, len(messages) - 1))
    match draw(st.sampled_from(["replaced", "field", "call", "dropped", "doubled"])):
        case "replaced":
            messages[at] = draw(JSON)
        case "field":
            messages[at] = {**messages[at], draw(st.sampled_from(FIELDS)): draw(JSON)}
        case "call":
            spoilt_call = {"id": draw(JSON), "type": draw(JSON), "function": draw(JSON)}
            messages[at] = {**messages[at], "tool_calls": [draw(JSON), spoilt_call]}
        case "dropped":
            del messages[at]
        case "doubled":
            messages.insert(at, messages[at])
    return messages


@pytest.mark.hypothesis
def test_any_message_may_be_malformed(gateway_server: Start, upstream: ScriptedUpstream) -> None:
    """Any prefix of any run, with any message malformed: answered, sent once, and steered."""
    upstream.default = Reply("Done.")
    server = gateway_server(GUIDING)
    with httpx.Client(base_url=server.base_url, timeout=120) as client:

        @examples(60)
        @given(malformed_run(), st.booleans(), st.sampled_from([{}, {"x-session-id": "s"}]))
        def check(messages: list[Any], stream: bool, headers: dict[str, str]) -> None:
            before = len(upstream.requests)
            body = {"model": "m", "messages": messages, "tools": TOOLS, "stream": stream}
            answer = client.post("/chat/completions", content=json.dumps(body), headers=headers)
            assert answer.status_code == 200
            assert len(upstream.requests) == before + 1
            assert "x-gateway-step" in answer.headers, (answer.headers, failures(server))

        check()
    assert failures(server) == {}


@pytest.mark.parametrize("spoilt", [{"type": {}}, {"type": []}, {"role": {}}, {"role": []}])
def test_a_malformed_message_in_another_history_of_a_session(
    gateway_server: Start, upstream: ScriptedUpstream, spoilt: dict[str, Any]
) -> None:
    """A named conversation whose history is not the one that is known is steered all the same."""
    upstream.default = Reply("Done.")
    server = gateway_server(GUIDING)
    with httpx.Client(base_url=server.base_url, headers={"x-session-id": "s"}) as client:
        for messages in (NATIVE[:4], [NATIVE[0], spoilt], [*LEGACY[:2], spoilt, *LEGACY[4:]]):
            body = {"model": "m", "messages": messages, "tools": TOOLS}
            answer = client.post("/chat/completions", json=body)
            assert "x-gateway-step" in answer.headers, failures(server)
    assert failures(server) == {}


@pytest.mark.hypothesis
def test_any_other_field_may_be_malformed(
    gateway_server: Start, upstream: ScriptedUpstream
) -> None:
    """Tools, ids, metadata and options of any type are left to the provider."""
    upstream.default = Reply("Done.")
    server = gateway_server(GUIDING)
    names = ["tools", "functions", "metadata", "session_id", "conversation", "prompt_cache_key"]
    names += ["n", "stream_options", "response_format", "tool_choice", "previous_response_id"]
    fields = st.dictionaries(st.sampled_from(names), JSON, min_size=1, max_size=4)
    with httpx.Client(base_url=server.base_url, timeout=120) as client:

        @examples(50)
        @given(fields)
        def check(more: dict[str, Any]) -> None:
            before = len(upstream.requests)
            content = json.dumps({"model": "m", "messages": NATIVE, **more})
            answer = client.post("/chat/completions", content=content)
            assert answer.status_code == 200
            assert len(upstream.requests) == before + 1

        check()
    assert failures(server) == {}


@pytest.mark.hypothesis
def test_any_reply_may_be_malformed(gateway_server: Start, upstream: ScriptedUpstream) -> None:
    """A provider's message of any form reaches the client, and the conversation continues."""
    server = gateway_server(GUIDING)
    shapes = st.dictionaries(st.sampled_from(FIELDS), JSON, max_size=4)
    with httpx.Client(base_url=server.base_url, timeout=120) as client:

        @examples(50)
        @given(shapes, JSON)
        def check(message: dict[str, Any], finish: Any) -> None:
            choices = [{"message": message, "finish_reason": finish}]
            upstream.default = Reply(raw=json.dumps({"choices": choices}).encode())
            body = {"model": "m", "messages": NATIVE[:2], "tools": TOOLS}
            answer = client.post("/chat/completions", json=body)
            assert answer.status_code == 200
            body["messages"] = [*NATIVE[:2], message, tool()]
            assert client.post("/chat/completions", content=json.dumps(body)).status_code == 200

        check()
    assert failures(server) == {}


def failures(server: AppServer) -> dict[str, float]:
    """Failures to steer or to record, by metric and kind."""
    metrics = server.app.runtime.metrics
    counted = (metrics.steering_failures, metrics.store_failures)
    samples = [s for counter in counted for family in counter.collect() for s in family.samples]
    return {f"{s.name} {s.labels}": s.value for s in samples if s.name.endswith("_total")}
