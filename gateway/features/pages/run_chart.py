"""The values of a run's charts; `charts.html` of the shared page files draws them."""

from collections.abc import Mapping, Sequence
from functools import reduce
from itertools import accumulate, groupby

from gateway.stores import severity
from gateway.stores.records import InjectionRow, StepRow
from gateway.stores.totals import plus
from gateway.stores.traces import RunTrace
from gateway.text import svg
from gateway.values import frozen

_WIDE_UP_TO = 150  # steps; with more, dots overlap


@frozen
class RunChart:
    """A run's steps in order, each in a slot of equal width."""

    steps: Sequence[StepRow]  # scored or not, in their order
    guidance: Mapping[int, Sequence[InjectionRow]]  # by step
    thresholds: Mapping[str, float]  # by name, in force now
    difficulty_px: int = 190  # height of the chart of difficulty

    @classmethod
    def of(cls, trace: RunTrace, thresholds: Mapping[str, float]) -> "RunChart":
        """The chart of a trace; the texts of its steps are not needed."""
        rows = sorted(trace.injections, key=lambda row: row.step_index)
        by_step = {index: list(group) for index, group in groupby(rows, lambda r: r.step_index)}
        return cls(steps=trace.steps, guidance=by_step, thresholds=thresholds)

    @property
    def slots(self) -> int:
        """Number of steps that share the width; at least one."""
        return max(1, len(self.steps))

    @property
    def wide(self) -> bool:
        """Whether slots are wide enough for dots, and for gaps between bars."""
        return self.slots <= _WIDE_UP_TO

    def left(self, slot: float) -> str:
        """Left edge of a slot."""
        return svg.share(slot, self.slots)

    @property
    def dots(self) -> list[tuple[float | None, bool]]:
        """The score of each step, and whether a monitor fired."""
        return [(step.difficulty, bool(step.fired)) for step in self.steps]

    @property
    def asked(self) -> list[str | None]:
        """The model asked at each step; None without a call."""
        return [step.call.model_asked if step.call else None for step in self.steps]

    @property
    def models(self) -> list[str]:
        """The models asked, in the order of their first call."""
        return list(dict.fromkeys(name for name in self.asked if name is not None))

    @property
    def severities(self) -> list[str]:
        """The severity of each step; `none` without a composite."""
        return [
            "none" if step.composite is None else severity.step_severity(step, stuck)
            for step, stuck in zip(self.steps, severity.streaks(self.steps), strict=True)
        ]

    def heat(self, name: str) -> list[int | None]:
        """The level of one monitor's reading at each step."""
        fire = self.thresholds["fire"]
        return [svg.heat(step.scores.get(name), fire) for step in self.steps]

    @property
    def tokens(self) -> list[dict[str, int]]:
        """Cached input, other input and output of each step; empty without a call."""
        found = []
        for step in self.steps:
            parts = {}
            if step.call:
                cached = step.call.cached_tokens or 0
                fresh = max(0, (step.call.input_tokens or 0) - cached)
                parts = {"cached": cached, "fresh": fresh, "output": step.call.output_tokens or 0}
            found.append(parts)
        return found

    @property
    def most_tokens(self) -> int:
        """The tokens of the highest bar."""
        return max((sum(parts.values()) for parts in self.tokens), default=0)

    @property
    def cost(self) -> float | None:
        """US dollars of the whole run; None where no cost is known."""
        return reduce(plus, [step.call.cost_usd for step in self.steps if step.call], None)

    @property
    def cost_shares(self) -> list[float]:
        """The part of the cost that was spent up to each step; empty without a cost."""
        costs = [(step.call.cost_usd or 0.0) if step.call else 0.0 for step in self.steps]
        total = sum(costs)
        if total > 0:
            return [so_far / total for so_far in accumulate(costs)]
        return []
