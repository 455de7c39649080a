"""Scores of a step that is stored without them, because its scorer failed when its call was made.

The transcript has the step still: the next request gives its scores, and its row takes them.
"""

from __future__ import annotations

from dataclasses import dataclass

from msgspec.structs import replace

from gateway.stores.records import StepContent, StepRow


@dataclass(frozen=True, slots=True, kw_only=True)
class LateScore:
    """The scores of a step whose stored row has none.

    `state` and `content`: of the stored row.
    """

    step: StepRow
    state: str
    content: StepContent | None

    @property
    def merged_content(self) -> StepContent | None:
        """The texts of the stored call, with those of the step, which were not read then."""
        stored, read = self.content, self.step.content
        if stored is None or read is None:
            return stored or read
        return replace(
            stored,
            thought=read.thought,
            reasoning=read.reasoning,
            actions=read.actions,
            prompted=read.prompted,
        )

    def scored(self, row: StepRow) -> StepRow:
        """The row with the scores."""
        step = self.step
        return replace(step, at=row.at, call=row.call, content=self.merged_content)
