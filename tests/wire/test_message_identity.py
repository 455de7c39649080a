"""What a message's digest is made of: each row of what real clients change, and what must count."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.wire.message_identity import (
    DIGEST_BYTES,
    content_text,
    history,
    reply_message,
    system_text,
    tool_names,
)
from steering_gateway_testing.json_texts import message_digest

PIXEL = {"type": "image_url", "image_url": {"url": "data:image/png;base64,AAAA"}}


def a_call(arguments: Any = '{"path": "a.py", "line": 3}', id: str = "call_1") -> dict[str, Any]:
    return {"id": id, "type": "function", "function": {"name": "read", "arguments": arguments}}


def a_reply(**changes: Any) -> dict[str, Any]:
    return {"role": "assistant", "content": "Let me look.", "tool_calls": [a_call()], **changes}


SAME = {
    "content as text parts": a_reply(content=[{"type": "text", "text": "Let me look."}]),
    "content cut into several parts": a_reply(
        content=[{"type": "text", "text": "Let me "}, {"type": "text", "text": "look."}]
    ),
    "content parts as plain strings": a_reply(content=["Let me look."]),
    "Responses text parts": a_reply(
        content=[{"type": "output_text", "text": "Let me look.", "annotations": []}]
    ),
    "extra keys": a_reply(refusal=None, annotations=[], provider_specific_fields={"a": 1}),
    "reasoning kept": a_reply(reasoning_content="The file may tell."),
    "thinking part kept": a_reply(
        content=[
            {"type": "thinking", "thinking": "Hm", "signature": "x"},
            {"type": "text", "text": "Let me look."},
        ]
    ),
    "arguments with other spaces": a_reply(tool_calls=[a_call('{"path":"a.py","line":3}')]),
    "arguments in another order": a_reply(tool_calls=[a_call('{"line": 3, "path": "a.py"}')]),
    "arguments as a value": a_reply(tool_calls=[a_call({"path": "a.py", "line": 3})]),
    "escapes in arguments": a_reply(tool_calls=[a_call('{"path": "\\u0061.py", "line": 3}')]),
    "numbers as another language writes them": a_reply(
        tool_calls=[a_call('{"path": "a.py", "line": 3.0}')]
    ),
    "key order of a call": a_reply(
        tool_calls=[dict(reversed(list(a_call().items())))], content="Let me look."
    ),
    "a replaced call id": a_reply(tool_calls=[a_call(id="toolu_1")]),
    "a position in the call": a_reply(tool_calls=[{**a_call(), "index": 0}]),
    "white space added": a_reply(content="Let me look.\n\n"),
    "a cache marker on a part": a_reply(
        content=[{"type": "text", "text": "Let me look.", "cache_control": {"type": "ephemeral"}}]
    ),
    "a cache marker on the message": a_reply(cache_control={"type": "ephemeral"}),
    "the call as an Anthropic part": {
        "role": "assistant",
        "content": [
            {"type": "text", "text": "Let me look."},
            {"type": "tool_use", "id": "t", "name": "read", "input": {"line": 3, "path": "a.py"}},
        ],
    },
}
OTHER = {
    "another text": a_reply(content="Let me look!"),
    "no text": a_reply(content=None),
    "another tool": a_reply(
        tool_calls=[{"id": "1", "function": {"name": "write", "arguments": "{}"}}]
    ),
    "another argument": a_reply(tool_calls=[a_call('{"path": "b.py", "line": 3}')]),
    "no call": a_reply(tool_calls=None),
    "one call more": a_reply(tool_calls=[a_call(), a_call()]),
    "another speaker": {"role": "user", "content": "Let me look."},
    "a picture": a_reply(content=[{"type": "text", "text": "Let me look."}, PIXEL]),
}


@pytest.mark.parametrize("echo", SAME.values(), ids=SAME.keys())
def test_what_clients_change_leaves_the_digest(echo: dict[str, Any]) -> None:
    """Each change that a client is known to make to a reply keeps its digest."""
    assert message_digest(echo) == message_digest(a_reply())


@pytest.mark.parametrize("other", OTHER.values(), ids=OTHER.keys())
def test_what_a_model_reads_differently_changes_the_digest(other: dict[str, Any]) -> None:
    """A reply that says or does something else has another digest."""
    assert message_digest(other) != message_digest(a_reply())


@pytest.mark.parametrize("empty", [None, "", " \n", [], [{"type": "text", "text": ""}]])
def test_empty_content_is_one_thing(empty: Any) -> None:
    """Null, absent, empty and blank content are the same, beside calls and alone."""
    absent = {"role": "assistant", "tool_calls": [a_call()]}
    assert message_digest({**absent, "content": empty}) == message_digest(absent)
    assert message_digest({"role": "user", "content": empty}) == message_digest({"role": "user"})
    assert message_digest({"role": "assistant", "content": empty}) is not None


@pytest.mark.parametrize("arguments", ["", " ", None, "{}", "null", {}])
def test_no_arguments_are_one_thing(arguments: Any) -> None:
    """A call without arguments may be echoed with an empty object."""
    assert message_digest(a_reply(tool_calls=[a_call(arguments)])) == message_digest(
        a_reply(tool_calls=[a_call("{}")])
    )


def test_arguments_that_are_no_json_count_as_text() -> None:
    """Arguments cut in the middle are compared as they stand, but for white space at the ends."""
    cut, other = '{"path": "a.p', '{"path": "a.q'
    assert message_digest(a_reply(tool_calls=[a_call(cut)])) == message_digest(
        a_reply(tool_calls=[a_call(cut + "\n")])
    )
    assert message_digest(a_reply(tool_calls=[a_call(cut)])) != message_digest(
        a_reply(tool_calls=[a_call(other)])
    )


def test_legacy_function_call_is_a_call() -> None:
    """A `function_call` digests like the same call in `tool_calls`."""
    legacy = {"role": "assistant", "function_call": {"name": "read", "arguments": '{"line": 3}'}}
    modern = {"role": "assistant", "tool_calls": [a_call('{"line":3}')]}
    assert message_digest(legacy) == message_digest(modern)


def test_custom_tool_input_is_its_argument() -> None:
    """The free text a custom tool is called with is part of the digest."""

    def call(text: str) -> dict[str, Any]:
        custom = {"name": "patch", "input": text}
        return {"role": "assistant", "tool_calls": [{"id": "1", "custom": custom}]}

    assert message_digest(call("*** Begin")) != message_digest(call("*** End"))


def test_a_result_is_known_by_the_place_of_its_call() -> None:
    """With the ids of the calls given, a result's own id is replaced by its place among them."""
    first = message_digest({"role": "tool", "tool_call_id": "a", "content": "x"}, ["a", "b"])
    second = message_digest({"role": "tool", "tool_call_id": "b", "content": "x"}, ["a", "b"])
    renamed = message_digest({"role": "tool", "tool_call_id": "u2", "content": "x"}, ["u1", "u2"])
    assert first != second == renamed


