"""Settings of the difficulty scorer, and of the model that may judge difficulty."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

from gateway.config.values import at_least
from gateway.steering.scoring.calibration import calibration_from_json
from gateway.steering.scoring.scorer import DifficultySettings, ScorerName

LEAST_JUDGE_MS = 100
"""The shortest useful limit: no model answers faster over a network."""


@dataclass(frozen=True, slots=True, kw_only=True)
class JudgeSettings:
    """The model that the scorer `judge` asks, and how long a request waits for it.

    `model`: a model name as a client would request it; its deployment has the key. `timeout_ms`:
    longest wait, in milliseconds. `deadline_share`: longest wait as a share of
    `steering.deadline_ms`, in (0, 1); the shorter of the two holds. `cache_entries`: number of
    questions whose scores are kept in memory, 0 = none.
    """

    model: str = ""
    timeout_ms: float = 2000
    deadline_share: float = 0.8
    cache_entries: int = 1000

    def __post_init__(self) -> None:
        if not 0 < self.timeout_ms < float("inf"):
            raise ValueError("timeout_ms: must be above 0, and finite")
        if not 0 < self.deadline_share < 1:
            raise ValueError("deadline_share: must be above 0 and below 1")
        at_least(self.cache_entries, 0, "cache_entries")

    def limit_s(self, deadline_ms: float) -> float:
        """Longest wait for a score, in seconds.

        Raises:
            ValueError: no model is named, or the deadline leaves it less than LEAST_JUDGE_MS.
        """
        if not self.model:
            raise ValueError("difficulty.judge.model: needed by scorer judge")
        limit_ms = min(self.timeout_ms, self.deadline_share * deadline_ms)
        if limit_ms < LEAST_JUDGE_MS:
            raise ValueError(
                f"difficulty.judge: {limit_ms:g} ms is too short for a model to answer; raise "
                "steering.deadline_ms and difficulty.judge.timeout_ms"
            )
        return limit_ms / 1000


@dataclass(frozen=True, slots=True, kw_only=True)
class ScorerSettings:
    """Which difficulty scorer, with the shipped weights or those of a file.

    `judge`: the model that the scorer `judge` asks about each new step.
    """

    scorer: ScorerName = "calibrated"
    weights_file: str | None = None
    judge: JudgeSettings = field(default_factory=JudgeSettings)

    def load(self) -> DifficultySettings:
        """The scorer's settings with the weights read.

        Raises:
            ValueError: the file cannot be read, or does not contain weights.
        """
        if self.weights_file is None:
            return DifficultySettings(scorer=self.scorer)
        try:
            text = Path(self.weights_file).read_text(encoding="utf-8")
            weights = calibration_from_json(text)
        except (OSError, ValueError) as exc:
            problem = exc.strerror if isinstance(exc, OSError) else exc
            raise ValueError(f"difficulty.weights_file: {self.weights_file}: {problem}") from exc
        return DifficultySettings(scorer=self.scorer, calibration=weights)
