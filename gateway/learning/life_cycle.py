"""Trial of a lesson: its posterior, the moves between statuses, and an operator's changes.

    candidate -> trial -> active -> quarantined | retired

Only an operator moves a lesson that a model wrote out of `candidate`, or brings one back. Decisions
are weighted by the inverse of the probability with which they were drawn."""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate

from msgspec import structs

from gateway.learning.gate import does_harm, refusal
from gateway.learning.mining import PRACTICE, lesson_id
from gateway.learning.reading import WINDOW_CALLS, ReadCallOfRun
from gateway.steering.guidance.lessons import is_rule
from gateway.steering.guidance.pattern import Pattern, Status, Tier, Trust, content
from gateway.stores.learning import (
    DecisionRow,
    LearningStore,
    NearOutcome,
    Posterior,
    SettledDecision,
    StoredLesson,
)

PROMOTE_ABOVE = 0.98  # probability that the effect matters, for a lesson in trial to become active
EARLY_DECISIONS, PROMOTE_EARLY_ABOVE = 60, 0.998
"""Below this many decisions the first bar is higher: several early looks at chance pass a low one.
Source: tests/learning/test_trials.py."""
RETIRE_HARM_ABOVE = 0.90  # probability of harm from which a lesson is retired
GIVE_UP_AFTER, GIVE_UP_BELOW = 120, 0.2
"""Decisions after which a lesson is retired when the probability that it matters is below this.
Source of these four: `learning.md`, 6."""
FIRST_LOOK, LOOK_EVERY = 30, 15
"""Decisions before a trial is judged for the first time, and between two looks: whoever looks
after each decision promotes by chance. Source: tests/learning/test_trials.py."""
LEAST_PER_ARM = 6  # decisions of each arm without which no trial is judged
NEEDED_CONVERSATIONS = NEEDED_TASKS = NEEDED_KEYS = 2
"""Different conversations, for a general lesson tasks, and where the tenant has several gateway
keys also keys, that support a lesson in trial: nobody opens a trial for the others alone."""
ANOTHER_DAY_S = 16 * 3600.0  # between the first and the last time that one person says a rule
BY_OPERATOR = "by the operator"  # ends the reason of a change by hand


@dataclass(frozen=True, slots=True, kw_only=True)
class Move:
    """A change of status, and why."""

    status: Status
    reason: str


def next_move(
    lesson: StoredLesson, now: float, *, trials: bool, config_tenants: Collection[str] = ()
) -> Move | None:
    """The change that is due, None for none. `trials`: whether lessons may be tried at all;
    `config_tenants`: those with a key in the config."""
    known = lesson.pattern.lesson
    if known is None or known.status in (Status.QUARANTINED, Status.RETIRED):
        return None
    if known.expires_at is not None and now >= known.expires_at:
        return Move(status=Status.RETIRED, reason="expired: not given for too long")
    if known.status is Status.CANDIDATE:
        if not trials or missing_support(lesson, config_tenants):
            return None
        support = lesson.support
        reason = f"supported by {support.conversations} conversations, {support.tasks} tasks"
        return Move(status=Status.TRIAL, reason=reason)
    if is_rule(lesson.pattern) and approved(lesson):
        return None  # a person's word stays until a person takes it back
    return judged(lesson.posterior, active=known.status is Status.ACTIVE)


def approved(lesson: StoredLesson) -> bool:
    """Whether an operator wrote the text, or moved the lesson to its status."""
    known = lesson.pattern.lesson
    return lesson.reason.endswith(BY_OPERATOR) or (known and known.trust) is Trust.OPERATOR


def missing_support(lesson: StoredLesson, config_tenants: Collection[str]) -> str:
    """Support that a candidate lacks for a trial; empty when it lacks nothing. All keys that a
    tenant has in the config bear its name, so they count as one."""
    known, support = lesson.pattern.lesson, lesson.support
    rule = is_rule(lesson.pattern)
    if rule and does_harm(content(lesson.pattern.fields).move):
        return "an operator has to approve it: it does what needs a person's approval"
    if known is not None and not known.trust.advises and not rule:
        return f"an operator has to approve it: its text comes from the {known.trust.value}"
    if known is not None and known.key.startswith(PRACTICE):
        return "practices are not given to agents yet"
    if support.conversations < NEEDED_CONVERSATIONS:
        return f"{NEEDED_CONVERSATIONS - support.conversations} more conversation has to confirm it"
    if rule:
        others = support.tasks >= NEEDED_TASKS and support.keys >= NEEDED_KEYS
        enough = others or support.span_s >= ANOTHER_DAY_S
        return "" if enough else "it has to be said by another person, or on another day"
    if lesson.pattern.tier is Tier.E2 and support.tasks < NEEDED_TASKS:
        return f"{NEEDED_TASKS - support.tasks} more task has to confirm it"
    known_keys = support.tenant_keys + (lesson.pattern.tenant in config_tenants)
    if support.keys < min(NEEDED_KEYS, known_keys):
        return f"runs of {NEEDED_KEYS - support.keys} more gateway key have to confirm it"
    return ""


