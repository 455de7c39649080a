"""What is held of one conversation in memory, and how it is kept in a store."""

from __future__ import annotations

import asyncio
import json
from base64 import b64decode, b64encode
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import orjson

from gateway.conversations.answered import Answered, carried_from, carried_json
from gateway.conversations.answered import from_json as answers_from_json
from gateway.conversations.answered import to_json as to_json_answers
from gateway.conversations.heard import Heard
from gateway.conversations.past import run_id
from gateway.steering.conversation import Awaits, Branch
from gateway.steering.etrace.state import GuidanceState, from_json, to_json
from gateway.steering.fold import Carried, ConversationFold, StepOutcome
from gateway.steering.fsm import FSMState
from gateway.steering.identity.summary import marks_from
from gateway.steering.policy import Policy
from gateway.steering.routing import Held
from gateway.steering.steps import Step
from gateway.stores.records import ConversationRecord
from gateway.wire.heads import ChainState
from gateway.wire.prefix import Prefix

STATE_VERSION = 1
_MAX_UNRECORDED = 512  # the newest steps kept for a store that is away
_MAX_JUDGED = 1000  # the newest scores: no window of the state machine reaches back so far
_KEPT_OUTCOMES = 8  # the newest steps whose texts a look-up may need (e2 reads five)


@dataclass(slots=True)
class Conversation:
    """One conversation. What can be derived from the transcript is a memo and may be missing."""

    branch: Branch
    tenant: str
    source: str
    external_key: str | None
    created_at: float
    version: int = 0

    guidance: GuidanceState = field(default_factory=GuidanceState)
    run: int = 0
    """Index of the run that `guidance` and `held` belong to."""

    run_started_at: float = 0.0
    run_tokens: int = 0
    """Reported by upstreams for this run."""

    held: Held | None = None
    base: Carried | None = None
    """What a compaction left; the transcript alone does not tell it."""

    base_offset: int = 0
    base_of: str = ""
    """The conversation whose run log has the steps behind `base`; "" where windows restart."""

    last: Carried | None = None
    """Where the newest run stood when it was last recorded."""

    ended_run: int | None = None
    """The run whose final answer was the latest reply."""

    before_end: FSMState = FSMState.NORMAL
    """The state of that run before the answer."""

    unrecorded: dict[tuple[int, int], StepOutcome] = field(default_factory=dict)
    """Scored steps that the store does not have yet, by run and index, in their order."""

    judged: dict[str, float] = field(default_factory=dict)
    """Scores that a model gave, by where they belong; the transcript does not tell them."""

    decided: tuple[bytes, str, str] | None = None
    """(served head, requested model, model asked) of the latest call, for retries."""

    credited: dict[str, str] = field(default_factory=dict)
    """The outcome that was counted for patterns given in the run, by their ids."""

    retries: int = 0
    fold: ConversationFold | None = None
    chain: ChainState | None = None
    prefix: Prefix | None = None
    heard: Heard = field(default_factory=Heard)
    """The messages of all its requests."""

    root: bytes = b""
    """Head of the history's first message: where the store keeps this conversation's heads."""

    heads: list[bytes] = field(default_factory=list)
    """Digests under which the index knows this conversation."""

    answered: dict[str, Answered] = field(default_factory=dict)
    """The newest answers that a request may go on from by their ids, oldest first."""

    lock: asyncio.Lock = field(default_factory=asyncio.Lock)

    @property
    def busy(self) -> bool:
        """Whether a call is on its way, or being committed."""
        return self.branch.awaits is Awaits.MODEL or self.lock.locked()

    @property
    def id(self) -> str:
        """The conversation's id."""
        return self.branch.conversation_id

    def run_id(self, run: int) -> str:
        """The id of a run: the conversation's and a number, equal on every replica."""
        return run_id(self.id, run)

    def ready_fold(self, policy: Policy, earlier: Sequence[Step] = ()) -> ConversationFold:
        """The fold over the transcript; a new one, behind the steps `earlier`, when none is in
        memory."""
        if self.fold is None:
            self.fold = ConversationFold(
                policy,
                base=self.base,
                offset=self.base_offset,
                keep=_KEPT_OUTCOMES,
                earlier=earlier,
                judged=self.judged,
            )
        return self.fold

    def learn(self, outcomes: Iterable[StepOutcome]) -> None:
        """Take in newly scored steps; those the store has (all of them are read anew after a
        restart) are passed over."""
        last = (self.last.run, self.last.steps) if self.last else (-1, 0)
        for outcome in outcomes:
            if (outcome.run, outcome.index) > last:
                self.unrecorded[outcome.run, outcome.index] = outcome
        for key in list(self.unrecorded)[:-_MAX_UNRECORDED]:
            del self.unrecorded[key]

    def begin_run(self, run: int, now: float) -> None:
        """Start the counts of run `run`, which began at `now`, in seconds of the epoch."""
        self.run = run
        self.run_started_at = now
        self.run_tokens = 0
        self.guidance = self.guidance.next_run()
        self.held = None
        self.credited.clear()
        self.judged.clear()

    def judge(self, key: str, score: float) -> None:
        """Keep a judged score; the oldest make room."""
        self.judged[key] = score
        for old in list(self.judged)[:-_MAX_JUDGED]:
            del self.judged[old]

    def stands(self) -> Carried | None:
        """Where the newest run stands, the latest reply included when it was a final answer."""
        carried = self.last if self.fold is None else self.fold.current.carry()
        if carried is not None and carried.run == self.ended_run:
            return replace(carried, state=FSMState.END)
        return carried

    def stood(self) -> Carried | None:
        """Where the newest run stood before its latest reply, whatever that was."""
        if self.fold is not None:
            return self.fold.current.carry()
        if self.last is not None and self.last.state is FSMState.END:
            return replace(self.last, state=self.before_end)
        return self.last

    def recorded(self, version: int, stands: Carried | None) -> None:
        """The store has version `version`, every step up to `stands` included."""
        self.version = version
        if self.fold is not None:
            self.before_end = self.fold.current.state
        self.last = stands
        self.unrecorded.clear()

    def forget_transcript(self) -> None:
        """Drop every memo of the transcript: the next request is read from its start."""
        self.fold = self.chain = self.prefix = None
        self.heard = Heard(self.heard.lasting())

    def record(self, message_count: int, now: float) -> ConversationRecord:
        """The conversation as a store keeps it."""
        branch = self.branch
        return ConversationRecord(
            id=branch.conversation_id,
            tenant=self.tenant,
            source=self.source,
            parent_id=branch.parent,
            external_key=self.external_key,
            version=self.version,
            created_at=self.created_at,
            updated_at=now,
            served_head=branch.served_head,
            message_count=message_count,
            signature=branch.signature,
            has_tools=branch.has_tools,
            state=self._state(),
        )

    def _state(self) -> bytes:
        branch = self.branch
        state: dict[str, Any] = {
            "v": STATE_VERSION,
            "run": self.run,
            "run_started_at": self.run_started_at,
            "run_tokens": self.run_tokens,
            "guidance": to_json(self.guidance),
            "steps": branch.steps,
            "awaits": branch.awaits.value,
        }
        if branch.fallback_head:
            state["fallback_head"] = branch.fallback_head.hex()
        if branch.reply_digest:
            state["reply_digest"] = branch.reply_digest.hex()
        if self.held:
            state["held"] = [self.held.model, self.held.state.value, self.held.since_step]
        if self.base:
            state["base"] = [carried_json(self.base), self.base_offset]
            state["heard"] = b64encode(self.heard.lasting()).decode()
        if branch.reply_marks:
            state["reply_marks"] = b"".join(branch.reply_marks).hex()
        if branch.reply_calls or branch.served_calls:
            state["calls"] = [branch.reply_calls, branch.served_calls]
        if stands := self.stands():
            state["last"] = carried_json(stands)
            if stands.state is FSMState.END and (stood := self.stood()):
                state["before_end"] = stood.state.value
        if self.judged:
            state["judged"] = self.judged
        if self.decided:
            head, requested, asked = self.decided
            state["decided"] = [head.hex(), requested, asked]
        if self.answered:
            state["answered"] = to_json_answers(self.answered.values())
        try:
            return orjson.dumps(state)
        except TypeError:  # a model's name with half a surrogate pair, which has no UTF-8 form
            return json.dumps(state).encode()


