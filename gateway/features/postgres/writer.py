"""Commits calls on one connection: what waits at the same time is one statement.

A call that is stored in part already cannot be part of it, and is committed alone."""

import asyncio
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import asyncpg
import orjson

from gateway.config.storage import StorageSettings
from gateway.features.postgres.connection import Slot
from gateway.features.postgres.errors import is_about_one_record
from gateway.features.postgres.statement import (
    COMMIT,
    COMMIT_ALONE,
    Delta,
    PreparedRows,
    parameters,
    prepare,
    stored_text,
)
from gateway.stores import codec
from gateway.stores.commit_plan import new_injections, plan_steps
from gateway.stores.protocols import (
    StoreBusy,
    StoreError,
    StoreOverloaded,
    StoreUnavailable,
    VersionConflict,
)
from gateway.stores.records import CallRecord, ConversationRecord, RunUpdate
from gateway.stores.redact import encodable
from gateway.stores.sql.states import stored_step
from gateway.tasks import spawn

MAX_GROUP = 128  # more calls in one statement would only delay the first
_ATTEMPTS = 3  # of a group that met a lock held by another gateway
_ABOUT_RECORDS = (StoreError, orjson.JSONEncodeError)
_MODES = {"normal": "off", "full": "on"}

_FIND = "SELECT version, tenant FROM conversations WHERE id = $1"
_RUNS = "SELECT id, pk, tenant FROM runs WHERE id = ANY($1::text[])"
_STEPS = """
SELECT step_index, call, composite IS NOT NULL, state, content FROM steps
WHERE run_pk = $1 AND step_index = ANY($2::int8[])
"""
_INJECTIONS = """
SELECT step_index, ordinal FROM injections WHERE run_pk = $1 AND step_index = ANY($2::int8[])
"""
_UPDATE_CALL = """
UPDATE steps SET call = $3, content = coalesce($4, content) WHERE run_pk = $1 AND step_index = $2
"""
_SCORES = ", ".join(f"{name} = ${at}" for at, name in enumerate(codec.SCORE_COLUMNS, start=4))
_UPDATE_SCORES = f"UPDATE steps SET content = $3, {_SCORES} WHERE run_pk = $1 AND step_index = $2"


@dataclass(slots=True, eq=False)
class _Job:
    prepared: PreparedRows  # the rows of one call
    future: asyncio.Future[int]  # gets the stored version, or the error
    careful: bool = False  # to be written alone, because a group with it failed

    def done(self) -> None:
        if not self.future.done():
            self.future.set_result(self.prepared.call.conversation.version + 1)

    def failed(self, error: BaseException) -> None:
        if not self.future.done():
            self.future.set_exception(error)


class Writer:
    """Commits calls; those of one conversation in the order in which they came. A group has at
    most one call of a conversation, because the next call builds on the version that the first
    one creates."""

    def __init__(self, settings: StorageSettings):
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
        future: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        try:
            job = _Job(prepare(call), future)
        except (UnicodeEncodeError, orjson.JSONEncodeError):
            job = _Job(prepare(encodable(call), careful=True), future, careful=True)
        self._waiting.append(job)
        if self._task is None:
            self._task = spawn(self._run(), name="store writer")
        return await future

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
        """The oldest calls of as many conversations as fit into a group, in the order of their
        ids."""
        group: dict[str, _Job] = {}
        later: deque[_Job] = deque()
        while self._waiting and len(group) < MAX_GROUP:
            job = self._waiting.popleft()
            if group.setdefault(job.prepared.call.conversation.id, job) is not job:
                later.append(job)
        self._waiting.extendleft(reversed(later))
        return [group[conversation] for conversation in sorted(group)]

    async def _commit(self, group: Sequence[_Job]) -> None:
        certain = [job for job in group if job.prepared.certain]
        for job, (_, passed, barred) in zip(
            certain, await self._commit_together(certain), strict=True
        ):
            if passed:
                job.done()
            elif barred:
                await self._alone(job)
            else:
                await self._refuse(job)
        for job in group:
            if not job.prepared.certain:
                await self._alone(job)

    async def _commit_together(self, jobs: Sequence[_Job], attempts: int = _ATTEMPTS) -> list[Any]:
        """Per job its number, whether it was stored, and whether it has to be committed alone."""
        if not jobs:
            return []
        try:
            rows = parameters([job.prepared for job in jobs])
            return await self._slot.run(lambda c: c.fetch(COMMIT, self._mode, *rows))
        except StoreBusy:
            if attempts == 1:
                raise
            return await self._commit_together(jobs, attempts - 1)
        except _ABOUT_RECORDS as error:
            if not is_about_one_record(error):
                raise
            return [(0, False, True)] * len(jobs)

    async def _refuse(self, job: _Job) -> None:
        error = await self._slot.run(lambda c: _refusal(c, job.prepared.call.conversation))
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
        await self._slot.run(lambda c: _commit_alone(c, call, self._mode, careful=careful))


async def _refusal(
    connection: asyncpg.Connection, record: ConversationRecord, lock: str = ""
) -> StoreError | None:
    """Why a conversation cannot be saved over the version it was made from; None when it can."""
    row = await connection.fetchrow(_FIND + lock, stored_text(record.id))
    version = 0
    if row is not None:
        version, tenant = row
        if tenant != stored_text(record.tenant):
            return StoreError(f"conversation {record.id!r} is another tenant's")
    if version == record.version:
        return None
    return VersionConflict(record.id, expected=record.version, actual=version)


async def _commit_alone(
    connection: asyncpg.Connection, call: CallRecord, mode: str, *, careful: bool
) -> None:
    """Write one call in a transaction of its own, merged with what is stored of it already.
    Raises: StoreError, VersionConflict."""
    async with connection.transaction():
        refused = await _refusal(connection, call.conversation, " FOR UPDATE")
        if refused is not None:
            raise refused
        keys = {}
        names = [stored_text(run.id) for run in call.runs]
        for name, pk, tenant in await connection.fetch(_RUNS, names):
            if tenant != stored_text(call.conversation.tenant):
                raise StoreError(f"run {name!r} is another tenant's")
            keys[name] = pk
        pks = list(map(keys.get, names))
        deltas = [
            await _delta(connection, pk, call, run=run)
            for pk, run in zip(pks, call.runs, strict=True)
        ]
        prepared = prepare(call, deltas, careful=careful)
        await connection.fetch(COMMIT_ALONE, mode, *parameters([prepared]))
        for pk, (plan, _) in zip(pks, deltas, strict=True):
            # What stored steps of the run lacked.
            for late in plan.late:
                content = codec.content_json(late.content)
                scores = codec.score_row(late.step)
                await connection.execute(_UPDATE_SCORES, pk, late.step.step_index, content, *scores)
            for index, (made, texts) in plan.calls.items():
                values = (codec.call_json(made), codec.content_json(texts))
                await connection.execute(_UPDATE_CALL, pk, index, *values)


async def _delta(
    connection: asyncpg.Connection, pk: int | None, call: CallRecord, run: RunUpdate
) -> Delta:
    """The part of a call about one run that is not stored yet, and what its stored steps lack."""
    steps = [step for step in call.steps if step.run_id == run.id]
    injections = [row for row in call.injections if row.run_id == run.id]
    indexes = [step.step_index for step in steps]
    rows = await connection.fetch(_STEPS, pk, indexes)
    stored = {index: stored_step(*row) for index, *row in rows}
    indexes = [row.step_index for row in injections]
    known = map(tuple, await connection.fetch(_INJECTIONS, pk, indexes))
    return plan_steps(steps, stored), new_injections(injections, known)
