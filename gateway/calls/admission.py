"""Whether a prepared call may be sent: holds of the operator first, then budgets.

    advise    before the decision: what budgets ask of it (a text, a cheaper model)
    admit     before it is sent: stopped or paused? enough left? The estimate is reserved. Where a
              person is asked, the call waits for the answer (`control.ask_wait_s`)
    extend    before a fallback or the requested model is asked instead
    settle    when it is over: the reservation is replaced by what it used

Unlike steering this does not fail open: a budget holds in every mode but `steering.mode: shadow`.
"""

import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from secrets import token_hex

from msgspec import json, structs

from gateway.budget_interface import CallBody, CallSubject, Guard, Refused
from gateway.calls.call import Call
from gateway.calls.own_response import OwnResponse, own_answer, with_status
from gateway.conversations.conversation import Conversation, run_id
from gateway.conversations.decision import Decision
from gateway.conversations.in_memory import ConversationIndex
from gateway.core.steer import NO_ADVICE, Advice
from gateway.core.trouble import Act
from gateway.errors import ON_TROUBLE, UNANSWERED, RunRefused
from gateway.holds import end_question, pause_error, stop_error
from gateway.observability.logging import get_logger
from gateway.runtime import Runtime
from gateway.services import Services
from gateway.steering.identity import MatchKind
from gateway.steering.sub_agents import report_of
from gateway.stores.controls import GATEWAY, Control, OpenQuestion
from gateway.stores.protocols import StoreError
from gateway.tasks import spawn
from gateway.text.secrets import mask_secrets

_MOST_WORDS = 500  # of an alarm in the reason of a stop

_log = get_logger("gateway.budgets")


