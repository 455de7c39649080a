"""Anthropic Messages of the scripted upstream, seen through Anthropic's own client."""

from __future__ import annotations

from typing import Any

import pytest

from steering_gateway_testing import Reply, ScriptedUpstream, ToolCall, Usage
from steering_gateway_testing.official import anthropic

HELLO: dict[str, Any] = {
    "model": "claude-x",
    "max_tokens": 64,
    "messages": [{"role": "user", "content": [{"type": "text", "text": "hello"}]}],
}
EVERYTHING = Reply(
    "both",
    reasoning="let me think",
    signature="c2ln",
    tool_calls=(ToolCall("read", {"path": "a.py"}), ToolCall("bash", {"command": "ls"})),
    usage=Usage(prompt_tokens=100, completion_tokens=9, cached_tokens=60, cache_write_tokens=15),
)


def check(message: anthropic.types.Message) -> None:
    """Assert that every part of `EVERYTHING` arrived."""
    thinking, text, read, bash = message.content
    assert (thinking.thinking, thinking.signature) == ("let me think", "c2ln")
    assert text.text == "both"
    assert (read.name, read.input) == ("read", {"path": "a.py"})
    assert (bash.name, bash.input) == ("bash", {"command": "ls"})
    assert read.id != bash.id
    assert message.stop_reason == "tool_use"
    assert message.usage.input_tokens == 25
    assert message.usage.cache_read_input_tokens == 60
    assert message.usage.cache_creation_input_tokens == 15
    assert message.usage.output_tokens == 9


def test_a_whole_message(upstream: ScriptedUpstream, anthropic_client: anthropic.Anthropic) -> None:
    """Thinking with its signature, text, parallel tool use and cache usage come as blocks."""
    upstream.script(EVERYTHING)
    check(anthropic_client.messages.create(**HELLO))


def test_a_streamed_message(
    upstream: ScriptedUpstream, anthropic_client: anthropic.Anthropic
) -> None:
    """The events of a stream, properly named and ordered, add up to the same message."""
    upstream.script(EVERYTHING)
    with anthropic_client.messages.stream(**HELLO) as stream:
        kinds = [event.type for event in stream]
        check(stream.get_final_message())
    assert (kinds[0], kinds[-1]) == ("message_start", "message_stop")
    assert kinds.count("input_json") == 10
    assert kinds.count("content_block_stop") == 4


@pytest.mark.parametrize(
    ("finish", "stop"), [("length", "max_tokens"), ("content_filter", "refusal"), ("odd", "odd")]
)
def test_finish_reasons_are_translated(
    upstream: ScriptedUpstream, anthropic_client: anthropic.Anthropic, finish: str, stop: str
) -> None:
    """Finish reasons in chat terms become stop reasons; unknown ones go through."""
    upstream.script(Reply("cut", finish_reason=finish))
    assert anthropic_client.messages.create(**HELLO).stop_reason == stop


def test_tokens_are_counted_without_using_the_script(
    upstream: ScriptedUpstream, anthropic_client: anthropic.Anthropic
) -> None:
    """`count_tokens` answers from the request's length and leaves the script alone."""
    upstream.script(Reply("kept"))
    asked = {"model": "m", "messages": HELLO["messages"]}
    assert anthropic_client.messages.count_tokens(**asked).input_tokens > 5
    assert upstream.pending == 1


def test_models_come_in_the_form_of_the_api(anthropic_client: anthropic.Anthropic) -> None:
    """A client that names an Anthropic version gets Anthropic's model list."""
    page = anthropic_client.models.list()
    assert [model.id for model in page.data] == ["scripted-model", "scripted-small"]
    assert anthropic_client.models.retrieve("scripted-small").type == "model"
