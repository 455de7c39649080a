"""Rounds of retention in a file. Freed space is reused; the file itself does not shrink."""

from __future__ import annotations

from gateway.stores.sql.engine import Engine, Upkeep, columns
from gateway.stores.sqlite.connection import MEMORY_LIMIT_BYTES

_HEADS_AT_ONCE = 500
_KEY = ("root", "digest", "conversation_pk", "kind")
_ORPHANED_HEADS = f"""
SELECT {columns(_KEY)} FROM heads AS h
WHERE root >= :root AND NOT EXISTS (SELECT 1 FROM conversations AS c WHERE c.pk = h.conversation_pk)
ORDER BY root LIMIT {_HEADS_AT_ONCE}
"""
_REMOVE_HEADS = f"DELETE FROM heads WHERE {' AND '.join([f'{name} = :{name}' for name in _KEY])}"
_LOWEST_ROOT = -(2**63)


class SQLiteUpkeep(Upkeep):
    """`Upkeep` over an engine."""

    runs_at_once = conversations_at_once = 20
    used = """
        SELECT (page_count - freelist_count) * page_size
        FROM pragma_page_count, pragma_freelist_count, pragma_page_size
    """

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        if engine.database.settings.in_memory:  # the rest is for what arrives before the next round
            self.room = MEMORY_LIMIT_BYTES * 3 // 4

    async def remove_heads(self, removed: int) -> None:
        """Look for them, unless there cannot be any."""
        root = _LOWEST_ROOT
        while removed and (found := await self._engine.fetch(_ORPHANED_HEADS, root=root)):
            keys = [dict(zip(_KEY, row, strict=True)) for row in found]
            await self._engine.transact(lambda c, keys=keys: c.execute_many(_REMOVE_HEADS, keys))  # type: ignore[misc]
            root = keys[-1]["root"]
