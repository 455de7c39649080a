"""Trial of a lesson: its posterior, the moves between statuses, and an operator's changes.

    candidate -> trial -> active -> quarantined | retired

Only an operator moves a lesson out of `candidate`, or brings one back. Decisions are weighted by
the inverse of the probability with which they were drawn."""

import math
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import accumulate
from types import MappingProxyType
from typing import NamedTuple

from msgspec import structs

from gateway.core.pattern import (
    MINED,
    RETRIEVED,
    Pattern,
    Status,
    Tier,
    Trust,
)
from gateway.features.learning.gate import refusal
from gateway.features.learning.reading import WINDOW_CALLS, ReadCallOfRun, digest
from gateway.features.learning.verdicts import best
from gateway.reporting.evidence import Drawn, e_values
from gateway.steering.guidance.lessons import SAID, is_rule
from gateway.stores.learning import (
    DecisionRow,
    NearOutcome,
    OutcomeRow,
    Posterior,
    SettledDecision,
    StoredLesson,
)
from gateway.stores.sql.learning import LearningStore
from gateway.values import Texts

FALSE_DISCOVERIES = 0.05  # most of a tenant's proved lessons that may help by chance
HELPS_ABOVE = 0.5  # probability of an effect that matters, for a lesson to become active
SAFE_FROM = 10.0  # e-value against less success from which a lesson is safe: probability .9
RETIRE_HARM_ABOVE = 0.90  # probability of harm from which a lesson is retired
NONE_SUCCEEDED_ABOVE = 0.8  # the same, while no run that was given it has succeeded
GIVE_UP_AFTER = 120  # decisions after which a lesson that probably does not help is retired
FIRST_LOOK = 30
LOOK_EVERY = 15
"""Decisions before a trial is judged for the first time, and between two looks: whoever looks
after each decision retires by chance. Source of these: tests/features/learning/test_trials.py."""
LEAST_PER_ARM = 6  # decisions of each arm without which no trial is judged
WAITS = "an operator has to approve it"
BY_OPERATOR = "by the operator"  # ends the reason of a change by hand
GUESSES: Texts = MappingProxyType(
    {
        MINED: "read off the order of calls, which shows no cause",
        SAID: "made of a person's words by expressions, which misread them",
    }
)
"""Origins of lessons that earlier versions made without a reader, and why none is given until an
operator approves it."""


def lesson_id(tier: Tier, *parts: str) -> str:
    """The id of a lesson: equal for equal parts, on every gateway."""
    return f"{tier.value}-{digest(chr(31).join(parts))}"


class Move(NamedTuple):
    """A change of status."""

    status: Status  # the new one
    reason: str  # for people, kept with the lesson


def next_move(
    lesson: StoredLesson, now: float, *, bar: float = 1 / FALSE_DISCOVERIES
) -> Move | None:
    """Returns the change of status that is due, None for none. `bar`: the e-value needed, see
    `proof_bar`."""
    known = lesson.pattern.lesson
    if known is None or known.status in (Status.QUARANTINED, Status.RETIRED):
        return None
    if is_guess(lesson):
        return Move(Status.RETIRED, GUESSES[known.origin])
    if rule_stays(lesson):
        return None
    if known.expires_at is not None and now >= known.expires_at:
        return Move(Status.RETIRED, "expired: not given for too long")
    if known.status is Status.CANDIDATE:
        return None
    move = judged(lesson.posterior, active=known.status is Status.ACTIVE, bar=bar)
    if move is not None and move.status is Status.ACTIVE and approved(lesson):
        return Move(Status.ACTIVE, f"{move.reason}; approved {BY_OPERATOR}")
    return move


def is_guess(lesson: StoredLesson) -> bool:
    """Whether an earlier version made it up, see GUESSES, and no operator approved it."""
    known = lesson.pattern.lesson
    return known is not None and known.origin in GUESSES and not approved(lesson)


def approved(lesson: StoredLesson) -> bool:
    """Whether an operator wrote the text, or moved the lesson to its status."""
    known = lesson.pattern.lesson
    return lesson.reason.endswith(BY_OPERATOR) or (known and known.trust) is Trust.OPERATOR


