"""Jobs that ask a model about failures, and about corrections that no form of sentences makes a
rule of; each is done once.

A job is claimed by one gateway at a time, and again when that one died; its lesson's id follows
from the job, so that a job done twice makes one lesson. An attempt is counted when it is claimed,
and its call is on the budgets of the tenant."""

import asyncio
import hashlib
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import KW_ONLY, dataclass, replace
from typing import Any, Protocol

import orjson

from gateway.budgets.guard import BudgetGuard, CallBody
from gateway.budgets.guard import Refused as BudgetRefused
from gateway.budgets.rules import CallSubject
from gateway.config.models import LearningSettings
from gateway.errors import BadRequest, UpstreamFailure, UpstreamUnreachable
from gateway.learning import corrections, questions
from gateway.learning.gate import has_secret
from gateway.learning.questions import KIND, day_start
from gateway.learning.reading import ReadCallOfRun, digest, read_run
from gateway.learning.sources import SourceRun, instance, lesson_id
from gateway.learning.verdicts import steps_of
from gateway.observability.logging import get_logger
from gateway.observability.metrics import Metrics
from gateway.steering.guidance.lessons import SAID
from gateway.steering.guidance.pattern import Lesson, Pattern, Tier, Trust
from gateway.steering.transcript.steps import Step
from gateway.stores.budgets import NOTHING, Amounts
from gateway.stores.learning import Allowance, EvidenceRow, Job, LessonFilter
from gateway.stores.protocols import RunStore, StoreError
from gateway.stores.sql.learning import LearningStore
from gateway.tasks import off_loop
from gateway.upstream.catalogue import ModelCatalogue
from gateway.upstream.deployments import Target
from gateway.upstream.dispatch import Dispatcher, Messages, ModelRefused, OwnAnswer, ask
from gateway.wire.usage import token_usage

Entry = tuple[Pattern, Sequence[EvidenceRow]]
CLIENT = "gateway-learning"  # the client of these calls, for budgets that match a client
_REASON_CHARS = 200


class ModelServices(Protocol):
    """The services of a gateway that are needed; held while they are in use."""

    dispatcher: Dispatcher
    catalogue: ModelCatalogue

    @property
    def budgets(self) -> BudgetGuard | None: ...

    def in_use(self) -> AbstractContextManager[Any]: ...


class OverBudget(Exception):
    """A budget of the operator leaves nothing for the call; none was made."""


class NoAnswer(Exception):
    """The call gave no usable answer; `used` says what is known to have been used."""

    def __init__(self, reason: str, used: Amounts | None) -> None:
        super().__init__(reason)
        self.used = used


@dataclass(eq=False)
class PaidModel:
    """Asks models of the gateway's own deployments; calls are reserved, settled and counted."""

    services: Callable[[], ModelServices]
    metrics: Metrics

    def cost(self, model: str, input_tokens: int, output_tokens: int) -> float:
        """US dollars for so many tokens; 0 for a model without a known price."""
        usage = {"prompt_tokens": input_tokens, "completion_tokens": output_tokens}
        return self.services().catalogue.cost(model, usage) or 0.0

    async def ask(
        self, model: str, messages: Messages, *, tenant: str, timeout_s: float
    ) -> tuple[str, Amounts | None]:
        """The model's text, and what it used, None where the upstream did not report it. Raises:
        OverBudget, NoAnswer, StoreError."""
        services = self.services()
        with services.in_use():
            return await self._ask(services, model, messages, tenant, timeout_s)

    async def _ask(
        self, services: ModelServices, model: str, messages: Messages, tenant: str, timeout_s: float
    ) -> tuple[str, Amounts | None]:
        guard, fields = services.budgets, {"model": model, "messages": messages}
        body = CallBody(fields=fields, raw=orjson.dumps(fields))
        subject, admission = CallSubject(tenant=tenant, client=CLIENT, model=model), None
        if guard is not None:
            try:
                admission = await guard.admit(subject, model, body, binding=True)
            except BudgetRefused as refused:
                raise OverBudget(refused.error.message) from refused

        async def admits(target: Target) -> bool:
            if guard is None or admission is None:
                return True
            name = services.catalogue.billed_name(model, target)
            return await guard.extend(admission, name, body, binding=True)

        used, unpriced = None, False
        try:
            async with asyncio.timeout(timeout_s):
                answer = await ask(services.dispatcher, model, messages, admits=admits)
            used, unpriced = self._used(services, model, answer)
            return answer.text, used
        except (BadRequest, UpstreamUnreachable, ModelRefused) as error:
            used = NOTHING
            raise NoAnswer(str(error)[:_REASON_CHARS], used) from error
        except (UpstreamFailure, TimeoutError, ValueError, LookupError, TypeError) as error:
            # An answer that came too late, or in a form that nobody reads, may have to be paid.
            reason = f"{type(error).__name__}: {error}"
            raise NoAnswer(reason[:_REASON_CHARS], used) from error
        finally:
            if guard is not None and admission is not None:
                await guard.settle(admission, used, unpriced=unpriced)

    def _used(
        self, services: ModelServices, model: str, answer: OwnAnswer
    ) -> tuple[Amounts | None, bool]:
        """(what an answer used, None = not reported; whether its price is unknown)."""
        tokens, catalogue = token_usage(answer.usage), services.catalogue
        if not answer.usage or (tokens.input is None and tokens.output is None):
            return None, False
        spent = (tokens.input or 0, tokens.output or 0)
        cost = catalogue.cost(catalogue.billed_name(model, answer.target), answer.usage)
        for direction, count in zip(("input", "output"), spent, strict=True):
            self.metrics.tokens.labels(direction).inc(count)
        if cost is None:
            self.metrics.unpriced.inc()
        else:
            self.metrics.charge(cost, None)
        used = Amounts(usd=cost or 0.0, input_tokens=spent[0], output_tokens=spent[1], calls=1)
        return used, cost is None


