"""Session logs through the steering core: alarms, and cost at the day's prices.

Many are read in parallel, one file at a time, and only the readings are kept."""

import os
import re
from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from functools import partial
from itertools import starmap, zip_longest
from typing import TextIO

from msgspec.structs import replace

from gateway.core.decision_settings import Policy
from gateway.core.fold import StepOutcome
from gateway.core.ledger.entries import Ending as TriesEnding
from gateway.core.ledger.session import STOPPED
from gateway.core.monitors.alarms import SESSION
from gateway.errors import ConfigError
from gateway.features.history.endings import Ending, ending_of
from gateway.features.history.find import Found
from gateway.features.history.prompt_cache import CallCost, StepLoss, Tokens, losses
from gateway.features.history.session import FileFacts, Floor, HumanTurn, ModelCall, Session
from gateway.offline.playback import RecordedHistory
from gateway.offline.recordings import Recording, RunLabel
from gateway.offline.replay import in_processes
from gateway.steering.sub_agents import Order, orders_in, prompt_digest
from gateway.steering.transcript.content import read_calls, read_content
from gateway.steering.transcript.steps import StepChange, StepReader
from gateway.steering.transcript.user_words import task_of, title_of
from gateway.text.formatting import progress_bar
from gateway.text.sanitize import one_line
from gateway.text.secrets import mask_repeated
from gateway.text.typed_not_pasted import typed_sentences
from gateway.upstream.model_costs import capabilities
from gateway.values import Value
from gateway.wire.usage import tokens_of


def cost_of(call: ModelCall, tokens: Mapping[str, int]) -> float | None:
    """Returns US dollars of one call: as the agent noted it, else by the price list; None if
    unknown. `tokens`: its own, from `tokens_of`."""
    if call.cost_usd is not None:
        return call.cost_usd
    if not any(tokens.values()):
        return None
    model = capabilities(call.model)
    if model:
        return model.cost_of_tokens(tokens)
    return None


def grouped(found: Mapping[str, int]) -> Tokens:
    """The tokens that `tokens_of` gives, in fewer kinds; reasoning counts as output."""
    return Tokens(
        input=found["input"] + found["audio_input"],
        cache_read=found["cache_read"],
        cache_write=found["cache_write"] + found["cache_write_1h"],
        output=found["output"] + found["reasoning"] + found["audio_output"],
    )


MOST_SAID = 2000  # characters of a person's message that are kept
MOST_TOKENS = 10**8  # of one kind in one call: a hundred times the longest context there is
_TITLE = 80


class FirstAlarm(Value):
    """The first step of consecutive ones at which the gateway would have raised an alarm."""

    step: int  # from 0
    monitors: tuple[str, ...]  # that fired
    state: str  # difficulty state, by name
    evidence: str  # reason in words
    label: str  # what it says, without the words of people, models and tools


class Place(Value):
    """A step at which an alarm began, or after which the person stopped the agent or rejected a
    call, and said why."""

    step: int  # from 0
    what: str  # for people
    alarmed: bool = False  # the gateway would have raised an alarm; else the person acted


class Course(Value):
    """The course of a session."""

    losses: tuple[StepLoss, ...]  # input that was paid again
    compactions: int  # number of times that the history was replaced by a summary
    tool_calls: int  # in all answers
    ending: Ending  # facts of the last messages


class SessionReading(FileFacts, kw_only=True):
    """The result of reading one session; it holds no transcript, only what the person said."""

    path: str  # of the log file
    calls: tuple[CallCost, ...]  # one for each step
    human: tuple[HumanTurn, ...]  # acts of the person, with secrets masked
    course: Course  # what happened to its cache and history, and its end
    orders: tuple[Order, ...]  # calls that may have started a sub-agent
    alarms: tuple[FirstAlarm, ...]  # where the gateway would have raised one
    places: tuple[Place, ...]  # worth a look, in the order of the session
    place: str = ""  # name of the project, as `with_projects` gives it

    @property
    def steps(self) -> int:
        """Answers of the model."""
        return len(self.calls)

    @property
    def tokens(self) -> Tokens:
        """Tokens of all calls."""
        total = Tokens()
        for call in self.calls:
            total = total.plus(call.tokens)
        return total

    def at_least(self, floor: Floor) -> int:
        """Number of answers of which the log has only a part, by what it lacks."""
        return sum(call.at_least == floor for call in self.calls)

    @property
    def usd(self) -> float | None:
        """US dollars of the calls with a known price; None if no call has one."""
        priced = [call.usd for call in self.calls if call.usd is not None]
        if priced:
            return sum(priced)
        return None

    @property
    def silent(self) -> bool:
        """True if nothing happened in it."""
        return not (self.calls or self.human)

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
    reader = StepReader()
    starts = []
    for position, message in enumerate(session.messages):
        if reader.read(message) is StepChange.OPENED:
            starts.append(position)
    history = RecordedHistory(policy, recording_of(session))
    found: dict[int, StepOutcome] = {}
    for end in [*starts[1:], len(session.messages)]:
        found |= {outcome.step.index: outcome for outcome in history.read_to(end)}
    return [found[index] for index in sorted(found)], starts


