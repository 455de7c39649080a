"""A request that begins with the bytes of the one before is recognised, and scanned from there."""

from __future__ import annotations

import json
from typing import Any

import orjson
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gateway.wire.prefix import Prefix, prefix_of
from gateway.wire.request import ChatRequest
from tests.wire.texts import SPACES, messages

WRITERS = [
    lambda body: json.dumps(body),
    lambda body: json.dumps(body, ensure_ascii=False, separators=(",", ":")),
    lambda body: json.dumps(body, indent=2),
]


def parsed(raw: bytes) -> ChatRequest:
    return ChatRequest.parse(raw, orjson.loads)


def known(request: ChatRequest) -> Prefix:
    found = prefix_of(request)
    assert found is not None
    return found


@st.composite
def grown(draw: st.DrawFn) -> tuple[bytes, bytes, int]:
    """A body, the same with more messages behind, and how many are new."""
    old = draw(st.lists(messages(), min_size=1, max_size=3))
    new = draw(st.lists(messages(), max_size=3))
    before, between, after = draw(SPACES), draw(SPACES), draw(SPACES)
    head = '{"model": "m\u00e9",' + before + '"messages":[' + ("," + between).join(old)
    first = head + after + '], "x": 1}'
    more = "".join(f"{after},{between}{message}" for message in new)
    return first.encode(), (head + more + before + '],"y":"\U0001f600"}').encode(), len(new)


@settings(max_examples=80)
@given(grown())
def test_an_extended_prefix_is_the_prefix_of_the_longer_request(
    made: tuple[bytes, bytes, int],
) -> None:
    """Scanning only what is new gives the same bytes and the same places as scanning all."""
    first, second, added = made
    prefix = known(parsed(first))
    request = parsed(second)
    assert prefix.begins(request)
    extended = prefix.extended(request)
    assert extended == known(request)
    assert extended.count == prefix.count + added


@settings(max_examples=60)
@given(grown(), st.text(min_size=1, max_size=6))
def test_spans_from_a_prefix_serve_the_request(made: tuple[bytes, bytes, int], model: str) -> None:
    """A request told its spans by a prefix renders what a scanned one renders."""
    first, second, _ = made
    told, scanned = parsed(second), parsed(second)
    told.know_message_spans(list(known(parsed(first)).extended(told).spans))
    model = json.loads(json.dumps(model, ensure_ascii=True).replace("\\ud", "x"))
    assert told.render(told.with_model(model)) == scanned.render(scanned.with_model(model))
    assert told.message_spans == scanned.message_spans


@pytest.mark.parametrize("write", WRITERS)
def test_a_growing_conversation_in_one_style(write: Any) -> None:
    """Each request of a conversation begins with the one before, in any client's formatting."""
    history: list[dict[str, Any]] = [{"role": "user", "content": "\u4f60\u597d"}]
    prefix = known(parsed(write({"model": "m", "messages": history}).encode()))
    for turn in range(4):
        history += [{"role": "assistant", "content": None}, {"role": "user", "content": f"{turn}"}]
        request = parsed(write({"model": "m", "messages": history, "n": turn}).encode())
        assert prefix.begins(request)
        prefix = prefix.extended(request)
        assert prefix == known(request)


@pytest.mark.parametrize(
    "other",
    [
        '{"model": "n", "messages": [{"a": 1}]}',
        '{"model": "m", "messages": [{"a": 12}]}',
        '{"model": "m", "messages": [{"a": 1, "b": 2}]}',
        '{"model": "m", "messages": []}',
    ],
)
def test_what_does_not_begin_with_it(other: str) -> None:
    """Another model, a changed or a missing message is another history."""
    prefix = known(parsed(b'{"model": "m", "messages": [{"a": 1}]}'))
    assert not prefix.begins(parsed(other.encode()))


@pytest.mark.parametrize("item", ["1", '"a"', "-0"])
def test_a_last_message_that_goes_on_is_not_the_same(item: str) -> None:
    """The prefix must end where a message ends: `1` does not begin `12`."""
    prefix = Prefix(raw=b'{"model": "m", "messages": [' + item.encode(), spans=((28, 29),))
    longer = {"1": "12", '"a"': '"a"', "-0": "-0.5"}[item]
    request = parsed(f'{{"model": "m", "messages": [{longer}]}}'.encode())
    assert prefix.begins(request) is (longer == item)


def test_a_second_messages_key_is_not_a_continuation() -> None:
    """A repeated key makes another list the messages: the old places would be wrong."""
    prefix = known(parsed(b'{"model": "m", "messages": [{"a": 1}]}'))
    request = parsed(b'{"model": "m", "messages": [{"a": 1}], "messages": [{"b": 2}, 3]}')
    assert not prefix.begins(request)


def test_no_messages_no_prefix() -> None:
    """A request without messages has nothing to begin another one with."""
    assert prefix_of(parsed(b'{"model": "m", "messages": []}')) is None
