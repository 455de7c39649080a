"""Reads what is new in a request: its steps are scored, and what people wrote is noted.

A long transcript is read in parts, between which other requests are served: to a gateway that was
restarted without its store a history of thousands of messages is new."""

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Sequence
from itertools import islice, takewhile
from typing import Any, NamedTuple

from msgspec.structs import replace

from gateway.conversations.conversation import Conversation, StepPlace, run_id
from gateway.conversations.decision import ActOfPerson, Decision, with_reasons
from gateway.conversations.resolve import Resolved
from gateway.core.decision_settings import Policy
from gateway.core.fold import RunFold, RunSnapshot, StepOutcome
from gateway.core.fsm import FSMState
from gateway.core.steer import RunPosition
from gateway.core.step import Step
from gateway.dialects import SteeredRequest
from gateway.steering.identity import MatchKind
from gateway.steering.identity.branch import split_ending
from gateway.steering.runs_of_transcript import ConversationFold
from gateway.steering.transcript.client_texts import asked, is_request_of_client
from gateway.steering.transcript.interventions import (
    ACCEPTED_PLAN,
    AfterAnswer,
    answer_interventions,
    said_in,
    step_interventions,
)
from gateway.stores.records import PromptMessage
from gateway.tasks import off_loop
from gateway.values import Fields
from gateway.wire.coerce import as_mapping
from gateway.wire.message_identity import SYSTEM_ROLES, content_text, is_result

# New messages that are read in one go: about 15 ms of processor time for messages of 2 kB.
MESSAGES_AT_ONCE = 64
# Characters that are read on the loop in one go: as many take up to 50 ms.
_MOST_ON_THE_LOOP = 2**20
# A message, a part of its content and a call take as long as so many characters of text.
_CHARACTERS_OF_A_PART = 4096
_DEPTH = 3  # message, its calls or parts of content, and the function of a call
# Calls of one step that are scored on the loop: about 10 ms.
_MOST_CALLS = 128
# Messages in a row that are read for what they say: results of so many calls come at once, and no
# client writes as many. Each takes some 2 us.
MOST_MESSAGES = 512
_ROLES = (*SYSTEM_ROLES, "user")


def unobserved(resolved: Resolved, conversation: Conversation, mode: str, model: str) -> Decision:
    """The decision about a request before its steps are read, at the position that is expected: one
    step after the newest call that is known; a retry is at the same step again, and a call aside at
    none: its number is negative."""
    run = conversation.run
    newest = conversation.snapshot()
    index = run.index
    state = FSMState.INIT
    if newest is not None:
        index = newest.run
        state = newest.state
    compacts = resolved.incoming.compacts
    aside = resolved.match.kind is MatchKind.SIDE
    if aside:
        step = ~int.from_bytes(resolved.incoming.hashes.state.digest[:4])  # drawn for this call
    elif newest is None or (state is FSMState.END and not compacts):
        index += newest is not None
        step = run.unscored_calls
        state = FSMState.INIT
    else:
        ahead = not (compacts or resolved.match.kind is MatchKind.RETRY)
        step = newest.steps + run.unscored_calls + ahead
    position = RunPosition(run=index, step=step, state=state)
    return Decision(
        resolved=resolved,
        mode=mode,
        conversation=conversation,
        position=position,
        model=model,
        applies=mode == "on" and not aside,
    )


class Observed(NamedTuple):
    """The result of scoring the new steps of a request."""

    transcript: Sequence[Any]  # its messages, without the order to summarise them
    earlier: RunPosition  # of the newest run before its steps were scored
    before: RunSnapshot | None  # the newest run with its latest answer; None before there is one
    outcomes: Sequence[StepOutcome]  # the steps that are new
    fold: ConversationFold  # all runs
    run: RunFold  # the newest run


async def observe_steps(
    decision: Decision, request: SteeredRequest, policy: Policy, now: float
) -> Observed:
    """Fold the new steps of a request, a long one in parts. `now` in seconds of the epoch."""
    conversation = decision.conversation
    transcript = request.transcript
    if decision.resolved.incoming.compacts:  # nobody has said what is said there
        transcript = [*transcript[:-1], *split_ending(transcript[-1])[1]]
    before = conversation.snapshot_before_reply()
    fold = conversation.run.ready_fold(policy)
    earlier = RunPosition.of(fold.runs[-1])
    try:
        outcomes = await fold_transcript(fold, transcript, request.pause)
        run = _take(conversation, fold, outcomes, now=now)
    except BaseException:
        conversation.run.fold = None  # what is stored counts, not a fold half read
        raise
    return Observed(
        transcript=transcript,
        earlier=earlier,
        before=before,
        outcomes=outcomes,
        fold=fold,
        run=run,
    )