def read_session(session: Session, policy: Policy, path: str = "") -> SessionReading:
    """Read a session with the policy of the live gateway. Never raises for a malformed one."""
    outcomes, starts = outcomes_of(session, policy)
    calls = tuple(_priced(call, starts) for call in session.calls)
    human = tuple([_masked(turn, starts) for turn in session.human])
    alarms = tuple(_alarms(outcomes))
    answers = [call.position for call in session.calls]
    compacted = {bisect_left(answers, position) for position in session.compactions}
    facts = {name: getattr(session, name) for name in FileFacts.__struct_fields__}
    facts |= {
        "title": mask_repeated(session.title) or _title(session, human),
        "order": replace(session.order, prompt=prompt_digest(task_of(session.messages, 0))),
    }
    return SessionReading(
        **facts,
        path=path,
        calls=calls,
        human=human,
        course=Course(
            losses=tuple(losses(calls, session.calls, compacted)),
            compactions=len(session.compactions),
            tool_calls=sum(
                len(read_calls(each, read_content(each.get("content"))))
                for each in session.messages
            ),
            ending=ending_of(session),
        ),
        orders=tuple([replace(o, task=mask_repeated(o.task)) for o in orders_in(session.messages)]),
        alarms=alarms,
        places=tuple(_places(alarms, human)),
    )


def _masked(turn: HumanTurn, starts: Sequence[int]) -> HumanTurn:
    return replace(
        turn,
        text=mask_repeated(turn.text[:MOST_SAID]),
        step=bisect_left(starts, turn.position) - 1,
    )


def _priced(call: ModelCall, starts: Sequence[int]) -> CallCost:
    # A count that no provider can have reported would drown all others.
    tokens = {k: n if n <= MOST_TOKENS else 0 for k, n in tokens_of(call.usage).items()}
    return CallCost(
        call.key,
        bisect_right(starts, call.position) - 1,
        call.at,
        model=call.model,
        tokens=grouped(tokens),
        usd=cost_of(call, tokens),
        written_1h=tokens["cache_write_1h"],
        at_least=call.at_least or ("" if any(tokens.values()) else "usage"),
    )


def _alarms(outcomes: Sequence[StepOutcome]) -> Iterator[FirstAlarm]:
    """The alarms that say for what they are raised; a score alone is no alarm."""
    before = ""
    for outcome in outcomes:
        alarmed = outcome.readings.alarmed
        evidence = "; ".join(filter(None, alarmed.values()))
        if evidence and not before:
            yield FirstAlarm(
                step=outcome.step.index,
                monitors=tuple(alarmed),
                state=outcome.state.value,
                evidence=mask_repeated(STEPS.sub("", evidence)),
                label=" and ".join(dict.fromkeys(starmap(_label, alarmed.items()))),
            )
        before = evidence


def _label(monitor: str, sentence: str) -> str:
    """The words that every alarm of this kind has; the monitor's name where there are none."""
    if monitor == SESSION and STOPPED not in sentence:
        return "the same text, command or claim came again in later runs"
    return next((words for words in _FIXED if words in sentence), monitor)


_ACTS = {"interrupt": "you interrupted", "reject": "you rejected"}
_FIXED = sorted([STOPPED, *[each.value for each in TriesEnding]], key=len, reverse=True)
# Numbers of steps in a reason: those of its run, from 1; a session may have several runs.
STEPS = re.compile(
    r", (?:steps \d+ to \d+|up to step \d+|first in run \d+, step \d+; now step \d+"
    r"|the (?:one before|last one) at step \d+|step \d+(?=;|$))| since step \d+"
)


