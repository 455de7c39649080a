"""When a lesson changes its status, and why not yet.

    candidate -> trial -> active -> quarantined | retired

Pure. Only an operator moves a lesson that a model wrote out of `candidate`, and only an operator
brings one back.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

from gateway.steering.guidance.pattern import Status, Tier
from gateway.stores.learning import Posterior, StoredLesson

PROMOTE_ABOVE = 0.98
"""Probability that the effect matters from which a lesson in trial becomes active."""
EARLY_DECISIONS, PROMOTE_EARLY_ABOVE = 60, 0.998
"""Below this many decisions the first bar is higher: several early looks at chance pass a low one.
Source: tests/learning/test_trials.py."""
RETIRE_HARM_ABOVE = 0.90
"""Probability of harm from which a lesson is retired."""
GIVE_UP_AFTER, GIVE_UP_BELOW = 120, 0.2
"""Decisions after which a lesson is retired when the probability that it matters is below this.
Source of these four: `learning.md`, 6."""
FIRST_LOOK, LOOK_EVERY = 30, 15
"""Decisions before a trial is judged for the first time, and between two looks: whoever looks
after each decision promotes by chance. Source: tests/learning/test_trials.py."""
LEAST_PER_ARM = 6
"""Decisions of each arm without which no trial is judged."""
NEEDED_CONVERSATIONS = 2
NEEDED_TASKS = 2
NEEDED_KEYS = 2
"""Different conversations, for a general lesson tasks, and where the tenant has several gateway
keys also keys, that support a lesson in trial: nobody opens a trial for the others alone."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Move:
    """A change of status, and why."""

    status: Status
    reason: str


def next_move(
    lesson: StoredLesson, now: float, *, trials: bool, config_tenants: Collection[str] = ()
) -> Move | None:
    """The change that is due, None for none.

    `trials`: whether lessons may be tried at all; `config_tenants`: those with a key in the config.
    """
    known = lesson.pattern.lesson
    if known is None or known.status in (Status.QUARANTINED, Status.RETIRED):
        return None
    if known.expires_at is not None and now >= known.expires_at:
        return Move(status=Status.RETIRED, reason="expired: not given for too long")
    if known.status is Status.CANDIDATE:
        return _first_move(lesson, config_tenants) if trials else None
    return judged(lesson.posterior, active=known.status is Status.ACTIVE)


def _first_move(lesson: StoredLesson, config_tenants: Collection[str]) -> Move | None:
    if missing_support(lesson, config_tenants):
        return None
    return Move(
        status=Status.TRIAL,
        reason=f"supported by {lesson.conversations} conversations, {lesson.tasks} tasks",
    )


def missing_support(lesson: StoredLesson, config_tenants: Collection[str]) -> str:
    """What a candidate lacks for a trial; empty when it lacks nothing.

    All keys that a tenant has in the config bear its name, so they count as one.
    """
    known = lesson.pattern.lesson
    if known is not None and not known.trust.advises:
        return f"an operator has to approve it: its text comes from the {known.trust.value}"
    if lesson.conversations < NEEDED_CONVERSATIONS:
        return f"{NEEDED_CONVERSATIONS - lesson.conversations} more conversation has to confirm it"
    if lesson.pattern.tier is Tier.E2 and lesson.tasks < NEEDED_TASKS:
        return f"{NEEDED_TASKS - lesson.tasks} more task has to confirm it"
    known_keys = lesson.tenant_keys + (lesson.pattern.tenant in config_tenants)
    if lesson.keys < min(NEEDED_KEYS, known_keys):
        return f"runs of {NEEDED_KEYS - lesson.keys} more gateway key have to confirm it"
    return ""


def judged(found: Posterior, *, active: bool) -> Move | None:
    """What the decisions ask for; None between two looks."""
    if not due(found) or found.helps is None or found.harms is None:
        return None
    if found.harms > RETIRE_HARM_ABOVE:
        return Move(status=Status.RETIRED, reason=f"harms with probability {found.harms:.2f}")
    if found.decisions >= GIVE_UP_AFTER and found.helps < GIVE_UP_BELOW:
        reason = f"no effect after {found.decisions} decisions"
        return Move(status=Status.RETIRED, reason=reason)
    bar = PROMOTE_EARLY_ABOVE if found.decisions < EARLY_DECISIONS else PROMOTE_ABOVE
    if not active and found.helps > bar:
        return Move(status=Status.ACTIVE, reason=f"helps with probability {found.helps:.3f}")
    return None


def due(found: Posterior) -> bool:
    """Whether the trial is looked at after this many decisions."""
    held = found.decisions - found.given
    enough = min(found.given, held) >= LEAST_PER_ARM and found.decisions >= FIRST_LOOK
    return enough and found.decisions % LOOK_EVERY == 0


def why_not_active(
    lesson: StoredLesson, *, trials: bool, config_tenants: Collection[str] = ()
) -> str:
    """Why the lesson is not active, in a sentence for its page; empty when it is."""
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


def may_approve(status: Status) -> bool:
    """Whether an operator's approval changes anything."""
    return status in (Status.CANDIDATE, Status.QUARANTINED, Status.RETIRED)
