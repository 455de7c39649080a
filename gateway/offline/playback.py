"""One recorded run through the same core that serves requests: states, readings, decisions.

Each entry uses its step and those before it; its injections are those of the call after it. A
recording has no pattern store: look-ups are answered from the library that the policy names, or
count as answered. It has no bill: tokens that it does not report are estimated."""

import os
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, field
from functools import lru_cache
from itertools import takewhile
from typing import TYPE_CHECKING, Any, NamedTuple

import orjson
from msgspec.structs import replace

from gateway.config import Settings
from gateway.conversations.observe import opening_prompts
from gateway.core import steer
from gateway.core.decision_settings import Policy
from gateway.core.fold import RunFold, StepOutcome
from gateway.core.fsm import FSMState
from gateway.core.guidance_choice import LessonMatch, LessonQuery
from gateway.core.guidance_settings import Gates
from gateway.core.pattern import Pattern, PatternMatch, Query, Tier
from gateway.core.routing import Serves
from gateway.core.scoring.scorer import UNKNOWN
from gateway.core.steer import Conclusion, RunMemory, RunPosition, SteeringRules
from gateway.dialects.chat import CHAT
from gateway.offline.recordings import Recording, scored_steps
from gateway.steering.guidance.situation import READER
from gateway.steering.runs_of_transcript import ConversationFold
from gateway.steering.transcript.steps import count_steps
from gateway.values import FieldDict, Fields, frozen
from gateway.wire.coerce import as_mapping
from gateway.wire.message_identity import tool_names
from gateway.wire.usage import token_usage

if TYPE_CHECKING:
    from gateway.upstream.model_abilities import ModelCatalogue

CHARS_PER_TOKEN = 4  # rough: costs from it compare policies, they are no bill
DIGITS = 6
_KEPT_STEPS = 8  # the newest steps a look-up may read, as many as the gateway keeps
ALARM = "alarm"  # a monitor fired, or SLOW was reached
STATE_SIGNALS = ("FAST", "SLOW", "SKIP")
_STAND_IN = "replay-"
_FIRST_CALL = RunPosition(run=0, step=0, state=FSMState.INIT)


@frozen
class LookUps:
    """Answers to a replay's look-ups."""

    look_up: Callable[[Sequence[Query]], steer.Found]  # patterns for queries
    gates: Gates  # similarity that an injection needs
    # those that fit failures; nothing where no lessons are known
    lessons: Callable[[LessonQuery], Sequence[LessonMatch]] = lambda query: ()


@frozen
class ReplayPolicy:
    """Everything that decides a replay."""

    rules: SteeringRules = field(
        default_factory=lambda: SteeringRules(reader=READER)
    )  # settings that decide about a call
    # settings that say what routed models can do; None = every model can serve every call
    models: Settings | None = None


@lru_cache(maxsize=256)
def _stand_in(tier: Tier, given: int) -> PatternMatch:
    """Answer to a look-up after `given` patterns of the run; the short text always fits into a
    block."""
    fields = {"instruction": "recorded"}
    pattern = Pattern(tier=tier, fields=fields, pattern_id=f"{_STAND_IN}{tier.value}-{given}")
    return PatternMatch(pattern=pattern, similarity=1.0)


# Every look-up counts as answered, with one pattern that has not been given before.
ANSWERED = LookUps(
    look_up=lambda queries: {q.tier: [_stand_in(q.tier, len(q.exclude))] for q in queries},
    gates=Gates(e1=0.0, e2=0.0),
)


class RecordedCall(NamedTuple):
    """One call of a recording. A call of an exported row has tokens only."""

    before: int  # number of messages before it
    sent: int  # characters of the request
    received: int  # characters of the answer
    tokens: tuple[int, int]  # of input and output: as reported, else estimated


