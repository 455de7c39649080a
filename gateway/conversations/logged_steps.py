"""The steps of a run that its transcript no longer has, read from the run log."""

from __future__ import annotations

from functools import partial

from gateway.conversations.conversation import run_id
from gateway.observability.logging import get_logger
from gateway.steering.fold import RunSnapshot
from gateway.steering.transcript.steps import Step
from gateway.stores.protocols import RunStore, StateStore, StoreError
from gateway.stores.reads import Reads, directly
from gateway.stores.records import StepRow

_MAX_PARENTS = 16  # forks of forks; a fork has rows only from the step at which it left its parent

_log = get_logger("gateway.conversations")


class LoggedSteps:
    """Reads the earlier steps of a run, which monitors and scorer need, from the store."""

    def __init__(self, runs: RunStore, states: StateStore, read: Reads = directly) -> None:
        self._read = read
        self._runs = runs
        self._states = states

    async def read(self, tenant: str, conversation_id: str, upto: RunSnapshot) -> tuple[Step, ...]:
        """The scored steps of a run, oldest first, as far as they were recorded.

        Empty when the store cannot be read: it is better to restart the windows than not to steer.
        """
        try:
            rows = await self._rows(tenant, conversation_id, upto)
        except StoreError as exc:
            _log.warning("earlier steps not read", reason=str(exc))
            return ()
        return tuple(_step(row) for _, row in sorted(rows.items()))

    async def _rows(
        self, tenant: str, conversation_id: str, upto: RunSnapshot
    ) -> dict[int, StepRow]:
        rows: dict[int, StepRow] = {}
        name: str | None = conversation_id
        first = upto.steps + 1
        for _ in range(_MAX_PARENTS):
            if name is None or first <= 1:
                break
            get = partial(self._runs.get_run, run_id(name, upto.run), tenant=tenant, limit=first)
            found = await self._read(get)
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