def restored(record: ConversationRecord) -> Conversation:
    """The conversation that `Conversation.record` described.

    Raises:
        ValueError: the state is damaged, or another version's.
    """
    try:
        state = json.loads(record.state or b"{}")
        if state.get("v") != STATE_VERSION:
            raise ValueError(f"version {state.get('v')!r} is not known")
        return _restored(record, state)
    except (ValueError, TypeError, KeyError, AttributeError, IndexError) as exc:
        raise ValueError(f"state of conversation {record.id!r}: {exc}") from exc


def _restored(record: ConversationRecord, state: dict[str, Any]) -> Conversation:
    awaits = Awaits(state["awaits"])
    reply_calls, served_calls = state.get("calls", ((), ()))
    branch = Branch(
        conversation_id=record.id,
        served_head=record.served_head,
        signature=record.signature,
        has_tools=record.has_tools,
        parent=record.parent_id,
        fallback_head=_digest(state.get("fallback_head")),
        reply_digest=_digest(state.get("reply_digest")),
        reply_marks=marks_from(bytes.fromhex(state.get("reply_marks", ""))),
        reply_calls=tuple(map(str, reply_calls)),
        served_calls=tuple(map(str, served_calls)),
        # No call is on its way after a restart.
        awaits=Awaits.ANYTHING if awaits is Awaits.MODEL else awaits,
        steps=int(state["steps"]),
    )
    found = Conversation(
        branch=branch,
        tenant=record.tenant,
        source=record.source,
        external_key=record.external_key,
        created_at=record.created_at,
        version=record.version,
        guidance=from_json(state["guidance"]),
        run=int(state["run"]),
        run_started_at=float(state["run_started_at"]),
        run_tokens=int(state.get("run_tokens", 0)),
    )
    found.judged = {str(k): float(v) for k, v in state.get("judged", {}).items()}
    if held := state.get("held"):
        found.held = Held(model=held[0], state=FSMState(held[1]), since_step=int(held[2]))
    if base := state.get("base"):
        found.base, found.base_offset = carried_from(base[0]), int(base[1])
        found.heard = Heard(b64decode(state.get("heard", "")))
    if last := state.get("last"):
        found.last = carried_from(last)
        found.ended_run = found.last.run if found.last.state is FSMState.END else None
        found.before_end = FSMState(state.get("before_end", FSMState.NORMAL.value))
    found.answered = answers_from_json(state.get("answered", ()))
    if decided := state.get("decided"):
        found.decided = (bytes.fromhex(decided[0]), decided[1], decided[2])
    return found


def _digest(text: str | None) -> bytes | None:
    return bytes.fromhex(text) if text else None