class Admissions:
    """Admits calls one by one."""

    def __init__(self, runtime: Runtime):
        self._runtime = runtime

    async def advise(self, call: Call) -> Advice:
        """The advice of the budgets for a call whose conversation is known."""
        guard = call.services.budgets
        if guard is None or call.decision is None or call.decision.mode == "off":
            return NO_ADVICE
        return await guard.advise(_subject(call), _body(call))

    async def admit(self, call: Call) -> OwnResponse | None:
        """Let a call pass, or answer it here: the answer, when it is to be a final one. Raises:
        RunRefused: it may not be sent, and is answered with an error."""
        error: RunRefused
        report = ""
        services = call.services
        control = services.settings.control
        decision = call.decision
        try:
            if decision is not None and self._runtime.holds:
                await self._check_holds(call, decision)
            if decision is not None and decision.conclusion is not None:
                act = decision.conclusion.proposal.act
                if act.name:
                    await self._on_trouble(call, decision, act)
            if services.budgets is not None:
                await self._reserve(services.budgets, call)
        except Refused as refused:
            error = refused.error
            ending = refused.ending
            if refused.reports:
                transcript = call.request.transcript
                report = report_of(transcript[_subject(call).agent.since :] or transcript)
        except RunRefused as held:
            error = held
            ending = "error"
            if error.code == "run_stopped":
                ending = control.stop_with
        else:
            return None
        if call.exchange.response.begun:
            ending = "answer"  # its status is sent
        call.not_sent()
        return own_answer(call, with_status(error, control.stop_status), ending, report=report)

    async def extend(self, call: Call, model: str) -> bool:
        """Whether another model may be asked for the call instead."""
        if call.spending is None:
            return True
        allowed = await call.spending.extend(model, _body(call), binding=_binds(call.services))
        if not allowed:
            call.note_reason(f"budget: not enough left to ask {model}")
        return allowed

    async def _check_holds(self, call: Call, decision: Decision) -> None:
        services = call.services
        holds = self._runtime.holds
        index = services.index
        conversation = decision.conversation
        run = decision.position.run
        alike = await _with_same_turns(services, decision)

        def subjects() -> Sequence[str]:
            names = held_names(index, conversation, run, held_runs=holds.runs_below)
            for other in alike:
                names += held_names(index, other, other.run.index, held_runs=holds.runs_below)
            return names

        control = services.settings.control
        await self._wait_for_answer(call, subjects)
        found = holds.find(subjects())
        if found is not None and found.action == "pause":
            call.exchange.notes["paused"] = found.subject
            began = time.perf_counter()
            try:
                released = await holds.released(subjects, control.pause_wait_s)
            finally:
                call.exchange.timing.waited_s += time.perf_counter() - began
            if not released:
                raise pause_error(found, control.pause_retry_s)
            found = holds.find(subjects())
        if found is not None:
            self._runtime.metrics.held_calls.labels(found.action).inc()
            raise (
                stop_error(found)
                if found.action == "stop"
                else pause_error(found, control.pause_retry_s)
            )

    async def _wait_for_answer(self, call: Call, subjects: Callable[[], Sequence[str]]) -> None:
        """Wait while a person is asked about the call's run; without an answer in time,
        `control.ask_default` decides."""
        holds = self._runtime.holds
        exchange = call.exchange
        while (found := holds.find(subjects())) is not None and found.action == "ask":
            question = found.question
            began = time.perf_counter()
            left = 0.0
            if question is not None:
                left = question.until - time.time()
            exchange.notes["asked"] = found.subject
            if (begin := exchange.response.begin) is not None:
                await begin()  # of a call that waits for another one's answer
            try:
                answered = left > 0 and await holds.released(subjects, left)
            finally:
                exchange.timing.waited_s += time.perf_counter() - began
            if not answered:
                await self._unanswered(call.services, found)

    async def _unanswered(self, services: Services, asked: Control) -> None:
        holds = self._runtime.holds
        control = services.settings.control
        after = None
        if control.ask_default == "stop":
            why = f"{UNANSWERED}nobody answered within {control.ask_wait_s:g} s: {asked.reason}"
            said = {"reason": why, "author": GATEWAY}
            after = structs.replace(asked, action="stop", at=time.time(), **said)
        stores = self._runtime.opened.stores
        try:
            if stores.controls is not None:
                await end_question(stores, asked, after=after)
                await holds.refresh()
        except StoreError:  # it applies to this gateway until the store works again
            await (holds.hold(after) if after else holds.release(asked.subject))
        self._publish(asked, "stop" if after else "resume")

    def _publish(self, control: Control, action: str) -> None:
        about = {"subject": control.subject, "tenant": control.tenant, "action": action}
        self._runtime.events.publish({"type": "control", **about})

    async def _ask(self, call: Call, decision: Decision, asked: tuple[str, OpenQuestion]) -> None:
        """Ask a person whether the run may go on, and wait. Raises: RunStopped: it may not."""
        holds = self._runtime.holds
        why, question = asked
        if (begin := call.exchange.response.begin) is not None:
            await begin()  # the answer may come as soon as the question is shown
        control = Control(
            subject=decision.run_id,
            tenant=decision.conversation.tenant,
            action="ask",
            reason=why,
            author=GATEWAY,
            at=time.time(),
            about=json.encode(question).decode(),
        )
        if holds.find([control.subject]) is None:
            await holds.hold(control)
            with suppress(StoreError):  # another gateway may have been first
                await holds.refresh()
            self._publish(control, control.action)
            self._runtime.metrics.held_calls.labels("ask").inc()
            _log.warning("a person is asked", subject=control.subject, reason=why)
        call.note_reason(f"ask: {why}")
        await self._check_holds(call, decision)

    async def _on_trouble(self, call: Call, decision: Decision, act: Act) -> None:
        """Stop a run that repeats a failure in spite of advice until a person lets it go on, or ask
        one first. Raises: RunStopped."""
        if not decision.applies:
            call.note_reason(f"{ON_TROUBLE}would {act.name.replace('_', ' ')}")
            return
        settings = call.services.settings
        run = decision.run_id
        tenant = decision.conversation.tenant
        if settings.storage.store_content:
            said = act.sentence
        else:
            said = act.summary
        why = ON_TROUBLE + mask_secrets(said)[:_MOST_WORDS]
        _log.warning("trouble goes on in spite of advice", run=run, act=act.name, why=act.summary)
        for tell in self._runtime.acted:
            tell(run, tenant, act)
        if act.name == "ask":
            until = time.time() + settings.control.ask_wait_s
            question = OpenQuestion(secret=token_hex(16), until=until)
            await self._ask(call, decision, (why, question))
        if act.name != "end":
            return
        about = {"reason": why, "author": GATEWAY}
        control = Control(subject=run, tenant=tenant, action="stop", at=time.time(), **about)
        await self._runtime.holds.hold(control)
        if (changes := self._runtime.opened.stores.changes) is not None:
            spawn(changes.note("run", "stop", run, said=about))
        self._publish(control, control.action)
        self._runtime.metrics.held_calls.labels("on_trouble").inc()
        raise stop_error(control)

    async def _reserve(self, guard: Guard, call: Call) -> None:
        binds = _binds(call.services)
        decision = call.decision
        if decision is not None:
            await _follow_sub_agent(call.services, decision)
        ask = partial(self._ask, call, decision) if binds and decision is not None else None
        call.spending = await guard.reserve(
            _subject(call),
            call.delivery.model,
            _body(call),
            exchange=call.exchange,
            binding=binds,
            ask=ask,
            note=call.note_reason,
        )


