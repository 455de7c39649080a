"""Settings of learning from runs."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from gateway.steering.guidance.lessons import LessonSettings

DAY_S = 86_400.0


@dataclass(frozen=True, slots=True, kw_only=True)
class LearningSettings:
    """What is learned from runs, and whether anything learned is given to runs.

    `mining`: whether runs are read for lessons when they are over; the lessons stay candidates.
    `trials`: `on` = lessons with enough support are tried, and those that pass are given.
    `idle_s`: seconds without a call after which a run counts as over. `interval_s`: between two
    looks for runs that are over. `per_call`, `per_run`: most lessons given. `max_chars`: longest
    lesson. `similarity`: in [0, 1], that a lesson for another failure of the same tool needs.
    `max_instances`, `max_general`: most lessons of tier e1 and e2 of a tenant. `expire_days`:
    without being given or confirmed. `model`: the name of a model, as a client would request it,
    that is asked about failures which the templates cannot put into words; empty = none.
    `model_tokens_per_day`, `model_usd_per_day`: most that it may use for one tenant and day (UTC),
    exceeded by one call at most. `model_timeout_s`: longest wait for one answer.
    """

    mining: bool = True
    trials: Literal["off", "on"] = "off"
    idle_s: float = 900.0
    interval_s: float = 5.0
    per_call: int = 2
    per_run: int = 4
    max_chars: int = 600
    similarity: float = 0.85
    max_instances: int = 2000
    max_general: int = 500
    expire_days: float = 90.0
    model: str = ""
    model_tokens_per_day: int = 100_000
    model_usd_per_day: float = 1.0
    model_timeout_s: float = 60.0

    def __post_init__(self) -> None:
        positive = ("idle_s", "interval_s", "expire_days", "model_usd_per_day", "model_timeout_s")
        for name in positive:
            if not 0 < getattr(self, name) < float("inf"):
                raise ValueError(f"{name}: must be above 0, and finite")
        for name, least in (("per_call", 0), ("per_run", 0), ("max_chars", 120)):
            if getattr(self, name) < least:
                raise ValueError(f"{name}: must be {least} or more")
        for name in ("max_instances", "max_general", "model_tokens_per_day"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name}: must be 1 or more")
        if not 0.0 <= self.similarity <= 1.0:
            raise ValueError("similarity: must be in [0, 1]")

    @property
    def expire_s(self) -> float:
        """Seconds after which a lesson that is neither given nor confirmed expires."""
        return self.expire_days * DAY_S

    def rules(self) -> LessonSettings:
        """What decides about lessons for a call."""
        return LessonSettings(
            trials=self.trials == "on",
            per_call=self.per_call,
            per_run=self.per_run,
            max_chars=self.max_chars,
            similarity=self.similarity,
        )
