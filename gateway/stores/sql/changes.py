"""Changes that operators declare: an append-only list, which every gateway on the store reads."""

import secrets
import time

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from gateway.steering.experiments import Pilot
from gateway.stores.sql.engine import Connection, Engine, columns, insert, made, row_of

_NAMES = ("id", "kind", "subject", "tenant", "at", "author", "reason", "body")
_NEWEST = f"""
SELECT {columns(_NAMES)} FROM operator_changes
WHERE CAST(:kind AS TEXT) IS NULL OR kind = :kind ORDER BY at DESC, id DESC LIMIT :limit
"""
_JUDGED = """
SELECT COUNT(*) FROM runs WHERE experiment = :experiment AND outcome IN ('success', 'failure')
"""
_PUT = insert("operator_changes", _NAMES)


class Change(Struct, frozen=True, kw_only=True):
    """One act of a person. `kind`: `pilot`, `policy`, `forgotten`, or what else was changed, as
    `budget`, `hold`, `key`, `approval`, `lesson`, `comment`; `subject`: the id of the changed
    thing; `tenant`: empty for all; `at`: seconds of the epoch; `author`, `reason`: as they were
    given; `body`: JSON, whose form the kind decides."""

    id: str
    kind: str
    subject: str
    at: float
    tenant: str = ""
    author: str = ""
    reason: str = ""
    body: str = "{}"


class ChangeStore:
    """The list of changes. Every method may raise StoreError."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine

    async def newest(self, kind: str | None = None, *, limit: int = 100) -> list[Change]:
        """The newest changes, of one kind or of all, newest first."""
        rows = await self._engine.fetch(_NEWEST, kind=kind, limit=limit)
        return [made(Change, _NAMES, row) for row in rows]

    async def put(self, change: Change, *, after: str | None) -> bool:
        """Append a change. `after`: the id of the newest one of its kind that its author knew, None
        for none; False, and nothing is stored, when another one came in between."""

        async def work(connection: Connection) -> bool:
            await connection.take_turn("operator_changes")
            row = await connection.row(_NEWEST, kind=change.kind, limit=1)
            newest = made(Change, _NAMES, row) if row else None
            if (newest.id if newest else None) != after:
                return False
            # The clocks of those who write differ; the order of what they write must not.
            at = max(change.at, newest.at + 0.001) if newest else change.at
            await connection.execute_many(_PUT, [row_of(replace(change, at=at), _NAMES)])
            return True

        return await self._engine.transact(work)

    async def append(
        self, newest: Change | None, body: object, prefix: str = "", **named: str
    ) -> bool:
        """Append a change after the `newest` of its kind that its author knew, with an id that
        begins with `prefix`; `named`: its other fields."""
        own, text = prefix + secrets.token_hex(8), msgspec.json.encode(body).decode()
        change = Change(id=own, at=time.time(), body=text, **named)
        return await self.put(change, after=newest.id if newest else None)

    async def record(
        self,
        kind: str,
        subject: str,
        *,
        author: str = "",
        reason: str = "",
        tenant: str = "",
        body: object = None,
    ) -> Change:
        """Append one act of a person, whatever else was appended meanwhile."""
        change = Change(
            id=f"act-{secrets.token_hex(8)}",
            kind=kind,
            subject=subject,
            at=time.time(),
            tenant=tenant,
            author=author,
            reason=reason,
            body=msgspec.json.encode(body or {}).decode(),
        )
        await self._engine.write(_PUT, **row_of(change, _NAMES))
        return change

    async def put_pilot(
        self, pilot: Pilot, newest: Change | None, author: str, reason: str
    ) -> bool:
        """Append the new state of a pilot, after the `newest` change that its author knew."""
        about = {"kind": "pilot", "subject": pilot.id, "tenant": pilot.runs.tenant}
        return await self.append(newest, pilot, author=author, reason=reason, **about)

    async def judged(self, experiment: str) -> int:
        """The runs of an experiment or a pilot whose success or failure is known."""
        (found,) = await self._engine.fetch(_JUDGED, experiment=experiment)
        return int(found[0])


def pilot_of(change: Change | None) -> Pilot | None:
    """The pilot as a change left it; None without one, or one that this version cannot read."""
    try:
        return msgspec.json.decode(change.body, type=Pilot) if change is not None else None
    except msgspec.MsgspecError:
        return None
