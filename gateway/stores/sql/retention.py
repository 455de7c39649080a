"""Retention: removes what is too old, or exceeds the size limit, in small batches.

The rows to remove are selected by reads, which delay no commit; each transaction removes one batch.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from math import inf

from gateway.stores.queries import PruneReport
from gateway.stores.sql.engine import Connection, Engine

_CANDIDATES = 500
_OF_RUNS = {"raw_calls": "run_pk", "injections": "run_pk", "steps": "run_pk", "runs": "pk"}
_OF_CONVERSATIONS = {"items": "conversation_pk", "conversations": "pk"}


async def prune(
    engine: Engine,
    older_than: float | None,
    max_bytes: int | None,
    active_since: float | None,
    keep: Sequence[str],
) -> PruneReport:
    """One round; see RunStore."""
    before = await _used(engine)
    if not await engine.upkeep.begin():
        return PruneReport(conversations=0, runs=0, bytes_before=before, bytes_after=before)
    by_id = f"SELECT pk FROM conversations WHERE {engine.dialect.among('id', 'keep', 'text')}"
    kept = [pk for (pk,) in await engine.fetch(by_id, keep=list(keep))]
    work = _Round(engine, kept)
    if older_than is not None:
        await work.remove_old(older_than)
    limit = min(engine.upkeep.room, inf if max_bytes is None else max_bytes)
    if limit < inf:
        await work.make_room(limit, inf if active_since is None else active_since)
    await engine.upkeep.remove_heads(work.conversations)
    return PruneReport(
        conversations=work.conversations,
        runs=work.runs,
        bytes_before=before,
        bytes_after=await _used(engine),
    )


async def _used(engine: Engine) -> int:
    return int((await engine.fetch(engine.upkeep.used))[0][0])


class _Round:
    """Removals of a round. `kept`: the conversations that stay, with their runs."""

    def __init__(self, engine: Engine, kept: list[int]) -> None:
        self._engine = engine
        self._upkeep = engine.upkeep
        self._kept = kept
        self.conversations = self.runs = 0

    async def remove_old(self, older_than: float) -> None:
        """Remove what was last updated before `older_than`."""
        sql = "DELETE FROM answers WHERE at < :at"
        await self._engine.transact(lambda c: c.fetch(sql, at=older_than), patient=True)
        self.runs += await self._upkeep.remove_days(older_than, self._kept)
        old = "started_at < :bound AND updated_at < :bound"
        at_once = self._upkeep.runs_at_once
        while pks := await self._select("runs", "conversation_pk", old, older_than, at_once):
            await self._engine.transact(partial(self._remove, _OF_RUNS, pks), patient=True)
            self.runs += len(pks)
        old = "created_at < :bound AND updated_at < :bound"
        at_once = self._upkeep.conversations_at_once
        while pks := await self._select("conversations", "pk", old, older_than, at_once):
            if not (await self._remove_conversations(pks, inf))[0]:
                return  # all are in use at the moment

    async def make_room(self, limit: float, active_since: float) -> None:
        """Remove the least recently used until at most `limit` bytes are in use."""
        unused = "updated_at < :bound ORDER BY updated_at, pk"
        surplus, removed = await _used(self._engine) - limit, 1
        while surplus > 0 and removed:
            removed = 0
            pks = await self._select("conversations", "pk", unused, active_since, _CANDIDATES)
            while pks and surplus > 0:
                batch = pks[: self._upkeep.conversations_at_once]
                del pks[: len(batch)]
                number, freed = await self._remove_conversations(batch, surplus)
                surplus = await _used(self._engine) - limit if freed is None else surplus - freed
                removed += number

    async def _select(
        self, table: str, conversation: str, which: str, bound: float, limit: int
    ) -> list[int]:
        """Keys of rows; `conversation`: the column with the key of theirs."""
        kept = self._engine.dialect.among(conversation, "kept", "int8")
        sql = f"SELECT pk FROM {table} WHERE NOT ({kept}) AND {which} LIMIT {limit}"
        rows = await self._engine.read(
            lambda c: c.fetch(sql, bound=bound, kept=self._kept), patient=True
        )
        return [pk for (pk,) in rows]

    async def _remove_conversations(self, pks: list[int], surplus: float) -> tuple[int, int | None]:
        """The number removed, with their runs, and the bytes that this frees, as in `choose`.

        Their hashes no longer match, and are removed later."""

        async def work(connection: Connection) -> tuple[int, int, int | None]:
            chosen, freed = await self._upkeep.choose(pks, surplus, connection)
            sql = f"SELECT pk FROM runs WHERE {self._among('conversation_pk')}"
            runs = [pk for (pk,) in await connection.fetch(sql, pks=chosen)]
            await self._remove(_OF_RUNS, runs, connection)
            await self._remove(_OF_CONVERSATIONS, chosen, connection)
            return len(chosen), len(runs), freed

        conversations, runs, freed = await self._engine.transact(work, patient=True)
        self.conversations, self.runs = self.conversations + conversations, self.runs + runs
        return conversations, freed

    async def _remove(
        self, tables: Mapping[str, str], pks: list[int], connection: Connection
    ) -> None:
        for table, column in tables.items():
            await connection.fetch(f"DELETE FROM {table} WHERE {self._among(column)}", pks=pks)

    def _among(self, column: str) -> str:
        return self._engine.dialect.among(column, "pks", "int8")
