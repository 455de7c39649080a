"""The versions of conversations: asked for at every call, so those asked for together are one
statement."""

from __future__ import annotations

import asyncio

from gateway.stores.postgres.database import Database
from gateway.stores.postgres.text import read_text, stored_text
from gateway.tasks import spawn

_MAX_GROUP = 256
_VERSIONS = "SELECT id, tenant, version FROM conversations WHERE id = ANY($1::text[])"

_Key = tuple[str, str]
"""Id and tenant."""


class Versions:
    """Reads versions. What is asked for while a statement is under way is the next statement."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self._waiting: list[tuple[_Key, asyncio.Future[int]]] = []
        self._task: asyncio.Task[None] | None = None

    async def version(self, tenant: str, conversation_id: str) -> int:
        """See StateStore."""
        future = asyncio.get_running_loop().create_future()
        self._waiting.append(((conversation_id, tenant), future))
        if self._task is None:
            self._task = spawn(self._run(), name="read versions")
        return int(await future)

    async def _run(self) -> None:
        try:
            while self._waiting:
                group, self._waiting = self._waiting[:_MAX_GROUP], self._waiting[_MAX_GROUP:]
                await self._answer([each for each in group if not each[1].done()])
        finally:
            self._task = None

    async def _answer(self, group: list[tuple[_Key, asyncio.Future[int]]]) -> None:
        ids = list({stored_text(key[0]) for key, _ in group})
        try:
            rows = await self._database.fetch(_VERSIONS, ids)
        except Exception as error:
            for _, future in group:
                if not future.done():
                    future.set_exception(error)
            return
        found = {(read_text(name), read_text(tenant)): version for name, tenant, version in rows}
        for key, future in group:
            if not future.done():
                future.set_result(found.get(key, 0))
