"""Advice at the tail of a request in each dialect, where no late system message is taken."""

from __future__ import annotations

import json
from typing import Any

import orjson
import pytest

from gateway.core.guidance_choice import Decided, Item
from gateway.core.guidance_settings import InjectionSettings
from gateway.core.guidance_state import GuidanceState, from_json, to_json
from gateway.core.guidance_text import frame
from gateway.core.placement import GuidanceTarget, place
from gateway.dialects.base import Dialect
from gateway.dialects.chat import CHAT
from gateway.dialects.gemini import GEMINI
from gateway.dialects.messages import MESSAGES
from gateway.dialects.messages_cloud import BEDROCK, VERTEX
from gateway.dialects.responses import RESPONSES
from gateway.wire.body_prefix import AsMappings

ADVICE = Item(text="look at the value")
TEXT = frame([ADVICE.text])
PART = {"type": "text", "text": TEXT}
INPUT = {"type": "input_text", "text": TEXT}
PICTURE = {"type": "image_url", "image_url": {"url": "data:image/png;base64,AA=="}}
IMAGE = {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": "AA=="}}
SIGNED = {"type": "thinking", "thinking": "hm", "signature": "c2lnbmVk"}
CALL = {"id": "c1", "type": "function", "function": {"name": "bash", "arguments": "{}"}}


def tool(content: Any, name: str = "c1") -> dict[str, Any]:
    return {"role": "tool", "tool_call_id": name, "content": content}


def result(**more: Any) -> dict[str, Any]:
    return {"type": "tool_result", "tool_use_id": "c1", **more}


def output(kind: str, value: Any) -> dict[str, Any]:
    return {"type": kind, "call_id": "c1", "output": value}


def user(content: Any) -> dict[str, Any]:
    return {"role": "user", "content": content}


def response(**more: Any) -> dict[str, Any]:
    return {"functionResponse": {"name": "bash", "response": {"output": "no"}, **more}}


CHAT_BEFORE = [
    {"role": "system", "content": "Work."},
    user("Build."),
    {"role": "assistant", "content": None, "tool_calls": [CALL]},
]
BLOCKS_BEFORE = [
    user("Build."),
    {"role": "assistant", "content": [SIGNED, {"type": "tool_use", "id": "c1", "name": "bash"}]},
]
ITEMS_BEFORE = [
    user("Build."),
    {"type": "function_call", "call_id": "c1", "name": "bash", "arguments": "{}"},
]
CONTENTS_BEFORE = [
    {"role": "user", "parts": [{"text": "Build."}]},
    {"role": "model", "parts": [{"functionCall": {"name": "bash"}, "thoughtSignature": "c2ln"}]},
]
# What the client sends last, and what arrives in its place.
CHAT_CASES = [
    ([tool("no")], [tool(f"no\n\n{TEXT}")]),
    ([tool("")], [tool(TEXT)]),
    ([tool(None)], [tool(TEXT)]),
    ([tool([{"type": "text", "text": "no"}])], [tool([{"type": "text", "text": "no"}, PART])]),
    ([tool([PICTURE])], [tool([PICTURE, PART])]),
    ([tool("a"), tool("b", "c2")], [tool("a"), tool(f"b\n\n{TEXT}", "c2")]),
    ([tool({"odd": 1})], [tool({"odd": 1}), user(TEXT)]),
    ([tool("no"), user("Go on.")], [tool("no"), user(f"Go on.\n\n{TEXT}")]),
    ([user([PICTURE])], [user([PICTURE, PART])]),
]
BLOCKS_CASES = [
    ([user([result(content="no")])], [user([result(content="no"), PART])]),
    (
        [user([result(content="no", is_error=True)])],
        [user([result(content="no", is_error=True), PART])],
    ),
    ([user([result(content=[IMAGE])])], [user([result(content=[IMAGE]), PART])]),
    ([user([result()])], [user([result(), PART])]),
    (
        [user([result(content="a"), result(content="b")])],
        [user([result(content="a"), result(content="b"), PART])],
    ),
    ([user("Go on.")], [user([{"type": "text", "text": "Go on."}, PART])]),
]
ITEMS_CASES = [
    ([output(kind, "no")], [output(kind, f"no\n\n{TEXT}")])
    for kind in ("function_call_output", "custom_tool_call_output")
] + [
    ([output("function_call_output", [IMAGE])], [output("function_call_output", [IMAGE, INPUT])]),
    ([output("function_call_output", "")], [output("function_call_output", TEXT)]),
    ([output("computer_call_output", {})], [output("computer_call_output", {}), user(TEXT)]),
    ([output("shell_call_output", [])], [output("shell_call_output", []), user(TEXT)]),
    (
        [user([{"type": "input_text", "text": "Go on."}])],
        [user([{"type": "input_text", "text": "Go on."}, INPUT])],
    ),
]
MORE: list[dict[str, Any]] = [{}, {"response": {"error": "no"}}, {"response": {}}]
CONTENTS_CASES = [
    (
        [{"role": role, "parts": [response(**more)]}],
        [{"role": role, "parts": [response(**more), {"text": TEXT}]}],
    )
    for role in ("user", "function")
    for more in MORE
]
CASES = [
    *[(CHAT, {}, CHAT_BEFORE, *case) for case in CHAT_CASES],
    *[(each, {"system": "Work."}, BLOCKS_BEFORE, *case) for each in (MESSAGES, BEDROCK, VERTEX)
      for case in BLOCKS_CASES],
    *[(RESPONSES, {"instructions": "Work."}, ITEMS_BEFORE, *case) for case in ITEMS_CASES],
    *[(GEMINI, {}, CONTENTS_BEFORE, *case) for case in CONTENTS_CASES],
]  # fmt: skip


def sent(dialect: Dialect, body: dict[str, Any], decided: Decided) -> tuple[Any, GuidanceState]:
    """The body that leaves, and the bookkeeping after it as it is stored."""
    request = dialect.parse(json.dumps(body).encode(), orjson.loads)
    given = GuidanceTarget(breakpoints=dialect is not RESPONSES and dialect is not CHAT)
    placed = place(
        AsMappings(dialect.placeable(request)), decided, target=given, settings=InjectionSettings()
    )
    edited = json.loads(request.render(dialect.splices(request, placed.edits)))
    through_litellm = dict(dialect.edited(request, placed.edits))
    assert {key: through_litellm[key] for key in edited} == edited
    return edited, from_json(to_json(placed.state))


@pytest.mark.parametrize(("dialect", "front", "before", "last", "arrives"), CASES)
def test_advice_ends_the_newest_message(
    dialect: Dialect, front: Any, before: list[Any], last: list[Any], arrives: list[Any]
) -> None:
    """All else is as the client wrote it, signed thinking and cache marks included; a later call
    has the same bytes at the same place."""
    body = {"model": "m", "anthropic_version": "v", "tools": [], **front}
    history = [*before, *last]
    decided = Decided(step=1, state=GuidanceState(), items=(ADVICE,))
    first, state = sent(dialect, {**body, dialect.list_key: history}, decided)
    assert first == {**body, dialect.list_key: [*before, *arrives]}
    later = [*history, *before[-1:], *last]
    again, _ = sent(dialect, {**body, dialect.list_key: later}, Decided(step=2, state=state))
    assert again == {**body, dialect.list_key: [*before, *arrives, *before[-1:], *last]}


def test_a_text_alone_takes_the_advice() -> None:
    """Responses with one text as their input, and Gemini's one content without a list."""
    decided = Decided(step=1, state=GuidanceState(), items=(ADVICE,))
    body, _ = sent(RESPONSES, {"model": "m", "input": "Go on."}, decided)
    assert body == {"model": "m", "input": f"Go on.\n\n{TEXT}"}
    content = {"parts": [{"text": "Go on."}]}
    body, _ = sent(GEMINI, {"model": "m", "contents": content}, decided)
    assert body["contents"] == {"parts": [{"text": "Go on."}, {"text": TEXT}]}


def test_the_form_of_a_message_of_claude_is_the_same_when_it_is_the_newest() -> None:
    """A client that writes the newest message as parts, to mark it, and later ones as a text has
    the same blocks on both calls: the cache keeps them."""
    decided = Decided(step=1, state=GuidanceState(), items=(ADVICE,))
    mark = {"cache_control": {"type": "ephemeral"}}
    newest = user([{"type": "text", "text": "Go on.", **mark}])
    first, state = sent(MESSAGES, {"model": "m", "messages": [newest]}, decided)
    later = [user("Go on."), {"role": "assistant", "content": "Done."}, user("?")]
    again, _ = sent(MESSAGES, {"model": "m", "messages": later}, Decided(step=2, state=state))
    [own, added] = first["messages"][0]["content"]
    assert again["messages"][0]["content"] == [{"type": "text", "text": own["text"]}, added]
