"""Reads of single conversations: made at every call, so those asked for together are one
statement."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Generic, TypeVar

from gateway.tasks import spawn

_MAX_GROUP = 256

Key = tuple[str, str]
"""Id and tenant of a conversation."""
V = TypeVar("V")


class ReadTogether(Generic[V]):
    """Reads a value of each conversation. What is asked for while a statement is under way is the
    next statement.

    `read`: the values of these conversations, as far as they are stored; `name`: of its task.
    """

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
                await self._answer([each for each in group if not each[1].done()])
        finally:
            self._task = None

    async def _answer(self, group: list[tuple[Key, asyncio.Future[V | None]]]) -> None:
        try:
            found = await self._read([key for key, _ in group])
        except Exception as error:
            for _, future in group:
                if not future.done():
                    future.set_exception(error)
            return
        for key, future in group:
            if not future.done():
                future.set_result(found.get(key))
