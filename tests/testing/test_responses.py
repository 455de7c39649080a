"""OpenAI Responses of the scripted upstream, seen through OpenAI's own client."""

from __future__ import annotations

from typing import Any

import httpx
import pytest

from steering_gateway_testing import Reply, ScriptedUpstream, ToolCall
from steering_gateway_testing.official import openai

EVERYTHING = Reply(
    "both",
    reasoning="let me think",
    tool_calls=(ToolCall("read", {"path": "a.py"}), ToolCall("patch", "*** Begin")),
)
TOOLS: Any = [
    {"type": "function", "name": "read", "parameters": {"type": "object"}, "strict": False},
    {"type": "custom", "name": "patch"},
]


def check(response: openai.types.responses.Response) -> None:
    """Assert that every part of `EVERYTHING` arrived."""
    reasoning, message, read, patch = response.output
    assert reasoning.summary[0].text == "let me think"
    assert message.content[0].text == "both"
    assert (read.type, read.name, read.arguments) == ("function_call", "read", '{"path":"a.py"}')
    assert (patch.type, patch.name, patch.input) == ("custom_tool_call", "patch", "*** Begin")
    assert response.status == "completed"
    assert response.usage.total_tokens == 20


def test_a_whole_response(upstream: ScriptedUpstream, openai_client: openai.OpenAI) -> None:
    """Reasoning, message, function call and custom tool call come as output items."""
    upstream.script(EVERYTHING)
    check(openai_client.responses.create(model="m", input="hello", tools=TOOLS))


def test_a_streamed_response(upstream: ScriptedUpstream, openai_client: openai.OpenAI) -> None:
    """The events are numbered without a gap, and their deltas add up to the whole."""
    upstream.script(EVERYTHING)
    with openai_client.responses.create(
        model="m", input="hello", tools=TOOLS, stream=True
    ) as stream:
        events = list(stream)
    assert [event.sequence_number for event in events] == list(range(len(events)))
    assert (events[0].type, events[-1].type) == ("response.created", "response.completed")
    check(events[-1].response)
    deltas: dict[str, str] = {}
    for event in events:
        if event.type.endswith(".delta"):
            deltas[event.type] = deltas.get(event.type, "") + event.delta
    assert deltas == {
        "response.reasoning_summary_text.delta": "let me think",
        "response.output_text.delta": "both",
        "response.function_call_arguments.delta": '{"path":"a.py"}',
        "response.custom_tool_call_input.delta": "*** Begin",
    }


def test_a_previous_response_is_continued(
    upstream: ScriptedUpstream, openai_client: openai.OpenAI
) -> None:
    """The request that names a previous response sees all items before it in `history`."""
    first = openai_client.responses.create(model="m", input="one")
    second = openai_client.responses.create(model="m", input="two", previous_response_id=first.id)
    third = openai_client.responses.create(model="m", input="three", previous_response_id=second.id)
    texts = [item["content"][0]["text"] for item in upstream.last.history]
    assert texts == ["one", "You said: one", "two", "You said: two", "three"]
    assert third.previous_response_id == second.id
    assert openai_client.responses.retrieve(second.id) == second


def test_a_conversation_collects_items(
    upstream: ScriptedUpstream, openai_client: openai.OpenAI
) -> None:
    """Requests of one conversation see the items of those before."""
    for text in ("one", "two"):
        openai_client.responses.create(model="m", input=text, conversation="conv_1")
    assert [item["role"] for item in upstream.last.history] == ["user", "assistant", "user"]


def test_a_response_that_is_not_stored_is_unknown(openai_client: openai.OpenAI) -> None:
    """With `store` false, neither continuing nor retrieving works; deleting forgets, too."""
    unstored = openai_client.responses.create(model="m", input="one", store=False)
    with pytest.raises(openai.BadRequestError, match="not found") as caught:
        openai_client.responses.create(model="m", input="x", previous_response_id=unstored.id)
    assert caught.value.code == "previous_response_not_found"
    stored = openai_client.responses.create(model="m", input="one")
    openai_client.responses.delete(stored.id)
    with pytest.raises(openai.NotFoundError):
        openai_client.responses.retrieve(stored.id)


def test_input_items_are_listed(openai_client: openai.OpenAI) -> None:
    """The stored input of a response can be read back."""
    stored = openai_client.responses.create(model="m", input="one")
    items = openai_client.responses.input_items.list(stored.id)
    assert [item.content[0].text for item in items.data] == ["one"]


@pytest.mark.parametrize("stream", [False, True])
def test_a_cut_response_is_incomplete(
    upstream: ScriptedUpstream, openai_client: openai.OpenAI, stream: bool
) -> None:
    """A length or filter finish gives an incomplete response with its reason."""
    upstream.script(Reply("cut", finish_reason="length"))
    answer = openai_client.responses.create(model="m", input="x", stream=stream)
    response = list(answer)[-1].response if stream else answer
    assert response.status == "incomplete"
    assert response.incomplete_details.reason == "max_output_tokens"


def test_a_websocket_is_refused(upstream: ScriptedUpstream) -> None:
    """An upgrade request gets 426 and the end of the connection, and the server goes on."""
    headers = {"upgrade": "websocket", "connection": "upgrade"}
    answer = httpx.get(f"{upstream.base_url}/responses", headers=headers)
    assert answer.status_code == 426
    upstream.wait_for_connections(0)
    assert httpx.get(f"{upstream.base_url}/models").status_code == 200
