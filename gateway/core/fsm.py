"""The difficulty state machine: how hard the agent has been working lately.

Rules are rows `(from, guard, to)`, tried in order; the state stays when no guard is true."""

from collections.abc import Callable, Sequence
from enum import Enum
from math import isnan
from typing import Literal

from gateway.values import frozen

SkipExit = Literal["hold", "demote", "absorb"]


class FSMState(Enum):
    """State of a run after its newest scored step; the value is the name. END is set when a run
    ends, never by scores."""

    INIT = "INIT"
    FAST = "FAST"
    NORMAL = "NORMAL"
    SLOW = "SLOW"
    SKIP = "SKIP"
    END = "END"


# The names of what the state machine decides by: four numbers in [0, 1], then three windows.
FSM_THRESHOLDS = (
    "fast_threshold",
    "slow_threshold",
    "skip_threshold",
    "hysteresis_margin",
    "fast_window",
    "slow_window",
    "skip_window",
)

HARD_STATES = (FSMState.SLOW, FSMState.SKIP)


@frozen
class FSMSettings:
    """Thresholds and windows of the state machine.

    Raises: ValueError: a window below 1, a threshold or margin outside [0, 1], thresholds not in
    order. Source: docs/names.md, the state machine.
    """

    fast_threshold: float = 0.2  # in [0, 1]; a score below it is easy
    slow_threshold: float = 0.6  # in [0, 1]; a score above it is hard
    skip_threshold: float = 0.85  # in [0, 1]; a score above it is very hard
    # in [0, 1]: by how much a score must pass a threshold to undo its state
    hysteresis_margin: float = 0.1
    fast_window: int = 6  # easy scores in a row that make a run FAST
    slow_window: int = 5  # hard scores in a row that make a run SLOW
    skip_window: int = 35  # very hard scores in a row that bring a SLOW run into SKIP
    # what follows SKIP on a score that neither leaves nor confirms it: `hold` stays, `demote`
    # returns to SLOW, `absorb` stays until the run ends whatever the score
    skip_exit: SkipExit = "hold"

    def __post_init__(self) -> None:
        for name in FSM_THRESHOLDS[:4]:
            refuse_outside_unit(name, getattr(self, name))
        for name in FSM_THRESHOLDS[4:]:
            refuse_below_one(name, getattr(self, name))
        fast = self.fast_threshold
        slow = self.slow_threshold
        skip = self.skip_threshold
        if fast >= slow:
            raise ValueError(f"fast_threshold: {fast!r} is not below slow_threshold {slow!r}")
        if slow > skip:
            raise ValueError(f"slow_threshold: {slow!r} is above skip_threshold {skip!r}")

    @property
    def longest_window(self) -> int:
        """Scored steps of history that a transition can depend on."""
        return max(self.fast_window, self.slow_window, self.skip_window)


def refuse_outside_unit(name: str, value: float) -> None:
    """Raise a ValueError unless the value of a setting is in [0, 1]."""
    if not 0.0 <= value <= 1.0:
        raise ValueError(f"{name}: expected a number in [0, 1], got {value!r}")


def refuse_below_one(name: str, value: int) -> None:
    """Raise a ValueError unless the value of a setting is at least 1."""
    if value < 1:
        raise ValueError(f"{name}: expected a whole number of at least 1, got {value!r}")


Guard = Callable[[Sequence[float], FSMSettings], bool]


def _always(_history: Sequence[float], _settings: FSMSettings) -> bool:
    return True


def _window(history: Sequence[float], size: int, fits: Callable[[float], bool]) -> bool:
    """Whether there are `size` scores, and the newest ones all fit."""
    return fits(history[-1]) and len(history) >= size and all(map(fits, history[-size:]))


def _easy_window(history: Sequence[float], s: FSMSettings) -> bool:
    return _window(history, s.fast_window, lambda score: score < s.fast_threshold)


def _hard_window(history: Sequence[float], s: FSMSettings) -> bool:
    return _window(history, s.slow_window, lambda score: score > s.slow_threshold)


def _very_hard_window(history: Sequence[float], s: FSMSettings) -> bool:
    return _window(history, s.skip_window, lambda score: score > s.skip_threshold)


def _leaves_fast(history: Sequence[float], s: FSMSettings) -> bool:
    return history[-1] > s.fast_threshold + s.hysteresis_margin


def _leaves_slow(history: Sequence[float], s: FSMSettings) -> bool:
    return history[-1] < s.slow_threshold - s.hysteresis_margin


def _demoted(history: Sequence[float], s: FSMSettings) -> bool:
    return s.skip_exit == "demote" and not _very_hard_window(history, s)


def _leaves_skip(history: Sequence[float], s: FSMSettings) -> bool:
    return s.skip_exit != "absorb" and _leaves_slow(history, s)


# Every transition; all comparisons are strict. Source: docs/names.md, the state machine.
RULES: tuple[tuple[FSMState, Guard, FSMState], ...] = (
    (FSMState.INIT, _always, FSMState.NORMAL),
    (FSMState.NORMAL, _easy_window, FSMState.FAST),
    (FSMState.NORMAL, _hard_window, FSMState.SLOW),
    (FSMState.FAST, _leaves_fast, FSMState.NORMAL),
    (FSMState.SLOW, _leaves_slow, FSMState.NORMAL),
    (FSMState.SLOW, _very_hard_window, FSMState.SKIP),
    (FSMState.SKIP, _leaves_skip, FSMState.NORMAL),
    (FSMState.SKIP, _demoted, FSMState.SLOW),
)
_RULES_OF = {
    state: tuple([(guard, target) for origin, guard, target in RULES if origin is state])
    for state in FSMState
}


def next_state(state: FSMState, history: Sequence[float], settings: FSMSettings) -> FSMState:
    """The state after the newest score; one transition per scored step. `history`: the difficulty
    scores of the run, or the last `settings.longest_window` of them, the new one last. The state
    stays without a score or with NaN as the newest; an earlier NaN fits no window."""
    if not history or isnan(history[-1]):
        return state
    for guard, target in _RULES_OF[state]:
        if guard(history, settings):
            return target
    return state
