"""The versions of conversations: asked for at every call, so those asked for together are one
statement."""

from __future__ import annotations

import asyncio

from gateway.stores.postgres.database import Database
from gateway.stores.postgres.text import read_text, stored_text
from gateway.tasks import spawn

_MAX_GROUP = 256
_VERSION = "SELECT version FROM conversations WHERE id = $1 AND tenant = $2"
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
        try:
            found = await self._read([key for key, _ in group])
        except Exception as error:
            for _, future in group:
                if not future.done():
                    future.set_exception(error)
            return
        for key, future in group:
            if not future.done():
                future.set_result(found.get(key, 0))

    async def _read(self, keys: list[_Key]) -> dict[_Key, int]:
        if len(keys) == 1:  # the driver takes a name for less than a list of names
            ((name, tenant),) = keys
            rows = await self._database.fetch(_VERSION, stored_text(name), stored_text(tenant))
            return {keys[0]: rows[0][0]} if rows else {}
        rows = await self._database.fetch(_VERSIONS, list({stored_text(name) for name, _ in keys}))
        return {(read_text(name), read_text(tenant)): version for name, tenant, version in rows}
