"""Chat completions of the scripted upstream, seen through OpenAI's own client."""

from __future__ import annotations

import json
from typing import Any

import pytest
from pydantic import BaseModel

from steering_gateway_testing import Reply, ScriptedUpstream, ToolCall, Usage
from steering_gateway_testing.official import openai

HELLO: Any = [{"role": "user", "content": "hello there"}]
TWO_CALLS = (
    ToolCall("read", {"path": "a.py", "lines": [1, 2]}),
    ToolCall("bash", '{"command": "ls -la"}', id="call_mine", fragments=7),
)


def test_the_default_reply_echoes_the_last_user_text(openai_client: openai.OpenAI) -> None:
    """Without a script the model repeats what the user said last."""
    reply = openai_client.chat.completions.create(model="m", messages=HELLO)
    assert reply.choices[0].message.content == "You said: hello there"
    assert (reply.choices[0].finish_reason, reply.model) == ("stop", "m")
    assert reply.usage.total_tokens == 20


@pytest.mark.parametrize("interleave", [False, True])
def test_parallel_tool_calls_stream_in_fragments(
    upstream: ScriptedUpstream, openai_client: openai.OpenAI, interleave: bool
) -> None:
    """Fragments of parallel calls, in turn or one call after the other, join to the arguments."""
    upstream.script(Reply("both", tool_calls=TWO_CALLS, interleave=interleave))
    with openai_client.chat.completions.stream(model="m", messages=HELLO) as stream:
        fragments = [e for e in stream if e.type == "tool_calls.function.arguments.delta"]
        final = stream.get_final_completion().choices[0]
    assert final.finish_reason == "tool_calls"
    assert [call.function.name for call in final.message.tool_calls] == ["read", "bash"]
    assert json.loads(final.message.tool_calls[0].function.arguments)["lines"] == [1, 2]
    assert final.message.tool_calls[1].id == "call_mine"
    assert len([e for e in fragments if e.index == 1 and e.arguments_delta]) == 7
    assert [e.index for e in fragments] != sorted(e.index for e in fragments) or not interleave


def test_tool_calls_come_whole_when_not_streamed(
    upstream: ScriptedUpstream, openai_client: openai.OpenAI
) -> None:
    """A body that is not streamed holds every call with its arguments as text."""
    upstream.script(Reply(tool_calls=TWO_CALLS))
    message = openai_client.chat.completions.create(model="m", messages=HELLO).choices[0].message
    assert message.content is None
    assert [c.function.arguments for c in message.tool_calls][1] == '{"command": "ls -la"}'


def test_reasoning_refusal_and_cached_tokens(
    upstream: ScriptedUpstream, openai_client: openai.OpenAI
) -> None:
    """Reasoning, refusal and detailed usage stand where providers put them."""
    usage = Usage(prompt_tokens=100, completion_tokens=9, cached_tokens=64, reasoning_tokens=5)
    upstream.script(Reply(reasoning="let me think", refusal="no", usage=usage))
    reply = openai_client.chat.completions.create(model="m", messages=HELLO)
    message = reply.choices[0].message
    assert (message.model_extra["reasoning_content"], message.refusal) == ("let me think", "no")
    assert reply.usage.prompt_tokens_details.cached_tokens == 64
    assert reply.usage.completion_tokens_details.reasoning_tokens == 5


def test_reasoning_is_streamed_before_the_text(
    upstream: ScriptedUpstream, openai_client: openai.OpenAI
) -> None:
    """Reasoning deltas come first and join to the reasoning."""
    upstream.script(Reply("done", reasoning="let me think"))
    with openai_client.chat.completions.create(model="m", messages=HELLO, stream=True) as stream:
        deltas = [chunk.choices[0].delta for chunk in stream]
    thoughts = [getattr(delta, "reasoning_content", None) or "" for delta in deltas]
    assert "".join(thoughts) == "let me think"
    assert thoughts.index("think") < [delta.content for delta in deltas].index("done")


@pytest.mark.parametrize("stream", [False, True])
def test_several_choices(
    upstream: ScriptedUpstream, openai_client: openai.OpenAI, stream: bool
) -> None:
    """`n` choices come, the scripted alternatives first, then the reply again."""
    upstream.script(Reply("one", alternatives=(Reply("two"),)))
    answer = openai_client.chat.completions.create(model="m", messages=HELLO, n=3, stream=stream)
    texts = {0: "", 1: "", 2: ""}
    for chunk in answer if stream else [answer]:
        for choice in chunk.choices:
            part = choice.delta if stream else choice.message
            texts[choice.index] += part.content or ""
    assert texts == {0: "one", 1: "two", 2: "one"}


def test_logprobs_cover_the_text(openai_client: openai.OpenAI) -> None:
    """Asked for, log probabilities come token by token and spell the content."""
    reply = openai_client.chat.completions.create(model="m", messages=HELLO, logprobs=True)
    tokens = reply.choices[0].logprobs.content
    assert "".join(token.token for token in tokens) == reply.choices[0].message.content
    assert all(token.logprob <= 0 for token in tokens)


def test_structured_output_fits_the_schema(openai_client: openai.OpenAI) -> None:
    """Without a script, a reply to a JSON schema parses into the client's own model."""

    class Part(BaseModel):
        name: str
        sizes: list[int]

    class Answer(BaseModel):
        part: Part
        ok: bool
        note: str | None

    reply = openai_client.chat.completions.parse(model="m", messages=HELLO, response_format=Answer)
    assert reply.choices[0].message.parsed == Answer(
        part=Part(name="text", sizes=[1]), ok=True, note="text"
    )


def test_each_reply_has_an_id_of_its_own(openai_client: openai.OpenAI) -> None:
    """Ids count the requests, though the reply is rendered once."""
    ids = [openai_client.chat.completions.create(model="m", messages=HELLO).id for _ in range(2)]
    assert ids == ["chatcmpl-00000001", "chatcmpl-00000002"]
