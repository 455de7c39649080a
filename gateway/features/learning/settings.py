"""Settings of learning, and of the model that reads language for the gateway."""

from typing import TYPE_CHECKING, Literal

from gateway.config.values import above_zero, at_least
from gateway.values import frozen

if TYPE_CHECKING:
    from gateway.config import Settings
    from gateway.steering.guidance.lessons import LessonSettings

DAY_S = 86_400.0


@frozen
class LearningSettings:
    """Limits of lessons, and the switch for giving them to runs."""

    # on = what ended the same failure is given, approved lessons are tried, active ones are given
    trials: Literal["off", "on"] = "off"
    over_after_s: float = 900.0  # a run without a call for this long counts as over; seconds
    interval_s: float = 5.0  # time between two looks for runs that are over; seconds
    per_call: int = 2  # most lessons given with one call
    per_run: int = 4  # most lessons given in one run
    max_chars: int = 600  # longest lesson as it is given; characters

    def __post_init__(self) -> None:
        above_zero(self, "over_after_s", "interval_s")
        at_least(self, 0, "per_call", "per_run")
        at_least(self, 120, "max_chars")


@frozen
class ReaderSettings:
    """The model that reads language for the gateway, and what it may use."""

    model: str = ""  # name of a model that this gateway serves; empty: nothing is read
    tokens_per_day: int = 100_000  # most tokens for one tenant and day (UTC)
    usd_per_day: float = 1.0  # the same in US dollars
    timeout_s: float = 60.0  # longest wait for an answer, in seconds
    interval_s: float = 5.0  # seconds between two looks for something to read

    def __post_init__(self) -> None:
        above_zero(self, "usd_per_day", "timeout_s", "interval_s")
        at_least(self, 1, "tokens_per_day")

    def named_models(self) -> dict[str, str]:
        """The model that a setting names, by its key."""
        if self.model:
            return {"model": self.model}
        return {}


def lesson_rules(settings: "Settings") -> "LessonSettings":
    """The settings that decide about lessons for a call."""
    from gateway.steering.guidance.lessons import LessonSettings

    own = settings.of(LearningSettings)
    same = {name: getattr(own, name) for name in ("per_call", "per_run", "max_chars")}
    return LessonSettings(trials=own.trials == "on", **same)
