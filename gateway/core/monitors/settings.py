"""Settings of the monitors: the ones that run, their weights, and the scores at which they fire."""

from collections.abc import Iterable, Mapping
from dataclasses import field

from gateway.core.fsm import refuse_below_one
from gateway.core.monitors.table import (
    DEFAULT_PROFILE,
    MONITORS,
    PROFILES,
    TABLE,
    SuiteName,
)
from gateway.values import frozen

CALLS_OF_WORK = 189
# Calls that solved runs rarely need, of agents that read, change or run files and of others.
# Source: four times the 98th percentile of the solved among 654 recorded runs.
CALLS_OF_TALK = 56


@frozen
class RobustSettings:
    """Settings of suite `robust`; its other constants were set on recorded runs. Raises
    ValueError: a value out of range."""

    # calls at which `call_count` fires; None = CALLS_OF_WORK or CALLS_OF_TALK
    call_budget: int | None = None
    # share of a score that is left after one action that is no repeat, in [0, 1)
    recovery: float = 0.7
    novelty_window: int = 8  # actions that `diversity` looks at
    trend_window: int = 4  # thoughts on each side of the hedging trend

    def __post_init__(self) -> None:
        if self.call_budget is not None:
            refuse_below_one("call_budget", self.call_budget)
        refuse_below_one("novelty_window", self.novelty_window)
        refuse_below_one("trend_window", self.trend_window)
        if not 0.0 <= self.recovery < 1.0:
            raise ValueError(f"recovery: expected a number in [0, 1), got {self.recovery!r}")


@frozen
class MonitorSettings:
    """Suite of monitors, their weights, and the threshold at which one fires.

    Raises: ValueError: unknown profile or monitor name, a profile named like a built-in one, a
    threshold or count out of range. Source: reference sections 4.1-4.8.
    """

    # `robust` reads the ledger of tries; `reference` has the seeds' formulas
    suite: SuiteName = "robust"
    profile: str = DEFAULT_PROFILE  # weights for a kind of task, built in or of `profiles`
    # override single weights of the profile; clamped to [0, 1]
    weights: Mapping[str, float] = field(default_factory=dict)
    # custom ones: weight by monitor; one left out keeps its default weight
    profiles: Mapping[str, Mapping[str, float]] = field(default_factory=dict)
    monitors: tuple[str, ...] | None = None  # the ones that run; None = all of the suite
    # the ones that may fire; None = those that do by default: in suite `robust` the three over
    # tries that fail, repeat or undo each other
    alarms: tuple[str, ...] | None = None
    fire_threshold: float = 0.6  # score in (0, 1] from which a monitor fires
    streak_cap: int = 5  # suite `reference`: calls in a row at which `streak` scores 1
    call_budget: int = 20  # suite `reference`: calls at which `call_count` scores 1
    diversity_window: int = 5  # suite `reference`: newest calls that `diversity` looks at
    diversity_min_total: int = 8  # suite `reference`: calls before `diversity` says anything
    # what applies to suite `robust` alone
    robust: RobustSettings = RobustSettings()

    def __post_init__(self) -> None:
        _refuse_unknown("weights", self.weights)
        for name, weights in self.profiles.items():
            if name in PROFILES:
                raise ValueError(f"profiles.{name}: a built-in profile cannot be changed")
            _refuse_unknown(f"profiles.{name}", weights)
        known = [*PROFILES, *self.profiles]
        if self.profile not in known:
            raise ValueError(f"profile: {self.profile!r} is not one of {', '.join(known)}")
        _refuse_unknown("monitors", self.monitors or ())
        _refuse_unknown("alarms", self.alarms or ())
        fire = self.fire_threshold
        if not 0.0 < fire <= 1.0:
            raise ValueError(f"fire_threshold: expected a number in (0, 1], got {fire!r}")
        for name in ("streak_cap", "call_budget", "diversity_window", "diversity_min_total"):
            refuse_below_one(name, getattr(self, name))

    @property
    def active(self) -> tuple[str, ...]:
        """The monitors that run, in the order of MONITORS: those of the suite that are listed."""
        listed = MONITORS if self.monitors is None else self.monitors
        return tuple(r.name for r in TABLE if self.suite in r.classes and r.name in listed)

    @property
    def alarming(self) -> frozenset[str]:
        """The monitors that may fire."""
        if self.alarms is not None:
            return frozenset(self.alarms)
        return frozenset(row.name for row in TABLE if self.suite not in row.reads_in)

    def resolved_weights(self) -> dict[str, float]:
        """Weight of each monitor in [0, 1]: defaults, then the profile, then the overrides."""
        chosen = {**PROFILES, **self.profiles}[self.profile]
        merged = {**PROFILES[DEFAULT_PROFILE], **chosen, **self.weights}
        return {name: min(max(float(merged[name]), 0.0), 1.0) for name in MONITORS}


def _refuse_unknown(key: str, names: Iterable[str]) -> None:
    for name in names:
        if name not in MONITORS:
            raise ValueError(f"{key}: {name!r} is not one of {', '.join(MONITORS)}")
