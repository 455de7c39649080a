"""Holds on runs in SQLite."""

from __future__ import annotations

from collections.abc import Sequence

import apsw

from gateway.stores.budgets import Control
from gateway.stores.sqlite.database import Database

_HOLD = """
INSERT INTO run_controls (subject, tenant, action, reason, at) VALUES (?, ?, ?, ?, ?)
ON CONFLICT (subject) DO UPDATE SET tenant = excluded.tenant, action = excluded.action,
    reason = excluded.reason, at = excluded.at
"""
_LIST = "SELECT subject, tenant, action, reason, at FROM run_controls ORDER BY at, subject"


class SQLiteControlStore:
    """`ControlStore` over a Database."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def hold(self, control: Control) -> None:
        """See ControlStore."""
        values = (control.subject, control.tenant, control.action, control.reason, control.at)

        def work(connection: apsw.Connection) -> None:
            connection.execute(_HOLD, values)

        await self._database.write(work)

    async def release(self, subject: str) -> bool:
        """See ControlStore."""

        def work(connection: apsw.Connection) -> bool:
            connection.execute("DELETE FROM run_controls WHERE subject = ?", (subject,))
            return connection.changes() > 0

        return await self._database.write(work)

    async def list_controls(self) -> Sequence[Control]:
        """See ControlStore."""

        def work(connection: apsw.Connection) -> list[Control]:
            return [
                Control(subject=subject, tenant=tenant, action=action, reason=reason, at=at)
                for subject, tenant, action, reason, at in connection.execute(_LIST)
            ]

        return await self._database.read(work)