def test_the_name_of_a_result_is_ignored() -> None:
    """A tool message may or may not carry the name of its tool."""
    result = {"role": "tool", "tool_call_id": "a", "content": "x"}
    assert message_digest({**result, "name": "read"}) == message_digest(result)


@pytest.mark.parametrize("role", ["system", "developer"])
def test_system_messages_leave_no_trace(role: str) -> None:
    """A system or developer message has no digest: clients rewrite it."""
    assert message_digest({"role": role, "content": "Today is Monday"}) is None


def test_pictures_count_and_their_cache_markers_do_not() -> None:
    """A part that is not text is digested as canonical JSON without cache markers."""

    def shown(url: str, **extra: Any) -> bytes | None:
        part = {**PIXEL, "image_url": {"url": url}, **extra}
        return message_digest({"role": "user", "content": [{"type": "text", "text": "?"}, part]})

    assert shown("data:a") != shown("data:b")
    assert shown("data:a") == shown("data:a", cache_control={"type": "ephemeral"})


def test_item_ids_and_status_are_ignored() -> None:
    """A Responses client may drop the id of an item or add a status to it."""
    call = {"type": "function_call", "call_id": "c", "name": "read", "arguments": '{"a": 1}'}
    assert message_digest({**call, "id": "fc_1", "status": "completed"}) == message_digest(call)
    custom = {"type": "custom_tool_call", "call_id": "c", "name": "read", "input": '{"a": 1}'}
    assert message_digest({**custom, "id": "ctc_1"}) == message_digest(call)
    output = {"type": "function_call_output", "call_id": "c", "output": "x"}
    assert message_digest({**output, "id": "o", "status": "done"}) == message_digest(
        {"role": "tool", "content": "x"}
    )
    search = {"type": "web_search_call", "action": {"query": "x"}}
    assert message_digest({**search, "id": "ws_1", "status": "done"}) == message_digest(search)
    said = {"type": "message", "role": "assistant", "content": "Hi"}
    assert message_digest({**said, "id": "msg_1"}) == message_digest(
        {"role": "assistant", "content": "Hi"}
    )
    assert message_digest({"type": "reasoning", "id": "rs_1", "summary": []}) is None


def test_calls_that_are_no_objects_still_count() -> None:
    """A malformed call is compared as it stands."""
    one, two = a_reply(tool_calls=["ls"]), a_reply(tool_calls=["cat"])
    assert message_digest(one) != message_digest(two)


