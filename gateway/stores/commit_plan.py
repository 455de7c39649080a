"""Meaning of a commit, for every store: the rows of a call that are new, late or repeated.

A call may come again, a step may be stored without its scores because its scorer failed, and one
step may occur twice in a call. Pure: the stores write what `plan_steps` returns."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from operator import attrgetter
from typing import Any

from msgspec import Struct, structs

from gateway.steering.transcript.interventions import Intervention
from gateway.stores.records import (
    IMPORTED,
    CallRow,
    InjectionRow,
    RunUpdate,
    StepContent,
    StepRow,
)
from gateway.stores.totals import DERIVED, RunTotals, plus
from gateway.values import Value


class StoredStep(Value):
    """The stored row of a step, as far as a commit reads it."""

    state: str  # name of the difficulty state
    scored: bool  # the row has a composite
    call: CallRow | None = None  # None when no call was recorded for the step
    content: StepContent | None = None  # the texts; None when they were not read or not stored


class LateScore(Value):
    """Scores for a stored step that has none, from the next request's transcript."""

    step: StepRow  # with the scores
    state: str  # of the stored row
    content: StepContent | None  # the texts of both; None = leave them as they are


class StepPlan(Struct):
    """Rows to write for the steps of one run, and what is counted of them."""

    fresh: list[StepRow] = []  # steps to insert
    late: list[LateScore] = []  # scores that stored steps get
    # by step, the call that replaces the stored one, and its texts (None = leave them); written
    # after the scores
    calls: dict[int, tuple[CallRow, StepContent | None]] = {}
    called: list[StepRow] = []  # steps whose calls are counted
    retries: int = 0  # of `called`, those that repeat a call counted before
    human: list[str] = []  # kinds of new acts of a person at stored steps

    @property
    def scored(self) -> list[StepRow]:
        """The steps whose scores are counted, and the fresh ones without scores."""
        return [*self.fresh, *[each.step for each in self.late]]

    def totals(self, stored: RunTotals, given: Sequence[str]) -> RunTotals:
        """The run's totals after the commit; `given`: the sources of new, applied guidance."""
        return stored.including(
            self.fresh,
            [step.call for step in self.called if step.call],
            retries=self.retries,
            injections=len(given),
            sources=given,
            late=[(each.state, each.step) for each in self.late],
            human=[*self.human, *[act.kind for step in self.fresh for act in _acts(step.content)]],
        )


def plan_steps(steps: Iterable[StepRow], stored: Mapping[int, StoredStep]) -> StepPlan:
    """Decide which of a call's steps are inserted, scored or replaced, compared with what is
    `stored`."""
    plan = StepPlan()
    known = dict(stored)
    places = {}  # of the fresh steps in `plan.fresh`
    for step in steps:
        index = step.step_index
        before = known.get(index)
        if before is None:
            places[index] = len(plan.fresh)
            plan.fresh.append(step)
            if step.call is not None:
                plan.called.append(step)
            scored = step.composite is not None
            known[index] = StoredStep(
                state=step.state, scored=scored, call=step.call, content=step.content
            )
            continue
        step = _with_acts(plan, before, step, counts=index not in places)
        known[index] = after = _with_call(plan, _with_scores(plan, before, step), step)
        if index in places:  # the step occurs twice in one call
            fresh = plan.fresh[places[index]]
            scores = fresh
            if fresh.composite is None and step.composite is not None:
                scores = step
            plan.fresh[places[index]] = structs.replace(
                scores, at=fresh.at, call=after.call, content=after.content
            )
            plan.late = [each for each in plan.late if each.step.step_index != index]
            plan.calls.pop(index, None)
    return plan


def _with_scores(plan: StepPlan, stored: StoredStep, step: StepRow) -> StoredStep:
    if stored.scored or step.composite is None:
        return stored
    content = merged_content(stored.content, step.content)
    plan.late.append(LateScore(step=step, state=stored.state, content=content))
    if step.step_index in plan.calls:  # of an earlier occurrence in the same call
        plan.calls[step.step_index] = (plan.calls[step.step_index][0], content)
    return structs.replace(stored, state=step.state, scored=True, content=content)


def _with_acts(plan: StepPlan, stored: StoredStep, step: StepRow, *, counts: bool) -> StepRow:
    """The step with the acts of a person that are stored, and the new ones counted."""
    known = _acts(stored.content)
    new = [act for act in _acts(step.content) if act not in known]
    if counts:
        plan.human += [act.kind for act in new]
    if not known or step.content is None:
        return step
    return structs.replace(step, content=structs.replace(step.content, human=(*known, *new)))


