"""Rounds of retention in a file. Freed space is reused; the file itself does not shrink."""

from __future__ import annotations

from functools import partial
from typing import Any

import apsw

from gateway.stores.sql.engine import Upkeep
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


class SQLiteUpkeep(Upkeep):
    """`Upkeep` of a Database."""

    runs_at_once = conversations_at_once = 20
    used = """
        SELECT (page_count - freelist_count) * page_size
        FROM pragma_page_count, pragma_freelist_count, pragma_page_size
    """

    def __init__(self, database: Database) -> None:
        self._database = database
        if database.settings.in_memory:  # the rest is for what arrives before the next round
            self.room = MEMORY_LIMIT_BYTES * 3 // 4

    async def remove_heads(self, removed: int) -> None:
        """Look for them, unless there cannot be any."""

        def orphaned(connection: apsw.Connection, root: int) -> list[Any]:
            return connection.execute(_ORPHANED_HEADS, (root,)).fetchall()

        root = _LOWEST_ROOT
        while removed and (keys := await self._database.read(partial(orphaned, root=root))):
            await self._database.write(lambda c, keys=keys: c.executemany(_REMOVE_HEADS, keys))  # type: ignore[misc]
            root = keys[-1][0]
