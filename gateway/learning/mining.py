"""Lessons of one run: failed calls that were then made to work, dead ends, missing commands.

    fix        the first failure of a key, and the nearest later call of the same tool and head with
               other arguments that did not fail
    dead_end   a key that failed several times and had no fix
    repair     a call that failed, and worked unchanged after something else was changed
    fact       a program or look-up that gave nothing, and another one that did

Pure: equal runs give equal lessons. Faults of the moment (5xx, rate limits) teach nothing."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from gateway.learning.templates import (
    SLOT_CHARS,
    command_of,
    command_shape,
    difference,
    harmful,
    has_secret,
    is_file_name,
    parse,
    say,
    slot,
)
from gateway.steering.evidence.failure_keys import KIND_WORDS, CallReading, Failure, read_action
from gateway.steering.evidence.results import EMPTY, is_look_up
from gateway.steering.guidance.pattern import Lesson, Pattern, Tier, Trust
from gateway.steering.transcript.steps import Action, Step
from gateway.stores.learning import EvidenceRow

WINDOW_CALLS = 6  # calls after a failure among which its fix is looked for. Source: `learning.md`
SIGNS = "signs"
"""Name of the words of a failure among a lesson's conditions. They are never shown to a model."""
DEAD_END_FAILURES = 2  # failures of a key without a fix that make it a dead end


@dataclass(frozen=True, slots=True, kw_only=True)
class MinedRun:
    """One run to learn from. `conversation`: the root of its tree; `task`: a digest; `steps` have
    the index of the run log, from 1; `at`: its end; `key_name`: of the gateway key, or empty."""

    id: str
    tenant: str
    conversation: str
    task: str
    steps: Sequence[Step]
    at: float
    key_name: str = ""

    def evidence(self, pattern_id: str, step: int, kind: str) -> EvidenceRow:
        """The run's support of a lesson, see EvidenceRow."""
        names = ("tenant", "conversation", "task", "at", "key_name")
        own: dict[str, Any] = {name: getattr(self, name) for name in names}
        return EvidenceRow(pattern_id=pattern_id, run_id=self.id, step_index=step, kind=kind, **own)


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadCallOfRun:
    """One call of a run, read; `step` is its step's index."""

    step: int
    action: Action
    reading: CallReading

    @property
    def key(self) -> str | None:
        """The key of its failure; None for a call that did not fail."""
        return self.reading.failure.key if self.reading.failure else None


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """One thing that the run teaches. `pattern` is None where it cannot be said without the run's
    own content, or may not be said."""

    kind: str
    key: str
    step: int
    pattern: Pattern | None
    evidence: EvidenceRow | None


def read_run(steps: Sequence[Step]) -> list[ReadCallOfRun]:
    """Every call of a run with its result, in order."""
    return [
        ReadCallOfRun(step=step.index, action=action, reading=read_action(action))
        for step in steps
        for action in step.actions
    ]


def mine(run: MinedRun, calls: Sequence[ReadCallOfRun], *, expires_s: float) -> list[Finding]:
    """Findings of the run, in the order of its steps."""
    miner = _Miner(run, calls, run.at + expires_s)
    seen: set[str] = set()
    found: list[Finding] = []
    for position, call in enumerate(calls):
        failure = call.reading.failure
        if failure is not None and failure.key not in seen:
            seen.add(failure.key)
            found += miner.after(position, call, failure)
    return found