def recorded_calls(recording: Recording) -> list[RecordedCall]:
    """The calls of a recording, in order: one for each assistant message or exported row."""
    if recording.messages is None:
        rows = [row.get("call") for row in recording.steps or () if isinstance(row, Mapping)]
        return [RecordedCall(0, 0, 0, tokens=_reported(row) or (0, 0)) for row in rows]
    calls = []
    sent = 0
    for at, message in enumerate(recording.messages):
        if isinstance(message, Mapping):
            texts = (message.get("content") or "", message.get("tool_calls") or "")
            own = sum(len(str(text)) for text in texts)
            if message.get("role") == "assistant":
                estimate = sent // CHARS_PER_TOKEN, own // CHARS_PER_TOKEN
                tokens = _reported(message.get("usage")) or estimate
                calls.append(RecordedCall(at, sent, own, tokens=tokens))
            sent += own
    return calls


def _reported(usage: object) -> tuple[int, int] | None:
    tokens = token_usage(usage if isinstance(usage, dict) else None)
    if tokens.input is None and tokens.output is None:
        return None
    return tokens.input or 0, tokens.output or 0


class ReplayedCalls:
    """Decides about the calls of one recording, in order; the first is decided at once. `models`:
    the model of each call so far, from the call with no step before it on."""

    def __init__(self, policy: ReplayPolicy, recording: Recording, look_ups: LookUps = ANSWERED):
        self._policy = policy
        self._recording = recording
        self._look_ups = look_ups
        self._catalogue = _catalogue(policy)
        self._calls = recorded_calls(recording)
        self._run = 0
        self._memory = RunMemory()
        self.models: list[str] = []
        self._decide(_FIRST_CALL)

    def next_call(self, outcomes: Sequence[StepOutcome], run: RunFold) -> Conclusion:
        """The decision about the call that brings these newly scored steps; `run` is its run."""
        self._begin(run.index)
        self._memory = steer.observe(self._memory, outcomes, run.index)
        return self._decide(RunPosition.of(run))

    def after_the_end(self) -> Conclusion:
        """The decision about the first call after a final answer that ends the recording."""
        self._begin(self._run + 1)
        return self._decide(replace(_FIRST_CALL, run=self._run))

    def sent_with(self, call: int) -> int:
        """Number of messages in the recorded call; all of them after the last one."""
        messages = self._recording.messages or ()
        if call < len(self._calls):
            return self._calls[call].before
        return len(messages)

    def _decide(self, position: RunPosition) -> Conclusion:
        rules = self._policy.rules
        recording = self._recording
        call = steer.CallFacts(
            requested=recording.label.model,
            serves=self._serves(),
            gates=self._look_ups.gates,
            tools=lambda: tool_names(recording.request),
        )
        proposal = steer.propose(rules, self._memory, position, call=call, unit=recording.label.id)
        found = self._look_ups.look_up(proposal.plan.queries)
        own = (recording.request, recording.messages or (), 0)
        asked = proposal.lessons and replace(
            proposal.lessons, opening=lambda: opening_prompts(*own)
        )
        if asked:
            lessons = self._look_ups.lessons(asked)
        else:
            lessons = ()
        decision = steer.conclude(rules, self._memory, proposal, found=found, lessons=lessons)
        self._memory = decision.memory
        self.models.append(decision.model)
        return decision

    def _begin(self, run: int) -> None:
        """Add the tokens of the answered call to its run, and note the run of the next call."""
        if len(self.models) <= len(self._calls):
            tokens = sum(self._calls[len(self.models) - 1].tokens)
            self._memory = replace(self._memory, tokens=self._memory.tokens + tokens)
        if run != self._run:
            self._run = run
            self._memory = self._memory.next_run()

    def _serves(self) -> Serves | None:
        catalogue = self._catalogue
        recording = self._recording
        if catalogue is None or recording.messages is None:
            return None
        # The chat request that the recorded call was, as far as the recording tells.
        messages = list(recording.messages[: self.sent_with(len(self.models))])
        body = {**recording.request, "model": recording.label.model or "-", "messages": messages}
        return lambda model: catalogue.refusal(model, CHAT.parse(orjson.dumps(body), orjson.loads))

    def usage(self) -> FieldDict:
        """Rough tokens per model, from each call's characters sent and received."""
        usage: dict[str, dict[str, float]] = {}
        calls = self._calls if self._recording.messages is not None else ()
        for model, call in zip(self.models, calls, strict=False):
            row = usage.setdefault(model, {"calls": 0, "input": 0, "output": 0})
            row["calls"] += 1
            row["input"] += call.sent // CHARS_PER_TOKEN
            row["output"] += call.received // CHARS_PER_TOKEN
        return usage


