"""Answers that are named at another gateway, or after a restart, than the one that relayed them.

Memory comes first: which deployment stores an answer, what to take out of it, and the call that it
will complete (`gateway/conversations/stored_responses.py`). What is noted there is kept in the
store, too, and read from it when a request names an answer that memory does not know.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Protocol, TypeVar

from gateway.budgets.spending import Spending, held_to_values, left_open
from gateway.conversations.pending_calls import Pending, call_to_json, resumed
from gateway.conversations.stored_responses import Settle
from gateway.dialects import RESPONSES
from gateway.observability.logging import get_logger
from gateway.runtime import Runtime
from gateway.services import Services
from gateway.stores.exchanges import AnswerRecord, AnswerStore
from gateway.stores.protocols import StoreError
from gateway.tasks import spawn
from gateway.upstream.deployments import Target
from gateway.wire.echo import EchoFilter

Record = Callable[[Services, Any, Mapping[str, Any] | None], Awaitable[None]]
"""Commits a call with its answer."""


class Billed(Pending, Protocol):
    """A call and what it has reserved of budgets."""

    spending: Spending | None


T = TypeVar("T")

_log = get_logger("gateway.steering")


class SharedAnswers:
    """Keeps and reads what is known of answers. `record` commits a call that is completed."""

    def __init__(self, runtime: Runtime, record: Record) -> None:
        self._runtime = runtime
        self._record = record

    @property
    def _store(self) -> AnswerStore | None:
        # A store that is away is not asked: memory is all there is meanwhile.
        return None if self._runtime.degraded() else self._runtime.stored_answers.pending.store

    async def keep(
        self,
        services: Services,
        response_id: str,
        made: Billed,
        target: Target | None,
        *,
        pending: bool = False,
    ) -> asyncio.Task[bool] | None:
        """Keep what is known of the answer of a call. With several gateways that is awaited: the
        next request may go to another one. Returns what will tell whether the store has it; None
        when there is nothing to keep, or nowhere."""
        tenant = made.exchange.request.tenant
        place = services.table.place_of(target) if target is not None else ""
        filtered = self._runtime.stored_answers.echoes.find(tenant, response_id)
        echo = filtered.to_json() if filtered is not None else ""
        held = held_to_values(made.spending)
        call = call_to_json(made, held, time.time()) if pending else ""
        store = self._store
        if store is None or not (place or echo or call):
            return None
        answer = AnswerRecord(
            tenant=tenant, id=response_id, at=time.time(), place=place, echo=echo, call=call
        )

        async def work() -> bool:
            await store.keep_answer(answer)
            return True

        kept = spawn(self._attempt(work, False))
        if self._runtime.settings.storage.shared:
            await kept
        return kept

    async def learn(self, services: Services, tenant: str, response_id: str | None) -> None:
        """Read what memory does not know of an answer that a request names."""
        runtime, store = self._runtime, self._store
        if not response_id or store is None or self._is_known(tenant, response_id):
            return
        found = await self._attempt(lambda: store.find_answer(tenant, response_id), None)
        if found is None:
            return
        target = services.table.at_place(found.place) if found.place else None
        if target is not None:
            runtime.stored_answers.targets.put(tenant, response_id, target.for_dialect(RESPONSES))
        if found.echo:
            runtime.stored_answers.echoes.put(tenant, response_id, EchoFilter.from_json(found.echo))
        if found.call:
            runtime.stored_answers.pending.put(tenant, response_id, self._settle(services, found))

    def _is_known(self, tenant: str, response_id: str) -> bool:
        runtime, key = self._runtime, (tenant, response_id)
        return (
            key in runtime.stored_answers.pending
            or runtime.stored_answers.targets.find(*key) is not None
            or runtime.stored_answers.echoes.find(*key) is not None
        )

    async def take(self, tenant: str, response_id: str) -> bool:
        """Whether this gateway is the one that records the call of an answer. While the store is
        away it is: a call that is recorded twice is one in the run log."""
        store = self._store
        if store is None:
            return True
        return await self._attempt(lambda: store.take_call(tenant, response_id), True)

    def _settle(self, services: Services, answer: AnswerRecord) -> Settle:
        """Records a call that another process has made."""

        async def settle(
            completion: Mapping[str, Any] | None, usage: dict[str, Any] | None
        ) -> None:
            loader, index, policy = services.loader, services.index, services.settings.policy()
            try:
                call = await resumed(answer, self._runtime.runs, loader, index, policy)
            except StoreError:
                return  # the next poll tries again
            if call is None or not await self.take(answer.tenant, answer.id):
                return
            call.exchange.upstream.bill(usage)
            cost = services.catalogue.cost
            reserved = left_open(call.held, services.budgets, call.exchange, cost)
            if reserved is not None:
                await reserved.settle(call.billed_model)
            await self._record(services, call, completion)
            call.forget()

        return settle

    async def _attempt(self, work: Callable[[], Awaitable[T]], otherwise: T) -> T:
        """The result, within the store's limits; `otherwise` when it fails."""
        try:
            return await self._runtime.store.read(work)
        except StoreError as error:
            _log.debug("answers are not shared at the moment", reason=str(error))
            return otherwise
