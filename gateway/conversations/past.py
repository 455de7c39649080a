"""The steps of a run that its transcript no longer brings, read back from the run log."""

from __future__ import annotations

from gateway.observability.logging import get_logger
from gateway.steering.fold import Carried
from gateway.steering.steps import Step
from gateway.stores.base import RunStore, StateStore, StoreError
from gateway.stores.records import StepRow

_MAX_PARENTS = 16  # forks of forks; a fork's own rows begin where it left its parent

_log = get_logger("gateway.conversations")


def run_id(conversation_id: str, run: int) -> str:
    """The id of a run: the conversation's and a number, equal on every replica."""
    return f"{conversation_id}.{run}"


class PastSteps:
    """Reads what monitors and scorers have seen of a run before the request at hand."""

    def __init__(self, runs: RunStore, states: StateStore) -> None:
        self._runs = runs
        self._states = states

    async def __call__(self, tenant: str, conversation_id: str, upto: Carried) -> tuple[Step, ...]:
        """The scored steps of a run, oldest first, as far as they are on record.

        None are given when the store cannot be read: windows that restart are better than no
        steering.
        """
        try:
            rows = await self._rows(tenant, conversation_id, upto)
        except StoreError as exc:
            _log.warning("earlier steps not read", reason=str(exc))
            return ()
        return tuple(_step(row) for _, row in sorted(rows.items()))

    async def _rows(self, tenant: str, conversation_id: str, upto: Carried) -> dict[int, StepRow]:
        rows: dict[int, StepRow] = {}
        name: str | None = conversation_id
        first = upto.steps + 1
        for _ in range(_MAX_PARENTS):
            if name is None or first <= 1:
                break
            found = await self._runs.get_run(run_id(name, upto.run), tenant=tenant, limit=first)
            own = [row for row in found.steps if row.difficulty is not None] if found else []
            rows |= {row.step_index: row for row in own}
            first = min(rows, default=first)
            record = await self._states.load(tenant, name) if first > 1 else None
            name = record.parent_id if record is not None else None
        return rows


def _step(row: StepRow) -> Step:
    content = row.content
    if content is None:
        return Step(index=row.step_index - 1)
    return Step(
        index=row.step_index - 1,
        thought=content.thought,
        prompted=content.prompted,
        actions=content.actions,
        reasoning=content.reasoning,
    )
