"""A request that begins with the bytes of the one before is recognised, and scanned from there."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.errors import BadRequest
from gateway.wire.body_prefix import BodyPrefix
from gateway.wire.request import ChatRequest
from steering_gateway_testing.json_texts import SPACES, messages, parsed, standard
from tests.examples import examples

WRITERS = [
    lambda body: json.dumps(body),
    lambda body: json.dumps(body, ensure_ascii=False, separators=(",", ":")),
    lambda body: json.dumps(body, indent=2),
]


def known(request: ChatRequest) -> BodyPrefix:
    found = request.prefix
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


@examples(80)
@given(grown())
def test_an_extended_prefix_is_the_prefix_of_the_longer_request(
    made: tuple[bytes, bytes, int],
) -> None:
    """Scanning only what is new gives the same bytes and the same places as scanning all."""
    first, second, added = made
    prefix = known(parsed(first))
    request = parsed(second)
    assert prefix.begins(second)
    extended = prefix.extended(second)
    assert extended == known(request)
    assert len(extended.spans) == len(prefix.spans) + added


@examples(80)
@given(grown(), st.text(min_size=1, max_size=6))
def test_reading_only_the_rest_gives_the_same_request(
    made: tuple[bytes, bytes, int], model: str
) -> None:
    """Behind a known prefix the body, its spans and what is rendered are those of a whole read."""
    first, second, _ = made
    prefix = known(parsed(first))
    behind, whole = parsed(second, standard, prefix), parsed(second, standard)
    assert behind.known is not None
    assert behind.message_spans == whole.message_spans
    model = json.loads(json.dumps(model, ensure_ascii=True).replace("\\ud", "x"))
    assert behind.render(behind.with_model(model)) == whole.render(whole.with_model(model))
    assert json.dumps(behind.whole) == json.dumps(whole.body)
    assert whole.whole is whole.body


@examples(60)
@given(grown(), st.data())
def test_known_messages_are_a_sequence(made: tuple[bytes, bytes, int], data: st.DataObject) -> None:
    """Lengths, places, slices and the order are those of the list, from both ends."""
    first, second, _ = made
    prefix = known(parsed(first))
    behind, whole = parsed(second, standard, prefix), parsed(second, standard)
    told, listed = behind.messages, list(whole.messages)
    assert len(told) == len(listed)
    cut = data.draw(st.slices(len(listed)))
    assert json.dumps(told[cut]) == json.dumps(listed[cut])
    at = data.draw(st.integers(-len(listed), len(listed) - 1))
    assert json.dumps(told[at]) == json.dumps(listed[at])
    for outside in (len(listed), -len(listed) - 1):
        with pytest.raises(IndexError):
            told[outside]


@pytest.mark.parametrize("write", WRITERS)
def test_a_growing_conversation_in_one_style(write: Any) -> None:
    """Each request of a conversation begins with the one before, in any client's formatting."""
    history: list[dict[str, Any]] = [{"role": "user", "content": "\u4f60\u597d"}]
    prefix = known(parsed(write({"model": "m", "messages": history}).encode()))
    for turn in range(4):
        history += [{"role": "assistant", "content": None}, {"role": "user", "content": f"{turn}"}]
        raw = write({"model": "m", "messages": history, "n": turn}).encode()
        assert prefix.begins(raw)
        assert parsed(raw, known=prefix).messages[-1] == history[-1]
        prefix = prefix.extended(raw)
        assert prefix == known(parsed(raw))


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
    assert not prefix.begins(other.encode())


@pytest.mark.parametrize("item", ["1", '"a"', "-0"])
def test_a_last_message_that_goes_on_is_not_the_same(item: str) -> None:
    """The prefix must end where a message ends: `1` does not begin `12`."""
    prefix = known(parsed(f'{{"model": "m", "messages": [{item}]}}'.encode()))
    longer = {"1": "12", '"a"': '"a"', "-0": "-0.5"}[item]
    assert prefix.begins(f'{{"model": "m", "messages": [{longer}]}}'.encode()) is (longer == item)


@pytest.mark.parametrize("key", ["messages", "mess\\u0061ges"])
def test_a_second_messages_key_is_not_a_continuation(key: str) -> None:
    """A repeated key makes another list the messages: the body is read whole."""
    prefix = known(parsed(b'{"model": "m", "messages": [{"a": 1}]}'))
    raw = f'{{"model": "m", "messages": [{{"a": 1}}], "{key}": [{{"b": 2}}, 3]}}'.encode()
    request = parsed(raw, known=prefix)
    assert request.known is None
    assert request.messages == [{"b": 2}, 3]
    assert [raw[s:e] for s, e in request.message_spans] == [b'{"b": 2}', b"3"]


@pytest.mark.parametrize("number", ["0", "0.0", "false", "-0", "7640891576956012809"])
def test_no_message_stands_in_for_the_known_ones(number: str) -> None:
    """A repeated key is another list also where its first message is a number."""
    prefix = known(parsed(b'{"model": "m", "messages": [{"a": 1}]}'))
    raw = f'{{"model": "m", "messages": [{{"a": 1}}], "messages": [{number}, 3]}}'.encode()
    request = parsed(raw, known=prefix)
    assert request.messages == [json.loads(number), 3]


def test_what_is_wrong_behind_a_prefix_is_told_of_the_whole_body() -> None:
    """An error names its line and column in what the client sent."""
    prefix = known(parsed(b'{"model": "m", "messages": [{"a": 1}]}'))
    with pytest.raises(BadRequest, match="line 1, column 38"):
        parsed(b'{"model": "m", "messages": [{"a": 1}]', known=prefix)


def test_no_messages_no_prefix() -> None:
    """A request without messages has nothing to begin another one with."""
    assert parsed(b'{"model": "m", "messages": []}').prefix is None
