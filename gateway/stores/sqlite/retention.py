"""Rounds of retention in a file. Freed space is reused; the file itself does not shrink."""

from __future__ import annotations

from functools import partial
from math import inf
from typing import Any

import apsw

from gateway.stores.sql.engine import Connection
from gateway.stores.sqlite.connection import MEMORY_LIMIT_BYTES
from gateway.stores.sqlite.database import Database

_HEADS_AT_ONCE = 500
_ORPHANED_HEADS = f"""
SELECT root, digest, conversation_pk, kind FROM heads AS h
WHERE root >= ? AND NOT EXISTS (SELECT 1 FROM conversations AS c WHERE c.pk = h.conversation_pk)
ORDER BY root LIMIT {_HEADS_AT_ONCE}
"""
_REMOVE_HEADS = """
DELETE FROM heads WHERE root = ? AND digest = ? AND conversation_pk = ? AND kind = ?
"""
_LOWEST_ROOT = -(2**63)


class SQLiteUpkeep:
    """`Upkeep` of a Database."""

    runs_at_once = conversations_at_once = 20
    used = """
        SELECT (page_count - freelist_count) * page_size
        FROM pragma_page_count, pragma_freelist_count, pragma_page_size
    """

    def __init__(self, database: Database) -> None:
        self._database = database
        # The rest of what a database in memory can hold is room for what arrives before the next
        # round.
        self.room = MEMORY_LIMIT_BYTES * 3 // 4 if database.settings.in_memory else inf

    async def begin(self) -> bool:
        """Each file has one gateway that does it."""
        return True

    async def remove_days(self, older_than: float, kept: list[int]) -> int:
        """None: the runs of a day are not kept together."""
        return 0

    async def choose(
        self, pks: list[int], surplus: float, connection: Connection
    ) -> tuple[list[int], int | None]:
        """All of them: they share pages, so that only a measurement tells what is free."""
        return pks, None

    async def remove_heads(self, removed: int) -> None:
        """Look for them, unless there cannot be any."""
        root = _LOWEST_ROOT
        while removed and (keys := await self._database.read(partial(_orphaned_heads, root))):
            await self._database.write(partial(_remove_heads, keys))
            root = keys[-1][0]


def _orphaned_heads(root: int, connection: apsw.Connection) -> list[Any]:
    return connection.execute(_ORPHANED_HEADS, (root,)).fetchall()


def _remove_heads(keys: list[Any], connection: apsw.Connection) -> None:
    connection.executemany(_REMOVE_HEADS, keys)
