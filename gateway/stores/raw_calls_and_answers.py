"""Values and stores of single calls: kept bodies, and answers that later requests name by id."""

import zlib
from collections.abc import Callable
from dataclasses import replace

from gateway.config.storage import StorageSettings
from gateway.stores.protocols import StoreError
from gateway.stores.sql.engine import (
    Connection,
    Engine,
    columns,
    excluded,
    insert,
    record_of,
    row_of,
)
from gateway.tasks import off_loop
from gateway.text.secrets import mask_secrets
from gateway.values import frozen

_BODY = ("at", "bytes", "dialect", "request", "response")
_PUT = f"""
INSERT INTO raw_calls (run_pk, step_index, at, bytes, dialect, request, response)
SELECT pk, :step_index, :at, :bytes, :dialect, :request, :response
FROM runs WHERE id = :run_id AND tenant = :tenant
ON CONFLICT (run_pk, step_index) DO UPDATE SET {excluded(_BODY)}
RETURNING TRUE
"""
_FOUND = ("tenant", "run_id", "step_index", "at", "dialect", "request", "response")
_FIND_RAW = """
SELECT r.tenant, r.id, w.step_index, w.at, w.dialect, w.request, w.response
FROM raw_calls AS w JOIN runs AS r ON r.pk = w.run_pk
WHERE r.id = :run_id AND w.step_index = :step_index
    AND (CAST(:tenant AS TEXT) IS NULL OR r.tenant = :tenant)
"""
# The newest calls that fit together stay. What another gateway removes is passed over.
_MAKE_ROOM = """
DELETE FROM raw_calls WHERE (run_pk, step_index) IN (
    SELECT run_pk, step_index FROM raw_calls WHERE at <= (
        SELECT max(at) FROM (
            SELECT at, sum(bytes) OVER (ORDER BY at DESC ROWS UNBOUNDED PRECEDING) AS total
            FROM raw_calls
        ) AS sums WHERE total > :most_bytes
    ) {locked}
)
"""
_ANSWER = ("tenant", "id", "at", "place", "echo", "call")
_KEEP = f"""
{insert("answers", _ANSWER)}
ON CONFLICT (tenant, id) DO UPDATE SET {excluded(_ANSWER[2:])}
"""
_FIND = f"SELECT {columns(_ANSWER)} FROM answers WHERE tenant = :tenant AND id = :id"
_TAKE = """
UPDATE answers SET call = '' WHERE tenant = :tenant AND id = :id AND call <> '' RETURNING TRUE
"""

_MOST_WAITING = 32
CUT = b"\n[cut here: longer than storage.raw_max_kb]"


@frozen
class RawCall:
    """The newest call at one step of a run, as bytes. Headers, which hold keys, are not kept."""

    tenant: str  # owner of the run
    run_id: str  # with `step_index` the place of the call
    # step at which it was made, 0 for a run's first call; below 0: any number, of a call of the run
    # that a person has sent again
    step_index: int
    at: float  # epoch seconds of the call
    dialect: str  # API that the client speaks, by name
    request: bytes  # body that went upstream, with the guidance in it, decompressed
    response: bytes  # body that came back, decompressed; as far as it arrived


_raw_call = record_of(RawCall, _FOUND)


class RawStore:
    """Raw calls of runs. Every method may raise StoreError. Whoever puts bodies compresses them."""

    def __init__(self, engine: Engine):
        self._engine = engine
        self._make_room = _MAKE_ROOM.format(locked=engine.forms.locked("raw_calls"))

    async def put_raw(self, call: RawCall, *, most_bytes: int) -> bool:
        """Keep a call in place of an earlier one at its step, and remove the oldest until all take
        at most `most_bytes`; False when there is no such run."""
        row = row_of(call, _FOUND) | {"bytes": len(call.request) + len(call.response)}

        async def work(connection: Connection) -> bool:
            if not await connection.fetch(_PUT, **row):
                return False
            await connection.fetch(self._make_room, most_bytes=most_bytes)
            return True

        return await self._engine.transact(work)

    async def find_raw(self, run_id: str, step_index: int, *, tenant: str | None) -> RawCall | None:
        """The call at a step; None when it was not kept, was removed, or is another tenant's."""
        return await self._engine.first(
            _raw_call, _FIND_RAW, run_id=run_id, step_index=step_index, tenant=tenant
        )


class RawKeeper:
    """Keeps calls in the background. What cannot be kept at once is dropped, and `dropped` called:
    no answer waits for it. `mask`: without what looks like a secret."""

    def __init__(self, store: RawStore, dropped: Callable[[], None], *, mask: bool):
        self._store = store
        self._mask = mask
        self._dropped = dropped
        self._waiting = 0

    async def keep(self, call: RawCall, *, max_bytes: int, most_bytes: int) -> None:
        """Keep a call, each body up to `max_bytes`, all calls together up to `most_bytes`."""
        if self._waiting >= _MOST_WAITING:
            self._dropped()
            return
        self._waiting += 1
        try:
            packed = await off_loop(_packed, call, max_bytes, self._mask)
            if not await self._store.put_raw(packed, most_bytes=most_bytes):
                self._dropped()
        except StoreError:
            self._dropped()
        finally:
            self._waiting -= 1


def _packed(call: RawCall, max_bytes: int, mask: bool) -> RawCall:
    def pack(body: bytes) -> bytes:
        if len(body) <= max_bytes:
            kept = body
        else:
            kept = body[:max_bytes] + CUT
        if mask:
            text = kept.decode("utf-8", "surrogateescape")
            kept = mask_secrets(text).encode("utf-8", "surrogateescape")
        return zlib.compress(kept)

    return replace(call, request=pack(call.request), response=pack(call.response))


def unpacked(call: RawCall) -> RawCall:
    """A call as it was given to `RawKeeper.keep`."""
    return replace(
        call, request=zlib.decompress(call.request), response=zlib.decompress(call.response)
    )


def open_keeper(
    store: RawStore | None, settings: StorageSettings, dropped: Callable[[], None]
) -> RawKeeper | None:
    """Keeper of calls; None where the store cannot, or it is not asked for."""
    if store is None or not settings.raw_mb or not settings.store_content:
        return None
    return RawKeeper(store, dropped, mask=settings.mask_secrets)


@frozen
class AnswerRecord:
    """One answer of a provider that stores its answers."""

    tenant: str  # who asked for it; nobody else is sent there
    id: str  # the provider's
    at: float  # epoch seconds of the answer
    place: str = ""  # digest of the deployment that stores it; "" for the default upstream
    # as JSON without texts, how the client's own instructions follow from those that were sent
    # (`gateway/wire/echo.py`)
    echo: str = ""
    # as JSON, the call it answers, while the answer is made in the background and is not on record;
    # "" else
    call: str = ""


_answer = record_of(AnswerRecord, _ANSWER)


class AnswerStore:
    """Every method may raise StoreError. Retention removes what is older than the runs it keeps."""

    def __init__(self, engine: Engine):
        self._engine = engine

    async def keep_answer(self, answer: AnswerRecord) -> None:
        """Keep an answer, in place of one with the same tenant and id."""
        await self._engine.write(_KEEP, **row_of(answer, _ANSWER))

    async def find_answer(self, tenant: str, id: str) -> AnswerRecord | None:
        """Returns the answer with this id; None if there is none for this tenant."""
        return await self._engine.first(_answer, _FIND, tenant=tenant, id=id)

    async def take_call(self, tenant: str, id: str) -> bool:
        """Take the call of an answer, to record it: True for one caller only, of all gateways."""
        return bool(await self._engine.write(_TAKE, tenant=tenant, id=id))
