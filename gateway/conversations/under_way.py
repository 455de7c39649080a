"""Calls whose answers are made in the background, until a request asks for the finished answer."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

Settle = Callable[[Mapping[str, Any] | None, dict[str, Any] | None], Awaitable[None]]
"""Records a call: its answer in the shape of a chat completion, or None for none; and its usage."""

MAX_CALLS = 1024
"""Calls that may be open at once; the oldest stays on record without its answer."""


class UnderWay:
    """Open calls by tenant and the id of their answer; each is settled once."""

    def __init__(self) -> None:
        self._calls: OrderedDict[tuple[str, str], Settle] = OrderedDict()

    def __contains__(self, key: tuple[str, str]) -> bool:
        return key in self._calls

    def __len__(self) -> int:
        return len(self._calls)

    def put(self, tenant: str, name: str, settle: Settle) -> None:
        """Hold a call until its answer `name` is settled."""
        self._calls[tenant, name] = settle
        while len(self._calls) > MAX_CALLS:
            self._calls.popitem(last=False)

    async def settle(
        self,
        tenant: str,
        name: str,
        completion: Mapping[str, Any] | None,
        usage: dict[str, Any] | None,
    ) -> None:
        """The answer is there, or there will be none; nothing happens when that was told before."""
        settle = self._calls.pop((tenant, name), None)
        if settle is not None:
            await settle(completion, usage)
