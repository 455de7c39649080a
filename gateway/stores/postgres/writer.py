"""Commits calls on one connection: what waits at the same time is one statement."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass

import orjson

from gateway.config.storage import StorageSettings
from gateway.stores.postgres.commits import BARRED, STORED, commit_alone, commit_group, refusal
from gateway.stores.postgres.connection import Slot
from gateway.stores.postgres.errors import is_about_one_record
from gateway.stores.postgres.group import Prepared, prepare
from gateway.stores.protocols import StoreBusy, StoreError, StoreOverloaded, StoreUnavailable
from gateway.stores.records import CallRecord
from gateway.stores.redact import encodable
from gateway.tasks import spawn

MAX_GROUP = 128
"""More calls in one statement would only delay the first."""

_ATTEMPTS = 3  # of a group that met a lock held by another gateway
_ABOUT_RECORDS = (StoreError, orjson.JSONEncodeError)
_MODES = {"normal": "off", "full": "on"}


@dataclass(slots=True, eq=False)
class _Job:
    prepared: Prepared
    future: asyncio.Future[int]
    careful: bool = False

    @property
    def conversation_id(self) -> str:
        return self.prepared.call.conversation.id

    def done(self) -> None:
        if not self.future.done():
            self.future.set_result(self.prepared.call.conversation.version + 1)

    def failed(self, error: BaseException) -> None:
        if not self.future.done():
            self.future.set_exception(error)


class Writer:
    """Commits calls, in the order in which they came as far as one conversation is concerned.

    A group has at most one call of a conversation: the next one is made from the version that the
    first one gives.
    """

    def __init__(self, settings: StorageSettings) -> None:
        self._settings = settings
        self._slot = Slot(settings)
        self._mode = _MODES[settings.synchronous]
        self._waiting: deque[_Job] = deque()
        self._task: asyncio.Task[None] | None = None

    async def commit(self, call: CallRecord) -> int:
        """The conversation's new version. Raises: StoreError."""
        if len(self._waiting) >= self._settings.queue_limit:
            raise StoreOverloaded(
                f"{len(self._waiting)} writes are waiting for the store (storage.queue_limit)"
            )
        job = self._job(call)
        self._waiting.append(job)
        if self._task is None:
            self._task = spawn(self._run(), name="store writer")
        return await job.future

    def _job(self, call: CallRecord) -> _Job:
        future = asyncio.get_running_loop().create_future()
        try:
            return _Job(prepare(call), future)
        except (UnicodeEncodeError, orjson.JSONEncodeError):
            return _Job(prepare(encodable(call), careful=True), future, careful=True)

    async def close(self) -> None:
        """Commit what waits, then close the connection."""
        while self._task is not None:
            await asyncio.wait([self._task])
        await self._slot.close()

    async def _run(self) -> None:
        try:
            while self._waiting:
                group = self._take()
                try:
                    await self._commit(group)
                except Exception as error:
                    for job in group:
                        job.failed(error)
        finally:
            self._task = None

    def _take(self) -> list[_Job]:
        """The oldest calls of as many conversations as fit into a group."""
        group: dict[str, _Job] = {}
        later: deque[_Job] = deque()
        while self._waiting and len(group) < MAX_GROUP:
            job = self._waiting.popleft()
            if group.setdefault(job.conversation_id, job) is not job:
                later.append(job)
        self._waiting.extendleft(reversed(later))
        return sorted(group.values(), key=lambda job: job.conversation_id)

    async def _commit(self, group: Sequence[_Job]) -> None:
        certain = [job for job in group if job.prepared.certain]
        if certain:
            await self._commit_certain(certain)
        for job in group:
            if not job.prepared.certain:
                await self._alone(job)

    async def _commit_certain(self, group: Sequence[_Job]) -> None:
        try:
            outcomes = await self._commit_together(group)
        except _ABOUT_RECORDS as error:
            if not is_about_one_record(error):
                raise
            for job in group:
                await self._alone(job)
            return
        for job, outcome in zip(group, outcomes, strict=True):
            if outcome == STORED:
                job.done()
            elif outcome == BARRED:
                await self._alone(job)
            else:
                await self._refuse(job)

    async def _commit_together(self, group: Sequence[_Job]) -> list[str]:
        prepared = [job.prepared for job in group]
        for attempt in range(_ATTEMPTS):
            try:
                return await self._slot.run(lambda c: commit_group(c, prepared, self._mode))
            except StoreBusy:
                if attempt == _ATTEMPTS - 1:
                    raise
        raise StoreUnavailable("the database is locked")

    async def _refuse(self, job: _Job) -> None:
        error = await self._slot.run(lambda c: refusal(c, job.prepared.call.conversation))
        if error is None:  # it has reached this version in the meantime
            await self._alone(job)
        else:
            job.failed(error)

    async def _alone(self, job: _Job) -> None:
        try:
            try:
                await self._try_alone(job.prepared.call, careful=job.careful)
            except _ABOUT_RECORDS as error:
                if job.careful or not is_about_one_record(error):
                    raise
                await self._try_alone(encodable(job.prepared.call), careful=True)
        except StoreUnavailable as error:
            job.failed(error)
            raise
        except Exception as error:
            job.failed(error)
        else:
            job.done()

    async def _try_alone(self, call: CallRecord, *, careful: bool) -> None:
        await self._slot.run(lambda c: commit_alone(c, call, self._mode, careful=careful))
