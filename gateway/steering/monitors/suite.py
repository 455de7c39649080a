"""Suites of monitors, readings from their scores, and the alarm about a high difficulty."""

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import Generic, Protocol, TypeVar

from msgspec import Struct
from msgspec.structs import replace

from gateway.steering.evidence.observation import ObservedStep, ReadsObservations, RunObserver
from gateway.steering.monitors.settings import MonitorSettings
from gateway.steering.monitors.table import FAILURE_TYPES, monitor_classes
from gateway.steering.transcript.steps import Step

COMPOSITE_DIGITS = 4
ALARMING = ("streak", "test_repeat", "edit_revert")
"""The monitors whose firing is an alarm. Source: design section 9."""


class Alarm(Struct, frozen=True, kw_only=True):
    """Trouble that the run is in, stated with its evidence. `monitor`: the one that found it;
    `entry`: key of the object that it is about, stable through the run; `sentence`: names the
    object, how often it was tried, and the first and the newest step; `count`: tries so far."""

    monitor: str
    entry: str
    sentence: str
    count: int
    first_step: int
    newest_step: int


class Readings(Struct, frozen=True, kw_only=True):
    """Reports of the monitors about a run up to its newest step. `scores`: one per active monitor,
    in [0, 1], 1 is worst; `composite`: their weighted sum, rounded to 4 decimals; `fired`: those at
    or above the threshold; `failure_type`: the label of the fired one with the largest weighted
    score; `evidence`: a short reason per score above 0; `alarms`: those of this step."""

    scores: dict[str, float]
    composite: float = 0.0
    fired: tuple[str, ...] = ()
    failure_type: str | None = None
    evidence: dict[str, str] = {}
    alarms: tuple[Alarm, ...] = ()


Observed = TypeVar("Observed", contravariant=True)


class Monitor(Protocol[Observed]):
    """One way of going wrong, followed over a run at constant cost per observation."""

    def push(self, observed: Observed, /) -> None:
        """Observe what comes next: a step, or in suite `reference` a call."""

    def reading(self) -> tuple[float, str]:
        """Score in [0, 1] after the newest observation, and its reason ("" at score 0)."""


class Suite(ABC, Generic[Observed]):
    """The active monitors of one suite, each made with `argument`; cost flat in a run's length."""

    __slots__ = ("_fire_threshold", "_weights", "monitors")

    def __init__(self, settings: MonitorSettings, argument: object) -> None:
        classes = monitor_classes(settings.suite)
        self.monitors: dict[str, Monitor[Observed]] = {
            name: classes[name](argument) for name in settings.active
        }
        self._weights = settings.resolved_weights()
        self._fire_threshold = settings.fire_threshold

    @abstractmethod
    def push(self, step: Step) -> None:
        """Observe the next step of the run."""

    def readings(self) -> Readings:
        """The readings over all steps pushed so far."""
        scores: dict[str, float] = {}
        evidence: dict[str, str] = {}
        for name, monitor in self.monitors.items():
            scores[name], reason = monitor.reading()
            if reason:
                evidence[name] = reason
        return combine(scores, evidence, weights=self._weights, fire_threshold=self._fire_threshold)


def combine(
    scores: Mapping[str, float],
    evidence: dict[str, str],
    *,
    weights: Mapping[str, float],
    fire_threshold: float,
) -> Readings:
    """The readings of single scores, which are in the order of MONITORS: among fired monitors of
    equal weighted score the first names the failure."""
    weighted = {name: weights[name] * score for name, score in scores.items()}
    fired = tuple([name for name, score in scores.items() if score >= fire_threshold])
    return Readings(
        scores=dict(scores),
        composite=round(sum(weighted.values(), 0.0), COMPOSITE_DIGITS),
        fired=fired,
        failure_type=FAILURE_TYPES[max(fired, key=weighted.__getitem__)] if fired else None,
        evidence=evidence,
    )


ALARM_DIFFICULTY = 0.65
"""Least difficulty of a step on which a monitor fires, in [0, 1]. Source: design section 7."""
HEEDED_COMPLAINTS = 2  # complaints of a harness about a call that it could not find
QUIET_STEPS = 3  # steps, from a harness's own reminder on, in which no monitor fires
SEVERITIES = (1, 2, 4)  # steps in a row with an alarm from which its severity is 1, 2, 3


def with_alarm(score: float, fired: Sequence[str]) -> float:
    """The difficulty of a step on which these monitors fired."""
    return max(score, ALARM_DIFFICULTY) if fired else score


def severity_of(alarmed_steps: int) -> int:
    """Severity, 0 to 3, of an alarm that has lasted for so many steps in a row."""
    return sum([1 for least in SEVERITIES if alarmed_steps >= least]) if alarmed_steps else 0


class RobustSuite(Suite[ObservedStep], ReadsObservations[None]):
    """The active robust monitors over one run."""

    __slots__ = ("_began", "_observer", "_quiet", "_steps", "_uncalled")

    def __init__(self, settings: MonitorSettings) -> None:
        super().__init__(settings, settings.robust)
        self._observer = RunObserver()
        self._quiet = self._uncalled = 0
        self._steps = 0
        self._began: dict[str, int] = {}  # step at which each monitor that fires began to

    def push(self, step: Step) -> None:
        """Observe the next step of the run."""
        self.push_observed(self._observer.observe(step))

    def push_observed(self, observed: ObservedStep) -> None:
        """Take the run's observation of the next step."""
        self._steps += 1
        self._quiet = max(self._quiet - 1, 0)
        self._uncalled += observed.facts.cue == "uncalled"
        if observed.facts.reminded:
            self._quiet = QUIET_STEPS
        elif observed.facts.cue == "uncalled" and self._uncalled <= HEEDED_COMPLAINTS:
            self._quiet = max(self._quiet, 1)
        for monitor in self.monitors.values():
            monitor.push(observed)

    def readings(self) -> Readings:
        """The readings; no monitor fires while a reminder of its harness is new to the agent."""
        found = super().readings()
        if self._quiet:
            found = replace(found, fired=(), failure_type=None)
        fired = [name for name in ALARMING if name in found.fired]
        self._began = {name: self._began.get(name, self._steps) for name in fired}
        alarms = [self._alarm(name, found.evidence.get(name, name)) for name in fired]
        return replace(found, alarms=tuple(alarms)) if alarms else found

    def _alarm(self, monitor: str, reason: str) -> Alarm:
        first, newest = self._began[monitor], self._steps
        return Alarm(
            monitor=monitor,
            entry=f"{monitor}:{first}",
            sentence=f"{reason}, steps {first} to {newest}",
            count=newest - first + 1,
            first_step=first,
            newest_step=newest,
        )
