"""Trial of a lesson: its two arms, the moves between statuses, and an operator's changes.

    candidate -> trial -> active -> quarantined | retired

Only an operator moves a lesson onwards, or brings one back: a trial shows him both arms. By itself
it only ends what harms. Decisions are weighted by the inverse of the probability with which they
were drawn."""

import re
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple, Protocol

from msgspec import structs

from gateway.core.pattern import (
    ENDED,
    Lesson,
    Pattern,
    Status,
    Tier,
    Trust,
    content,
)
from gateway.features.learning.context import like_of
from gateway.features.learning.ended_failures import BY_ITSELF, HOLE
from gateway.features.learning.gate import refusal, strange
from gateway.features.learning.reading import WINDOW_CALLS, ReadCallOfRun, digest
from gateway.features.learning.verdicts import best
from gateway.reporting.statistics import Drawn, e_values
from gateway.steering.guidance.lessons import SAID, is_rule
from gateway.stores.learning import (
    MARK,
    DecisionRow,
    EvidenceRow,
    NearOutcome,
    OutcomeRow,
    Posterior,
    SettledDecision,
    StoredLesson,
)
from gateway.stores.sql.learning import LearningStore
from gateway.stores.sql.runs import RunStore
from gateway.text.formatting import counted
from gateway.values import Texts

# Evidence of harm from which a trial is ended, as 1 - 1/e of an e-value: a lesson that does no harm
# comes so far with probability .05 at most, however often one looks.
HARM_FROM = 0.95
WAITS = "an operator has to approve it"
NAMES = "until an operator approves it, only runs that know its names are given it"
ENDED_AGAIN = "it ended the same failure in several conversations"
_TICKED = re.compile(r"`([^`]+)`")
BY_OPERATOR = "by the operator"  # ends the reason of a change by hand


def lesson_id(tier: Tier, *parts: str) -> str:
    """The id of a lesson: equal for equal parts, on every gateway."""
    return f"{tier.value}-{digest(chr(31).join(parts))}"


class Move(NamedTuple):
    """A change of status."""

    status: Status  # the new one
    reason: str  # for people, kept with the lesson


def next_move(lesson: StoredLesson) -> Move | None:
    """Returns the change of status that is due, None for none."""
    known = lesson.pattern.lesson
    if known is None or known.status in (Status.QUARANTINED, Status.RETIRED):
        return None
    if is_rule(lesson.pattern):
        return None  # only a person takes it back
    harm = "" if known.status is Status.CANDIDATE else harm_of(lesson.posterior)
    return Move(Status.RETIRED, harm) if harm else None


LEAST_CONVERSATIONS = 2  # in which the same thing must have ended the same failure


def why_withheld(lesson: StoredLesson, *, by_itself: bool = False) -> str:
    """The reason why runs are not given what ended an exact failure, unless an operator approves
    it; "" for none. `by_itself`: the failure has also ended by itself."""
    support = lesson.support
    move = content(lesson.pattern.fields).move
    if HOLE in move:
        return "without the values of its run the words do not say what to do"
    if support.against:
        return f"it did not help in {counted(support.against, 'conversation')}"
    if by_itself:
        return "the same failure has ended by itself"
    if support.conversations < LEAST_CONVERSATIONS:
        return "only one conversation shows it so far"
    names = _TICKED.findall(move)
    # A variable is set, and the gate knows what may not be.
    forms = (move, move.replace("with `", "set `"))
    refused = [WAITS for each in forms if refusal(each, known=names)]
    return next(iter(refused), "")


def weighed(found: Sequence[StoredLesson]) -> Iterator[tuple[StoredLesson, Move]]:
    """The changes of status that are due for the lessons about one failure of one project, but for
    those on which an operator has decided."""
    passes = [each for each in found if content(each.pattern.fields).move == BY_ITSELF]
    by_itself = any(each.support.conversations for each in passes)
    for each in found:
        known = each.pattern.lesson
        withheld = why_withheld(each, by_itself=by_itself)
        status = Status.ACTIVE
        if withheld:
            status = Status.CANDIDATE
        if known is not None and known.status is not status and not approved(each):
            yield each, Move(status, withheld or ENDED_AGAIN)


