"""Asks a model about messages that people typed, in the background, once for each text.

The questions about a run that is over become jobs of its store. One gateway at a time claims a
job; if that gateway dies, the job can be claimed again. An attempt is counted when it is
claimed, and its call counts on the budgets of the tenant. Equal texts are asked about once."""

import asyncio
import time
from collections.abc import Callable, Iterator
from dataclasses import KW_ONLY, dataclass, replace
from hashlib import sha256

from gateway.budget_interface import Amounts
from gateway.core.step import Step
from gateway.features.learning.reader.own_calls import NoAnswer, OverBudget, PaidModel
from gateway.features.learning.reader.questions import (
    KIND,
    TITLE,
    WRONG,
    Question,
    is_typed,
    shown,
)
from gateway.features.learning.settings import DAY_S, ReaderSettings
from gateway.features.learning.verdicts import Verdicts, opening_words, typed_at
from gateway.observability.logging import get_logger
from gateway.steering.transcript.message_kinds import ACCEPTING, agent_words
from gateway.stores.learning import ANSWERS, JOBS, READER, JobLimits, OutcomeRow, ReaderJob
from gateway.stores.protocols import StoreError
from gateway.stores.records import StepRow
from gateway.stores.sql.learning import LearningStore
from gateway.stores.sql.runs import RunStore
from gateway.stores.traces import RunTrace
from gateway.values import Texts, Value

MOST_ATTEMPTS = 3
MOST_THINGS = 20  # of a run that are asked about besides its title, the newest
# Tokens that an attempt counts with until it has ended: what is shown at most, and the instruction,
# in a script that takes a token for a character.
RESERVED_INPUT = 3000
RESERVED_OUTPUT = 300
SPARE_S = 60.0  # seconds for which a job is held beyond the wait for an answer
# Seconds for which a tenant's jobs rest when a budget of the operator refuses a call.
BUDGET_REST_S = 900.0
# Confidence in the kind that a model gives a message. An assumption, a little above what makes a
# verdict usable: `python -m lab reader --model NAME` measures a model on labelled sessions.
SURE = 0.8

_log = get_logger("gateway.reader")


class Thing(Value):
    """One thing to ask about a run."""

    question: Question  # that the model is asked
    step: int  # that it is about; 0: its words answer the run before in the conversation
    shown: Texts  # data that the model is shown, by name


def things_in(trace: RunTrace, earlier: RunTrace | None) -> Iterator[Thing]:
    """Gives the things to ask of a run: its title, and the kinds of messages that its person typed
    to an agent which had done something. `earlier`: the run before it in its conversation."""
    opening = opening_words(trace)
    if opening and is_typed(opening):
        yield Thing(question=TITLE, step=0, shown=shown(opening))
    last = None
    if earlier and earlier.steps:
        last = _newest_of(earlier.steps[-1])
    for row in trace.steps:
        typed = typed_at(row)
        if last is not None and is_typed(typed):
            yield Thing(
                question=KIND,
                step=row.step_index,
                shown=shown(typed, agent_words(last)),
            )
        last = _newest_of(row) or last


def _newest_of(row: StepRow) -> Step | None:
    """The newest words and calls of the agent at a step; None where nothing is stored of it."""
    content = row.content
    if content is None:
        return None
    if content.reply_text or content.reply_actions:
        thought = content.reply_text
        actions = content.reply_actions
    else:
        thought = content.thought
        actions = content.actions
    return Step(index=row.step_index, thought=thought, actions=actions)


