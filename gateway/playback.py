"""One recorded run through the same core that serves requests: states, readings, decisions.

Each entry uses the step it stands for and the steps before it, nothing after. What would have been
injected is what the call after that step would have got; look-ups are counted as answered, because
a recording does not hold the pattern store of its time.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import orjson

from gateway.errors import ConfigError
from gateway.recordings import Recording, parse_recording, recorded_scores, recorded_steps
from gateway.replay_guide import Guide, ReplayPolicy
from gateway.steering.difficulty import UNKNOWN
from gateway.steering.fold import ConversationFold, RunFold, StepOutcome
from gateway.steering.fsm import FSMState
from gateway.steering.policy import Policy
from gateway.steering.steps import extract

DIGITS = 6
ALARM = "alarm"
"""A monitor fired or SLOW was reached."""
STATE_SIGNALS = ("FAST", "SLOW", "SKIP")


def play(recording: Recording, settings: ReplayPolicy) -> dict[str, Any]:
    """The replay of one recording as a JSON object; see `docs/evidence.md` for its keys.

    A step that is not scored (a final answer) repeats the last score with `scored` false. Never
    raises for a malformed transcript.
    """
    outcomes, length, prompts = _fold(recording, settings.policy)
    guide = Guide(settings, recording.model, recording.id)
    steps = []
    last = UNKNOWN
    for index in range(length):
        outcome = outcomes.get(index)
        entry = _unscored(index, last) if outcome is None else _scored(index, outcome)
        last = entry["difficulty"]
        model, guidance = guide.next_call(outcome)
        entry["model"] = model
        if guidance:
            entry["guidance"] = guidance
        steps.append(entry)
    return {
        "id": recording.id,
        "source": recording.source,
        "model": recording.model,
        "group": recording.group,
        "success": recording.success,
        "mistake_step": recording.mistake_step,
        "first": first_showings(steps),
        "tokens": guide.tokens(prompts, recording.model),
        "steps": steps,
    }


def _fold(
    recording: Recording, policy: Policy
) -> tuple[dict[int, StepOutcome], int, list[tuple[int, int]]]:
    """Outcomes by step index, the number of steps, and each call's size in characters."""
    if recording.messages is not None:
        fold = ConversationFold(policy)
        outcomes = {o.step.index: o for o in fold.extend(recording.messages)}
        steps = extract(recording.messages)
        return outcomes, len(steps), _sizes(recording.messages)
    run = RunFold(policy)
    records = recorded_steps(recording.steps or ())
    scores = recorded_scores(recording.steps or ())
    found: dict[int, StepOutcome] = {}
    for step, score in zip(records, scores, strict=True):
        found[step.index] = run.push(step)
        if score is not None and run.score_key:
            # What a model gave cannot be derived again; a calibrated score is the same once more.
            found[step.index] = run.rescore(score)
    return found, len(records), []


def _sizes(messages: Iterable[Any]) -> list[tuple[int, int]]:
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


def _scored(index: int, outcome: StepOutcome) -> dict[str, Any]:
    readings = outcome.readings
    return {
        "index": index,
        "run": outcome.run,
        "scored": True,
        "difficulty": round(outcome.difficulty, DIGITS),
        "state": outcome.state.value,
        "scores": {name: round(score, DIGITS) for name, score in readings.scores.items()},
        "composite": readings.composite,
        "fired": list(readings.fired),
        "failure_type": readings.failure_type,
        "evidence": readings.evidence,
    }


def _unscored(index: int, last: float) -> dict[str, Any]:
    return {
        "index": index,
        "scored": False,
        "difficulty": last,
        "state": FSMState.END.value,
        "scores": {},
        "composite": 0.0,
        "fired": [],
        "failure_type": None,
    }


def first_showings(steps: Iterable[Mapping[str, Any]]) -> dict[str, int]:
    """Index of the first step on which each signal showed: monitors, FAST, SLOW, SKIP, alarm."""
    first: dict[str, int] = {}
    for step in steps:
        signals = [*step["fired"]]
        if step["state"] in STATE_SIGNALS:
            signals.append(step["state"])
        if step["fired"] or step["state"] in ("SLOW", "SKIP"):
            signals.append(ALARM)
        for signal in signals:
            first.setdefault(signal, step["index"])
    return first


def differences(one: Mapping[str, Any], other: Mapping[str, Any]) -> list[dict[str, Any]]:
    """The steps on which two replays of one recording decide differently, each value as a pair."""
    changes = []
    for a, b in zip(one["steps"], other["steps"], strict=True):
        changed = {
            key: [a.get(key), b.get(key)]
            for key in ("state", "fired", "model", "guidance")
            if a.get(key) != b.get(key)
        }
        if changed:
            changes.append({"index": a["index"], **changed})
    return changes


Line = tuple[str, str]
"""Where a recording stands, and its text."""


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
    """What to do with each recording; travels to worker processes.

    `lines` asks for JSON lines, `runs` for the replays themselves.
    """

    policy: ReplayPolicy
    other: ReplayPolicy | None = None
    lines: bool = False
    runs: bool = True

    def __call__(self, lines: Sequence[Line]) -> list[Replayed]:
        """The replays of these recordings, in order; a broken one becomes a problem."""
        return [self._replay(place, text) for place, text in lines]

    def _replay(self, place: str, text: str) -> Replayed:
        try:
            recording = parse_recording(text, place)
        except ConfigError as exc:
            return Replayed(place=place, problem=str(exc))
        played = play(recording, self.policy)
        other = None if self.other is None else play(recording, self.other)
        changes = [] if other is None else differences(played, other)
        return Replayed(
            place=place,
            line=_json_line(played, other, changes) if self.lines else None,
            played=_slim(played) if self.runs else None,
            other=_slim(other) if self.runs else None,
            changes=changes if self.runs else (),
        )


def _json_line(
    played: Mapping[str, Any], other: Mapping[str, Any] | None, changes: Sequence[Any]
) -> str:
    data = dict(played)
    if other is not None:
        data["other"] = {key: other[key] for key in ("first", "tokens", "steps")}
        data["changes"] = changes
    return orjson.dumps(data, option=orjson.OPT_APPEND_NEWLINE).decode()


def _slim(played: Mapping[str, Any] | None) -> Mapping[str, Any] | None:
    """Without scores and evidence, so that thousands of runs fit into memory."""
    if played is None:
        return None
    kept = ("index", "difficulty", "state", "fired", "guidance", "model")
    steps = [{key: step[key] for key in kept if key in step} for step in played["steps"]]
    return {**played, "steps": steps}