def approved(lesson: StoredLesson) -> bool:
    """Whether an operator wrote the text, or moved the lesson to its status."""
    known = lesson.pattern.lesson
    return lesson.reason.endswith(BY_OPERATOR) or (known and known.trust) is Trust.OPERATOR


def harm_of(found: Posterior) -> str:
    """Returns the harm that a trial has shown, in words; "" for none."""
    if (found.harms or 0.0) >= HARM_FROM:
        return f"the failure comes again more often, shown to {found.harms:.3f}"
    if (found.harms_success or 0.0) >= HARM_FROM:
        return f"runs fail more often, shown to {found.harms_success:.3f}"
    return ""


def why_not_active(lesson: StoredLesson) -> str:
    """The reason why the lesson is not active, or should not be, for its page; else empty."""
    known = lesson.pattern.lesson
    if known is None:
        return ""
    if known.status in (Status.QUARANTINED, Status.RETIRED):
        return lesson.reason or known.status.value
    if known.origin == ENDED and not approved(lesson):
        if known.status is not Status.ACTIVE:
            return why_withheld(lesson) or lesson.reason
        return why_withheld(lesson) or (strange(content(lesson.pattern.fields).move) and NAMES)
    if known.status is Status.CANDIDATE or not approved(lesson):
        return WAITS
    if known.status is Status.ACTIVE:
        harm = harm_of(lesson.posterior)
        return harm and f"an operator approved it, but {harm}"
    return f"in trial, {lesson.posterior.decisions} decisions so far; an operator makes it active"


TRIAL_SHARE = 0.5  # probability with which a lesson in trial is given: equal arms tell most
ACTIVE_SHARE = 0.9  # of an active lesson: the rest is the hold-out, which never ends


class Observation(NamedTuple):
    """One settled decision."""

    given: bool  # the lesson was given, by the draw
    share: float  # probability with which it was to be given
    recurred: bool  # the failure came again
    success: bool | None = None  # outcome of the run, of its first decision only; None = unknown
    first: bool = True  # the first decision about this lesson in its run


def observations(
    decisions: Sequence[SettledDecision], verdicts: Sequence[OutcomeRow] = ()
) -> list[Observation]:
    """The decisions whose near outcome is known, in order of time, with the verdicts on their
    runs."""
    found = list[Observation]()
    seen = set[str]()
    known = defaultdict[str, list[OutcomeRow]](list)
    for row in verdicts:
        known[row.run_id].append(row)
    for each in decisions:
        run_id = each.decision.run_id
        rows = known[each.decision.run_id]
        if each.recurred is None:
            continue
        success = None
        if outcome := best(rows):
            success = outcome.verdict == "success"
        # A run that gives up soon after the lesson has not got over the failure.
        soon = each.steps_left is not None and each.steps_left < WINDOW_CALLS
        went_on = success is None and each.calls_to_success is not None
        recurred = each.recurred or (soon and not success and not went_on)
        drawn = each.decision
        first = run_id not in seen
        found.append(Observation(drawn.given, drawn.share, recurred, success=success, first=first))
        seen.add(run_id)
    return found


def posterior(seen: Sequence[Observation], *, active: bool = False) -> Posterior:
    """Both arms of a trial, in order of time, and the evidence that the lesson helps or harms.
    `active`: whether an operator has made the lesson active."""
    recurred = [(o.given, o.share, o.recurred) for o in seen]
    ended = [(o.given, o.share, o.success) for o in seen if o.first and o.success is not None]
    rate_given = _rate(recurred, of=True)
    rate_held = _rate(recurred, of=False)
    effect = None
    if rate_given is not None and rate_held is not None:
        effect = rate_held - rate_given
    return Posterior(
        decisions=len(seen),
        given=sum(o.given for o in seen),
        rate_given=rate_given,
        rate_held=rate_held,
        success_given=_rate(ended, of=True),
        success_held=_rate(ended, of=False),
        effect=effect,
        helps=_more_often(_turned(recurred)),
        harms=_more_often(recurred),
        harms_success=_more_often(_turned(ended)),
        share=ACTIVE_SHARE if active else TRIAL_SHARE,
    )


