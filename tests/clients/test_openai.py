"""OpenAI's own client, with only `base_url` changed, works as it does without a gateway."""

from __future__ import annotations

import asyncio
import base64
import json
import threading
from typing import Any

import httpx
import pydantic
import pytest

from steering_gateway_testing import Fault, FaultKind, Reply, ScriptedUpstream, ToolCall, Usage
from steering_gateway_testing.official import openai

HELLO: Any = [{"role": "user", "content": "one two three"}]
TOOLS: Any = [
    {
        "type": "function",
        "function": {
            "name": name,
            "description": f"Do {name}.",
            "parameters": {"type": "object", "properties": {"path": {"type": "string"}}},
        },
    }
    for name in ("list_files", "read_file", "edit_file", "run_tests")
]
PIXEL = base64.b64encode(b"\x89PNG\r\n\x1a\n" + bytes(40)).decode()


class Weather(pydantic.BaseModel):
    """What structured output has to look like."""

    city: str
    degrees: float
    days: list[int]


def test_chat(upstream: ScriptedUpstream, client: openai.OpenAI) -> None:
    """A plain completion, with its usage, id and the client's key at the provider."""
    made = client.chat.completions.create(model="gpt-x", messages=HELLO, seed=7, user="u")
    assert made.choices[0].message.content == "You said: one two three"
    assert made.choices[0].finish_reason == "stop"
    assert made.usage is not None
    assert made.usage.total_tokens == 20
    assert made._request_id == upstream.last.header("x-request-id") or made._request_id
    assert upstream.last.header("authorization") == "Bearer sk-mine"
    assert upstream.last.fields["seed"] == 7


def test_unknown_fields_reach_both_sides(upstream: ScriptedUpstream, client: openai.OpenAI) -> None:
    """`extra_body`, `extra_headers` and `extra_query` go out, unknown fields come back."""
    upstream.script(Reply("fine", extra={"x_new": {"a": 1}}, message_extra={"x_note": [1, 2]}))
    made = client.chat.completions.create(
        model="m",
        messages=HELLO,
        extra_body={"top_k": 5, "x_deep": {"y": None}},
        extra_headers={"x-mine": "yes"},
        extra_query={"api-version": "1"},
    )
    assert (made.model_extra or {})["x_new"] == {"a": 1}
    assert (made.choices[0].message.model_extra or {})["x_note"] == [1, 2]
    assert upstream.last.fields["x_deep"] == {"y": None}
    assert (upstream.last.query, upstream.last.header("x-mine")) == ("api-version=1", "yes")


def test_streaming(upstream: ScriptedUpstream, client: openai.OpenAI) -> None:
    """Chunks come as they are sent, with the usage when it is asked for."""
    upstream.script(Reply("a b c d", usage=Usage(prompt_tokens=3, cached_tokens=2)))
    stream = client.chat.completions.create(
        model="m", messages=HELLO, stream=True, stream_options={"include_usage": True}
    )
    chunks = list(stream)
    texts = [c.choices[0].delta.content or "" for c in chunks if c.choices]
    assert "".join(texts) == "a b c d"
    assert chunks[-1].choices == []
    assert chunks[-1].usage is not None
    assert chunks[-1].usage.prompt_tokens == 3


def test_a_stream_without_usage_has_none(client: openai.OpenAI) -> None:
    """A client that did not ask for usage gets no chunk without choices."""
    stream = client.chat.completions.create(model="m", messages=HELLO, stream=True)
    assert all(chunk.choices and chunk.usage is None for chunk in stream)


@pytest.mark.parametrize("stream", [False, True])
def test_a_tool_loop_of_four_steps(
    upstream: ScriptedUpstream, client: openai.OpenAI, stream: bool
) -> None:
    """An agent's loop: four calls, their results, the final answer; each turn extends the last."""
    steps = [
        ToolCall(tool["function"]["name"], {"path": f"{n}.py"}) for n, tool in enumerate(TOOLS)
    ]
    upstream.script(*(Reply(tool_calls=(call,)) for call in steps), Reply("All done."))
    messages: list[Any] = [{"role": "system", "content": "You fix bugs."}, *HELLO]
    for call in [*steps, None]:
        message = _answer(client, messages, stream)
        messages.append(message)
        if call is None:
            assert message["content"] == "All done."
            break
        (made,) = message["tool_calls"]
        assert made["function"]["name"] == call.name
        assert json.loads(made["function"]["arguments"]) == call.value
        messages.append({"role": "tool", "tool_call_id": made["id"], "content": "ok"})
    assert len(upstream.requests) == 5
    assert upstream.last.fields["tools"] == TOOLS
    theirs = [m for m in upstream.last.messages if m.get("role") != "system"]
    assert theirs == [m for m in messages[:-1] if m["role"] != "system"]