@dataclass(frozen=True, slots=True)
class _Miner:
    run: MinedRun
    calls: Sequence[ReadCallOfRun]
    expires_at: float

    def after(self, position: int, call: ReadCallOfRun, failure: Failure) -> list[Finding]:
        """Finding about a key from the calls after its first failure."""
        later = self.calls[position + 1 : position + 1 + WINDOW_CALLS]
        for distance, other in enumerate(later):
            if _fixes(failure, other.reading):
                between = self.calls[position + 1 : position + 1 + distance]
                shell = failure.head.startswith("$")
                how = difference(call.action.arguments, other.action.arguments, shell=shell)
                looks = [each.reading.head for each in between if _reads(each, failure)]
                if how == "" and looks:
                    how = "with other arguments"
                after = f", after `{looks[-1].lstrip('$')}`" if looks else ""
                text = say("fixed", failure.head, how=how, after=after) if how else ""
                marks = {"fix": call_digest(other.reading)}
                return [self._finding("fix", call, failure, text, marks)]
        worked = [other for other in later if other.reading.failure is None]
        if failure.kind == "missing_command":
            for other in worked:
                if other.reading.call.program is not None:
                    command = command_of(other.action.arguments) or ""
                    shown = None if harmful(command) else slot(command_shape(command))
                    empty = shown in (None, "``")
                    text = "" if empty else say("replaced", failure.head, instead=shown or "")
                    fix = call_digest(other.reading)
                    return [self._finding("fact", call, failure, text, {"fix": fix})]
        if failure.kind == EMPTY:
            for other in worked:
                if _finds_instead(failure, other.reading):
                    text = say("elsewhere", failure.head, instead=other.reading.head)
                    fix = call_digest(other.reading)
                    return [self._finding("fact", call, failure, text, {"fix": fix})]
        if repair := self._repair(position, failure):
            return [repair]
        if sum(each.key == failure.key for each in self.calls[position:]) < DEAD_END_FAILURES:
            return []
        text = say("nothing" if failure.kind == EMPTY else "refused", failure.head)
        return [self._finding("dead_end", call, failure, text, {})]

    def _repair(self, position: int, failure: Failure) -> Finding | None:
        """The change after which the same call worked, within the window of its last failure."""
        last, same = position, (failure.head, failure.call.canonical)
        for at in range(position + 1, len(self.calls)):
            reading = self.calls[at].reading
            if at - last > WINDOW_CALLS:
                return None
            if self.calls[at].key == failure.key:
                last = at
            elif reading.failure is None and (reading.head, reading.call.canonical) == same:
                changes = [each for each in self.calls[last + 1 : at] if _changes(each)]
                if reading.transient or not changes:
                    return None
                edits = changes[-1].reading.call.edits
                values = parse(changes[-1].action.arguments) or {}
                given = (values.get(key) for key in _FILE_KEYS)
                named = next((value for value in given if isinstance(value, str)), "")
                name = (edits[-1].path if edits else named).rsplit("/", 1)[-1]
                shown = slot(name) if is_file_name(name) else ""
                changer = changes[-1].reading.head
                where, text = f" of {shown}" if shown else "", ""
                if shown is not None:
                    text = say("repaired", failure.head, changer=changer, where=where)
                return self._finding("repair", self.calls[last], failure, text, {})
        return None

    def _finding(
        self, kind: str, call: ReadCallOfRun, failure: Failure, text: str, marks: dict[str, str]
    ) -> Finding:
        if not text or has_secret(text) or harmful(failure.head):
            return Finding(kind=kind, key=failure.key, step=call.step, pattern=None, evidence=None)
        run, words, kind_words = self.run, failure.words[:SLOT_CHARS], KIND_WORDS[failure.kind]
        if not harmful(words) and not has_secret(words):
            marks = {**marks, SIGNS: words}
        pattern = Pattern(
            tier=Tier.E1,
            fields={
                "task_context_embedding_text": say("situation", failure.head, words=kind_words),
                "observation": say("repeated", failure.head),
                "recommended_action": text,
            },
            pattern_id=lesson_id(Tier.E1, run.tenant, failure.key, text),
            tenant=run.tenant,
            source_trace_id=source_of(run.id, call.step),
            lesson=Lesson(
                key=failure.key,
                trust=Trust.TEMPLATE,
                applies_when={"head": failure.head, "kind": failure.kind, **marks},
                last_confirmed_at=run.at,
                expires_at=self.expires_at,
            ),
        )
        evidence = run.evidence(pattern.pattern_id, call.step, kind)
        return Finding(
            kind=kind, key=failure.key, step=call.step, pattern=pattern, evidence=evidence
        )


def _fixes(failure: Failure, later: CallReading) -> bool:
    same_tool = later.head == failure.head and later.call.canonical != failure.call.canonical
    return same_tool and later.failure is None and not later.transient


def _finds_instead(failure: Failure, later: CallReading) -> bool:
    """Whether another look-up was asked the same, and found something."""
    same = later.call.canonical == failure.call.canonical and later.head != failure.head
    return same and not later.transient and is_look_up(later.call.operation)


def call_digest(reading: CallReading) -> str:
    """Digest by which a call with the same arguments is recognised."""
    return _digest(f"{reading.call.operation} {reading.call.canonical}")


def lesson_id(tier: Tier, *parts: str) -> str:
    """The id of a lesson: equal for equal parts, on every gateway."""
    return f"{tier.value}-{_digest(chr(31).join(parts))}"


def task_digest(text: str) -> str:
    """The digest of a task; numbers, ids and letter case make no other task."""
    words = [word for word in text.lower().split() if word.isalpha()]
    return _digest(" ".join(words or text.lower().split()))


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()[:16]


SOURCE_CHARS = 128


def source_of(run_id: str, step: int) -> str:
    """The link from a lesson to the run and step that it came from."""
    return f"{run_id}#{step}"[:SOURCE_CHARS]


_CHANGER = re.compile(
    r"(?:^|[_.\W])(?:edit|write|replace|patch|create|insert|update|apply|set|add|remove)(?:$|[_.\W])"
    r"|^(?:edit|write|replace|patch|create|insert|update|apply|set|add|remove)[A-Z]",
    re.IGNORECASE,
)
_FILE_KEYS = ("path", "file_path", "file", "filename", "target_file", "relative_path")


def _changes(call: ReadCallOfRun) -> bool:
    """Whether a call that did not fail changed something, by what it did or by its name."""
    reading = call.reading
    named = not reading.head.startswith("$") and _CHANGER.search(reading.head) is not None
    return reading.failure is None and not reading.transient and (bool(reading.call.edits) or named)


def _reads(call: ReadCallOfRun, failure: Failure) -> bool:
    """Whether a call between failure and fix looked something up."""
    reading = call.reading
    looks = reading.failure is None and not reading.call.effect.changes
    return looks and reading.head != failure.head


def signs_of(failure: Failure) -> str:
    """Tool, kind and words of a failure."""
    return f"{failure.head} {KIND_WORDS[failure.kind]} {failure.words}"


def lesson_signs(pattern: Pattern) -> str:
    """The same of the failure that a lesson is about."""
    marks = pattern.lesson.applies_when if pattern.lesson else {}
    words = KIND_WORDS.get(marks.get("kind", ""), "")
    return f"{marks.get('head', '')} {words} {marks.get(SIGNS, '')}"
