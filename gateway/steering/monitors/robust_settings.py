"""Settings of the robust monitors."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class RobustSettings:
    """What an operator may tune; the rest of the suite was set on recorded runs.

    `call_budget`: calls at which `call_count` fires, None = learned per kind of agent;
    `recovery`: what is left of a score after one action that is not a repeat, in [0, 1);
    `novelty_window`: actions that `diversity` looks at; `trend_window`: thoughts on each side of
    the hedging trend.

    Raises:
        ValueError: a value out of range.
    """

    call_budget: int | None = None
    recovery: float = 0.7
    novelty_window: int = 8
    trend_window: int = 4

    def __post_init__(self) -> None:
        for name in ("call_budget", "novelty_window", "trend_window"):
            value = getattr(self, name)
            if value is None and name == "call_budget":
                continue
            if isinstance(value, bool) or not isinstance(value, int) or value < 1:
                raise ValueError(f"{name}: expected a whole number of at least 1, got {value!r}")
        if not isinstance(self.recovery, int | float) or not 0.0 <= self.recovery < 1.0:
            raise ValueError(f"recovery: expected a number in [0, 1), got {self.recovery!r}")
