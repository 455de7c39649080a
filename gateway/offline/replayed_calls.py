"""The decision about each call of a recording: `steering.steer`, with what a recording has.

A recording has no pattern store: look-ups are answered from the library that the policy names, or
count as answered, with one pattern each. It has no bill: tokens are estimated from its texts where
it does not report them.
"""

from __future__ import annotations

import functools
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import orjson
from msgspec.structs import replace

from gateway.config import Settings
from gateway.dialects.chat import CHAT
from gateway.offline.recordings import Recording
from gateway.steering.experiments import RandomArm
from gateway.steering.fold import RunFold, StepOutcome
from gateway.steering.fsm import FSMState
from gateway.steering.guidance.decide import Item
from gateway.steering.guidance.lessons import LessonMatch, LessonQuery
from gateway.steering.guidance.pattern import Pattern, PatternMatch, Query, Tier
from gateway.steering.guidance.settings import Gates
from gateway.steering.routing import Serves
from gateway.steering.steer import (
    CallFacts,
    Decision,
    Found,
    RunMemory,
    RunPosition,
    SteeringRules,
    conclude,
    observe,
    propose,
)
from gateway.wire.messages import tool_names
from gateway.wire.usage import token_usage

if TYPE_CHECKING:
    from gateway.upstream.catalogue import ModelCatalogue

CHARS_PER_TOKEN = 4
"""Rough size of a token; costs from it compare policies, they are no bill."""
USD_DIGITS = 6

_STAND_IN = "replay-"
_FIRST_CALL = RunPosition(run=0, step=0, state=FSMState.INIT)


@dataclass(frozen=True, slots=True, kw_only=True)
class Price:
    """USD per million tokens."""

    input: float
    output: float


@dataclass(frozen=True, slots=True, kw_only=True)
class LookUps:
    """Answers to a replay's look-ups, and the similarity that an injection needs there.

    `lessons`: those that fit failures; nothing where no lessons are known.
    """

    look_up: Callable[[Sequence[Query]], Found]
    gates: Gates
    lessons: Callable[[LessonQuery], Sequence[LessonMatch]] = lambda query: ()


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplayPolicy:
    """Everything that decides a replay, and prices per model.

    `arm`: the control arm, for recordings to be steered as its units; None = as `on`. `models`: the
    settings that say what routed models can do; None = every model can serve every call.
    `patterns`: what answers look-ups, `starter` or a JSONL file; "" = they count as answered.
    """

    rules: SteeringRules = field(default_factory=SteeringRules)
    arm: RandomArm | None = None
    prices: Mapping[str, Price] = field(default_factory=dict)
    models: Settings | None = None
    patterns: str = ""


def _answered(queries: Sequence[Query]) -> Found:
    """One pattern for each look-up, at full similarity, that has not been given before."""
    return {query.tier: [_stand_in(query.tier, len(query.exclude))] for query in queries}


ANSWERED = LookUps(look_up=_answered, gates=Gates(e1=0.0, e2=0.0))
"""Every look-up counts as answered, with one pattern."""


class ReplayedCalls:
    """Decides about the calls of one recording, in order; the first is decided at once."""

    def __init__(
        self, policy: ReplayPolicy, recording: Recording, look_ups: LookUps = ANSWERED
    ) -> None:
        self._policy = policy
        self._recording = recording
        self._arm = policy.arm and replace(policy.arm, unit=recording.id)
        self._look_ups = look_ups
        self._catalogue = _catalogue(policy)
        self._sizes = call_sizes(recording.messages or ())
        self._tokens = call_tokens(recording, self._sizes)
        self._ends = _call_positions(recording)
        self._calls = 0
        self._run = 0
        self._memory = RunMemory()
        self.models: list[str] = []
        """The model of each call so far; the first one is that of the call with no step before."""
        self._decide(_FIRST_CALL)

    def next_call(self, outcomes: Sequence[StepOutcome], run: RunFold) -> Decision:
        """The decision about the call that brings these newly scored steps; `run` is its run."""
        self._count_tokens()
        self._begin(run.index)
        self._memory = observe(self._memory, outcomes, run.index)
        return self._decide(RunPosition.of(run))

    def after_the_end(self) -> Decision:
        """The decision about the first call after a final answer that ends the recording."""
        self._count_tokens()
        self._begin(self._run + 1)
        return self._decide(replace(_FIRST_CALL, run=self._run))

    def sent_with(self, call: int) -> int:
        """Number of messages in the recorded call; all of them after the last one."""
        messages = self._recording.messages or ()
        return self._ends[call] if call < len(self._ends) else len(messages)

    def _decide(self, position: RunPosition) -> Decision:
        rules = self._policy.rules
        call = CallFacts(
            requested=self._recording.model,
            serves=self._serves(),
            gates=self._look_ups.gates,
            arm=self._arm,
            tools=lambda: tool_names(self._recording.request),
            unit=self._recording.id,
        )
        proposal = propose(rules, self._memory, position, call)
        found = self._look_ups.look_up(proposal.plan.queries)
        lessons = self._look_ups.lessons(proposal.lessons) if proposal.lessons else ()
        decision = conclude(rules, self._memory, proposal, found, lessons)
        self._memory = decision.memory
        self.models.append(decision.model)
        return decision

    def _begin(self, run: int) -> None:
        if run != self._run:
            self._run = run
            self._memory = self._memory.next_run()

    def _count_tokens(self) -> None:
        """Add what the call just answered took to its run."""
        if self._calls < len(self._tokens):
            sent, received = self._tokens[self._calls]
            self._memory = replace(self._memory, tokens=self._memory.tokens + sent + received)
        self._calls += 1

    def _serves(self) -> Serves | None:
        catalogue, messages = self._catalogue, self._recording.messages
        if catalogue is None or messages is None:
            return None
        end = self.sent_with(self._calls)
        return lambda model: catalogue.refusal(model, _request(self._recording, messages[:end]))

    def usage(self) -> dict[str, Any]:
        """Rough tokens and USD per model, from each call's characters sent and received."""
        usage: dict[str, dict[str, float]] = {}
        for model, (sent, received) in zip(self.models, self._sizes, strict=False):
            row = usage.setdefault(model, {"calls": 0, "input": 0, "output": 0})
            row["calls"] += 1
            row["input"] += sent // CHARS_PER_TOKEN
            row["output"] += received // CHARS_PER_TOKEN
        for model, row in usage.items():
            price = self._policy.prices.get(model)
            if price is not None:
                paid = row["input"] * price.input + row["output"] * price.output
                row["usd"] = round(paid / 1e6, USD_DIGITS)
        return usage