MOST_ATTEMPTS = 3
RESERVED_INPUT, RESERVED_OUTPUT = 8000, 500
"""Tokens that an attempt counts with until it has ended: twelve excerpts of 300 characters and the
instruction in a script that takes two tokens for a character."""
SPARE_S = 60.0  # seconds for which a job is held beyond the wait for an answer
BUDGET_REST_S = 900.0
"""Seconds for which a tenant's jobs rest when a budget of the operator refuses a call."""

_log = get_logger("gateway.learning")


def job_about(run: SourceRun, calls: Sequence[ReadCallOfRun]) -> Job | None:
    """The job about a failure of a run; None when there is nothing to ask."""
    failed = questions.worth_asking(calls)
    return _job(run, failed.step, failed.key or "", run.id) if failed is not None else None


def job_to_word(run: SourceRun, said: corrections.Said) -> Job:
    """The job to put into one rule what a person said; once in a conversation."""
    key = f"{SAID}|{run.project[0]}|{digest(said.words)}"
    return _job(run, said.step, key, run.conversation, key)


def _job(run: SourceRun, step: int, key: str, *identity: str) -> Job:
    """A job; it holds ids and names, no content of the run."""
    text = "\x1f".join((run.tenant, *identity[:1], str(questions.PROMPT_VERSION), *identity[1:]))
    name = hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()[:32]
    origin = {"conversation": run.conversation, "task": run.task, "key_name": run.key_name}
    origin |= run.marks
    payload = {"run": run.id, "step": step, "failure": key, **origin, "at": run.at}
    return Job(kind=KIND, key=name, tenant=run.tenant, payload=payload, created_at=run.at)


