"""Removal of old runs and conversations: first what is too old, then the least recently used until
the rest fits. When that is done: `gateway/retention_schedule.py`."""

from functools import partial
from math import inf

from gateway.stores.sql.engine import Connection, Engine
from gateway.values import Texts

_CANDIDATES = 500
_OF_RUNS = {"raw_calls": "run_pk", "injections": "run_pk", "steps": "run_pk", "runs": "pk"}
_OF_CONVERSATIONS = {"items": "conversation_pk", "conversations": "pk"}


class Removal:
    """Removals of a round of retention. `kept`: the conversations that stay, with their runs."""

    def __init__(self, engine: Engine, kept: list[int]):
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
        while pks := await self._select(
            "runs", "conversation_pk", old, bound=older_than, limit=at_once
        ):
            await self._engine.transact(partial(self._remove, _OF_RUNS, pks), patient=True)
            self.runs += len(pks)
        old = "created_at < :bound AND updated_at < :bound"
        at_once = self._upkeep.conversations_at_once
        while pks := await self._select(
            "conversations", "pk", old, bound=older_than, limit=at_once
        ):
            if not (await self._remove_conversations(pks, inf))[0]:
                return  # all are in use at the moment

    async def make_room(self, limit: float, active_since: float) -> None:
        """Remove the least recently used until at most `limit` bytes are in use."""
        unused = "updated_at < :bound ORDER BY updated_at, pk"
        surplus = await self._engine.number(self._upkeep.used) - limit
        removed = 1
        while surplus > 0 and removed:
            removed = 0
            pks = await self._select(
                "conversations", "pk", unused, bound=active_since, limit=_CANDIDATES
            )
            while pks and surplus > 0:
                batch = pks[: self._upkeep.conversations_at_once]
                del pks[: len(batch)]
                number, freed = await self._remove_conversations(batch, surplus)
                removed += number
                if freed is None:
                    surplus = await self._engine.number(self._upkeep.used) - limit
                else:
                    surplus -= freed

    async def _select(
        self, table: str, conversation: str, which: str, bound: float, limit: int
    ) -> list[int]:
        """Keys of rows; `conversation`: the column with the key of theirs."""
        kept = self._engine.forms.among(conversation, "kept", "int8")
        sql = f"SELECT pk FROM {table} WHERE NOT ({kept}) AND {which} LIMIT {limit}"
        rows = await self._engine.read(
            lambda c: c.fetch(sql, bound=bound, kept=self._kept), patient=True
        )
        return [pk for (pk,) in rows]

    async def _remove_conversations(self, pks: list[int], surplus: float) -> tuple[int, int | None]:
        """The number removed, with their runs, and the bytes that this frees, as in `choose`. Their
        hashes no longer match, and are removed later."""

        async def work(connection: Connection) -> tuple[int, int, int | None]:
            chosen, freed = await self._upkeep.choose(pks, surplus, connection)
            sql = f"SELECT pk FROM runs WHERE {self._among('conversation_pk')}"
            runs = [pk for (pk,) in await connection.fetch(sql, pks=chosen)]
            await self._remove(_OF_RUNS, runs, connection)
            await self._remove(_OF_CONVERSATIONS, chosen, connection)
            return len(chosen), len(runs), freed

        conversations, runs, freed = await self._engine.transact(work, patient=True)
        self.conversations += conversations
        self.runs += runs
        return conversations, freed

    async def _remove(self, tables: Texts, pks: list[int], connection: Connection) -> None:
        for table, column in tables.items():
            await connection.fetch(f"DELETE FROM {table} WHERE {self._among(column)}", pks=pks)

    def _among(self, column: str) -> str:
        return self._engine.forms.among(column, "pks", "int8")