async def _follow_sub_agent(services: Services, decision: Decision) -> None:
    """A sub-agent whose history goes on under another id stays the one that it is."""
    found = decision.conversation
    kind = decision.resolved.match.kind
    if kind in (MatchKind.NEW, MatchKind.FORK) and found.sub_agent.id in ("", found.id):
        for other in await _with_same_turns(services, decision):
            known = other.sub_agent
            # The turns may be those of its parent.
            if known.id and not known.since and other.id not in found.ancestors:
                found.sub_agent = known


async def _with_same_turns(services: Services, decision: Decision) -> list[Conversation]:
    """Other conversations of the tenant whose history, with at least one turn of the agent, is in
    this request, or which it follows after a compaction: a new id does not lift a hold."""
    incoming = decision.resolved.incoming
    conversation = decision.conversation
    hashes = incoming.hashes
    turned = [
        (covered, digest)
        for covered, digest in hashes.candidates
        if covered < hashes.start or hashes.turns[covered - hashes.start]
    ]
    if not turned:
        return []
    with suppress(StoreError):  # then what is known here holds
        await services.loader.load_prefix_hashes(conversation.tenant, incoming)
    names = {name for _, digest in turned for name in services.index.known_under(digest)}
    names.update(services.index.windows(conversation.tenant, incoming, ()))
    found = map(services.index.get, sorted(names - {conversation.id}))
    return [other for other in found if other is not None]


def held_names(
    index: ConversationIndex,
    conversation: Conversation,
    run: int,
    held_runs: Callable[[str], Sequence[str]],
) -> list[str]:
    """The subjects that a hold on a call may name: its run, its conversation, and those above it. A
    hold on a run above holds while that is its conversation's newest run."""
    names = [run_id(conversation.id, run), conversation.id]
    for above in reversed(conversation.ancestors):
        names.append(above)
        known = index.get(above)
        if known is not None:
            names.append(run_id(above, known.run.index))
        else:
            names += held_runs(above)
    return names


def _binds(services: Services) -> bool:
    """Whether budgets are in force: not in shadow mode, which no client can choose."""
    return services.settings.steering.mode != "shadow"


def _subject(call: Call) -> CallSubject:
    asked = call.exchange.request
    decision = call.decision
    subject = CallSubject(
        tenant=asked.tenant,
        key=asked.key,
        client=call.control.agent,
        model=call.request.model,
        labels=asked.labels | {f"tag:{name}": value for name, value in call.control.tags.items()},
    )
    if decision is None:
        return subject
    found = decision.conversation
    return structs.replace(subject, run=decision.run_id, root=found.root_id, agent=found.sub_agent)


def _body(call: Call) -> CallBody:
    return CallBody(fields=call.request.body, raw=call.request.raw)