def judged(found: Posterior, *, active: bool) -> Move | None:
    """The move that the decisions call for; None between two looks."""
    if not due(found) or found.helps is None or found.harms is None:
        return None
    if found.harms > RETIRE_HARM_ABOVE:
        return Move(status=Status.RETIRED, reason=f"harms with probability {found.harms:.2f}")
    if found.decisions >= GIVE_UP_AFTER and found.helps < GIVE_UP_BELOW:
        reason = f"no effect after {found.decisions} decisions"
        return Move(status=Status.RETIRED, reason=reason)
    bar = PROMOTE_EARLY_ABOVE if found.decisions < EARLY_DECISIONS else PROMOTE_ABOVE
    if active or found.helps <= bar:
        return None
    return Move(status=Status.ACTIVE, reason=f"helps with probability {found.helps:.3f}")


def due(found: Posterior) -> bool:
    """Whether the trial is looked at after this many decisions."""
    held = found.decisions - found.given
    enough = min(found.given, held) >= LEAST_PER_ARM and found.decisions >= FIRST_LOOK
    return enough and found.decisions % LOOK_EVERY == 0


def why_not_active(
    lesson: StoredLesson, *, trials: bool, config_tenants: Collection[str] = ()
) -> str:
    """The reason why the lesson is not active, for its page; empty when it is."""
    known = lesson.pattern.lesson
    if known is None or known.status is Status.ACTIVE:
        return ""
    if known.status in (Status.QUARANTINED, Status.RETIRED):
        return lesson.reason or f"it is {known.status.value}"
    if known.status is Status.CANDIDATE:
        missing = missing_support(lesson, config_tenants)
        return missing or ("waits for the next look" if trials else "learning.trials is off")
    found = lesson.posterior
    if found.decisions < FIRST_LOOK:
        return f"{FIRST_LOOK - found.decisions} more decisions until the first look"
    if min(found.given, found.decisions - found.given) < LEAST_PER_ARM:
        return f"an arm has fewer than {LEAST_PER_ARM} decisions"
    chance = 0.0 if found.helps is None else found.helps
    return f"helps with probability {chance:.2f}; {PROMOTE_ABOVE} is needed"


MATTERS = 0.05  # effect, as a difference of probabilities, from which a lesson is worth giving
LEAST_SHARE, MOST_SHARE = 0.2, 0.8
"""Limits of the probability with which a lesson in trial is given. Source: `learning.md`, 6."""
ACTIVE_SHARE = 0.9  # of an active lesson: the rest is the hold-out, which never ends
PARENT_DECISIONS = 4.0  # most decisions per arm that the general lesson's rates count for
_POINTS = 400
_SHARE_DIGITS = 4  # the last digits of a sum depend on its order; the draw must not
_Z95 = 1.959964


@dataclass(frozen=True, slots=True)
class Observation:
    """One settled decision: whether the lesson was given, with which probability, and whether the
    failure came again."""

    given: bool
    share: float
    recurred: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class _Arm:
    """One arm: its weighted rate (None without decisions), and its Beta posterior's parameters."""

    rate: float | None
    a: float
    b: float

    @property
    def mean(self) -> float:
        return self.a / (self.a + self.b)

    @property
    def variance(self) -> float:
        total = self.a + self.b
        return self.a * self.b / (total * total * (total + 1.0))


def observations(decisions: Sequence[SettledDecision]) -> list[Observation]:
    """The decisions whose near outcome is known, as observations of the trial."""
    return [
        Observation(each.decision.given, each.decision.share, each.recurred)
        for each in decisions
        if each.recurred is not None
    ]


