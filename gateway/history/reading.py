"""One session through the steering core: readings of its steps, cost of its calls, its trouble."""

from bisect import bisect_right
from collections.abc import Iterator, Mapping, Sequence
from pathlib import PurePath
from typing import Any

from msgspec import Struct
from msgspec.structs import replace

from gateway.history.describe import what_happened
from gateway.history.prices import Tokens, cost_of, grouped
from gateway.history.sayings import Saying, sayings_of
from gateway.history.session import FileFacts, HumanTurn, ModelCall, Session, project_of
from gateway.history.trouble import ReadStep, Stretch, stretches_of
from gateway.offline.playback import RecordedHistory
from gateway.offline.recordings import Recording, RunLabel
from gateway.steering.fold import StepOutcome
from gateway.steering.fsm import FSMState
from gateway.steering.policy import Policy
from gateway.steering.transcript.content import read_calls, read_content
from gateway.steering.transcript.steps import Change, StepReader
from gateway.steering.transcript.user_words import task_of
from gateway.text.secrets import mask_repeated
from gateway.upstream.prices import tokens_of

MOST_SAID = 2000  # characters of a person's message that are kept
MOST_TOKENS = 10**8  # of one kind in one call: a hundred times the longest context there is
_TITLE = 80
_ACCEPTED_PLAN = "Implement the following plan:"
_AT_RISK = (FSMState.SLOW, FSMState.SKIP)


class CallCost(Struct, frozen=True, array_like=True):
    """One model call of a session: its step (0-based, -1 before the first), time, tokens, US
    dollars, and how many `tools` it calls. `key`: as in `ModelCall`."""

    key: str
    step: int
    at: float | None
    model: str
    tokens: Tokens
    usd: float | None
    tools: int


class Alarm(Struct, frozen=True, kw_only=True):
    """The first step of consecutive ones at which the gateway would have raised an alarm."""

    step: int
    monitors: tuple[str, ...]
    state: str
    evidence: str


class SessionReading(FileFacts, kw_only=True):
    """The result of reading one session; it holds no transcript, only what the person said.
    `calls`: one for each step. `human`: with secrets masked. `compactions`: their number."""

    path: str
    calls: tuple[CallCost, ...]
    human: tuple[HumanTurn, ...]
    sayings: tuple[Saying, ...]
    compactions: int
    stretches: tuple[Stretch, ...]
    alarms: tuple[Alarm, ...]

    @property
    def steps(self) -> int:
        """Answers of the model."""
        return len(self.calls)

    @property
    def tool_calls(self) -> int:
        """Calls of tools in them."""
        return sum(call.tools for call in self.calls)

    @property
    def place(self) -> str:
        """The last part of the project's folder; the agent's name if it is unknown."""
        return PurePath(project_of(self.project).replace("\\", "/")).name or self.agent

    @property
    def tokens(self) -> Tokens:
        """Tokens of all calls."""
        total = Tokens()
        for call in self.calls:
            total = total.plus(call.tokens)
        return total

    @property
    def usd(self) -> float | None:
        """US dollars of the calls with a price; None if none has one."""
        priced = [call.usd for call in self.calls if call.usd is not None]
        return sum(priced) if priced else None

    def acts(self, kind: str) -> int:
        """Number of the person's acts of one kind."""
        return sum(turn.kind == kind for turn in self.human)


def recording_of(session: Session) -> Recording:
    """The session as a recording, which the core can play."""
    label = RunLabel(id=session.id, source=session.agent)
    return Recording(label=label, messages=session.messages, compactions=session.compactions)


def outcomes_of(session: Session, policy: Policy) -> tuple[list[StepOutcome], list[int]]:
    """The outcomes of the scored steps, and the position of the message of every step. A step that
    got a late result has its last outcome."""
    reader, starts = StepReader(), []
    for position, message in enumerate(session.messages):
        if reader.read(message) is Change.OPENED:
            starts.append(position)
    history = RecordedHistory(policy, recording_of(session))
    found: dict[int, StepOutcome] = {}
    for end in [*starts[1:], len(session.messages)]:
        found |= {outcome.step.index: outcome for outcome in history.read_to(end)}
    return [found[index] for index in sorted(found)], starts