def _rate(seen: Sequence[Drawn], *, of: bool) -> float | None:
    """Weighted share of results that are true in the arm that was given the lesson, or in the other
    one; None without any."""
    total = true = 0.0
    for given, share, result in seen:
        if given is of:
            weight = 1.0 / (share if of else 1.0 - share)
            total += weight
            true += weight * result
    if total:
        return true / total
    return None


def _turned(seen: Sequence[Drawn]) -> list[Drawn]:
    return [(given, share, not true) for given, share, true in seen]


def _more_often(seen: Sequence[Drawn]) -> float:
    """The evidence that a result is more frequent where the lesson is given, in [0, 1)."""
    return 1.0 - 1.0 / max(e_values(seen, above=0.0))


def near_outcome(
    decision: DecisionRow, calls: Sequence[ReadCallOfRun], *, ended: bool, last_step: int
) -> NearOutcome | None:
    """Outcome after the decision; None while the window is open and the run continues. A decision
    at step n is about the call made with it, so its first effect is seen in step n + 1."""
    later = [call for call in calls if call.step > decision.step_index]
    if len(later) < WINDOW_CALLS and not ended:
        return None
    window = later[:WINDOW_CALLS]
    head = ""
    if decision.key.count("|") >= 2:
        head = decision.key.split("|")[1]
    worked = (
        n
        for n, call in enumerate(window, 1)
        if call.reading.head == head and call.key is None and not call.reading.transient
    )
    return NearOutcome(
        run_id=decision.run_id,
        step_index=decision.step_index,
        pattern_id=decision.pattern_id,
        recurred=any(call.key == decision.key for call in window),
        calls_to_success=next(worked, None),
        steps_left=max(0, last_step - decision.step_index),
    )


class Mark(Protocol):
    """A call of a run at whose like a rule is given again."""

    run_id: str  # the run with the call
    step: int  # its step; of several calls the last one counts
    remove: bool  # take the mark back