def _places(alarms: Sequence[FirstAlarm], human: Sequence[HumanTurn]) -> Iterator[Place]:
    """The alarms, then the acts of the person with their words or those that were typed right
    after, each step once."""
    for alarm in alarms:
        yield Place(step=alarm.step, what=alarm.evidence, alarmed=True)
    steps = {-1}
    for turn, after in zip_longest(human, human[1:]):
        if turn.kind == "message" or turn.step in steps:
            continue
        what = _ACTS[turn.kind]
        said = turn.text
        if not said and after and after.kind == "message" and after.step == turn.step:
            what += ", then said"
            said = after.text
        # if possible without what was pasted
        if said := " ".join(typed_sentences(said)) or said:
            steps.add(turn.step)
            yield Place(step=turn.step, what=f'{what}: "{said}"')


def _title(session: Session, human: Sequence[HumanTurn]) -> str:
    said = next((turn.text for turn in human if turn.kind == "message" and turn.text), "")
    text = said or mask_repeated(task_of(session.messages, 0)[:MOST_SAID])
    return one_line(title_of(text), _TITLE)


IN_PROCESS_BYTES = 40_000_000
"""Size of all files up to which other processes cost more than they save: 1.2 s of work, against
0.9 s to start two."""


class SessionFilter(Value):
    """The sessions that are asked for. Empty values take all."""

    since: float | None = None  # epoch seconds: last used at or after
    project: str = ""  # text that the project's folder or name contains
    agent: str = ""  # name of the client

    def takes(self, session: SessionReading) -> bool:
        """True for a session that is asked for; one without a time is taken."""
        late = self.since is None or session.ended is None or session.ended >= self.since
        fits = self.project.lower() in f"{session.project}\n{session.place}".lower()
        return late and fits and self.agent in ("", session.agent)


def since(text: str, now: datetime) -> float:
    """The moment in `--since`: an ISO date, or a number of days or weeks before now (`7d`, `4w`).
    Raises ConfigError: neither."""
    unit = {"d": 1, "w": 7}.get(text[-1:])
    if unit and text[:-1].isdigit():
        return (now - timedelta(days=int(text[:-1]) * unit)).timestamp()
    try:
        day = datetime.fromisoformat(text)
    except ValueError:
        fault = f"--since: {text!r} is neither a date such as 2026-01-31 nor days or weeks (7d, 4w)"
        raise ConfigError(fault) from None
    return (day if day.tzinfo else day.replace(tzinfo=UTC)).timestamp()


class FileReadings(Value):
    """The sessions of one file."""

    path: str  # of the log file
    sessions: tuple[SessionReading, ...] = ()  # empty when it has none
    problem: str = ""  # why it has none; "" when it has


def read_file(found: Found, policy: Policy) -> FileReadings:
    """Read one file. Never raises: a reader that fails is a problem of its file."""
    path = str(found.path)
    if found.format is None:
        return FileReadings(path=path, problem=found.problem)
    log = found.open()
    sessions: list[SessionReading] = []
    problem = ""
    try:
        sessions = [read_session(each, policy, path) for each in found.sessions(log)]
        if not sessions:
            for line, reason in log.unread[:1]:
                problem = f"{path}:{line}: {reason}; no session in this file"
    except ConfigError as exc:
        problem = str(exc)
    except Exception as exc:
        # An agent's next version can break any expectation; the other files are still read.
        problem = f"{path}:{log.seen}: the {found.format.name} reader failed: {exc!r}"
    return FileReadings(path=path, sessions=tuple(sessions), problem=problem)


def read_all(
    found: Sequence[Found], policy: Policy, *, err: TextIO, jobs: int | None = None
) -> Iterator[FileReadings]:
    """Read the files in their order; `jobs` processes, None = one per core."""
    jobs = jobs or os.cpu_count() or 1
    if sum(each.stat.st_size for each in found) < IN_PROCESS_BYTES:
        jobs = 1
    with progress_bar(err) as bar:
        readings = in_processes(partial(read_file, policy=policy), found, jobs)
        yield from bar.track(readings, total=len(found), description="reading sessions")