def _catalogue(policy: ReplayPolicy) -> "ModelCatalogue | None":
    settings = policy.models
    if settings is None or not (policy.rules.routes.by_state or policy.rules.routes.by_model):
        return None
    from gateway.upstream.deployments import DeploymentTable
    from gateway.upstream.model_abilities import ModelCatalogue

    infos = {d.model_name: d.model_info for d in settings.model_list}
    return ModelCatalogue(DeploymentTable(settings, os.environ), infos)


def given(decision: Conclusion) -> list[FieldDict]:
    """The guidance of one call by its sources; universal rules are left out."""
    given: list[FieldDict] = [{"source": "skip"}] if decision.decided.directive else []
    for item in decision.decided.items:
        if item.tier is None:
            about = {"failure_type": item.failure_type, "severity": item.severity}
            given.append({"source": item.source, **(about if item.failure_type else {})})
        elif item.tier is not Tier.E3:
            pattern_id = ""
            if item.match:
                pattern_id = item.match.pattern.pattern_id
            if pattern_id.startswith(_STAND_IN):
                named = {}
            else:
                named = {"pattern_id": pattern_id}
            given.append({"source": item.tier.value, **named})
    return given


_UNSCORED: Fields = {
    "trouble": None,
    "state": FSMState.END.value,
    "scores": {},
    "composite": 0.0,
    "fired": [],
    "failure_type": None,
    "reason": "",
    "alarms": [],
}


def play(recording: Recording, policy: ReplayPolicy, look_ups: LookUps = ANSWERED) -> FieldDict:
    """The replay of one recording as a JSON object (docs/steering.md). A step that is not scored
    repeats the last numbers with `scored` false. Never raises for a malformed transcript."""
    calls = ReplayedCalls(policy, recording, look_ups)
    if recording.messages is None:
        outcomes, decisions = _play_steps(recording.steps or (), policy.rules.policy, calls)
    else:
        outcomes, decisions = play_messages(recording, policy.rules.policy, calls)
    steps = []
    entry: FieldDict = {"difficulty": UNKNOWN}
    for index, decision in enumerate(decisions):
        outcome = outcomes.get(index)
        if outcome is not None:
            entry = _scored(index, outcome)
        else:
            last = entry["difficulty"]
            entry = {"index": index, "scored": False, "difficulty": last, **_UNSCORED}
        entry["model"] = decision.model
        if act := decision.proposal.act.name:
            entry["act"] = act
        if guidance := given(decision):
            entry["guidance"] = guidance
        steps.append(entry)
    found = {"first": first_showings(steps), "tokens": calls.usage(), "steps": steps}
    return asdict(recording.label) | found