@dataclass(eq=False)
class LessonActions:
    """Changes of lessons by hand."""

    store: LearningStore  # lessons; times are epoch seconds

    async def change(
        self,
        stored: StoredLesson,
        runs: RunStore,
        *,
        at: float,
        status: str | None = None,
        advice: str | None = None,
        mark: Mark | None = None,
    ) -> tuple[str, bool]:
        """Change the text, the marks or the status; the id of the lesson that holds now, and
        whether anything changed. Raises: ValueError for a text or a mark that cannot be."""
        pattern = stored.pattern
        name = pattern.pattern_id
        if advice is not None:
            return (await self.edit(stored, advice, at)).pattern_id, True
        if mark is None:
            to = Status(status or "")
            done = {Status.QUARANTINED: "paused", Status.RETIRED: "retired"}.get(to, "approved")
            return name, await self.move(stored, to, f"{done} {BY_OPERATOR}", at=at)
        if mark.remove:
            gone = self.store.unmark(pattern.tenant, name, run_id=mark.run_id, step_index=mark.step)
            return name, await gone
        return name, await self.mark(stored, runs, call=mark, at=at)

    async def move(self, stored: StoredLesson, status: Status, reason: str, at: float) -> bool:
        """Change the status; False when it is the lesson's already. A rule needs no trial."""
        pattern = stored.pattern
        if status is Status.TRIAL and is_rule(pattern):
            status = Status.ACTIVE
        if pattern.lesson is None or pattern.lesson.status is status:
            return False
        if status is Status.TRIAL and pattern.lesson.status is Status.ACTIVE:
            return False  # nothing to approve
        owner = pattern.tenant
        pattern_id = pattern.pattern_id
        moved = await self.store.move(owner, pattern_id, status, reason=reason, at=at)
        if moved and status is Status.ACTIVE:
            found = replace(stored.posterior, share=ACTIVE_SHARE)
            version = pattern.lesson.version
            await self.store.put_posterior(owner, pattern_id, version, posterior=found, at=at)
        return moved

    async def mark(self, stored: StoredLesson, runs: RunStore, call: Mark, at: float) -> bool:
        """Have a rule given again at calls like the last one of a step; False if it is so already.
        Raises: ValueError without such a rule or call."""
        pattern = stored.pattern
        if not is_rule(pattern):
            raise ValueError("only a rule that a person stated can be given at a call")
        run_id = call.run_id
        step = call.step
        owner = pattern.tenant
        trace = await runs.get_run(run_id, tenant=owner, after_step=step - 1, limit=1)
        rows = [row for row in trace.steps if row.step_index == step] if trace else []
        calls = [call for row in rows if row.content for call in row.content.actions]
        if trace is None or not calls:
            raise ValueError(f"step {step} of run {run_id!r} has no call with a result")
        row = EvidenceRow(
            pattern_id=pattern.pattern_id,
            run_id=run_id,
            step_index=step,
            kind=MARK,
            tenant=owner,
            conversation=trace.run.conversation_id,
            task=like_of(calls[-1]),
            at=at,
            key_name=trace.run.key_name,
        )
        return (await self.store.learn([(pattern, [row])])).evidence > 0

    async def add(self, tenant: str, words: str, marks: Texts, at: float) -> str:
        """Add a rule in the words that a person typed, which is given from now on; its id. `marks`:
        `scope` and `project` as `project_of` gives them, and the `author`. `at`: when it was typed.
        Raises: ValueError for a text that no lesson may have."""
        refused = refusal(words, approved=True)
        if refused:
            raise ValueError(refused)
        key = f"{SAID}|{marks['scope']}|{digest(words)}"
        pattern = Pattern(
            tier=Tier.E1,
            fields={"recommended_action": words},
            pattern_id=lesson_id(Tier.E1, tenant, key),
            tenant=tenant,
            lesson=Lesson(
                key=key,
                origin="typed",
                trust=Trust.USER,
                applies_when={**marks, "said": words},
                last_confirmed_at=at,
            ),
        )
        said = EvidenceRow(
            pattern_id=pattern.pattern_id,
            run_id="typed",
            step_index=0,
            kind=SAID,
            tenant=tenant,
            conversation="typed",
            task="",
            at=at,
            key_name=marks["author"],
        )
        await self.store.learn([(pattern, [said])])
        stored = await self.store.lesson(tenant, pattern.pattern_id)
        if stored is not None:
            await self.move(stored, Status.ACTIVE, f"typed, and added {BY_OPERATOR}", at=at)
        return pattern.pattern_id

    async def edit(self, stored: StoredLesson, advice: str, at: float) -> Pattern:
        """A new version with another text, in trial; the old one is retired. Raises: ValueError for
        a text that no lesson may have."""
        old = stored.pattern
        refused = refusal(advice, approved=True)
        if old.lesson is None or refused:
            raise ValueError(refused or "it is no lesson")
        name = "recommended_action"
        if old.tier is Tier.E2:
            name = "intervention"
        lesson = structs.replace(
            old.lesson,
            version=old.lesson.version + 1,
            supersedes=old.pattern_id,
            status=Status.ACTIVE if is_rule(old) else Status.TRIAL,
            origin="written",
            trust=Trust.OPERATOR,
            last_confirmed_at=at,
        )
        new = structs.replace(
            old,
            pattern_id=lesson_id(old.tier, old.tenant, old.lesson.key, advice, old.pattern_id),
            fields={**old.fields, name: advice.strip()},
            lesson=lesson,
        )
        evidence = await self.store.evidence(old.tenant, old.pattern_id)
        own = [replace(row, pattern_id=new.pattern_id) for row in evidence]
        await self.store.learn([(new, own)])
        await self.move(stored, Status.RETIRED, f"replaced by {new.pattern_id}", at=at)
        return new