def call_sizes(messages: Sequence[Any]) -> list[tuple[int, int]]:
    """Characters sent and received by each assistant message's call."""
    sizes, before = [], 0
    for message in messages:
        if not isinstance(message, Mapping):
            continue
        own = len(str(message.get("content") or ""))
        calls = message.get("tool_calls")
        if calls:
            own += len(str(calls))
        if message.get("role") == "assistant":
            sizes.append((before, own))
        before += own
    return sizes


def call_tokens(
    recording: Recording, sizes: Sequence[tuple[int, int]] | None = None
) -> list[tuple[int, int]]:
    """Input and output tokens of each call: as reported next to the assistant message (`usage`) or
    in the exported row (`call`), else estimated from the sizes of its texts (`call_sizes`)."""
    if recording.messages is None:
        rows = [row.get("call") for row in recording.steps or () if isinstance(row, Mapping)]
        return [_reported(row) or (0, 0) for row in rows]
    sizes = call_sizes(recording.messages) if sizes is None else sizes
    replies = [m for m in recording.messages if isinstance(m, Mapping) and _is_reply(m)]
    return [
        _reported(reply.get("usage")) or (sent // CHARS_PER_TOKEN, received // CHARS_PER_TOKEN)
        for reply, (sent, received) in zip(replies, sizes, strict=True)
    ]


def _reported(usage: object) -> tuple[int, int] | None:
    if not isinstance(usage, dict):
        return None
    tokens = token_usage(usage)
    if tokens.input is None and tokens.output is None:
        return None
    return tokens.input or 0, tokens.output or 0


def _is_reply(message: object) -> bool:
    return isinstance(message, Mapping) and message.get("role") == "assistant"


def _call_positions(recording: Recording) -> list[int]:
    """For each call, how many messages it was sent with."""
    messages = recording.messages or ()
    return [at for at, message in enumerate(messages) if _is_reply(message)]


def _catalogue(policy: ReplayPolicy) -> ModelCatalogue | None:
    settings = policy.models
    if settings is None or not (policy.rules.routes.by_state or policy.rules.routes.by_model):
        return None
    from gateway.upstream.catalogue import ModelCatalogue
    from gateway.upstream.deployments import DeploymentTable

    infos = {d.model_name: d.model_info for d in settings.model_list}
    return ModelCatalogue(DeploymentTable(settings, os.environ), infos)


def _request(recording: Recording, messages: Sequence[Any]) -> Any:
    """The chat request that the recorded call was, as far as the recording tells."""
    body = {**recording.request, "model": recording.model or "-", "messages": list(messages)}
    return CHAT.parse(orjson.dumps(body), orjson.loads)


@functools.lru_cache(maxsize=256)
def _stand_in(tier: Tier, given: int) -> PatternMatch:
    """Answer to a look-up after `given` patterns of the run; the short text always fits into a
    block."""
    fields = {"instruction": "recorded"}
    pattern = Pattern(tier=tier, fields=fields, pattern_id=f"{_STAND_IN}{tier.value}-{given}")
    return PatternMatch(pattern=pattern, similarity=1.0)


def given(decision: Decision) -> list[dict[str, Any]]:
    """The guidance of one call by its sources; universal rules are left out."""
    given: list[dict[str, Any]] = [{"source": "skip"}] if decision.decided.directive else []
    for item in decision.decided.items:
        if item.tier is None:
            given.append(
                {"source": "monitor", "failure_type": item.failure_type, "severity": item.severity}
            )
        elif item.tier is not Tier.E3:
            given.append({"source": item.tier.value, **_named(item)})
    return given


def _named(item: Item) -> dict[str, str]:
    """The id of a pattern from a library; a stand-in has none."""
    pattern_id = item.match.pattern.pattern_id if item.match else ""
    return {} if pattern_id.startswith(_STAND_IN) else {"pattern_id": pattern_id}
