"""Sessions as past runs of the store, with the rows that a live gateway would have committed.

A session is one conversation under an id of its own, so that no request continues it. What is known
of it is not written again: a session that has grown adds its new calls. One that this gateway
recorded live is left out. Runs are marked as IMPORTED, and no sum counts them."""

import time
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import takewhile
from pathlib import PurePath
from typing import TextIO

from msgspec.structs import replace

from gateway.auth.keys import DEFAULT_TENANT
from gateway.backends import Stores, open_stores
from gateway.calls import records
from gateway.config import Settings
from gateway.conversations import observe
from gateway.conversations.conversation import StepPlace, run_id
from gateway.conversations.decision import ActOfPerson
from gateway.conversations.workloads import workload_of
from gateway.core.fold import StepOutcome
from gateway.core.fsm import FSMState
from gateway.core.step import Action
from gateway.features.history.find import Found
from gateway.features.history.projects import repository_of
from gateway.features.history.reading import SessionReading, cost_of, recording_of
from gateway.features.history.session import HumanTurn, ModelCall, Session
from gateway.features.history.sub_agent_orders import root_of
from gateway.hooks import features
from gateway.offline.playback import RecordedHistory
from gateway.steering.identity import conversation_id
from gateway.steering.sub_agents import Order
from gateway.steering.transcript.client_texts import asked
from gateway.steering.transcript.content import read_calls, read_content
from gateway.steering.transcript.interventions import Intervention
from gateway.steering.transcript.user_words import title_of
from gateway.stores.learning import WorkloadRun
from gateway.stores.protocols import StoreError, VersionConflict
from gateway.stores.records import (
    IMPORTED,
    CallRecord,
    CallRow,
    ConversationRecord,
    PromptMessage,
    RunUpdate,
    StepContent,
    StepRow,
)
from gateway.text.formatting import counted, progress_bar
from gateway.text.sanitize import visible
from gateway.wire.usage import token_usage, tokens_of

_MOST_REASONS = 20  # files that are named with what is wrong; the rest is counted
CALLS_AT_ONCE = 100
"""Calls of one commit: few enough that a gateway on the same database waits little."""
_UNKNOWN = ("unknown", "subagent")  # parents in logs that name none
_LOGGED = "log"  # the source of an outcome that the log states
_VERDICTS = {None: None, True: "success", False: "failure"}  # of a log, as stores name them


def imported_id(tenant: str, agent: str, session: str) -> str:
    """The id of a session's conversation, which no id that a client sends leads to."""
    return conversation_id(tenant, session, f"{IMPORTED}:{agent}")


@dataclass(slots=True)
class Kept:
    """Numbers of sessions."""

    kept: int = 0  # new, or grown since they were kept
    known: int = 0  # kept before, and unchanged
    live: int = 0  # recorded by the gateway when they ran, so not kept again
    forgotten: int = 0  # erased by `gateway forget`, so not kept again
    # ids of those that are new or have grown, in the order of the sessions
    runs: list[str] = field(default_factory=list)