def _answer(client: openai.OpenAI, messages: list[Any], stream: bool) -> dict[str, Any]:
    """The assistant's message, as a client puts it into its history."""
    if stream:
        with client.chat.completions.stream(model="m", messages=messages, tools=TOOLS) as events:
            message: Any = events.get_final_completion().choices[0].message
    else:
        made = client.chat.completions.create(model="m", messages=messages, tools=TOOLS)
        message = made.choices[0].message
    dumped = message.model_dump(include={"role", "content", "tool_calls"}, exclude_none=True)
    for call in dumped.get("tool_calls", ()):
        call["function"].pop("parsed_arguments", None)
        call.pop("index", None)
    return {"content": None, **dumped}


@pytest.mark.parametrize("interleave", [False, True])
@pytest.mark.parametrize("stream", [False, True])
def test_parallel_tools(
    upstream: ScriptedUpstream, client: openai.OpenAI, stream: bool, interleave: bool
) -> None:
    """Three calls at once keep their names, ids and arguments apart."""
    calls = tuple(ToolCall(f"tool_{n}", {"n": n, "text": "x" * n}, id=f"id_{n}") for n in range(3))
    upstream.script(Reply(tool_calls=calls, interleave=interleave))
    message = _answer(client, list(HELLO), stream)
    found = [
        (c["id"], c["function"]["name"], c["function"]["arguments"]) for c in message["tool_calls"]
    ]
    assert [(i, n, json.loads(a)) for i, n, a in found] == [(c.id, c.name, c.value) for c in calls]


def test_structured_output(upstream: ScriptedUpstream, client: openai.OpenAI) -> None:
    """A schema goes out and the answer is parsed by it, streaming and not."""
    parsed = client.chat.completions.parse(model="m", messages=HELLO, response_format=Weather)
    assert parsed.choices[0].message.parsed == Weather(city="text", degrees=1.5, days=[1])
    sent = upstream.last.fields["response_format"]
    assert sent["json_schema"]["strict"] is True
    with client.chat.completions.stream(
        model="m", messages=HELLO, response_format=Weather
    ) as events:
        final = events.get_final_completion()
    assert final.choices[0].message.parsed == Weather(city="text", degrees=1.5, days=[1])


def test_image_parts(upstream: ScriptedUpstream, client: openai.OpenAI) -> None:
    """Parts arrive as they were sent."""
    content: list[Any] = [
        {"type": "text", "text": "what is this"},
        {"type": "image_url", "image_url": {"url": f"data:image/png;base64,{PIXEL}"}},
    ]
    client.chat.completions.create(model="m", messages=[{"role": "user", "content": content}])
    assert upstream.last.messages[-1]["content"] == content


def test_refusals_and_reasoning(upstream: ScriptedUpstream, client: openai.OpenAI) -> None:
    """What a gateway may lose is there: refusal, reasoning, alternatives, logprobs."""
    upstream.script(
        Reply(None, refusal="I cannot.", reasoning="Hmm.", alternatives=(Reply("other"),))
    )
    made = client.chat.completions.create(model="m", messages=HELLO, n=2, logprobs=True)
    assert made.choices[0].message.refusal == "I cannot."
    assert (made.choices[0].message.model_extra or {})["reasoning_content"] == "Hmm."
    assert made.choices[1].message.content == "other"
    assert made.choices[1].logprobs is not None


def test_embeddings_and_models(upstream: ScriptedUpstream, client: openai.OpenAI) -> None:
    """Vectors, packed by the client's own choice, and the list of models."""
    made = client.embeddings.create(model="e", input=["a", "b"], dimensions=16)
    assert [len(item.embedding) for item in made.data] == [16, 16]
    assert upstream.last.fields["encoding_format"] == "base64"
    assert [model.id for model in client.models.list()] == list(upstream._router.models)
    with pytest.raises(openai.NotFoundError):
        client.models.retrieve("nothing")


