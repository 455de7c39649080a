"""Whole runs of any history: what holds at every call."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from itertools import pairwise
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from gateway.core.fsm import FSMState
from gateway.core.guidance_settings import EtraceSettings, InjectionSettings
from gateway.core.guidance_text import FRAME_OPEN, SKIP_DIRECTIVE
from gateway.core.monitors import MONITORS, Readings
from gateway.core.pattern import PatternMatch, Query, Tier
from gateway.core.placement import GuidanceTarget
from tests.steering.guidance.builders import (
    ANTHROPIC,
    OPENAI,
    UNKNOWN,
    Call,
    Run,
    e1,
    e2,
    e3,
    match,
    readings,
)

STATES = st.sampled_from([FSMState.FAST, FSMState.NORMAL, FSMState.SLOW, FSMState.SKIP])
SEEN = st.builds(
    lambda fired, composite: readings(*fired, composite=composite),
    st.lists(st.sampled_from(tuple(MONITORS)), unique=True, max_size=3),
    st.sampled_from([0.0, 0.15, 0.151, 0.34, 0.35, 0.9]),
)
ANSWERS = st.sampled_from(["none", "empty", "some", "many", "weak"])
HISTORIES = st.lists(st.tuples(STATES, SEEN, ANSWERS), min_size=1, max_size=12)
TARGETS = st.sampled_from([OPENAI, ANTHROPIC, UNKNOWN])
ETRACES = st.builds(
    EtraceSettings,
    e1_per_run=st.integers(0, 2),
    e2_per_type=st.integers(0, 2),
    e2_when=st.sampled_from(["always", "at_risk"]),
)
INJECTION = st.builds(
    InjectionSettings,
    placement=st.sampled_from(["auto", "system", "tail"]),
    lifetime=st.sampled_from(["run", "call"]),
    monitor_cap=st.integers(0, 6),
    max_block_chars=st.sampled_from([1_000, 12_000]),
)


def answer(kind: str, query: Query) -> Sequence[PatternMatch] | None:
    """A store that fails, knows nothing, knows enough, or finds only what is too far."""
    made = {Tier.E1: e1, Tier.E2: e2, Tier.E3: e3}[query.tier]
    amount = {"none": 0, "empty": 0, "some": 1, "many": 5, "weak": 3}[kind]
    similarity = 0.3 if kind == "weak" else 0.9
    found = [match(made(f"{kind} {n}"), similarity) for n in range(amount)]
    return None if kind == "none" else found


def drive(
    history: Sequence[tuple[FSMState, Readings, str]],
    target: GuidanceTarget = OPENAI,
    etraces: EtraceSettings | None = None,
    injection: InjectionSettings | None = None,
) -> Run:
    run = Run(
        target=target,
        etraces=etraces or EtraceSettings(),
        injection=injection or InjectionSettings(),
    )
    run.lookup = lambda query: answer(history[0][2], query)
    run.first()
    for state, seen, kind in history:
        run.lookup = lambda query, kind=kind: answer(kind, query)  # type: ignore[misc]
        run.step(state, seen)
    return run


def texts_of(messages: Sequence[dict[str, Any]]) -> list[str]:
    """Every text of the messages, parts of a list each on their own, in order."""
    texts: list[str] = []
    for message in messages:
        content = message["content"]
        parts = content if isinstance(content, list) else [{"text": content}]
        texts += [str(part["text"]) for part in parts]
    return texts


def without_directive(messages: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [m for m in messages if SKIP_DIRECTIVE not in str(m["content"])]


@given(HISTORIES, ETRACES, INJECTION)
def test_caps_cooldowns_and_allowances_hold(
    history: list[Any], etraces: EtraceSettings, injection: InjectionSettings
) -> None:
    """At every call of every run, for any settings."""
    run = drive(history, etraces=etraces, injection=injection)
    told: list[int] = []
    spent: Counter[str] = Counter()
    ids: list[str] = []
    texts: list[str] = []
    for call in run.calls:
        kinds = {item.tier for item in call.decided.items}
        for item in call.decided.items:
            if item.tier is None:
                texts.append(item.text)
                step = call.moment.step or 0
                assert not told or step - told[-1] >= injection.cooldown(
                    call.moment.signal.state.value
                )
                told.append(step)
            elif item.tier is not Tier.E3 and item.match:
                ids.append(item.match.pattern.pattern_id)
        spent["e1"] += Tier.E1 in kinds
        spent["e3"] += Tier.E3 in kinds
        if Tier.E2 in kinds:
            spent[f"e2 {call.plan.failure_type}"] += 1
        assert sum(len(item.text) for item in call.decided.items) <= injection.max_block_chars
    assert len(told) <= injection.monitor_cap
    assert spent.pop("e1", 0) <= etraces.e1_per_run
    assert spent.pop("e3", 0) <= 1
    assert all(number <= etraces.e2_per_type for number in spent.values())
    assert len(ids) == len(set(ids))
    assert len(texts) == len(set(texts))


@given(HISTORIES, ETRACES)
def test_look_ups_are_made_only_when_they_may(history: list[Any], etraces: EtraceSettings) -> None:
    """None in FAST, e1 only at risk, e2 only with an allowance: counted, not assumed."""
    run = drive(history, etraces=etraces)
    fired: list[int] = []
    e1_given = 0
    for call in run.calls[1:]:
        step, seen = call.moment.step or 0, call.moment.signal.readings
        assert seen is not None
        asked = {query.tier for query in call.plan.queries}
        at_risk = bool(seen.fired or seen.composite > 0.15 or {step - 1, step - 2} & set(fired))
        if call.moment.signal.state is FSMState.FAST:
            assert not asked
        else:
            assert (Tier.E1 in asked) == (at_risk and e1_given < etraces.e1_per_run)
        if etraces.e2_when == "at_risk" and not at_risk:
            assert Tier.E2 not in asked
        e1_given += any(item.tier is Tier.E1 for item in call.decided.items)
        fired += [step] if seen.fired else []


@given(HISTORIES, TARGETS, INJECTION)
def test_the_block_has_its_order(
    history: list[Any], target: GuidanceTarget, injection: InjectionSettings
) -> None:
    """Directive, monitor text, e3, e1, e2, at every call; the directive once, and only in SKIP."""
    rank = {None: 0, Tier.E3: 1, Tier.E1: 2, Tier.E2: 3}
    run = drive(history, target=target, injection=injection)
    for call in run.calls:
        order = [rank[item.tier] for item in call.decided.items]
        assert order == sorted(order)
        text = "\n".join(texts_of(call.sent))
        assert text.count(SKIP_DIRECTIVE) == (call.moment.signal.state is FSMState.SKIP)
        if call.decided.directive:
            # Rules pinned in front are a block of their own where the directive is at the tail.
            assert call.placed.directive is not None
            where = call.placed.directive.place
            same = [block for block in call.placed.added if block.place == where]
            assert all(text.index(SKIP_DIRECTIVE) < text.index(block.text) for block in same)


@given(HISTORIES, TARGETS, ETRACES, INJECTION)
def test_a_retry_sends_the_same_bytes(
    history: list[Any],
    target: GuidanceTarget,
    etraces: EtraceSettings,
    injection: InjectionSettings,
) -> None:
    """Decided again from before or from after, the request is the same and nothing is spent."""
    run = Run(target=target, etraces=etraces, injection=injection)
    run.lookup = lambda query: answer(history[0][2], query)

    def check(call: Call) -> None:
        assert run.preview(call.moment, call.before).sent == call.sent
        again = run.preview(call.moment, run.state)
        assert again.sent == call.sent
        assert again.placed.state == run.state

    check(run.first())
    for state, seen, kind in history:
        run.lookup = lambda query, kind=kind: answer(kind, query)  # type: ignore[misc]
        check(run.step(state, seen))


@given(HISTORIES)
def test_the_prefix_of_a_call_is_the_call_before(history: list[Any]) -> None:
    """With `tail` on a target that takes it, only the directive ever leaves a request."""
    run = drive(history, injection=InjectionSettings(placement="tail"))
    sent = [without_directive(call.sent) for call in run.calls]
    for before, after in pairwise(sent):
        assert after[: len(before)] == before


@given(HISTORIES, TARGETS, INJECTION)
def test_the_clients_messages_are_only_added_to(
    history: list[Any], target: GuidanceTarget, injection: InjectionSettings
) -> None:
    """Without our blocks the request is the client's; its system text stays a prefix."""
    run = drive(history, target=target, injection=injection)
    for call in run.calls:
        kept = [
            message
            for message in call.sent
            if message["role"] != "system" or not str(message["content"]).startswith(FRAME_OPEN)
        ]
        for message, own in zip(kept, call.messages, strict=True):
            assert {**message, "content": own["content"]} == own
            added = str(message["content"] or "").removeprefix(own["content"] or "").lstrip()
            assert added == "" or added.startswith(FRAME_OPEN)


@given(HISTORIES, TARGETS)
def test_a_head_that_was_sent_never_changes(history: list[Any], target: GuidanceTarget) -> None:
    """On no target, directives included: a local server would read all of the prompt again. What
    a call sent, each later one sends at its place, but for the directive."""
    run = drive(history, target=target)
    for before, after in pairwise(run.calls):
        assert after.sent[0] == before.sent[0]
        if not before.decided.directive:
            assert after.sent[: len(before.sent)] == before.sent