class Keeper:
    """Keeps sessions in a store, best in the order of their time: copies of an answer in later
    sessions are not counted again. `settings`: the rules by which steps are scored, and what of
    their texts is stored. `readings`: of the same sessions, for the roots, kinds and tasks of
    sub-agents. `now`: seconds of the epoch, from which retention counts."""

    def __init__(
        self,
        stores: Stores,
        settings: Settings,
        *,
        tenant: str = DEFAULT_TENANT,
        readings: Sequence[SessionReading] = (),
        now: Callable[[], float] = time.time,
    ) -> None:
        parents = {reading.id: known_parent(reading.parent) for reading in readings}
        self._stores = stores
        self._settings = settings
        self._tenant = tenant
        self._now = now
        self._policy = settings.policy()
        # of sub-agents: the session at the root of their tree, and what they were started for
        self._places = {r.id: (root_of(r, parents), r.order) for r in readings if parents[r.id]}
        self._seen: set[str] = set()  # keys of answers in earlier sessions
        self.counts = Kept()

    async def keep(self, session: Session) -> None:
        """Keep what the store does not have of a session. Raises: StoreError. Exception: what a
        scorer or a monitor raised."""
        parent = known_parent(session.parent)
        if parent:
            root, _ = self._places.get(parent, (parent, Order()))
            self._places.setdefault(session.id, (root, session.order))
        root, _ = self._places.get(session.id, ("", Order()))
        names = tuple(filter(None, (session.id, parent, root)))
        own = [imported_id(self._tenant, session.agent, name) for name in names]
        ids = [conversation_id(self._tenant, name) for name in names]
        versions = [await self._stores.states.version(self._tenant, name) for name in (*ids, *own)]
        if min(versions) < 0:
            self.counts.forgotten += 1
        elif any(versions[: len(ids)]):  # it, or its parent, went through this gateway
            self.counts.live += 1
        else:
            await self._keep(session)
        self._seen.update(call.key for call in session.calls if call.key)

    async def _keep(self, session: Session) -> None:
        name = imported_id(self._tenant, session.agent, session.id)
        answers = _answers(session)
        for _ in answers:
            stored = await self._stores.states.load(self._tenant, name)
            if stored is not None and answers[-1] < stored.message_count:
                self.counts.known += 1
                return
            try:
                await self._write(session, answers, stored or self._conversation(session, name))
            except VersionConflict:
                continue  # another process keeps it, too, and has stored an answer meanwhile
            self.counts.kept += 1
            return

    async def _write(
        self, session: Session, answers: Sequence[int], record: ConversationRecord
    ) -> None:
        """Commit the answers that `record` does not have, a few at a time."""
        rows = self._rows(session, record)
        known = record.message_count
        runs = dict[str, None]()
        for position in answers:
            if position < known:
                rows.skip(position)
                continue
            rows.add(position)
            if rows.waiting == CALLS_AT_ONCE or position == answers[-1]:
                record = replace(record, message_count=position + 1, updated_at=self._now())
                taken = rows.take(record)
                record = replace(record, version=await self._stores.states.commit(taken))
                runs |= dict.fromkeys(run.id for run in taken.runs)
        self.counts.runs += runs
        if self._stores.workloads is not None:
            await self._stores.workloads.note(rows.begun)

    def _rows(self, session: Session, record: ConversationRecord) -> "_Rows":
        settings = self._settings
        noted = 0.0
        if record.message_count:
            noted = record.updated_at  # what stood at the end by then is noted, too
        template = RunUpdate(
            id="",
            started_at=0.0,
            updated_at=self._now(),
            agent=session.agent,
            profile=settings.monitors.profile,
            mode=IMPORTED,
            policy_digest=self._policy.digest(),
            identity_source=IMPORTED,
            tags={"project": PurePath(repository_of(session.project)).name}
            if session.project
            else {},
        )
        return _Rows(
            history=RecordedHistory(self._policy, recording_of(session)),
            session=session,
            human=[turn for turn in session.human if (turn.at or noted) >= noted],
            template=template,
            calls={
                call.position: _call_row(session, call, cost_of(call, tokens_of(call.usage)))
                for call in session.calls
                if call.key not in self._seen
            },
            times=_times(session, session.started or session.ended or record.created_at),
            masks_secrets=settings.storage.mask_secrets,
            conversation=record,
        )

    def _conversation(self, session: Session, name: str) -> ConversationRecord:
        def id_of(other: str | None) -> str | None:
            if other:
                return imported_id(self._tenant, session.agent, other)
            return None

        root, order = self._places.get(session.id, ("", Order()))
        return ConversationRecord(
            id=name,
            tenant=self._tenant,
            source=IMPORTED,
            parent_id=id_of(known_parent(session.parent)),
            root_id=id_of(root),
            created_at=session.started or session.ended or self._now(),
            updated_at=self._now(),
            agent_kind=order.kind,
            task=order.task,
        )


def known_parent(name: str) -> str:
    """The id of a sub-agent's parent; "" where its log does not say which it is."""
    if name in _UNKNOWN:
        return ""
    return name