@dataclass(eq=False)
class Distiller:
    """Does the jobs of one store. `now`: seconds of the epoch; `counted` is called with the result
    of each: lesson, refused, unread, budget or error."""

    store: LearningStore
    runs: RunStore
    model: PaidModel
    settings: Callable[[], LearningSettings]
    _: KW_ONLY
    counted: Callable[[str], None] = lambda result: None
    now: Callable[[], float] = time.time

    async def follow(self) -> None:
        """Do jobs as they come, without end."""
        while True:
            try:
                while await self.do_one():
                    pass
            except StoreError as error:
                _log.warning("questions for learning.model not asked", reason=str(error))
            await asyncio.sleep(self.settings().interval_s)

    async def do_one(self) -> bool:
        """Do the next job, if there is one that may be done. Raises: StoreError."""
        settings, now = self.settings(), self.now()
        if not settings.model:
            return False
        reserved = Amounts(
            usd=self.model.cost(settings.model, RESERVED_INPUT, RESERVED_OUTPUT),
            input_tokens=RESERVED_INPUT,
            output_tokens=RESERVED_OUTPUT,
        )
        job = await self.store.claim(
            KIND,
            now=now,
            lease_s=settings.model_timeout_s + SPARE_S,
            most_attempts=MOST_ATTEMPTS,
            allowance=Allowance(
                since=day_start(now),
                tokens=settings.model_tokens_per_day,
                cost_usd=settings.model_usd_per_day,
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

    async def _do(self, job: Job, reserved: Amounts, settings: LearningSettings) -> None:
        unused = _used(job, reserved, Amounts())
        try:
            name = lesson_id(Tier.E1, job.tenant, str(job.payload.get("failure")), KIND, job.key)
            if await self.store.lesson(job.tenant, name) is not None:
                # It was done by a gateway that died before it could say so; the call is counted.
                return await self._end(unused, "lesson")
            question = await self._question(job)
            if question is None:
                return await self._end(unused, "unread", "nothing to show")
            text, spent = await self.model.ask(
                settings.model,
                question.messages(),
                tenant=job.tenant,
                timeout_s=settings.model_timeout_s,
            )
        except OverBudget:
            again = replace(unused, attempts=job.attempts - 1)
            return await self._rest(again, BUDGET_REST_S, "budget")
        except NoAnswer as error:
            _log.warning("no answer of learning.model", reason=str(error))
            rest_s = settings.model_timeout_s * job.attempts
            return await self._rest(_used(job, reserved, error.used), rest_s, "error")
        job = _used(job, reserved, spent)
        try:
            settings = self.settings()
            if isinstance(question, questions.Correction):
                entry = await self._rule(job, question, text)
            else:
                proposal = await off_loop(questions.read_proposal, text, question)
                entry = _candidate(job, question, proposal, self.now() + settings.expire_s)
        except questions.Refused as refused:
            return await self._end(job, "refused", str(refused))
        await self.store.learn([entry])
        await self.store.trim(job.tenant, Tier.E1, settings.max_instances)
        await self._end(job, "lesson")

    async def _question(self, job: Job) -> questions.Question | questions.Correction | None:
        run, step, failure = (job.payload.get(name) for name in ("run", "step", "failure"))
        trace = await self.runs.get_run(str(run), tenant=job.tenant)
        if trace is None or not isinstance(step, int):
            return None
        steps, key = steps_of(trace), str(failure)
        if key.startswith(f"{SAID}|"):
            said = corrections.said_in_run(trace.steps, opens=not trace.run.sequence)
            shown = (each for each in said if not has_secret(each.words))
            same = (each for each in shown if digest(each.words) == key.rpartition("|")[2])
            found = next(same, None)
            return questions.Correction(said=found, steps=steps) if found else None
        calls = await off_loop(read_run, steps)
        return await off_loop(questions.question_about, calls, step, key)

    async def _rule(self, job: Job, question: questions.Correction, text: str) -> Entry:
        """The rule that a model worded, or the one that says the same. Raises: Refused."""
        rule, said, run = question.rule(text), question.said, _run_of(job, question.steps)
        key = str(job.payload["failure"])
        wanted = LessonFilter(tenant=job.tenant, key_prefix=f"{SAID}|{run.project[0]}|")
        stored = [each.pattern for each in await self.store.lessons(wanted)]
        pattern = corrections.joined(rule.words, stored)
        if pattern is None:
            until = max(run.at, self.now()) + self.settings().expire_s
            made = corrections.correction(run, said, rule, until)
            marks = made.lesson.applies_when if made.lesson else {}
            lesson = Lesson(
                key=key, origin="distilled", trust=Trust.MODEL, applies_when=marks, expires_at=until
            )
            pattern = instance(run, said.step, made.fields, lesson, KIND, job.key)
        return pattern, [run.evidence(pattern.pattern_id, said.step, SAID)]

    async def _end(self, job: Job, result: str, error: str = "") -> None:
        if await self.store.finish(job, now=self.now(), error=error):
            self.counted(result)

    async def _rest(self, job: Job, rest_s: float, result: str) -> None:
        if await self.store.give_back(job, self.now() + rest_s):
            self.counted(result)


def _used(job: Job, reserved: Amounts, used: Amounts | None) -> Job:
    """The job with what its attempt used in place of what was reserved; None = not known."""
    if used is None:
        return job
    more = used.input_tokens + used.output_tokens - reserved.input_tokens - reserved.output_tokens
    usd = max(0.0, job.cost_usd - reserved.usd + used.usd)
    return replace(job, tokens=max(0, job.tokens + more), cost_usd=usd)


def _run_of(job: Job, steps: Sequence[Step] = ()) -> SourceRun:
    names, known = ("conversation", "task", "key_name"), job.payload.get
    return SourceRun(
        id=str(job.payload.get("run")),
        tenant=job.tenant,
        steps=steps,
        at=_number(job.payload, "at"),
        project=(str(known("scope", "")), str(known("project", ""))),
        **{name: str(known(name, "")) for name in names},
    )


def _candidate(
    job: Job, question: questions.Question, said: questions.Proposal, expires_at: float
) -> Entry:
    """The lesson that a model proposed, and the support of the run that it was asked about."""
    failure, step, run = question.failure, int(_number(job.payload, "step")), _run_of(job)
    marks = {"head": failure.head, "kind": failure.kind, "confidence": f"{said.confidence:.2f}"}
    marks |= run.marks
    if said.applies_when:
        marks["when"] = said.applies_when
    fields = {
        "task_context_embedding_text": said.situation,
        "observation": said.avoid,
        "recommended_action": said.move,
    }
    lesson = Lesson(
        key=failure.key,
        origin="distilled",
        trust=Trust.TOOL,  # a model wrote it, from what tools wrote: the least trusted of both
        applies_when=marks,
        expires_at=expires_at,
    )
    pattern = instance(run, step, fields, lesson, KIND, job.key)
    return pattern, [run.evidence(pattern.pattern_id, step, "distilled")]


def _number(values: Mapping[str, object], name: str) -> float:
    value = values.get(name)
    return float(value) if isinstance(value, int | float) else 0.0
