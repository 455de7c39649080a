"""Settings of the scorer of difficulty, and of the model that scorer `judge` asks."""

from gateway.config.values import above_zero, at_least
from gateway.core.scoring.scorer import ScorerName
from gateway.values import frozen

LEAST_JUDGE_MS = 100  # the shortest useful limit: no model answers faster over a network


@frozen
class JudgeSettings:
    """The model that the scorer `judge` asks, and how long a request waits for it: the shorter
    of the two limits holds. The deployment of the model has the key."""

    model: str = ""  # its name in model_list, or provider/model
    timeout_ms: float = 2000  # longest time a request waits for it; milliseconds
    # share of steering.deadline_ms it may use, in (0, 1); raise the deadline for it
    deadline_share: float = 0.8
    cache_entries: int = 1000  # scores kept in memory, by question; 0 = none

    def __post_init__(self) -> None:
        above_zero(self, "timeout_ms")
        if not 0 < self.deadline_share < 1:
            raise ValueError("deadline_share: must be above 0 and below 1")
        at_least(self, 0, "cache_entries")

    def limit_s(self, deadline_ms: float) -> float:
        """Longest wait for a score, in seconds. Raises ValueError: no model is named, or the
        deadline leaves it less than LEAST_JUDGE_MS."""
        if not self.model:
            raise ValueError("difficulty.judge.model: needed by scorer judge")
        limit_ms = min(self.timeout_ms, self.deadline_share * deadline_ms)
        if limit_ms < LEAST_JUDGE_MS:
            raise ValueError(
                f"difficulty.judge: {limit_ms:g} ms is too short for a model to answer; raise "
                "steering.deadline_ms and difficulty.judge.timeout_ms"
            )
        return limit_ms / 1000


@frozen
class ScorerSettings:
    """The difficulty scorer, and the model of scorer `judge`."""

    # ledger = a table over what was tried; heuristic = the reference's formula; judge = a model is
    # asked
    scorer: ScorerName = "ledger"
    # the model that scorer `judge` asks about each new step; without its score the ledger's is used
    judge: JudgeSettings = JudgeSettings()
