"""Holds on runs."""

from __future__ import annotations

from collections.abc import Sequence

from gateway.stores.budgets import Control
from gateway.stores.protocols import CONTROLS
from gateway.stores.sql.engine import Engine, columns, excluded, values

_NAMES = ("subject", "tenant", "action", "reason", "at")
_HOLD = f"""
INSERT INTO run_controls ({columns(_NAMES)}) VALUES ({values(_NAMES)})
ON CONFLICT (subject) DO UPDATE SET {excluded(_NAMES[1:])}
"""
_RELEASE = "DELETE FROM run_controls WHERE subject = :subject RETURNING TRUE"
_LIST = f"SELECT {columns(_NAMES)} FROM run_controls ORDER BY at, subject"


class SQLControlStore:
    """`ControlStore` over an engine."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine

    async def hold(self, control: Control) -> None:
        await self._engine.write(_HOLD, **{name: getattr(control, name) for name in _NAMES})
        await self._engine.changed(CONTROLS)

    async def release(self, subject: str) -> bool:
        released = bool(await self._engine.write(_RELEASE, subject=subject))
        await self._engine.changed(CONTROLS)
        return released

    async def list_controls(self) -> Sequence[Control]:
        rows = await self._engine.fetch(_LIST)
        return [Control(**dict(zip(_NAMES, row, strict=True))) for row in rows]
