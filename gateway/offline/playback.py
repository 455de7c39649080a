"""One recorded run through the same core that serves requests: states, readings, decisions.

Each entry uses its step and the steps before it, nothing after. Its injections are those of the
call after that step; look-ups are counted as answered, because a recording does not hold the
pattern store of its time.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from typing import Any

import orjson

from gateway.config import Settings
from gateway.errors import ConfigError
from gateway.offline.recordings import Recording, parse_recording, scored_steps
from gateway.offline.replayed_calls import ANSWERED, LookUps, ReplayedCalls, ReplayPolicy, given
from gateway.steering.fold import ConversationFold, RunFold, StepOutcome
from gateway.steering.fsm import FSMState
from gateway.steering.policy import Policy
from gateway.steering.scoring.scorer import UNKNOWN
from gateway.steering.steer import Decision
from gateway.steering.transcript.steps import count_steps
from gateway.text.finder import Finder
from gateway.wire.search import use_engine

DIGITS = 6
_KEPT_STEPS = 8  # the newest steps a look-up may read, as many as the gateway keeps
ALARM = "alarm"  # a monitor fired, SLOW was reached, or the run is likely to fail
RISK = "risk"  # it is likely to fail: its evidence has lasted where few solved runs come
STATE_SIGNALS = ("FAST", "SLOW", "SKIP")


def play(
    recording: Recording, policy: ReplayPolicy, look_ups: LookUps = ANSWERED
) -> dict[str, Any]:
    """The replay of one recording as a JSON object; see `docs/evidence.md` for its keys.

    A step that is not scored (a final answer) repeats the last numbers with `scored` false. Never
    raises for a malformed transcript.
    """
    calls = ReplayedCalls(policy, recording, look_ups)
    if recording.messages is None:
        outcomes, decisions = _play_steps(recording.steps or (), policy.rules.policy, calls)
    else:
        outcomes, decisions = _play_messages(recording.messages, policy.rules.policy, calls)
    steps = []
    entry: dict[str, Any] = {"difficulty": UNKNOWN, "risk": UNKNOWN}
    for index, decision in enumerate(decisions):
        outcome = outcomes.get(index)
        entry = _unscored(index, entry) if outcome is None else _scored(index, outcome)
        entry["model"] = decision.model
        if guidance := given(decision):
            entry["guidance"] = guidance
        steps.append(entry)
    found = {"first": first_showings(steps), "tokens": calls.usage(), "steps": steps}
    return asdict(recording.label) | found


def _play_messages(
    messages: Sequence[Any], policy: Policy, calls: ReplayedCalls
) -> tuple[dict[int, StepOutcome], list[Decision]]:
    """Outcomes by step index, and the decision after each step.

    Each call is decided with the messages that it was sent with: a step that the next message
    completes, such as one without a call, is not scored before that.
    """
    fold = ConversationFold(policy, keep=_KEPT_STEPS)
    found: dict[int, StepOutcome] = {}
    decisions = []
    last = count_steps(messages) - 1
    for index in range(last + 1):
        outcomes = fold.extend(messages[: calls.sent_with(index + 1)])
        found |= {outcome.step.index: outcome for outcome in outcomes}
        ends = index == last and index not in found
        decision = calls.after_the_end() if ends else calls.next_call(outcomes, fold.current)
        decisions.append(decision)
    return found, decisions


def _play_steps(
    recorded: Sequence[Mapping[str, Any]], policy: Policy, calls: ReplayedCalls
) -> tuple[dict[int, StepOutcome], list[Decision]]:
    """The same for exported steps, which are scored one by one."""
    run = RunFold(policy, keep=_KEPT_STEPS)
    found: dict[int, StepOutcome] = {}
    decisions = []
    for step, score in scored_steps(recorded):
        found[step.index] = run.push(step)
        if score is not None and run.score_key:
            # What a model gave cannot be derived again; a calibrated score is the same once more.
            found[step.index] = run.rescore(score)
        decisions.append(calls.next_call([found[step.index]], run))
    return found, decisions


def _scored(index: int, outcome: StepOutcome) -> dict[str, Any]:
    readings = outcome.readings
    return {
        "index": index,
        "run": outcome.run,
        "scored": True,
        "difficulty": round(outcome.difficulty, DIGITS),
        "risk": round(outcome.risk, DIGITS),
        "likely_fails": outcome.likely_fails,
        "trouble": outcome.trouble,
        "state": outcome.state.value,
        "scores": {name: round(score, DIGITS) for name, score in readings.scores.items()},
        "composite": readings.composite,
        "fired": list(readings.fired),
        "failure_type": readings.failure_type,
        "evidence": readings.evidence,
    }


def _unscored(index: int, last: Mapping[str, Any]) -> dict[str, Any]:
    return {
        "index": index,
        "scored": False,
        "difficulty": last["difficulty"],
        "risk": last["risk"],
        "likely_fails": False,
        "trouble": None,
        "state": FSMState.END.value,
        "scores": {},
        "composite": 0.0,
        "fired": [],
        "failure_type": None,
    }


def first_showings(steps: Iterable[Mapping[str, Any]]) -> dict[str, int]:
    """Index of the first step on which each signal showed: monitors, FAST, SLOW, SKIP, risk, alarm.
    Steps without `likely_fails` are none of a run that is likely to fail."""
    first: dict[str, int] = {}
    for step in steps:
        signals = [*step["fired"], *[name for name in STATE_SIGNALS if name == step["state"]]]
        if step.get("likely_fails"):
            signals.append(RISK)
        if signals and signals != ["FAST"]:
            signals.append(ALARM)
        for signal in signals:
            first.setdefault(signal, step["index"])
    return first


def differences(one: Mapping[str, Any], other: Mapping[str, Any]) -> list[dict[str, Any]]:
    """The steps on which two replays of one recording decide differently, each value as a pair."""
    keys = ("state", "fired", "model", "guidance")
    changes = []
    for a, b in zip(one["steps"], other["steps"], strict=True):
        if changed := {key: [a.get(key), b.get(key)] for key in keys if a.get(key) != b.get(key)}:
            changes.append({"index": a["index"], **changed})
    return changes


Line = tuple[str, str]  # the place of a recording, and its text


@dataclass(frozen=True, slots=True, kw_only=True)
class Replayed:
    """One run's replay, as far as it was asked for.

    `line`: the run as a JSON line; `played`, `other`: under the policy and the one compared with,
    without evidence texts; `changes`: where they differ; `problem`: why it could not be read.
    """

    place: str
    line: str | None = None
    played: Mapping[str, Any] | None = None
    other: Mapping[str, Any] | None = None
    changes: Sequence[Mapping[str, Any]] = ()
    problem: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Work:
    """Work to do with each recording; sent to worker processes. `lines` asks for JSON lines, `runs`
    for the replays themselves."""

    policy: ReplayPolicy
    other: ReplayPolicy | None = None
    lines: bool = False
    runs: bool = True

    def __call__(self, lines: Sequence[Line]) -> list[Replayed]:
        """The replays of these recordings, in order; a broken one becomes a problem."""
        use_engine(Finder)
        other = self.other or self.policy
        with look_ups_of(self.policy) as look_ups, look_ups_of(other) as other_look_ups:
            return [self._replay(place, text, look_ups, other_look_ups) for place, text in lines]

    def _replay(
        self, place: str, text: str, look_ups: LookUps, other_look_ups: LookUps
    ) -> Replayed:
        try:
            recording = parse_recording(text, place)
        except ConfigError as exc:
            return Replayed(place=place, problem=str(exc))
        played = play(recording, self.policy, look_ups)
        other = play(recording, self.other, other_look_ups) if self.other else None
        changes = differences(played, other) if other else []
        line = None
        if self.lines:
            data = dict(played)
            if other:
                data["other"] = {key: other[key] for key in ("first", "tokens", "steps")}
                data["changes"] = changes
            line = orjson.dumps(data, option=orjson.OPT_APPEND_NEWLINE).decode()
        if not self.runs:
            return Replayed(place=place, line=line)
        slim = other and _slim(other)
        return Replayed(place=place, line=line, played=_slim(played), other=slim, changes=changes)


@contextmanager
def look_ups_of(policy: ReplayPolicy) -> Iterator[LookUps]:
    """The answers to look-ups of any number of recordings. Raises ConfigError: the file of patterns
    cannot be used."""
    if not policy.patterns:
        yield ANSWERED
        return
    from gateway.offline.library_answers import library_look_ups

    embedding = (policy.models or Settings()).embedding
    similarity = policy.rules.lessons.similarity
    with library_look_ups(embedding, policy.rules.etraces, policy.patterns, similarity) as library:
        yield library


def _slim(played: Mapping[str, Any]) -> Mapping[str, Any]:
    """Without scores and evidence, so that thousands of runs fit into memory."""
    kept = ("index", "difficulty", "risk", "trouble", "state", "fired", "guidance", "model")
    steps = [{key: step[key] for key in kept if key in step} for step in played["steps"]]
    return {**played, "steps": steps}