def rule_stays(lesson: StoredLesson) -> bool:
    """Whether it is a rule that an operator approved: only a person takes it back."""
    known = lesson.pattern.lesson
    status = known.status if known else Status.CANDIDATE
    return is_rule(lesson.pattern) and approved(lesson) and status in RETRIEVED


def proof_bar(tried: Sequence[Posterior]) -> float:
    """Returns the e-value from which a lesson counts as proved, among all lessons that its
    tenant has tried. It keeps the share of false proofs at or below `FALSE_DISCOVERIES` (e-BH,
    which holds for dependent e-values)."""
    values = sorted((found.proof for found in tried if found.decisions), reverse=True)
    bars = [len(values) / (FALSE_DISCOVERIES * rank) for rank in range(1, len(values) + 1)]
    if not bars:
        return 1 / FALSE_DISCOVERIES
    passed = [bar for value, bar in zip(values, bars, strict=True) if value >= bar]
    return passed[-1] if passed else bars[0]


def judged(found: Posterior, *, active: bool, bar: float = 1 / FALSE_DISCOVERIES) -> Move | None:
    """The move that the last look at the decisions calls for."""
    held = found.decisions - found.given
    helps = found.helps or 0.0
    if found.decisions < FIRST_LOOK or min(found.given, held) < LEAST_PER_ARM:
        return None
    fails = RETIRE_HARM_ABOVE if found.success_given else NONE_SUCCEEDED_ABOVE
    if (harm := found.harms or 0.0) > RETIRE_HARM_ABOVE:
        return Move(Status.RETIRED, f"harms with probability {harm:.2f}")
    if (harm := found.harms_success or 0.0) > fails:
        return Move(Status.RETIRED, f"runs fail more often with probability {harm:.2f}")
    if found.decisions >= GIVE_UP_AFTER and helps < HELPS_ABOVE:
        return Move(Status.RETIRED, f"no effect after {found.decisions} decisions")
    if active or helps < HELPS_ABOVE or found.proof < bar or found.safe < SAFE_FROM:
        return None
    points = 100 * (found.effect or 0.0)
    return Move(Status.ACTIVE, f"helps by {points:.0f} points, and runs do not fail more often")


def why_not_active(lesson: StoredLesson) -> str:
    """The reason why the lesson is not active, or should not be, for its page; else empty."""
    known = lesson.pattern.lesson
    if known is None or known.status is Status.ACTIVE:
        move = judged(lesson.posterior, active=True) if rule_stays(lesson) else None
        return f"an operator approved it, but {move.reason}" if move else ""
    if known.status in (Status.QUARANTINED, Status.RETIRED):
        return lesson.reason or known.status.value
    if known.status is Status.CANDIDATE:
        return WAITS
    found = lesson.posterior
    if found.decisions < FIRST_LOOK:
        return f"{FIRST_LOOK - found.decisions} more decisions until the first look"
    if min(found.given, found.decisions - found.given) < LEAST_PER_ARM:
        return f"an arm has fewer than {LEAST_PER_ARM} decisions"
    proof = f"that it helps ({found.proof:.3g} of {1 / FALSE_DISCOVERIES:.0f} or more)"
    return f"not proved yet: {proof}, or that runs do not fail more often ({found.safe:.3g} of 10)"


MATTERS = 0.05  # effect, as a difference of probabilities, from which a lesson is worth giving
LEAST_SHARE = 0.2
MOST_SHARE = 0.5
"""Limits of the probability with which a lesson in trial is given: a trial is soonest over with
equal arms; from a probability of harm of .75 on it is given less often."""
ACTIVE_SHARE = 0.9  # of an active lesson: the rest is the hold-out, which never ends
_POINTS = 400
_LOGS = [(math.log(x), math.log(1.0 - x)) for x in ((n + 0.5) / _POINTS for n in range(_POINTS))]
_Z95 = 1.959964
_CORRECTIONS = ("interruption", "correction")  # sources of verdicts