@dataclass(eq=False, kw_only=True)
class _Rows:
    """The rows of a session's answers, in their order, until a commit takes them."""

    history: RecordedHistory  # the session, as far as it has been read
    session: Session  # as its log tells it
    human: Sequence[HumanTurn]  # acts of the person that are new since it was kept last
    template: RunUpdate  # of its runs
    calls: Mapping[int, CallRow]  # by position of the answer; no copy of another session's
    times: dict[int, float]  # epoch seconds of the answers by position, in their order
    masks_secrets: bool  # texts are stored without what looks like a secret
    conversation: ConversationRecord  # that has the rows
    begun: list[WorkloadRun] = field(default_factory=list)  # runs, as workloads count them
    waiting: int = 0  # answers since the last commit
    _newest: RunUpdate | None = None  # the run of the answer read last
    _read: int = -1  # position of that answer
    _steps: list[StepRow] = field(default_factory=list)  # that wait
    _acts: list[ActOfPerson] = field(default_factory=list)  # that wait
    _runs: dict[str, RunUpdate] = field(default_factory=dict)  # that wait, by id

    def skip(self, position: int) -> None:
        """Read an answer that the store has."""
        self.history.read_to(position)
        self._update(position)

    def add(self, position: int) -> None:
        """Add the rows of the next answer."""
        before = self._newest
        place = self._place
        outcomes = self.history.read_to(position)
        self._note_acts(position, place, outcomes)
        update = self._update(position)
        is_new = before is None or before.id != update.id
        if is_new and update.model_requested:
            self.begun.append(self._begun(update))
        self._runs[update.id] = update
        self._steps += self._step_rows(position, outcomes, opens=is_new)
        self.waiting += 1
        if position == next(reversed(self.times)):
            self._note_acts(len(self.session.messages), self._place, ())

    @property
    def _place(self) -> StepPlace:
        """The step at which the newest answer was made."""
        run = self.history.fold.current
        return run_id(self.conversation.id, run.index), run.steps

    def take(self, conversation: ConversationRecord) -> CallRecord:
        """Rows added since the last time, for one commit."""
        now = list(self._runs.values()), self._steps, self._acts
        runs, steps = records.with_acts(*now, masks_secrets=self.masks_secrets)
        self._runs = {}
        self._steps = []
        self._acts = []
        self.waiting = 0
        return CallRecord(conversation=conversation, runs=runs, steps=steps)

    def _update(self, position: int) -> RunUpdate:
        """The run as it is after the answer at a position."""
        run = self.history.fold.current
        name = self.conversation.id
        at = self.times[position]
        self._read = position
        ends = self.history.ends_run(self.session.messages[position])
        newest = self._newest
        if newest is None or newest.sequence != run.index:
            newest = replace(
                self.template,
                id=run_id(name, run.index),
                sequence=run.index,
                started_at=at,
            )
        task = newest.task_preview
        if not task:
            title = title_of(asked(self.history.window, run.start))
            task = records.preview(title, masks_secrets=self.masks_secrets)
        model = newest.model_requested
        if call := self.calls.get(position):
            model = call.model_requested or model
        outcome = None
        if position == next(reversed(self.times)):
            outcome = self.session.outcome
        self._newest = replace(
            newest,
            task_preview=task,
            ended_at=at,  # nothing of it is under way
            state=(FSMState.END if ends else run.state).value,
            model_requested=model,
            outcome=_VERDICTS[outcome],
            outcome_source="" if outcome is None else _LOGGED,
        )
        return self._newest

    def _begun(self, run: RunUpdate) -> WorkloadRun:
        model = run.model_requested
        tenant = self.conversation.tenant
        # No log says which tools were offered.
        workload = workload_of(tenant, run.agent, (), requested=model)
        return WorkloadRun(
            run_id=run.id,
            tenant=tenant,
            workload=workload.key,
            client=workload.client,
            requested=model,
            model=model,
            at=run.started_at,
        )

    def _note_acts(self, until: int, place: StepPlace, outcomes: Sequence[StepOutcome]) -> None:
        """Note what the person did after the newest answer and before a message: the stops that
        the log's reader found, on the step that was completed, else on the answer at `place`."""
        name = self.conversation.id
        found = observe.acts_of(name, self.history.fold, outcomes, new=())
        self._acts += [each for each in found if each[1].kind == "undo"]
        for outcome in outcomes:
            place = run_id(name, outcome.run), outcome.index
        acts = [turn for turn in self.human if self._read < turn.position <= until]
        for at, turn in enumerate(acts):
            if turn.kind != "message":
                after = takewhile(lambda each: each.kind == "message", acts[at + 1 :])
                words = turn.text or "\n".join(each.text for each in after)
                act = Intervention(kind=turn.kind, words=words, of_reply=not outcomes)
                self._acts.append((place, act))

    def _step_rows(
        self, position: int, outcomes: Sequence[StepOutcome], *, opens: bool
    ) -> list[StepRow]:
        """The steps that a request completed, and the step at which it was made, with its call."""
        conversation = self.conversation.id
        window = self.history.window
        run = self.history.fold.current
        at = self.times[position]
        rows = {
            (o.run, o.index): records.scored_row(run_id(conversation, o.run), o, at)
            for o in outcomes
        }
        newest = rows.pop((run.index, run.steps), None) or StepRow(
            run_id=run_id(conversation, run.index),
            step_index=run.steps,
            at=at,
            state=run.state.value,
        )
        if opens or not run.steps:
            prompts = observe.opening_prompts({}, window, run.start)
        else:
            prompts = []
        if prompts and (folder := self.session.project):  # logs have no system prompt
            prompts.insert(0, PromptMessage(role="system", text=f"Working directory: {folder}"))
        if run.steps:
            latest = run.outcomes[-1].step if run.outcomes else None
            prompts += observe.prompts_in(observe.later_messages(window, latest))
        reply = self.session.messages[position]
        said = read_content(reply.get("content"))
        content = replace(
            newest.content or StepContent(),
            messages=tuple(prompts),
            reply_text=said.text,
            reply_actions=tuple(
                Action(name=call.name, arguments=call.arguments) for call in read_calls(reply, said)
            ),
        )
        call = self.calls.get(position)
        return [*rows.values(), replace(newest, call=call, content=content)]