async def note_messages(
    decision: Decision, request: SteeredRequest, observed: Observed
) -> Decision:
    """The decision with where the run is, and with the messages of people that are new."""
    run = observed.run
    transcript = observed.transcript
    stored = decision.conversation.unsaved.snapshot
    fresh = [r for r in observed.fold.runs if stored is None or r.index > stored.run]
    prompts = []
    since = []
    if run.steps or run.index:
        latest = None
        if run.outcomes:
            latest = run.outcomes[-1].observed.step
        new_from = decision.resolved.incoming.hashes.start
        since = later_messages(transcript, latest, new_from)
        if run.steps:
            prompts = prompts_in(since)
    decision = _with_acts(decision, observed, since)
    if fresh or not run.steps:  # the gateway has not seen the beginning of the run
        prompts = opening_prompts(request.body, transcript, run.start) + prompts
    tasks = {}
    incoming = decision.resolved.incoming
    if not (incoming.has_tools or run.steps) and (incoming.titles or _of_client(prompts)):
        fresh = []  # nobody gave it a task
    elif prompts and not fresh and _opened_by_agent(transcript, run.start):
        fresh = [run]  # the task may have come by now
    if fresh:
        tasks = await tasks_of(fresh, transcript)
    return replace(
        decision,
        position=RunPosition.of(run),
        observed=True,
        tasks=tasks,
        prompts=tuple(prompts),
    )


def _with_acts(decision: Decision, observed: Observed, since: Sequence[Any]) -> Decision:
    """Note what a person did since the last answer; what cannot be read of that is left out."""
    conversation = decision.conversation
    match = decision.resolved.match
    history = conversation.history
    cut = bool(history.cut) and history.cut == history.branch.fallback_hash
    if match.kind is MatchKind.COMPACTION:
        since = ()
        cut = False  # a summary
    elif cut:
        since = observed.transcript[match.position :]
    try:
        acts = acts_of(
            conversation.id,
            observed.fold,
            observed.outcomes,
            new=since,
            last=observed.before,
            cut=cut,
            dropped=history.dropped,
        )
    except Exception as exc:
        decision = with_reasons(decision, f"interventions: not read ({type(exc).__name__})")
    else:
        decision = replace(decision, acts=tuple(acts))
    history.cut = b""
    history.dropped = None
    return decision


def _take(
    conversation: Conversation,
    fold: ConversationFold,
    outcomes: Sequence[StepOutcome],
    now: float,
) -> RunFold:
    """Keep the outcomes of new steps; the newest run."""
    current = conversation.run
    run = fold.runs[-1]
    history = conversation.history
    current.unscored_calls = 0
    if run.index != current.index:
        current.begin(run.index, now)
    steps = sum([each.steps for each in fold.runs])
    conversation.unsaved.add(outcomes)
    if steps != history.branch.steps:
        history.branch = replace(history.branch, steps=steps)
    return run


async def fold_transcript(
    fold: ConversationFold,
    transcript: Sequence[Any],
    pause: Callable[[], Awaitable[None]] | None = None,
) -> Sequence[StepOutcome]:
    """The outcomes of the new steps of a transcript, as `ConversationFold.extend` gives them."""
    count = len(transcript)
    at = fold.consumed
    in_thread = False
    goes_on = at < count
    while goes_on:
        new = transcript[at : at + MESSAGES_AT_ONCE]
        weight = sum(map(_weight, new))
        calls = fold.open_calls + weight // _CHARACTERS_OF_A_PART
        if count <= MESSAGES_AT_ONCE and calls <= _MOST_CALLS:
            break  # `extend` reads it as well, and has little to read again
        in_thread = in_thread or weight > _MOST_ON_THE_LOOP
        in_thread = in_thread or fold.open_calls > _MOST_CALLS
        if in_thread:
            goes_on = await off_loop(fold.read_ahead, transcript, MESSAGES_AT_ONCE)
        else:
            goes_on = fold.read_ahead(transcript, MESSAGES_AT_ONCE)
            if goes_on:
                await (pause() if pause else asyncio.sleep(0))
        at = fold.consumed
    starts_over = fold.starts_over and count > MESSAGES_AT_ONCE
    if in_thread or starts_over or fold.open_calls > _MOST_CALLS:
        return await off_loop(fold.extend, transcript)
    return fold.extend(transcript)


async def tasks_of(runs: Sequence[RunFold], transcript: Sequence[Any]) -> dict[int, str]:
    """The user's task in each of these runs, by the index of the run."""
    tasks = {}
    for count, run in enumerate(runs, start=1):
        tasks[run.index] = asked(transcript, run.start)
        if count % MESSAGES_AT_ONCE == 0:
            await asyncio.sleep(0)
    return tasks


def _of_client(prompts: Sequence[PromptMessage]) -> bool:
    """Whether a client asks for itself: a topic, a quota. One for a summary is not steered."""
    system = said = ""
    for each in reversed(prompts):  # the first of each counts
        if each.role == "user":
            said = each.text
        elif each.role in SYSTEM_ROLES:
            system = each.text
    return is_request_of_client(system, said)


def _opened_by_agent(transcript: Sequence[Any], start: int) -> bool:
    """Whether the first message from `start` on that is no instruction is the agent's."""
    lead = islice(transcript, start, start + MOST_MESSAGES)
    first = next((each for each in lead if _kind(each)[0] not in SYSTEM_ROLES), None)
    return _is_reply(first)