class Observation(NamedTuple):
    """One settled decision."""

    given: bool  # the lesson was given, by the draw
    share: float  # probability with which it was to be given
    recurred: bool  # the failure came again
    success: bool | None = None  # outcome of the run, of its first decision only; None = unknown
    first: bool = True  # the first decision about this lesson in its run


class _Arm(NamedTuple):
    """One arm of a trial."""

    decisions: int  # settled ones
    rate: float | None  # weighted share of good results; None without any
    a: float  # first parameter of the rate's Beta posterior
    b: float  # second parameter of it


def observations(
    decisions: Sequence[SettledDecision],
    verdicts: Sequence[OutcomeRow] = (),
    *,
    of_person: bool = False,
) -> list[Observation]:
    """The decisions whose near outcome is known, in order of time, with the verdicts on their runs.
    `of_person`: for a lesson that a person stated, what may come again is a correction."""
    found = list[Observation]()
    seen = set[str]()
    known = defaultdict[str, list[OutcomeRow]](list)
    for row in verdicts:
        known[row.run_id].append(row)
    for each in decisions:
        run_id = each.decision.run_id
        rows = known[each.decision.run_id]
        if each.recurred is None or (of_person and run_id in seen):
            continue
        success = outcome.verdict == "success" if (outcome := best(rows)) else None
        if of_person:
            came_again = any(row.source in _CORRECTIONS for row in rows)
        else:  # a run that gives up soon after the lesson has not got over the failure
            soon = each.steps_left is not None and each.steps_left < WINDOW_CALLS
            went_on = success is None and each.calls_to_success is not None
            came_again = soon and not success and not went_on
        recurred = each.recurred or came_again
        drawn = each.decision
        first = run_id not in seen
        found.append(Observation(drawn.given, drawn.share, recurred, success, first))
        seen.add(run_id)
    return found


def posterior(every: Sequence[Observation], *, active: bool = False) -> Posterior:
    """The posterior of the observations in order of time, as of the last look: once there is one,
    decisions after it count for the next. `active`: whether the lesson has passed its trial."""
    last = len(every) - len(every) % LOOK_EVERY
    seen = every[:last] if last >= FIRST_LOOK else every
    recurred = [(o.given, o.share, not o.recurred) for o in seen]
    given, held = (_arm(recurred, of) for of in (True, False))
    success_given, success_held = (_arm(_succeeded(seen), of) for of in (True, False))
    helps, any_help = exceeds(given, held, MATTERS, 0.0)
    harms = 1.0 - any_help
    harms_success = 0.5
    if min(success_given.decisions, success_held.decisions) >= LEAST_PER_ARM:
        harms_success -= exceeds(success_given, success_held, 0.0)[0] - 0.5
    effect = low = high = None
    if given.rate is not None and held.rate is not None:
        effect = given.rate - held.rate
        mean, variance = _moments(given)
        mean_held, variance_held = _moments(held)
        spread = _Z95 * math.sqrt(variance + variance_held)
        low = mean - mean_held - spread
        high = mean - mean_held + spread
    harm = max(harms, harms_success) if last >= FIRST_LOOK else 0.0
    share = min(max(2.0 - 2.0 * harm, LEAST_SHARE), MOST_SHARE)
    return Posterior(
        decisions=len(every),
        given=sum(o.given for o in every),
        rate_given=None if given.rate is None else 1.0 - given.rate,
        rate_held=None if held.rate is None else 1.0 - held.rate,
        success_given=success_given.rate,
        success_held=success_held.rate,
        effect=effect,
        low=low,
        high=high,
        helps=helps,
        harms=harms,
        harms_success=harms_success,
        proof=e_values(recurred, above=0.0)[-1],
        safe=_safe(seen),
        share=ACTIVE_SHARE if active else round(share, 4),  # the draw must not depend on an order
    )


def _succeeded(seen: Sequence[Observation], unknown: bool | None = None) -> list[Drawn]:
    """The first decisions of runs, those of unknown outcome left out, or read as `unknown`."""
    won = ((o, unknown if o.success is None else o.success) for o in seen if o.first)
    return [(o.given, o.share, success) for o, success in won if success is not None]


