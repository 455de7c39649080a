"""Conversations in PostgreSQL: those asked for together are read by one statement."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Generic, TypeVar

from gateway.stores import codec
from gateway.stores.records import ConversationRecord
from gateway.stores.sql.engine import Engine, Row
from gateway.stores.sql.states import CONVERSATION, LOAD, VERSION, SQLStateStore
from gateway.tasks import spawn

_MAX_GROUP = 256
_VERSIONS = "SELECT id, tenant, version FROM conversations WHERE id = ANY(:ids::text[])"
_LOAD_ALL = f"SELECT {CONVERSATION} FROM conversations WHERE id = ANY(:ids::text[])"

Key = tuple[str, str]  # id and tenant of a conversation
V = TypeVar("V")


class PostgresStateStore(SQLStateStore):
    """`StateStore` whose reads of single conversations, which every call makes, go together."""

    def __init__(self, engine: Engine) -> None:
        super().__init__(engine)
        self._versions = ReadTogether(self._read_versions, "read versions")
        self._loads = ReadTogether(self._read_conversations, "load conversations")

    async def load(self, tenant: str, conversation_id: str) -> ConversationRecord | None:
        return await self._loads.get(tenant, conversation_id)

    async def version(self, tenant: str, conversation_id: str) -> int:
        return await self._versions.get(tenant, conversation_id) or 0

    async def _read_versions(self, keys: Sequence[Key]) -> dict[Key, int]:
        if len(keys) > 1:
            return {(row[0], row[1]): row[2] for row in await self._read(_VERSIONS, keys)}
        rows = await self._read(VERSION, keys)
        return {keys[0]: rows[0][0]} if rows else {}

    async def _read_conversations(self, keys: Sequence[Key]) -> dict[Key, ConversationRecord]:
        rows = await self._read(LOAD if len(keys) == 1 else _LOAD_ALL, keys)
        return {(found.id, found.tenant): found for found in map(codec.conversation_of, rows)}

    async def _read(self, statement: str, keys: Sequence[Key]) -> Sequence[Row]:
        """The rows of one conversation or, with another statement, of several."""
        if len(keys) == 1:  # the driver takes a name for less than a list of names
            ((name, tenant),) = keys
            return await self._engine.fetch(statement, id=name, tenant=tenant)
        return await self._engine.fetch(statement, ids=list({name for name, _ in keys}))


class ReadTogether(Generic[V]):
    """Reads a value of each conversation. What is asked for while a statement is under way is the
    next statement.

    `read`: the values of these conversations, as far as they are stored; `name`: of its task."""

    def __init__(
        self, read: Callable[[Sequence[Key]], Awaitable[Mapping[Key, V]]], name: str
    ) -> None:
        self._read = read
        self._name = name
        self._waiting: list[tuple[Key, asyncio.Future[V | None]]] = []
        self._task: asyncio.Task[None] | None = None

    async def get(self, tenant: str, conversation_id: str) -> V | None:
        """The value of one conversation; None when it is not stored."""
        future: asyncio.Future[V | None] = asyncio.get_running_loop().create_future()
        self._waiting.append(((conversation_id, tenant), future))
        if self._task is None:
            self._task = spawn(self._run(), name=self._name)
        return await future

    async def _run(self) -> None:
        try:
            while self._waiting:
                group, self._waiting = self._waiting[:_MAX_GROUP], self._waiting[_MAX_GROUP:]
                group = [each for each in group if not each[1].done()]
                try:
                    found = await self._read([key for key, _ in group])
                except Exception as error:
                    for _, future in group:
                        if not future.done():
                            future.set_exception(error)
                    continue
                for key, future in group:
                    if not future.done():
                        future.set_result(found.get(key))
        finally:
            self._task = None