def read_session(session: Session, policy: Policy, path: str = "") -> SessionReading:
    """Read a session with the policy of the live gateway. Never raises for a malformed one."""
    outcomes, starts = outcomes_of(session, policy)
    calls = tuple(_priced(call, starts, session.messages) for call in session.calls)
    sayings = tuple(sayings_of(session))
    human = tuple(_read_turns(session.human, sayings))
    steps = [_read_step(outcome, starts) for outcome in outcomes]
    costs: dict[int, tuple[int, float]] = {}
    for call in calls:
        tokens, usd = costs.get(call.step, (0, 0.0))
        costs[call.step] = tokens + call.tokens.total, usd + (call.usd or 0.0)
    stretches = stretches_of(steps, human, starts, costs)
    facts = {name: getattr(session, name) for name in FileFacts.__struct_fields__}
    return SessionReading(
        **facts | {"title": mask_repeated(session.title) or _title(session, human)},
        path=path,
        calls=calls,
        human=human,
        sayings=sayings,
        compactions=len(session.compactions),
        stretches=tuple(
            replace(each, happened=what_happened(each, each.of(steps))) for each in stretches
        ),
        alarms=tuple(_alarms(outcomes)),
    )


def _priced(
    call: ModelCall, starts: Sequence[int], messages: Sequence[Mapping[str, Any]]
) -> CallCost:
    # A count that no provider can have reported would drown all others.
    tokens = {k: n if n <= MOST_TOKENS else 0 for k, n in tokens_of(call.usage).items()}
    step = bisect_right(starts, call.position) - 1
    message = messages[call.position]
    tools = len(read_calls(message, read_content(message.get("content"))))
    usd = cost_of(call, tokens)
    return CallCost(call.key, step, call.at, call.model, grouped(tokens), usd, tools)


def is_alarm(outcome: StepOutcome) -> bool:
    """True if the live gateway would raise an alarm at this step."""
    fired, likely = outcome.readings.fired, outcome.risk.likely
    return bool(fired) or likely or outcome.state in _AT_RISK


def _alarms(outcomes: Sequence[StepOutcome]) -> list[Alarm]:
    found, before = [], False
    for outcome in outcomes:
        now = is_alarm(outcome)
        if now and not before:
            fired = tuple(outcome.readings.fired)
            reasons = [outcome.readings.evidence.get(name, "") for name in fired]
            found.append(
                Alarm(
                    step=outcome.step.index,
                    monitors=fired or (("risk",) if outcome.risk.likely else ()),
                    state=outcome.state.value,
                    evidence=mask_repeated("; ".join(filter(None, reasons))),
                )
            )
        before = now
    return found


def _read_step(outcome: StepOutcome, starts: Sequence[int]) -> ReadStep:
    return ReadStep(
        index=outcome.step.index,
        position=starts[outcome.step.index],
        is_alarm=is_alarm(outcome),
        trouble=outcome.observed.trouble,
        fired=tuple(outcome.readings.fired),
        evidence=dict(outcome.readings.evidence),
        observed=outcome.observed,
    )


def _read_turns(turns: Sequence[HumanTurn], sayings: Sequence[Saying]) -> Iterator[HumanTurn]:
    """The turns with their secrets masked, and whether each corrects the agent."""
    wrong = {saying.turn for saying in sayings if saying.corrects}
    for at, turn in enumerate(turns):
        text = mask_repeated(turn.text[:MOST_SAID])
        # A plan that is accepted for a fresh start is recorded as a call that was rejected, and an
        # interruption.
        accepted = any(after.text.startswith(_ACCEPTED_PLAN) for after in turns[at + 1 : at + 3])
        corrects = at in wrong if turn.kind == "message" else not accepted
        yield replace(turn, text=text, corrects=corrects)


def _title(session: Session, human: Sequence[HumanTurn]) -> str:
    said = next((turn.text for turn in human if turn.kind == "message" and turn.text), "")
    words = " ".join((said or mask_repeated(task_of(session.messages, 0)[:MOST_SAID])).split())
    return words[: _TITLE - 3] + "..." if len(words) > _TITLE else words
