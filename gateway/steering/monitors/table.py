"""The monitors, one row each: everything else that names a monitor is derived from this table.

To add a monitor, write its class in a module of a suite and add its row. Another package adds a row
with an entry point of the group `steering_gateway.monitors`: a mapping with the fields of
`MonitorRow` (`examples/plugin`)."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any, Literal

from msgspec import Struct, ValidationError, convert

from gateway.steering.plugins import load_class, plugins

SuiteName = Literal["reference", "robust"]
SUITE_NAMES: tuple[SuiteName, ...] = ("reference", "robust")
_PACKAGE = "gateway.steering.monitors"
_GROUP = "steering_gateway.monitors"


class ProfileWeights(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Weight of a monitor in the composite, in [0, 1], for each built-in kind of task."""

    coding: float
    pr_review: float
    qa: float


class MonitorRow(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One monitor.

    `failure_type`: label of the failure that it detects; several monitors may share one. `classes`:
    its class per suite, as `module:Class` (below this package with a leading dot), imported when
    the suite is used; a suite without it neither scores nor weighs it. `texts`: what the agent is
    sent at severity 1, 2, ..., with `{evidence}` where the reason of the reading goes; without
    texts the monitor is recorded and routes like any other. `listed_in`: suites in which it runs
    only if `monitors` lists it."""

    name: str
    failure_type: str
    weights: ProfileWeights
    classes: Mapping[SuiteName, str]
    texts: tuple[str, ...] = ()
    listed_in: tuple[SuiteName, ...] = ()


def _in_both_suites(name: str) -> Mapping[SuiteName, str]:
    return {suite: f".{suite}.{name}" for suite in SUITE_NAMES}


# Names, order and failure types: reference sections 4.7 and 18; weights: reference section 4.8.
_BUILT_IN: tuple[MonitorRow, ...] = (
    MonitorRow(
        name="streak",
        failure_type="loop",
        weights=ProfileWeights(coding=0.35, pr_review=0.45, qa=0.3),
        classes=_in_both_suites("streak:Streak"),
        texts=(
            "The latest calls repeat earlier ones{evidence}. State what the newest result told you"
            " that you did not know before. If it told you nothing new, ask a different question "
            "instead of repeating the call.",
            "The run is in a loop{evidence}, and an earlier note did not change that. State in one"
            " sentence what these calls were meant to find out. Then find it out in a way that "
            "does not depend on them: another source, another angle, or a smaller case.",
            "The loop continues{evidence}. Stop this approach. Write down what it has established,"
            " name the assumption that all these calls share, and test that assumption first. If "
            "you cannot test it, continue with a part of the task that does not depend on it, or "
            "report what blocks you.",
        ),
    ),
    MonitorRow(
        name="call_count",
        failure_type="budget",
        weights=ProfileWeights(coding=0.15, pr_review=0.15, qa=0.05),
        classes=_in_both_suites("call_count:CallCount"),
        # On real sessions it fired at 189 calls that all brought something: length is no failure.
        listed_in=("robust",),
        texts=(
            "This run has already used many calls{evidence}. Check how much of the task is done, "
            "which open point matters most, and whether what you already know is enough to settle "
            "it.",
            "Most of the usual number of calls is used{evidence}, and the task is still open. List"
            " what is settled and what is missing. Then take the shortest path to a result you can"
            " show, and leave side issues for later.",
            "This run is far longer than usual{evidence}. More of the same is unlikely to help. "
            "Bring what you have into a state you can hand over, verify it once, and finish. Name "
            "what is left open instead of pursuing it.",
        ),
    ),
    MonitorRow(
        name="edit_revert",
        failure_type="edit_revert",
        weights=ProfileWeights(coding=0.15, pr_review=0.0, qa=0.05),
        classes=_in_both_suites("edit_revert:EditRevert"),
        texts=(
            "Recent edits undo or redo each other{evidence}. Before the next edit, state what the "
            "last one was expected to change and what happened instead.",
            "The same place is being edited back and forth{evidence}. Both versions failed, so the"
            " cause is probably elsewhere. Read the newest failure from its first line, follow the"
            " values to where they go wrong, and edit nothing until you can name the cause.",
            "The edits still go back and forth{evidence}. Return to the last version that was "
            "known to work, and make the smallest change whose effect you can predict. If you "
            "cannot name such a change, gather evidence first: a minimal reproduction, the actual "
            "values, the callers.",
        ),
    ),
    MonitorRow(
        name="test_repeat",
        failure_type="test_repeat",
        weights=ProfileWeights(coding=0.15, pr_review=0.0, qa=0.1),
        classes=_in_both_suites("test_repeat:TestRepeat"),
        texts=(
            "The same check fails in the same way{evidence}. Name what has changed between these "
            "runs that could change the outcome. If nothing has, read the failure message closely "
            "before you run the check again.",
            "A check has failed with the same message again{evidence}, so the changes in between "
            "did not reach its cause. Examine the failing assertion: which value was expected, "
            "which one came, and where is it produced? Confirm that the code you change is the "
            "code that runs.",
            "This check still fails in exactly the same way{evidence}. Do not run it again "
            "unchanged. Question what you have taken for granted: the right file, version and "
            "environment, the meaning of the expectation, a stale copy or cache. Reproduce the "
            "failure in its smallest form before you change anything else.",
        ),
    ),
    MonitorRow(
        name="diversity",
        failure_type="diversity",
        weights=ProfileWeights(coding=0.1, pr_review=0.2, qa=0.15),
        classes=_in_both_suites("diversity:Diversity"),
        texts=(
            "The run relies on one kind of action{evidence}. Look for another view of the problem,"
            " or another of the means you were given, that would answer the open question more "
            "directly.",
            "Progress depends on a single kind of action{evidence}. Step back: state the goal, "
            "what is known, and two clearly different ways to reach the goal. Take the one you "
            "have not tried.",
            "The run has narrowed to one kind of action{evidence}. Stop it for now. Read the task "
            "again from the beginning, list what you have not examined at all, and start there.",
        ),
    ),
    MonitorRow(
        name="hedge",
        failure_type="hedge",
        weights=ProfileWeights(coding=0.1, pr_review=0.2, qa=0.35),
        classes=_in_both_suites("hedge:Hedge"),
        texts=(
            "The recent reasoning shows a lot of doubt{evidence}. Identify the single fact that "
            "would settle it, and look it up: that is usually cheaper than reasoning around it.",
            "Doubts and changes of mind are increasing{evidence}. Separate what you have observed "
            "from what you assume. Pick the assumption on which most depends and check it directly"
            " before you build on it.",
            "The reasoning continues without a decision{evidence}. Decide now: choose the "
            "explanation that the observed facts support best, state what would disprove it, and "
            "act on it until that happens. If the facts support none, say so and ask, or report "
            "what is missing.",
        ),
    ),
    MonitorRow(
        name="stopped",
        failure_type="stopped",
        # Weight 0: it names a failure only if it has been seen, and no random arm draws it.
        weights=ProfileWeights(coding=0.0, pr_review=0.0, qa=0.0),
        classes={"robust": ".robust.stopped:Stopped"},
        texts=(
            "The user has refused or interrupted this work several times{evidence}. Before the "
            "next change, state in one sentence what they want now and what they turned down, and "
            "ask if either is unclear.",
            "The user keeps stopping this work{evidence}. Do the smallest step that they asked "
            "for, show its result, and wait for their word before anything else.",
            "The user still stops this work{evidence}. Change nothing. List what they turned down "
            "and what all of it had in common, and ask what they want instead.",
        ),
    ),
)


def _added_rows() -> tuple[MonitorRow, ...]:
    """The rows of other packages.

    Raises:
        ValueError: an entry point that is no row, or whose name is taken."""
    rows = []
    for point in plugins(_GROUP, {row.name for row in _BUILT_IN}):
        try:
            rows.append(convert({**point.load(), "name": point.name}, MonitorRow))
        except (AttributeError, ImportError, TypeError, ValidationError) as error:
            raise ValueError(f"entry point {_GROUP}: {point.name}: {error}") from error
    return tuple(rows)


TABLE: tuple[MonitorRow, ...] = (*_BUILT_IN, *_added_rows())
MONITORS: tuple[str, ...] = tuple(row.name for row in TABLE)
"""Names of the monitors, in the order in which they are scored and shown."""
FAILURE_TYPES: Mapping[str, str] = MappingProxyType({row.name: row.failure_type for row in TABLE})
"""Failure type by monitor."""
FAILURE_LABELS: tuple[str, ...] = tuple(dict.fromkeys(FAILURE_TYPES.values()))
"""The failure types, each once."""
DEFAULT_PROFILE = "coding"
PROFILES: Mapping[str, Mapping[str, float]] = MappingProxyType(
    {
        profile: MappingProxyType({row.name: getattr(row.weights, profile) for row in TABLE})
        for profile in ProfileWeights.__struct_fields__
    }
)
"""Weight of each monitor by built-in profile."""


_SUITES = {"reference": ".reference.suite:ReferenceSuite", "robust": ".suite:RobustSuite"}


def suite_class(suite: SuiteName) -> Callable[..., Any]:
    """The class of a suite; imports its package."""
    return load_class(_PACKAGE, _SUITES[suite])


def monitor_classes(suite: SuiteName) -> Mapping[str, Callable[..., Any]]:
    """The class of each monitor that `suite` has, in the order of the table; imports them."""
    return {
        row.name: load_class(_PACKAGE, row.classes[suite]) for row in TABLE if suite in row.classes
    }
