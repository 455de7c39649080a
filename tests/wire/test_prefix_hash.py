"""Chained digests: equal histories meet, a known part is not read again."""

from __future__ import annotations

import random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.steering.identity import read_request
from gateway.wire.prefix_hash import chain, extend, root_digest, start_state
from steering_gateway_testing.json_texts import message_digest

TASK: dict[str, Any] = {"role": "user", "content": "Fix it"}
CALLS: list[dict[str, Any]] = [
    {"id": "a", "type": "function", "function": {"name": "ls", "arguments": "{}"}},
    {"id": "b", "type": "function", "function": {"name": "cat", "arguments": '{"f": 1}'}},
]
REPLY: dict[str, Any] = {"role": "assistant", "content": "Looking.", "tool_calls": CALLS}
RESULTS: list[dict[str, Any]] = [
    {"role": "tool", "tool_call_id": "a", "content": "x.py"},
    {"role": "tool", "tool_call_id": "b", "content": "pass"},
]
HISTORY: list[dict[str, Any]] = [TASK, REPLY, *RESULTS]


def hash_of(messages: list[Any], tenant: str = "t") -> bytes:
    return extend(start_state(tenant), messages).state.digest


def test_a_prefix_hash_is_the_chain_of_digests() -> None:
    """The hash after one message is the root chained with the message's digest."""
    digest = message_digest(TASK)
    assert digest is not None
    assert hash_of([TASK]) == chain(root_digest("t"), digest)


def test_tenants_never_meet() -> None:
    """The same history of two tenants has two hashes."""
    assert hash_of(HISTORY, "a") != hash_of(HISTORY, "b")


def test_system_messages_do_not_change_the_hash() -> None:
    """A system message changes no hash, whatever its position and its text."""
    system = {"role": "system", "content": "It is Monday"}
    note = {"role": "developer", "content": "Hurry"}
    assert hash_of([system, TASK, note, *HISTORY[1:]]) == hash_of(HISTORY)


@pytest.mark.parametrize(
    "pieces",
    [
        [{"role": "assistant", "content": "Looking."}, {"role": "assistant", "tool_calls": CALLS}],
        [
            {"role": "assistant", "content": "Looking.", "tool_calls": CALLS[:1]},
            {"role": "assistant", "content": None, "tool_calls": CALLS[1:]},
        ],
        [
            {"type": "message", "role": "assistant", "content": "Looking."},
            {"type": "function_call", "call_id": "a", "name": "ls", "arguments": ""},
            {"type": "function_call", "call_id": "b", "name": "cat", "arguments": '{"f":1}'},
        ],
    ],
    ids=["text, then calls", "one call each", "items"],
)
def test_one_reply_in_several_messages(pieces: list[dict[str, Any]]) -> None:
    """A reply split into several assistant messages has the hash of the whole one, and one turn."""
    split = extend(start_state("t"), [TASK, *pieces, *RESULTS])
    assert split.state.digest == hash_of(HISTORY)
    assert split.state.turns == 1


def test_replaced_call_ids_keep_the_hash() -> None:
    """Ids of calls and results replaced alike do not matter; results swapped between calls do."""
    calls = [{**call, "id": f"toolu_{i}"} for i, call in enumerate(CALLS)]
    renamed = [{**result, "tool_call_id": f"toolu_{i}"} for i, result in enumerate(RESULTS)]
    assert hash_of([TASK, {**REPLY, "tool_calls": calls}, *renamed]) == hash_of(HISTORY)
    crossed = [{**r, "tool_call_id": i} for r, i in zip(RESULTS, ("b", "a"), strict=True)]
    assert hash_of([TASK, REPLY, *crossed]) != hash_of(HISTORY)


def test_missing_call_ids_count_by_order() -> None:
    """Results without an id, or with one nobody knows, answer the calls in their order."""
    bare = [{"role": "tool", "content": r["content"]} for r in RESULTS]
    strange = [{**r, "tool_call_id": f"s{i}"} for i, r in enumerate(RESULTS)]
    assert hash_of([TASK, REPLY, *bare]) == hash_of([TASK, REPLY, *strange]) == hash_of(HISTORY)