def test_fields_cannot_run_into_each_other() -> None:
    """Text moved from one field to the next changes the digest."""
    one = {"role": "assistant", "tool_calls": [{"function": {"name": "ab", "arguments": "c"}}]}
    two = {"role": "assistant", "tool_calls": [{"function": {"name": "a", "arguments": "bc"}}]}
    assert message_digest(one) != message_digest(two)


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=8,
)
KEYS = [
    "role",
    "content",
    "type",
    "text",
    "tool_calls",
    "function_call",
    "function",
    "name",
    "arguments",
    "input",
    "id",
    "call_id",
    "tool_call_id",
    "output",
    "cache_control",
    "tool_use_id",
]
WORDS = st.sampled_from(
    [
        "assistant",
        "user",
        "tool",
        "function",
        "system",
        "text",
        "tool_use",
        "tool_result",
        "thinking",
        "function_call",
        "function_call_output",
        "reasoning",
        "custom_tool_call",
    ]
)
MALFORMED = st.recursive(
    JSON | WORDS,
    lambda inner: (
        st.lists(inner, max_size=4) | st.dictionaries(st.sampled_from(KEYS), inner, max_size=6)
    ),
    max_leaves=20,
)


@given(MALFORMED)
def test_no_message_is_too_malformed(message: Any) -> None:
    """Any JSON value has a digest of 16 bytes or none, the same each time."""
    digest = message_digest(message)
    assert digest is None or len(digest) == DIGEST_BYTES
    assert message_digest(json.loads(json.dumps(message))) == digest


def test_endless_nesting_and_foreign_values_have_a_digest() -> None:
    """Nesting deeper than the interpreter's stack, lone surrogates and sets do not raise."""
    deep: Any = []
    for _ in range(100_000):
        deep = [deep]
    nested = "[" * 100_000
    for content in (deep, [{"type": "x", "y": deep}], "\ud800", {1, 2}, [{"type": ["text"]}]):
        assert message_digest({"role": "user", "content": content})
    assert message_digest(a_reply(tool_calls=[a_call(nested), a_call("9" * 5000), a_call(deep)]))
    assert message_digest({"role": ["user"], "content": "x"})
    while deep:
        deep = deep.pop()


@given(JSON.filter(lambda value: value is not None), st.integers(0, 4))
def test_arguments_are_compared_as_values(value: Any, indent: int) -> None:
    """However a client writes the arguments' JSON, the digest is that of the value."""
    written = json.dumps(value, indent=indent, ensure_ascii=bool(indent))
    again = json.dumps(value, separators=(",", ":"))
    assert message_digest(a_reply(tool_calls=[a_call(written)])) == message_digest(
        a_reply(tool_calls=[a_call(again)])
    )


def test_reply_message_keeps_what_is_echoed() -> None:
    """A choice's message is brought to the form that a faithful client sends back."""
    choice = {**a_reply(), "refusal": None, "annotations": [], "audio": None}
    assert reply_message(choice) == a_reply()
    assert reply_message({"content": "Hi"}) == {"role": "assistant", "content": "Hi"}
    assert reply_message(None) == {"role": "assistant"}


def test_history_is_found_in_each_dialect() -> None:
    """Messages, items, and an input that is only text are one transcript; the rest is empty."""
    said = {"role": "user", "content": "Hi"}
    assert history({"messages": [said]}) == [said]
    assert history({"input": [said]}) == [said]
    assert history({"input": "Hi"}) == [said]
    assert history({"messages": 5}) == history({}) == []


def test_system_text_is_gathered() -> None:
    """System texts are taken from before the history and from beside the messages."""
    body = {
        "instructions": "Be brief.",
        "system": [{"type": "text", "text": "Be kind."}],
        "messages": [
            {"role": "system", "content": "You code."},
            {"role": "developer", "content": [{"type": "text", "text": "In C."}]},
            {"role": "user", "content": "Hi"},
            {"role": "system", "content": "Hurry."},
        ],
    }
    assert system_text(body, history(body)) == "Be kind.\nBe brief.\nYou code.\nIn C."
    assert system_text({}, ["noise"]) == ""


def test_tools_are_named_in_each_dialect() -> None:
    """Chat tools, flat tools, provider tools and legacy functions give their names."""
    body = {
        "tools": [
            {"type": "function", "function": {"name": "read"}},
            {"type": "function", "name": "write"},
            {"type": "web_search"},
            {"type": "custom", "custom": {"name": "patch"}},
            "noise",
        ],
        "functions": [{"name": "old"}],
    }
    assert tool_names(body) == ("read", "write", "web_search", "patch", "old")
    assert tool_names({"tools": None}) == tool_names({}) == ()


def test_tools_in_an_item_of_the_history_are_named() -> None:
    """As Codex sends them: in namespaces, in an item that has no content."""
    space = {"type": "namespace", "name": "functions", "tools": [{"name": "exec"}, 7]}
    item = {"type": "additional_tools", "role": "developer", "tools": [space, {"name": "b"}]}
    said = {"type": "message", "role": "user", "content": "hello"}
    assert tool_names({"input": [item, said]}) == ("exec", "b")
    assert tool_names({"input": [{**item, "tools": "x"}, said]}) == ()
    assert tool_names({"input": "hello"}) == tool_names({"input": [7, item]}) == ()


def test_content_text_joins_parts() -> None:
    """The text of a content is its text parts, without pictures."""
    assert content_text([{"type": "text", "text": " a"}, PIXEL, "b "]) == "ab"