def _acts(content: StepContent | None) -> tuple[Intervention, ...]:
    if content is not None:
        return content.human
    return ()


def _with_call(plan: StepPlan, stored: StoredStep, step: StepRow) -> StoredStep:
    call = step.call
    if call is None or (stored.call is not None and _identity(stored.call) == _identity(call)):
        acts = _acts(step.content)
        if stored.call is None or len(acts) == len(_acts(stored.content)):
            return stored
        content = structs.replace(stored.content or StepContent(), human=acts)
        plan.calls[step.step_index] = (stored.call, content)
        return structs.replace(stored, content=content)
    if stored.call is not None:
        call = repeated_call(stored.call, call)
        plan.retries += 1
    plan.called.append(step)
    _, earlier = plan.calls.get(step.step_index, (call, None))
    plan.calls[step.step_index] = (call, step.content or earlier)
    return structs.replace(stored, call=call, content=step.content or stored.content)


def merged_content(stored: StepContent | None, read: StepContent | None) -> StepContent | None:
    """The texts of the stored call, with those of the step, which were not read then."""
    if stored is None or read is None:
        return stored or read
    names = ("thought", "reasoning", "actions", "prompted", "human")
    return structs.replace(stored, **{name: getattr(read, name) for name in names})


def new_injections(
    rows: Iterable[InjectionRow], stored: Iterable[tuple[int, int]]
) -> list[InjectionRow]:
    """The pieces of guidance that are not `stored` yet, by step and ordinal."""
    known = set(stored)
    found = []
    for row in rows:
        if (key := (row.step_index, row.ordinal)) not in known:
            known.add(key)
            found.append(row)
    return found


def settled_outcome(stored: tuple[str | None, str], update: RunUpdate) -> tuple[str | None, str]:
    """The (outcome, source) after `update`; a derived outcome never replaces a reported one."""
    outcome, source = stored
    if update.outcome is None:
        return stored
    if outcome is not None and source != DERIVED and update.outcome_source == DERIVED:
        return stored
    return update.outcome, update.outcome_source


# Of one call that is committed a second time: a client may repeat its request id, but no two calls
# take the same time to the nanosecond.
_identity = attrgetter("request_id", "latency_s", "overhead_ms")

_ADDED_UP = (
    "input_tokens",
    "cached_tokens",
    "cache_write_tokens",
    "output_tokens",
    "reasoning_tokens",
    "cost_usd",
    "cost_unsteered_usd",
    "lost_tokens",
    "lost_usd",
)


def repeated_call(stored: CallRow, again: CallRow) -> CallRow:
    """One record of both calls: tokens and costs add up, the rest is that of `again`."""
    sums = {name: plus(getattr(stored, name), getattr(again, name)) for name in _ADDED_UP}
    return structs.replace(
        again,
        retries=max(stored.retries + 1, again.retries),
        attempts=stored.attempts + again.attempts,
        usage_estimated=stored.usage_estimated or again.usage_estimated,
        **sums,
    )


def usage_rows(
    run: RunUpdate, fresh: Sequence[StepRow], called: Sequence[StepRow]
) -> Iterator[tuple[Any, ...]]:
    """Rows to add for newly scored steps and for calls: hour, agent, model, then ADDED. None for an
    imported run, which is no use of this gateway."""
    if run.mode == IMPORTED:
        return
    new = set(map(id, fresh))
    made = set(map(id, called))
    silent: dict[int, list[bool]] = {}
    for step in {id(step): step for step in (*fresh, *called)}.values():
        is_new = step.composite is not None and id(step) in new
        call = None
        if id(step) in made:
            call = step.call
        hour = int(step.at) // 3600 * 3600
        if call is not None:
            tokens = (call.input_tokens or 0, call.cached_tokens or 0, call.output_tokens or 0)
            how = (int(call.failed), int(bool(call.unsteered)), int(call.unpriced))
            *guessed, guessed_usd = call.estimated
            amounts = (call.cost_usd, call.latency_s, guessed_usd)
            counts = (int(is_new), int(is_new and bool(step.fired)))
            key = (hour, run.agent, call.model_asked)
            yield (*key, 1, *how, *counts, *tokens, *guessed, *amounts)
        elif is_new:
            silent.setdefault(hour, []).append(bool(step.fired))
    # The steps of a history that is seen for the first time: one row for all of them.
    for hour, fired in silent.items():
        none = (0, 0, 0, 0, 0, None, 0.0, 0.0)
        yield (hour, run.agent, run.model_requested, 0, 0, 0, 0, len(fired), sum(fired), *none)
