"""The same run in the five dialects is the same run."""

from __future__ import annotations

import itertools
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.config import settings_from_dict
from gateway.core.decision_settings import Policy
from gateway.core.fold import StepOutcome
from gateway.dialects.converse import CONVERSE
from gateway.dialects.gemini import Contents
from gateway.steering.runs_of_transcript import ConversationFold
from gateway.steering.transcript.steps import extract
from gateway.wire.prefix_hash import extend, start_state
from steering_gateway_testing.recorded_agents import read_runs
from tests.dialects import converse
from tests.dialects.translate import Message, canonical, to_contents, to_items, to_messages

SAMPLES = Path(__file__).parents[1] / "replays/sample.jsonl.gz"
DEVELOPMENT_RUNS = Path(__file__).parents[3] / "shared/data/trajectories-dev.jsonl.gz"
POLICY = settings_from_dict({}).policy()
ROBUST = settings_from_dict(
    {"monitors": {"suite": "robust"}, "difficulty": {"scorer": "ledger"}}
).policy()

words = st.sampled_from(
    ["maybe", "wait", "the test", "still fails.", "FAILED test_a", "ok", "I was wrong,", "done"]
)
texts = st.lists(words, min_size=1, max_size=6).map(" ".join)
tools = st.sampled_from(["bash", "edit", "search"])
arguments = st.dictionaries(st.sampled_from(["command", "path"]), texts, max_size=2)


@st.composite
def runs(draw: st.DrawFn) -> list[Message]:
    """Chat messages of an agent's conversation: several runs, parallel calls, missing texts."""
    messages: list[Message] = []
    if draw(st.booleans()):
        messages.append({"role": "system", "content": draw(texts)})
    ids = itertools.count()
    for _ in range(draw(st.integers(1, 3))):
        messages.append({"role": "user", "content": draw(texts)})
        for _ in range(draw(st.integers(0, 5))):
            messages += draw(turns(ids))
        messages.append({"role": "assistant", "content": draw(texts)})
    return messages


@st.composite
def turns(draw: st.DrawFn, ids: Any) -> list[Message]:
    """One reply with its calls and their results, in any order."""
    calls = [
        {
            "id": f"call_{next(ids)}",
            "type": "function",
            "function": {"name": draw(tools), "arguments": json.dumps(draw(arguments))},
        }
        for _ in range(draw(st.integers(1, 3)))
    ]
    reply: Message = {"role": "assistant", "content": draw(st.none() | texts), "tool_calls": calls}
    if draw(st.booleans()):
        reply["reasoning_content"] = draw(texts)
    answered = draw(st.permutations(calls))
    return [
        reply,
        *({"role": "tool", "tool_call_id": c["id"], "content": draw(texts)} for c in answered),
    ]


def in_all(messages: Sequence[Message]) -> list[list[Any]]:
    """The transcript as each dialect has it."""
    system, blocks = to_messages(messages)
    front = [{"role": "system", "content": system}] if system else []
    contents = [*front, *Contents(to_contents(messages)[1])]
    body = json.dumps({"messages": converse.in_blocks(blocks)}).encode()
    asked = CONVERSE.addressed("/model/m/converse")
    conversed = CONVERSE.parse(body, json.loads, addressed=asked).own_messages
    return [list(messages), to_items(messages), front + blocks, contents, [*front, *conversed]]


def folded(transcript: Sequence[Any], policy: Policy, cuts: int = 1) -> list[StepOutcome]:
    """What the fold makes of it when it comes in `cuts` parts."""
    fold, outcomes = ConversationFold(policy), []
    for part in range(1, cuts + 1):
        outcomes += fold.extend(transcript[: len(transcript) * part // cuts])
    return [outcome for run in fold.runs for outcome in run.outcomes] if cuts == 1 else outcomes


@given(runs())
def test_the_same_steps(messages: list[Message]) -> None:
    """Thoughts, actions with their results, and reasoning agree."""
    first, *others = (extract(transcript) for transcript in in_all(canonical(messages)))
    for steps in others:
        assert steps == first


@given(runs(), st.sampled_from([POLICY, ROBUST]))
def test_the_same_scores_states_and_readings(messages: list[Message], policy: Policy) -> None:
    """Every step is scored alike, moves the state alike and is read alike."""
    first, *others = (folded(t, policy) for t in in_all(canonical(messages)))
    for outcomes in others:
        assert outcomes == first


@given(runs(), st.integers(2, 6))
def test_in_any_number_of_parts(messages: list[Message], cuts: int) -> None:
    """It does not matter at which items the transcript comes in."""
    for transcript in in_all(canonical(messages)):
        fold = ConversationFold(POLICY)
        for part in range(1, cuts + 1):
            fold.extend(transcript[: len(transcript) * part // cuts])
        whole = ConversationFold(POLICY)
        whole.extend(transcript)
        seen = [(o.index, o.run, o.difficulty, o.state) for r in fold.runs for o in r.outcomes]
        assert seen == [
            (o.index, o.run, o.difficulty, o.state) for r in whole.runs for o in r.outcomes
        ]


@given(runs())
def test_the_same_turns(messages: list[Message]) -> None:
    """The chained digests count the same assistant turns, and end in the same head."""
    heads = [extend(start_state("tenant"), t) for t in in_all(canonical(messages))]
    assert len({h.state.turns for h in heads}) == 1
    assert len({h.state.digest for h in heads}) == 1


@given(runs(), st.integers(0, 30))
def test_digests_go_on_where_they_were_left(messages: list[Message], at: int) -> None:
    """A history that goes on from a known state has the head of the whole."""
    for transcript in in_all(canonical(messages)):
        at = min(at, len(transcript))
        state = extend(start_state("tenant"), transcript[:at]).state
        assert (
            extend(state, transcript[at:]).state.digest
            == extend(start_state("tenant"), transcript).state.digest
        )


@pytest.mark.parametrize(
    "path",
    [
        SAMPLES,
        pytest.param(
            DEVELOPMENT_RUNS,
            marks=[
                pytest.mark.nightly,
                pytest.mark.skipif(
                    not DEVELOPMENT_RUNS.exists(), reason="the development runs are not here"
                ),
            ],
        ),
    ],
    ids=["samples", "development"],
)
def test_recorded_runs_agree(path: Path) -> None:
    """Real runs, translated: the same outcomes for every step of every run."""
    compared = 0
    for run in read_runs(path):
        messages = canonical([m for m in run["messages"] if m["role"] != "function"])
        first, *others = (folded(transcript, ROBUST) for transcript in in_all(messages))
        for outcomes in others:
            assert outcomes == first, run["id"]
        compared += len(first)
    assert compared
    print(f"{compared} steps agree")
