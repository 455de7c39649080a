"""Holds on runs in PostgreSQL."""

from __future__ import annotations

from collections.abc import Sequence

from gateway.stores.budgets import Control
from gateway.stores.postgres.database import Database
from gateway.stores.postgres.text import read_text, stored_text
from gateway.stores.protocols import CONTROLS

_HOLD = """
INSERT INTO run_controls (subject, tenant, action, reason, at) VALUES ($1, $2, $3, $4, $5)
ON CONFLICT (subject) DO UPDATE SET tenant = excluded.tenant, action = excluded.action,
    reason = excluded.reason, at = excluded.at
"""
_RELEASE = "DELETE FROM run_controls WHERE subject = $1 RETURNING TRUE"
_LIST = "SELECT subject, tenant, action, reason, at FROM run_controls ORDER BY at, subject"


class PostgresControlStore:
    """`ControlStore` over a Database."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def hold(self, control: Control) -> None:
        """See ControlStore."""
        texts = (control.subject, control.tenant, control.action, control.reason)
        await self._database.fetch(_HOLD, *map(stored_text, texts), control.at)
        await self._database.changed(CONTROLS)

    async def release(self, subject: str) -> bool:
        """See ControlStore."""
        released = bool(await self._database.fetch(_RELEASE, stored_text(subject)))
        await self._database.changed(CONTROLS)
        return released

    async def list_controls(self) -> Sequence[Control]:
        """See ControlStore."""
        return [
            Control(
                subject=read_text(subject),
                tenant=read_text(tenant),
                action=action,
                reason=read_text(reason),
                at=at,
            )
            for subject, tenant, action, reason, at in await self._database.fetch(_LIST)
        ]