def _safe(seen: Sequence[Observation]) -> float:
    """The least evidence that runs do not succeed less often: by the known outcomes and, since they
    may be known less often in one arm, with the unknown ones as failed, and as solved."""
    readings = ((None, MATTERS), (False, 2.0 * MATTERS), (True, 2.0 * MATTERS))
    return min(max(e_values(_succeeded(seen, unknown), -by)) for unknown, by in readings)


def _arm(seen: Sequence[Drawn], of: bool) -> _Arm:
    """The arm that was given the lesson, or the other one, with a flat prior."""
    arm = [(1.0 / (s if of else 1.0 - s), good) for given, s, good in seen if given is of]
    if not arm:
        return _Arm(0, None, 1.0, 1.0)
    total = sum(weight for weight, _ in arm)
    rate = sum(weight for weight, good in arm if good) / total
    effective = total * total / sum(weight * weight for weight, _ in arm)
    return _Arm(len(arm), rate, 1.0 + effective * rate, 1.0 + effective * (1.0 - rate))


def _moments(arm: _Arm) -> tuple[float, float]:
    """Mean and variance."""
    mean = arm.a / (arm.a + arm.b)
    return mean, mean * (1.0 - mean) / (arm.a + arm.b + 1.0)


def exceeds(larger: _Arm, smaller: _Arm, *by: float) -> list[float]:
    """The probabilities that one arm's rate is above the other's by at least each of these."""
    density = _density(larger.a, larger.b)
    below = _density(smaller.a, smaller.b)
    cumulative = [0.0, *accumulate(below)]
    found = list[float]()
    for shift in (_POINTS * each for each in by):
        chance = 0.0
        for index in range(max(0, math.ceil(shift - 0.5)), _POINTS):
            # Both rates lie anywhere in their cell: half of an equal cell counts.
            at = index + 0.5 - shift
            cell = min(int(at), _POINTS - 1)
            chance += density[index] * (cumulative[cell] + below[cell] * min(at - cell, 1.0))
        found.append(min(max(chance, 0.0), 1.0))
    return found


def _density(a: float, b: float) -> list[float]:
    logs = [(a - 1.0) * low + (b - 1.0) * high for low, high in _LOGS]
    top = max(logs)
    masses = [math.exp(value - top) for value in logs]
    total = sum(masses)
    return [mass / total for mass in masses]


def near_outcome(
    decision: DecisionRow, calls: Sequence[ReadCallOfRun], *, ended: bool, last_step: int
) -> NearOutcome | None:
    """Outcome after the decision; None while the window is open and the run continues. A decision
    at step n is about the call made with it, so its first effect is seen in step n + 1."""
    later = [call for call in calls if call.step > decision.step_index]
    if len(later) < WINDOW_CALLS and not ended:
        return None
    window = later[:WINDOW_CALLS]
    head = decision.key.split("|")[1] if decision.key.count("|") >= 2 else ""
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


@dataclass(eq=False)
class LessonActions:
    """Changes of lessons by hand."""

    store: LearningStore  # lessons; times are epoch seconds

    async def move(self, stored: StoredLesson, status: Status, reason: str, at: float) -> bool:
        """Change the status; False when it is the lesson's already. A rule needs no trial."""
        pattern = stored.pattern
        status = Status.ACTIVE if status is Status.TRIAL and is_rule(pattern) else status
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
            await self.store.put_posterior(owner, pattern_id, version, found, at)
        return moved

    async def edit(self, stored: StoredLesson, advice: str, at: float) -> Pattern:
        """A new version with another text, in trial; the old one is retired. Raises: ValueError for
        a text that no lesson may have."""
        old = stored.pattern
        refused = refusal(advice, approved=True)
        if old.lesson is None or refused:
            raise ValueError(refused or "it is no lesson")
        name = "intervention" if old.tier is Tier.E2 else "recommended_action"
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
        if is_rule(old):
            at_once = Posterior(share=ACTIVE_SHARE)
            await self.store.put_posterior(old.tenant, new.pattern_id, lesson.version, at_once, at)
        await self.move(stored, Status.RETIRED, f"replaced by {new.pattern_id}", at)
        return new
