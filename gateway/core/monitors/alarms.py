"""Alarms: which monitors fire on their scores, how severe an alarm is, and when it is over."""

from abc import ABC, abstractmethod
from collections.abc import Container, Mapping
from typing import Generic, Protocol, TypeVar

from msgspec import field

from gateway.core.ledger.entries import Entry
from gateway.core.ledger.ledger import LedgerStep
from gateway.core.ledger.session import Returned
from gateway.core.monitors.settings import MonitorSettings
from gateway.core.monitors.table import FAILURE_TYPES, MONITORS, monitor_classes
from gateway.values import Value

COMPOSITE_DIGITS = 4


class Alarm(Value):
    """Trouble that the run is in, stated with its evidence."""

    monitor: str  # name of the one that found it
    entry: str  # key of the object that it is about, stable through the run
    sentence: str  # names the object, the number of tries, the first and the newest step
    count: int  # tries so far
    first_step: int  # step of the first try, from 1
    newest_step: int  # step of the newest try


class Readings(Value):
    """Reports of the monitors about a run up to its newest step."""

    scores: dict[str, float]  # one per active monitor, in [0, 1]; 1 is worst
    composite: float = 0.0  # weighted sum of the scores, rounded to 4 decimals
    fired: tuple[str, ...] = ()  # the monitors at or above the threshold, in the order of the table
    # label of the fired monitor with the largest weighted score; None if none fired
    failure_type: str | None = None
    # a short reason for each score above 0
    evidence: dict[str, str] = field(default_factory=dict)
    alarms: tuple[Alarm, ...] = ()  # those of this step

    @property
    def alarmed(self) -> dict[str, str]:
        """The evidence of each monitor that fired, and of an alarm of the session, by name."""
        found = {name: self.evidence.get(name, "") for name in self.fired}
        return found | {each.monitor: each.sentence for each in self.alarms}


Observed = TypeVar("Observed", contravariant=True)


class Monitor(Protocol[Observed]):
    """One way of going wrong, followed over a run at constant cost per observation."""

    def push(self, observed: Observed, /) -> None:
        """Observe what comes next: a step, or in suite `reference` a call."""

    def reading(self) -> tuple[float, str]:
        """Score in [0, 1] after the newest observation, and its reason ("" at score 0)."""


ALARM_STEPS = (1, 2, 4)  # steps in a row with an alarm from which its severity is 1, 2, 3
CALM_STEPS = 3  # steps without an alarm that end it


def alarm_severity(alarmed_steps: int) -> int:
    """Severity, 0 to 3, of an alarm that has lasted for so many steps in a row."""
    return sum([1 for least in ALARM_STEPS if alarmed_steps >= least])


class Suite(ABC, Generic[Observed]):
    """The active monitors of one suite, each made with `argument`; cost flat in a run's length."""

    def __init__(self, settings: MonitorSettings, argument: object):
        classes = monitor_classes(settings.suite)
        self.monitors: dict[str, Monitor[Observed]] = {
            name: classes[name](argument) for name in settings.active
        }
        self._weights = settings.resolved_weights()
        self._fire_threshold = settings.fire_threshold
        self._alarming = settings.alarming
        self._alarmed_steps = self._calm_steps = 0

    @abstractmethod
    def push(self, read: LedgerStep) -> None:
        """Take the next step of the run, as its ledger has read it."""

    def readings(self) -> Readings:
        """The readings over all steps pushed so far."""
        scores = {}
        evidence = {}
        for name, monitor in self.monitors.items():
            scores[name], reason = monitor.reading()
            if reason:
                evidence[name] = reason
        return combine(
            scores,
            evidence,
            weights=self._weights,
            fire_threshold=self._fire_threshold,
            alarming=self._alarming,
        )

    def count_alarm(self, readings: Readings) -> int:
        """Severity, 0 to 3, of the alarm after the newest step. Steps between two tries of what
        fails do not end it, as long as they are few."""
        if readings.fired:
            self._alarmed_steps += 1
            self._calm_steps = 0
            return alarm_severity(self._alarmed_steps)
        self._calm_steps += 1
        if self._calm_steps >= CALM_STEPS:
            self._alarmed_steps = 0
        return 0


def combine(
    scores: Mapping[str, float],
    evidence: dict[str, str],
    *,
    weights: Mapping[str, float],
    fire_threshold: float,
    alarming: Container[str] = frozenset(MONITORS),
) -> Readings:
    """The readings of single scores, which are in the order of MONITORS: among fired monitors of
    equal weighted score the first names the failure."""
    weighted = {name: weights[name] * score for name, score in scores.items()}
    over = [name for name, score in scores.items() if score >= fire_threshold]
    fired = tuple([name for name in over if name in alarming])
    return Readings(
        scores=dict(scores),
        composite=round(sum(weighted.values(), 0.0), COMPOSITE_DIGITS),
        fired=fired,
        failure_type=FAILURE_TYPES[max(fired, key=weighted.__getitem__)] if fired else None,
        evidence=evidence,
    )


# The name in an alarm about what returns over the runs of a session.
SESSION = "session"


def session_alarm(returned: Returned) -> Alarm:
    """The alarm about what has returned in a session."""
    return alarm_of(SESSION, f"session {returned.first_run}.{returned.first}", returned)


def alarm_of(monitor: str, name: str, found: Entry | Returned) -> Alarm:
    """The alarm about an entry of a ledger. `name` has no word of the run, and is the same at every
    gateway: it is stored."""
    return Alarm(
        monitor=monitor,
        entry=name,
        sentence=found.sentence,
        count=found.count,
        first_step=found.first,
        newest_step=found.newest,
    )