def posterior(
    seen: Sequence[Observation], *, active: bool = False, parent: Posterior | None = None
) -> Posterior:
    """The posterior of the observations. `active`: whether the lesson has passed its trial;
    `parent`: the posterior of the general lesson that this one belongs to."""
    known = parent or Posterior()
    given = _arm([o for o in seen if o.given], known.rate_given)
    held = _arm([o for o in seen if not o.given], known.rate_held)
    helps, harms = exceeds(held, given, MATTERS), 1.0 - exceeds(held, given, 0.0)
    effect = low = high = None
    if given.rate is not None and held.rate is not None:
        effect = held.rate - given.rate
        spread = _Z95 * math.sqrt(held.variance + given.variance)
        low, high = held.mean - given.mean - spread, held.mean - given.mean + spread
    share = ACTIVE_SHARE if active else min(max(1.0 - harms, LEAST_SHARE), MOST_SHARE)
    return Posterior(
        decisions=len(seen),
        given=sum(o.given for o in seen),
        rate_given=given.rate,
        rate_held=held.rate,
        effect=effect,
        low=low,
        high=high,
        helps=helps,
        harms=harms,
        share=round(share, _SHARE_DIGITS),
    )


def interval(rate: float, decisions: int) -> tuple[float, float]:
    """Wilson's 95 % interval of a rate."""
    if not decisions:
        return 0.0, 1.0
    z2 = _Z95 * _Z95 / decisions
    middle = (rate + z2 / 2) / (1 + z2)
    spread = _Z95 * math.sqrt(rate * (1 - rate) / decisions + z2 / (4 * decisions)) / (1 + z2)
    return max(0.0, middle - spread), min(1.0, middle + spread)


def _arm(seen: Sequence[Observation], parent_rate: float | None) -> _Arm:
    """Rate and posterior of one arm; the prior is flat, or leans to the parent's rate."""
    a = b = 1.0
    if parent_rate is not None:
        a += PARENT_DECISIONS * parent_rate
        b += PARENT_DECISIONS * (1.0 - parent_rate)
    if not seen:
        return _Arm(rate=None, a=a, b=b)
    weights = [1.0 / (o.share if o.given else 1.0 - o.share) for o in seen]
    total = sum(weights)
    rate = sum(w for w, o in zip(weights, seen, strict=True) if o.recurred) / total
    effective = total * total / sum(w * w for w in weights)
    return _Arm(rate=rate, a=a + effective * rate, b=b + effective * (1.0 - rate))


def exceeds(larger: _Arm, smaller: _Arm, by: float) -> float:
    """The probability that one arm's rate is above the other's by at least `by`."""
    density, below = _density(larger.a, larger.b), _density(smaller.a, smaller.b)
    cumulative = [0.0, *accumulate(below)]
    shift = by * _POINTS
    chance = 0.0
    for index, mass in enumerate(density):
        # Both rates lie anywhere in their cell: half of an equal cell counts.
        at = index + 0.5 - shift
        if at <= 0.0:
            continue
        cell = min(int(at), _POINTS - 1)
        chance += mass * (cumulative[cell] + below[cell] * min(at - cell, 1.0))
    return min(max(chance, 0.0), 1.0)


def _density(a: float, b: float) -> list[float]:
    points = [(index + 0.5) / _POINTS for index in range(_POINTS)]
    logs = [(a - 1.0) * math.log(x) + (b - 1.0) * math.log(1.0 - x) for x in points]
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
    """Changes of lessons by hand. `at`: seconds of the epoch."""

    store: LearningStore

    async def move(self, stored: StoredLesson, status: Status, reason: str, at: float) -> bool:
        """Change the status; False when it is the lesson's already. A rule needs no trial."""
        pattern = stored.pattern
        status = Status.ACTIVE if status is Status.TRIAL and is_rule(pattern) else status
        if pattern.lesson is None or pattern.lesson.status is status:
            return False
        if status is Status.TRIAL and pattern.lesson.status is Status.ACTIVE:
            return False  # nothing to approve
        owner, pattern_id = pattern.tenant, pattern.pattern_id
        moved = await self.store.move(owner, pattern_id, status, reason=reason, at=at)
        if moved and status is Status.ACTIVE:
            found, version = replace(stored.posterior, share=ACTIVE_SHARE), pattern.lesson.version
            await self.store.put_posterior(owner, pattern_id, version, found, at)
        return moved

    async def share(self, stored: StoredLesson, at: float) -> bool:
        """Give a tenant's general lesson to all tenants."""
        pattern = stored.pattern
        if pattern.tier is not Tier.E2 or not pattern.tenant:
            return False
        return await self.store.share(pattern.tenant, pattern.pattern_id, at)

    async def edit(self, stored: StoredLesson, advice: str, at: float) -> Pattern:
        """A new version with another text, in trial; the old one is retired. Raises: ValueError for
        a text that no lesson may have."""
        old = stored.pattern
        refused = refusal(advice, approved=True)
        if old.lesson is None or refused is not None:
            raise ValueError(refused.reason if refused else "it is no lesson")
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
        await self.move(stored, Status.RETIRED, f"replaced by {new.pattern_id}", at)
        return new