class RecordedHistory:
    """The messages of a recording as its requests had them. A compaction begins a shorter history,
    in which the run continues as it does live, or the next one begins after a final answer.
    `window`: the messages of the newest request."""

    def __init__(self, policy: Policy, recording: Recording):
        self._messages = recording.messages or ()
        self._compactions = deque(recording.compactions)
        self._answers: set[int] = set()
        self._read = 0
        self.window: list[Any] = []
        self.fold = ConversationFold(policy, keep=_KEPT_STEPS, answers=self._answers)

    def read_to(self, end: int) -> list[StepOutcome]:
        """The outcomes of the steps that the messages before `end` complete."""
        outcomes = []
        while self._compactions and self._compactions[0] < end:
            at = self._compactions.popleft()
            # A newest step without a call was a final answer.
            self._answers.add(len(self.window) + at - self._read)
            outcomes += self._extend(at)
            self._answers.clear()
            self.window = []
            # What comes before the first answer to the new history is not scored.
            roles = (as_mapping(message).get("role") for message in self._messages[at:])
            new = takewhile(lambda role: role != "assistant", roles)
            self.fold.continue_in(sum(1 for _ in new))
        return outcomes + self._extend(end)

    def ends_run(self, reply: object) -> bool:
        """Whether this answer to the newest request ends its run; it is noted as delivered."""
        ends = self.fold.peek_final(reply)
        if ends:
            self._answers.add(len(self.window) + 1)
        return ends

    def _extend(self, end: int) -> list[StepOutcome]:
        self.window += self._messages[self._read : end]
        self._read = end
        return self.fold.extend(self.window)


def play_messages(
    recording: Recording, policy: Policy, calls: ReplayedCalls
) -> tuple[dict[int, StepOutcome], list[Conclusion]]:
    """Outcomes by step index, and the decision after each step. Each call is decided with the
    messages that it was sent with: a step that the next message completes, such as one without a
    call, is not scored before that."""
    history = RecordedHistory(policy, recording)
    found: dict[int, StepOutcome] = {}
    decisions = []
    last = count_steps(recording.messages or ()) - 1
    for index in range(last + 1):
        outcomes = history.read_to(calls.sent_with(index + 1))
        found |= {outcome.step.index: outcome for outcome in outcomes}
        ends = index == last and index not in found
        decision = (
            calls.after_the_end() if ends else calls.next_call(outcomes, history.fold.current)
        )
        decisions.append(decision)
    return found, decisions


def _play_steps(
    recorded: Sequence[Fields], policy: Policy, calls: ReplayedCalls
) -> tuple[dict[int, StepOutcome], list[Conclusion]]:
    """Play exported steps, scored one by one, with the same result as `play_messages`."""
    run = RunFold(policy, READER, keep=_KEPT_STEPS)
    found = {}
    decisions = []
    for step, score in scored_steps(recorded):
        found[step.index] = run.push(step)
        if score is not None and run.score_key:
            # What a model gave cannot be derived again; the ledger's is the same once more.
            found[step.index] = run.rescore(score)
        decisions.append(calls.next_call([found[step.index]], run))
    return found, decisions


def _scored(index: int, outcome: StepOutcome) -> FieldDict:
    readings = outcome.readings
    return {
        "index": index,
        "run": outcome.run,
        "scored": True,
        "difficulty": round(outcome.difficulty, DIGITS),
        "reason": outcome.reason,
        "trouble": outcome.observed.trouble,
        "state": outcome.state.value,
        "scores": {name: round(score, DIGITS) for name, score in readings.scores.items()},
        "composite": readings.composite,
        "fired": list(readings.fired),
        "failure_type": readings.failure_type,
        "evidence": readings.evidence,
        "alarms": [alarm.sentence for alarm in readings.alarms],
    }


def first_showings(steps: Iterable[Fields]) -> dict[str, int]:
    """Index of the first step on which each signal showed: monitors, FAST, SLOW, SKIP, alarm."""
    first: dict[str, int] = {}
    for step in steps:
        signals = [*step["fired"], *[name for name in STATE_SIGNALS if name == step["state"]]]
        if signals and signals != ["FAST"]:
            signals.append(ALARM)
        for signal in signals:
            first.setdefault(signal, step["index"])
    return first


@frozen
class Replayed:
    """One run's replay, as far as it was asked for."""

    place: str  # file and line of the recording
    line: str | None = None  # the run as a JSON line
    played: Fields | None = None  # the run, without evidence texts
    problem: str | None = None  # why the recording could not be read; None when it could