def test_files_and_speech(upstream: ScriptedUpstream, client: openai.OpenAI) -> None:
    """A multipart upload and a binary answer."""
    upstream.script(
        Reply(
            raw=b'{"id": "file-1", "object": "file", "bytes": 5, "created_at": 1,'
            b'"filename": "a.txt", "purpose": "batch", "status": "processed"}'
        ),
        path="/files",
    )
    upstream.script(Reply(raw=b"\x00\xffID3", content_type="audio/mpeg"), path="/audio/speech")
    made = client.files.create(file=("a.txt", b"hello"), purpose="batch")
    assert made.id == "file-1"
    assert b"hello" in upstream.last.body
    speech = client.audio.speech.create(model="tts", voice="alloy", input="hi")
    assert speech.read() == b"\x00\xffID3"


def test_responses(upstream: ScriptedUpstream, client: openai.OpenAI) -> None:
    """The Responses API passes, streaming and not, with state kept by the provider."""
    first = client.responses.create(model="m", input="hello there")
    assert first.output_text == "You said: hello there"
    second = client.responses.create(model="m", input="again", previous_response_id=first.id)
    assert second.output_text == "You said: again"
    kinds = [e.type for e in client.responses.create(model="m", input="one", stream=True)]
    assert kinds[0] == "response.created"
    assert kinds[-1] == "response.completed"


ERRORS = [
    (FaultKind.UNAUTHORIZED, "AuthenticationError", "Incorrect API key."),
    (FaultKind.FORBIDDEN, "PermissionDeniedError", "No access"),
    (FaultKind.NOT_FOUND, "NotFoundError", "does not exist"),
    (FaultKind.BAD_REQUEST, "BadRequestError", "Invalid request"),
    (FaultKind.CONTEXT_LENGTH, "BadRequestError", "maximum context length is 128000"),
    (FaultKind.RATE_LIMIT, "RateLimitError", "Rate limit reached"),
    (FaultKind.OVERLOADED, "InternalServerError", "Overloaded"),
]


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(("kind", "raised", "says"), ERRORS, ids=[k for k, _, _ in ERRORS])
def test_errors_are_the_right_exceptions(
    upstream: ScriptedUpstream,
    client: openai.OpenAI,
    kind: FaultKind,
    raised: str,
    says: str,
    stream: bool,
) -> None:
    """Class, message, code, type, status and `retry-after` are the provider's."""
    upstream.default = Fault(kind, retry_after="3")  # a refused request may be sent twice
    with pytest.raises(getattr(openai, raised), match=says) as error:
        client.chat.completions.create(model="m", messages=HELLO, stream=stream)
    detail: Any = error.value.body
    assert error.value.code == detail["code"]
    assert error.value.type == detail["type"]
    limited = error.value.status_code in (429, 529)
    assert error.value.response.headers.get("retry-after") == ("3" if limited else None)


def test_the_clients_own_retries_work(upstream: ScriptedUpstream, client: openai.OpenAI) -> None:
    """It waits as long as the provider asks it to, repeats with the same body, and succeeds."""
    upstream.script(Fault(FaultKind.RATE_LIMIT, times=2, retry_after="0.05"), Reply("well"))
    made = client.with_options(max_retries=2).chat.completions.create(model="m", messages=HELLO)
    assert made.choices[0].message.content == "well"
    counts = [r.header("x-stainless-retry-count") for r in upstream.requests]
    assert counts == ["0", "1", "2"]
    assert len({r.body for r in upstream.requests}) == 1


def test_a_cut_stream_is_an_error(upstream: ScriptedUpstream, client: openai.OpenAI) -> None:
    """Nobody takes half an answer for a whole one."""
    upstream.script(Fault(FaultKind.CLEAN_CUT, reply=Reply("a b c d")))
    stream = client.chat.completions.create(model="m", messages=HELLO, stream=True)
    with pytest.raises(openai.APIError, match="without a finish reason"):
        list(stream)


