"""Runs of chunks parsed as one chunk add up to the same completion as chunk by chunk."""

from __future__ import annotations

import json
from typing import Any

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.wire.chat_assembly import CompletionAssembler, merge_runs, parse_plain, plain_payloads

pieces = st.sampled_from(["a", "", '"', "\\", "\\n", "\n\n", '","content":"', "é", "data: ", "😀"])
few = st.integers(0, 1)


def content(piece: str) -> dict[str, Any]:
    """A delta of plain text."""
    return {"content": piece}


def arguments(index: int, piece: str, **more: str) -> dict[str, Any]:
    """A delta of a tool call."""
    return {"tool_calls": [{"index": index, "function": {**more, "arguments": piece}}]}


deltas = st.one_of(
    pieces.map(content),
    pieces.map(content),
    pieces.map(lambda piece: {"role": "assistant", "content": piece}),
    pieces.map(lambda piece: {"content": None, "reasoning_content": piece}),
    st.builds(lambda a, b: {"content": a, "reasoning_content": b}, pieces, pieces),
    pieces.map(lambda piece: {"refusal": piece}),
    pieces.map(lambda piece: {"note": {"content": piece}}),
    st.builds(arguments, few, pieces),
    st.builds(lambda i, p: arguments(i, p, name="tool"), few, pieces),
    st.just({}),
)
logprobs = st.sampled_from([None, None, {"content": [{"token": "a"}]}])
finish_reasons = st.sampled_from([None, None, None, "stop"])
choices = st.builds(
    lambda index, delta, probs, finish: {
        "index": index,
        "delta": delta,
        "logprobs": probs,
        "finish_reason": finish,
    },
    few,
    deltas,
    logprobs,
    finish_reasons,
)
chunks = st.builds(
    lambda choices, usage: {"id": "c", "choices": choices, "usage": usage},
    st.lists(choices, max_size=2),
    st.sampled_from([None, None, {"total_tokens": 3}]),
)
# Chunks are drawn from a few, so that equal ones follow each other as in a real stream.
streams = st.lists(chunks, min_size=1, max_size=4).flatmap(
    lambda drawn: st.lists(st.sampled_from(drawn), min_size=1, max_size=9)
)
forms = st.sampled_from([(",", ":"), (", ", ": ")])


def events(sequence: list[Any], form: tuple[str, str] = (",", ":")) -> bytes:
    """The chunks as a stream with its end marker."""
    lines = [f"data: {json.dumps(chunk, separators=form)}\n\n" for chunk in sequence]
    return "".join([*lines, "data: [DONE]\n\n"]).encode()


def added(sequence: list[Any]) -> tuple[Any, ...]:
    """Everything an assembler knows after `sequence`."""
    assembler = CompletionAssembler()
    for chunk in sequence:
        assembler.add(chunk)
    found = assembler.completion(), assembler.usage, assembler.finished
    return (*found, assembler.malformed)


@given(streams, forms)
def test_merged_runs_mean_what_the_chunks_mean(sequence: list[Any], form: tuple[str, str]) -> None:
    """Whatever follows whatever: contents, calls, logprobs, usage and finish reasons are equal."""
    parsed = parse_plain(events(sequence, form), orjson.loads)
    assert parsed is not None
    assert added(parsed) == added(sequence)


@pytest.mark.parametrize(
    "delta",
    [
        content("word"),
        content('quoted "word"\n'),
        content("back\\slash\\"),
        {"reasoning_content": "hm"},
        arguments(1, '{"path": "a"}'),
    ],
)
def test_a_run_becomes_one_payload(delta: dict[str, Any]) -> None:
    """A hundred chunks that differ in their text only are parsed as one."""
    sequence = [{"choices": [{"index": 0, "delta": delta}]}] * 100
    payloads = plain_payloads(events(sequence))
    assert payloads is not None
    assert len(payloads) == 100
    assert len(merge_runs(payloads)) == 1


def test_an_escape_cut_in_two_is_not_merged() -> None:
    """A piece that is no whole string ends the run, and its chunk is left for the decoder."""
    sequence = [{"choices": [{"index": 0, "delta": content("text")}]}] * 3
    stream = events(sequence).replace(b'"text"', b'"te\\"', 1)
    assert parse_plain(stream, orjson.loads) is None


@pytest.mark.parametrize(
    "stream",
    [
        b"",
        b"data: {}\n\n",
        b"data: {}\r\n\r\ndata: [DONE]\r\n\r\n",
        b": ping\n\ndata: {}\n\ndata: [DONE]\n\n",
        b"data: {}\n\n: ping\n\ndata: [DONE]\n\n",
        b"event: x\ndata: {}\n\ndata: [DONE]\n\n",
        b"data: {\ndata: }\n\ndata: [DONE]\n\n",
        b"data: {}\n\n\ndata: {}\n\ndata: [DONE]\n\n",
        b"data: {\n\ndata: [DONE]\n\n",
        b"data: {},{}\n\ndata: [DONE]\n\n",
    ],
)
def test_any_other_form_is_left_to_the_decoder(stream: bytes) -> None:
    """Comments, other fields, several lines, other line ends, no end, no JSON: None."""
    assert parse_plain(stream, orjson.loads) is None