def _answers(session: Session) -> list[int]:
    """The positions of the model's answers."""
    return [at for at, m in enumerate(session.messages) if m.get("role") == "assistant"]


def _times(session: Session, first: float) -> dict[int, float]:
    """The time of each answer, or that of the one before it; `first` if none is known."""
    known = {call.position: call.at for call in session.calls}
    times: dict[int, float] = {}
    for position in _answers(session):
        first = times[position] = known.get(position) or first
    return times


def _call_row(session: Session, call: ModelCall, cost_usd: float | None) -> CallRow:
    tokens = token_usage(call.usage)
    return CallRow(
        request_id=call.key or f"{session.id}:{call.position}",
        model_requested=call.model,
        model_asked=call.model,
        model_served=call.model or None,
        input_tokens=tokens.input,
        cached_tokens=tokens.cached,
        cache_write_tokens=tokens.cache_write,
        output_tokens=tokens.output,
        reasoning_tokens=tokens.reasoning,
        cost_usd=cost_usd,
    )


async def keep_all(
    found: Sequence[Found],
    settings: Settings,
    out: TextIO,
    err: TextIO,
    readings: Sequence[SessionReading],
) -> int:
    """Keep the sessions of these files, and learn from them; `err` names those that were not kept.
    Returns the exit status."""
    stores = await open_stores(settings.storage)
    try:
        problems: list[str] = []
        keeper = Keeper(stores, settings, readings=readings)
        ids = {reading.id for reading in readings}
        with progress_bar(err) as bar:
            task = bar.add_task("keeping", total=len(found))
            # The oldest first: a session that was resumed has copies of the answers before it.
            for each in sorted(found, key=lambda each: each.stat.st_mtime):
                await _keep_file(keeper, each, ids, problems=problems)
                bar.advance(task)
            runs = keeper.counts.runs
            task = bar.add_task("learning", total=len(runs))
            await _learn(runs, stores, settings, done=lambda: bar.advance(task))
    finally:
        await stores.close()
    for problem in problems[:_MOST_REASONS]:
        err.write(f"gateway: not kept: {visible(problem)}\n")
    if more := len(problems[_MOST_REASONS:]):
        err.write(f"gateway: not kept: {counted(more, 'more session')}\n")
    out.write(_kept_line(keeper.counts))
    if problems and not keeper.counts.kept + keeper.counts.known:
        return 1
    return 0


async def _keep_file(
    keeper: Keeper, found: Found, ids: Collection[str], problems: list[str]
) -> None:
    """Keep the sessions of a file; what is wrong with one does not stop the others."""
    if found.format is None:
        problems.append(found.problem)
        return
    try:
        for session in found.sessions(found.open()):
            if ids and session.id not in ids:
                continue
            try:
                await keeper.keep(session)
            except StoreError:
                raise
            except Exception as exc:
                problems.append(f"{found.path}: session {session.id}: {exc}")
    except StoreError:
        raise
    except Exception as exc:
        problems.append(f"{found.path}: {exc}")


async def _learn(
    runs: Sequence[str], stores: Stores, settings: Settings, done: Callable[[], None]
) -> None:
    """Derive the outcomes of runs, as a gateway does when a run is over."""
    if not settings.storage.store_content or "learning" not in features():
        return
    from gateway.features.learning.worker import open_learner

    learner = open_learner(stores, settings)
    for run in runs:
        await learner.read(run, None)
        done()


def _kept_line(kept: Kept) -> str:
    others = {"known already": kept.known, "recorded live": kept.live, "forgotten": kept.forgotten}
    also = ", ".join(f"{number} {how}" for how, number in others.items() if number)
    sessions = counted(kept.kept, "session")
    return f"kept {sessions} as past runs{f' ({also})' if also else ''}: gateway dashboard\n"