def test_a_client_timeout_ends_the_call(upstream: ScriptedUpstream, client: openai.OpenAI) -> None:
    """The client gives up, and the provider's call ends with it."""
    upstream.default = Fault(FaultKind.SLOW_FIRST_BYTE, delay_s=60)
    while not upstream.requests:  # on a busy machine a client may leave before it is heard
        with pytest.raises(openai.APITimeoutError):
            client.with_options(timeout=0.5).chat.completions.create(model="m", messages=HELLO)
    upstream.requests[0].wait_disconnected()


def test_leaving_a_stream_ends_the_call(upstream: ScriptedUpstream, client: openai.OpenAI) -> None:
    """Closing a stream in the middle cancels the provider's call."""
    upstream.script(Reply("word " * 1000, chunk_delay_s=0.02))
    with client.chat.completions.create(model="m", messages=HELLO, stream=True) as stream:
        next(iter(stream))
    upstream.last.wait_disconnected()


def test_raw_responses_show_the_gateways_headers(client: openai.OpenAI) -> None:
    """Whoever looks finds what the gateway did."""
    raw = client.chat.completions.with_raw_response.create(model="m", messages=HELLO)
    assert raw.headers["x-gateway-model"] == "m"
    assert raw.headers["x-gateway-mode"] in ("on", "off")
    assert raw.parse().choices


async def test_async_chat_and_streaming(
    upstream: ScriptedUpstream, async_client: openai.AsyncOpenAI
) -> None:
    """The asynchronous client, many at once."""

    async def one(number: int) -> str:
        messages: Any = [{"role": "user", "content": f"number {number}"}]
        if number % 2:
            made = await async_client.chat.completions.create(model="m", messages=messages)
            return made.choices[0].message.content or ""
        stream = await async_client.chat.completions.create(
            model="m", messages=messages, stream=True
        )
        return "".join([c.choices[0].delta.content or "" async for c in stream])

    texts = await asyncio.gather(*(one(number) for number in range(20)))
    assert texts == [f"You said: number {number}" for number in range(20)]


async def test_async_cancel_ends_the_call(
    upstream: ScriptedUpstream, async_client: openai.AsyncOpenAI
) -> None:
    """A cancelled task cancels the provider's call, before and after the first byte."""
    upstream.script(
        Fault(FaultKind.SLOW_FIRST_BYTE, delay_s=60), Reply("word " * 1000, chunk_delay_s=0.02)
    )
    call = asyncio.ensure_future(async_client.chat.completions.create(model="m", messages=HELLO))
    await asyncio.to_thread(upstream.wait_for_requests, 1)
    call.cancel()
    with pytest.raises(asyncio.CancelledError):
        await call
    await asyncio.to_thread(upstream.last.wait_disconnected)

    async def read() -> None:
        stream = await async_client.chat.completions.create(model="m", messages=HELLO, stream=True)
        async for _ in stream:
            pass

    reading = asyncio.ensure_future(read())
    await asyncio.to_thread(upstream.wait_for_requests, 2)
    await asyncio.sleep(0.1)
    reading.cancel()
    with pytest.raises(asyncio.CancelledError):
        await reading
    await asyncio.to_thread(upstream.last.wait_disconnected)


async def test_async_errors(upstream: ScriptedUpstream, async_client: openai.AsyncOpenAI) -> None:
    """The same classes as in the synchronous client."""
    upstream.script(Fault(FaultKind.RATE_LIMIT, retry_after="9"))
    with pytest.raises(openai.RateLimitError) as error:
        await async_client.chat.completions.create(model="m", messages=HELLO)
    assert error.value.response.headers["retry-after"] == "9"


def test_many_threads_share_a_client(upstream: ScriptedUpstream, client: openai.OpenAI) -> None:
    """Answers do not get mixed up."""
    found: dict[int, str | None] = {}

    def ask(number: int) -> None:
        made = client.chat.completions.create(
            model="m", messages=[{"role": "user", "content": f"number {number}"}]
        )
        found[number] = made.choices[0].message.content

    threads = [threading.Thread(target=ask, args=(number,)) for number in range(12)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == {number: f"You said: number {number}" for number in range(12)}


def test_a_client_over_a_proxy_less_transport(gateway: Any) -> None:
    """A client built on its own httpx client works as well."""
    with httpx.Client(http2=False) as transport:
        client = openai.OpenAI(base_url=gateway.base_url, api_key="k", http_client=transport)
        assert client.chat.completions.create(model="m", messages=HELLO).choices