@dataclass(eq=False)
class ReaderWorker:
    """Does the jobs of one store."""

    store: LearningStore  # jobs and answers
    runs: RunStore  # the run log
    model: PaidModel  # is asked, and paid for
    settings: Callable[[], ReaderSettings]  # gives those in force
    _: KW_ONLY
    # called with the result of each job: read, cached, unknown, unread, budget or error
    counted: Callable[[str], None] = lambda result: None
    now: Callable[[], float] = time.time  # epoch seconds

    def __post_init__(self) -> None:
        self._verdicts = Verdicts(self.store, self.runs)

    async def note(self, trace: RunTrace) -> None:
        """Remember what there is to ask about a run that is over. Raises: StoreError."""
        if not self.settings().model:
            return
        things = list(things_in(trace, await self._verdicts.earlier(trace.run)))
        for thing in [*things[:1], *things[1:][-MOST_THINGS:]]:
            await self.store.enqueue(_job(trace, thing, self.now()))

    async def follow(self) -> None:
        """Do jobs as they come, without end."""
        while True:
            try:
                while await self.do_one():
                    pass
            except StoreError as error:
                _log.warning("reader.model not asked", reason=str(error))
            await asyncio.sleep(self.settings().interval_s)

    async def do_one(self) -> bool:
        """Do the next job, if there is one that may be done. Raises: StoreError."""
        settings = self.settings()
        now = self.now()
        if not settings.model:
            return False
        reserved = Amounts(
            usd=self.model.cost(settings.model, RESERVED_INPUT, RESERVED_OUTPUT),
            input_tokens=RESERVED_INPUT,
            output_tokens=RESERVED_OUTPUT,
        )
        job = await self.store.claim(
            JOBS,
            now=now,
            lease_s=settings.timeout_s + SPARE_S,
            most_attempts=MOST_ATTEMPTS,
            allowance=JobLimits(
                since=day_start(now),
                tokens=settings.tokens_per_day,
                cost_usd=settings.usd_per_day,
                reserve_tokens=RESERVED_INPUT + RESERVED_OUTPUT,
                reserve_usd=reserved.usd,
            ),
        )
        if job is None:
            return False
        try:
            await self._do(job, reserved, settings)
        except asyncio.CancelledError:
            # Another gateway does the job at once: this one stops amid it. What was reserved stays
            # counted, because the model may have been asked already.
            again = replace(job, attempts=job.attempts - 1)
            try:
                await self.store.give_back(again, self.now())
            except StoreError as error:
                _log.warning("a job is held until its lease ends", reason=str(error))
            raise
        return True

    async def _do(self, job: ReaderJob, reserved: Amounts, settings: ReaderSettings) -> None:
        unused = _used(job, reserved, Amounts())
        trace, thing = await self._thing(job)
        if trace is None or thing is None:
            return await self._end(unused, "unread", "nothing to show")
        messages = thing.question.messages(thing.shown)
        key = _digest(job.tenant, settings.model, str(thing.question.version), str(messages))
        known = await self.store.job(ANSWERS, key)
        if known is not None:
            await self._keep(trace, thing, str(known.payload.get("answer", "")))
            return await self._end(unused, "cached")
        try:
            text, spent = await self.model.ask(
                settings.model, messages, tenant=job.tenant, timeout_s=settings.timeout_s
            )
        except OverBudget:
            again = replace(unused, attempts=job.attempts - 1)
            return await self._rest(again, BUDGET_REST_S, "budget")
        except NoAnswer as error:
            _log.warning("no answer of reader.model", reason=str(error))
            rest_s = settings.timeout_s * job.attempts
            return await self._rest(_used(job, reserved, error.used), rest_s, "error")
        job = _used(job, reserved, spent)
        answer = thing.question.read(text)
        if answer is None:
            return await self._end(job, "unknown", "the answer is not in the form asked for")
        payload = {"run": trace.run.id, "answer": answer}
        kept = ReaderJob(kind=ANSWERS, key=key, tenant=job.tenant, payload=payload, state="done")
        await self.store.enqueue(replace(kept, created_at=self.now()))
        await self._keep(trace, thing, answer)
        await self._end(job, "read")

    async def _thing(self, job: ReaderJob) -> tuple[RunTrace | None, Thing | None]:
        """Returns the run of a job, and what is asked about it; None for a run that is gone or
        forgotten."""
        run_id = str(job.payload.get("run"))
        asked = (job.payload.get("question"), job.payload.get("step"))
        trace = await self._verdicts.unforgotten(run_id, job.tenant)
        if trace is None:
            return None, None
        things = things_in(trace, await self._verdicts.earlier(trace.run))
        same = (each for each in things if (each.question.name, each.step) == asked)
        return trace, next(same, None)

    async def _keep(self, trace: RunTrace, thing: Thing, answer: str) -> None:
        """Keep an answer with its run, and the verdict that it is on the run before."""
        run = trace.run
        name = thing.question.name
        if name == TITLE.name:
            metric = name
        else:
            metric = f"{name} {thing.step}"
        row = OutcomeRow(
            run_id=run.id,
            tenant=run.tenant,
            source=READER,
            metric=metric,
            comment=answer,
            weight=SURE,
            at=self.now(),
            evidence=f"step {thing.step}",
        )
        await self.store.add_outcome(row)
        earlier = None
        if thing.question is KIND and not thing.step:
            earlier = await self._verdicts.earlier(run)
        if earlier is None or answer not in (*WRONG, *ACCEPTING):
            return
        source = "moved_on"
        verdict = "success"
        if answer in WRONG:
            source = "correction"
            verdict = "failure"
        place = "the next message"
        await self._verdicts.add(earlier.run, source, verdict, weight=SURE, where=place)
        await self._verdicts.choose(earlier.run)

    async def _end(self, job: ReaderJob, result: str, error: str = "") -> None:
        if await self.store.finish(job, now=self.now(), error=error):
            self.counted(result)

    async def _rest(self, job: ReaderJob, rest_s: float, result: str) -> None:
        if await self.store.give_back(job, self.now() + rest_s):
            self.counted(result)


def day_start(now: float) -> float:
    """Start of the day of `now`, in UTC."""
    return now - now % DAY_S


def _job(trace: RunTrace, thing: Thing, now: float) -> ReaderJob:
    """A job; it holds ids and names, no content of the run."""
    run = trace.run
    question = thing.question
    key = _digest(run.tenant, run.id, question.name, str(question.version), str(thing.step))
    payload = {"run": run.id, "question": question.name, "step": thing.step}
    return ReaderJob(kind=JOBS, key=key, tenant=run.tenant, payload=payload, created_at=now)


def _digest(*parts: str) -> str:
    """Thirty-two hexadecimal digits for these texts."""
    return sha256("\x1f".join(parts).encode("utf-8", "surrogatepass")).hexdigest()[:32]


def _used(job: ReaderJob, reserved: Amounts, used: Amounts | None) -> ReaderJob:
    """Returns the job with the actual use of its attempt in place of the reserved amount. None =
    the use is not known."""
    if used is None:
        return job
    more = used.input_tokens + used.output_tokens - reserved.input_tokens - reserved.output_tokens
    usd = max(0.0, job.cost_usd - reserved.usd + used.usd)
    return replace(job, tokens=max(0, job.tokens + more), cost_usd=usd)