def _weight(message: object, depth: int = _DEPTH) -> int:
    """About how long a message takes to read, in characters of plain text."""
    weight = _CHARACTERS_OF_A_PART
    if not isinstance(message, dict):
        return weight
    for value in message.values():
        if isinstance(value, str):
            weight += len(value)
        elif depth > 1 and isinstance(value, dict):
            weight += _weight(value, depth - 1)
        elif depth > 1 and isinstance(value, list):
            for part in value:
                if isinstance(part, dict):
                    weight += _weight(part, depth - 1)
    return weight


def later_messages(transcript: Sequence[Any], latest: Step | None, new_from: int = 0) -> list[Any]:
    """The messages since the last reply. A user message with the results of calls that an agent
    wrote into its text belongs to the step `latest` and is left out. `new_from`: the messages
    before it are parsed on access."""
    first = max(len(transcript) - MOST_MESSAGES, 0)
    new = transcript[max(new_from, first) :]
    since = list(takewhile(lambda message: not _is_reply(message), reversed(new)))
    if len(since) == len(new):  # the reply is in an earlier request
        before = (transcript[at] for at in range(max(new_from, first) - 1, first - 1, -1))
        since += takewhile(lambda message: not _is_reply(message), before)
    since.reverse()
    if latest is None or any(map(is_result, since)):
        return since
    results = [action.observation.strip() for action in latest.actions if action.observation]
    texts = ((message, content_text(as_mapping(message).get("content"))) for message in since)
    return [message for message, text in texts if not any(result in text for result in results)]


def opening_prompts(body: Fields, transcript: Sequence[Any], start: int) -> list[PromptMessage]:
    """The opening of a run: the system prompt, then the messages before its first reply. `start` is
    the index of the run's first message."""
    separate = [content_text(body.get(key)) for key in ("system", "instructions")]
    opening = [PromptMessage(role="system", text=text) for text in separate if text]
    lead = islice(transcript, min(start, MOST_MESSAGES))
    opening += prompts_in(takewhile(lambda message: _kind(message)[0] in SYSTEM_ROLES, lead))
    own = (transcript[at] for at in range(start, min(start + MOST_MESSAGES, len(transcript))))
    return opening + prompts_in(takewhile(lambda message: not _is_reply(message), own))


def prompts_in(messages: Iterable[Any]) -> list[PromptMessage]:
    found = []
    for message in messages:
        role, _ = _kind(message)
        text = ""
        if role in _ROLES:
            text = content_text(message.get("content"))
        if text:
            found.append(PromptMessage(role=role, text=text))
    return found


def _is_reply(message: Any) -> bool:
    role, kind = _kind(message)
    return role == "assistant" or kind.endswith("_call")


def _kind(message: Any) -> tuple[str, str]:
    """Role and type of a message, empty where they are no text."""
    if not isinstance(message, dict):
        return "", ""
    role = message.get("role")
    kind = message.get("type")
    return role if isinstance(role, str) else "", kind if isinstance(kind, str) else ""


def acts_of(
    conversation_id: str,
    fold: ConversationFold,
    outcomes: Sequence[StepOutcome],
    new: Sequence[Any],
    *,
    last: RunSnapshot | None = None,
    cut: bool = False,
    dropped: StepPlace | None = None,
) -> list[ActOfPerson]:
    """Acts of a person on the steps that a request completed, and on the answer before its `new`
    messages. `last`: the newest run as it was with that answer; `cut`: the client broke off its
    stream; `dropped`: the place of an answer that the client took out of the history."""
    found: list[ActOfPerson] = []
    newest = None  # the newest step, if something was done in it
    for outcome in outcomes:
        newest = None
        for act in step_interventions(outcome.observed.step):
            newest = run_id(conversation_id, outcome.run), outcome.index
            found.append((newest, act))
    said = said_in(new)
    if not said:
        return found
    if any(text.startswith(ACCEPTED_PLAN) for text in said):
        return [each for each in found if each[0] != newest]
    run = fold.current
    answered = last
    if not cut and len(fold.runs) > 1 and not run.steps:
        answered = fold.runs[-2].snapshot()
    of_reply = cut or dropped is not None or not run.steps
    if not of_reply or (cut and answered is None):
        answered = run.snapshot()
    elif answered is None or (not cut and answered.run == run.index):
        if dropped is None:
            return found  # no answer came before
        answered = run.snapshot()
    place = dropped or (run_id(conversation_id, answered.run), answered.steps)
    stopped = any(step == newest and act.kind != "undo" for step, act in found)
    answer = AfterAnswer(said=said, cut=cut or stopped, dropped=dropped is not None)
    after = answer_interventions(answer, of_reply=of_reply)
    if stopped and answer.interruptions:  # one stop, of which clients tell twice
        stop = after.pop(0)
        found = [
            (step, replace(act, words=act.words or stop.words) if step == newest else act)
            for step, act in found
        ]
    return [*found, *((place, each) for each in after)]