def test_call_ids_used_again_in_a_later_turn() -> None:
    """Call ids that start from the beginning in each turn give the hashes of unique ones."""
    again = [REPLY, *RESULTS]
    calls = [{**call, "id": call["id"] + "2"} for call in CALLS]
    fresh = [{**r, "tool_call_id": r["tool_call_id"] + "2"} for r in RESULTS]
    assert hash_of(HISTORY + again) == hash_of([*HISTORY, {**REPLY, "tool_calls": calls}, *fresh])


def test_anthropic_results_are_results() -> None:
    """Results in a user message have the hash of tool messages; text after them has another.

    A result that moved into another turn's calls would not.
    """
    parts = [
        {"type": "tool_result", "tool_use_id": r["tool_call_id"], "content": r["content"]}
        for r in RESULTS
    ]
    assert hash_of([TASK, REPLY, {"role": "user", "content": parts}]) == hash_of(HISTORY)
    more = [*parts, {"type": "text", "text": "Go on"}]
    said = {"role": "user", "content": "Go on"}
    assert hash_of([TASK, REPLY, {"role": "user", "content": more}]) == hash_of([*HISTORY, said])


def test_candidates_are_the_hashes_to_look_up() -> None:
    """Longest first, without the root; a hash that covers a system message too is listed once."""
    system = {"role": "system", "content": "x"}
    hashes = extend(start_state("t"), [system, TASK, system, REPLY])
    assert [position for position, _ in hashes.candidates] == [4, 3]
    assert hashes.candidates[1][1] == hash_of([TASK])
    assert extend(start_state("t"), [system]).candidates == ()


def test_turns_are_counted() -> None:
    """Turns behind a position are the assistant turns the history holds after it."""
    hashes = extend(start_state("t"), [*HISTORY, REPLY])
    assert [hashes.turns_after(position) for position in range(6)] == [2, 2, 1, 1, 1, 0]


def test_a_state_that_counts_too_much_is_not_used() -> None:
    """A state made from a longer history than the request's is passed over."""
    state = extend(start_state("t"), HISTORY).state
    read = read_request({}, {"messages": [TASK]}, "t", resume=state)
    assert read.hashes == extend(start_state("t"), [TASK])


def test_a_reply_extends_the_hash() -> None:
    """The hash of a request extended by its reply is found in the next request."""
    served = extend(start_state("t"), [TASK])
    replied = extend(served.state, [REPLY])
    assert replied.state.digest in extend(start_state("t"), HISTORY).digests
    assert replied.messages == (message_digest(REPLY),)


MESSAGES = st.lists(
    st.sampled_from(
        [
            TASK,
            REPLY,
            *RESULTS,
            {"role": "system", "content": "s"},
            {"role": "assistant", "content": "Done."},
            {"role": "assistant"},
            {"role": "tool", "content": "?"},
            None,
            7,
        ]
    ),
    max_size=12,
)


@given(MESSAGES, st.integers(0, 12))
def test_resuming_gives_the_same_hashes(messages: list[Any], cut: int) -> None:
    """Reading a history at once or in two parts gives the same hashes, turns and state."""
    cut = min(cut, len(messages))
    whole = extend(start_state("t"), messages)
    state = extend(start_state("t"), messages[:cut]).state
    rest = extend(state, messages[cut:])
    assert rest.start == cut
    assert rest.digests == whole.digests[cut:]
    assert rest.turns == whole.turns[cut:]
    assert rest.messages == whole.messages[cut:]
    assert rest.state == whole.state


def varied(message: dict[str, Any], rng: random.Random) -> list[dict[str, Any]]:
    """The message as some client would echo it: any of the known changes, together."""
    message = dict(message)
    text = message.get("content")
    if isinstance(text, str):
        text = rng.choice([text, text + "\n", " " + text])
        as_part = {"type": "text", "text": text, "cache_control": {"type": "ephemeral"}}
        message["content"] = rng.choice([text, [as_part]])
    if rng.random() < 0.5:
        message |= {"refusal": None, "annotations": []}
    if message.get("tool_calls") and rng.random() < 0.5:
        calls = message.pop("tool_calls")
        return [message, {"role": "assistant", "content": "", "tool_calls": calls}]
    return [message]


@given(st.randoms(use_true_random=False))
def test_any_mixture_of_echoes_keeps_the_hash(rng: random.Random) -> None:
    """All known changes at once, differently in each message, keep the hash."""
    echo = [part for message in HISTORY for part in varied(message, rng)]
    assert hash_of(echo) == hash_of(HISTORY)
