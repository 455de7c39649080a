"""The audit log: changes that operators declare, appended to a list that every gateway reads."""

import asyncio
import time
from collections.abc import Mapping
from contextlib import suppress
from hashlib import sha256
from secrets import token_hex
from typing import Any
from unicodedata import normalize

import msgspec
from msgspec.structs import asdict, replace

from gateway.errors import BadRequest
from gateway.observability.logging import get_logger
from gateway.steering.experiments import Pilot
from gateway.stores.controls import GATEWAY
from gateway.stores.protocols import StoreError
from gateway.stores.sql.engine import (
    Connection,
    Engine,
    columns,
    conditions,
    insert,
    record_of,
    row_of,
)
from gateway.tasks import spawn
from gateway.text.secrets import mask_secrets
from gateway.values import FieldDict, Fields, Value

_log = get_logger("gateway.audit")


class Change(Value):
    """One act of a person."""

    id: str  # unique; orders changes by age
    kind: str  # `pilot`, `forgotten`, or what else was changed, such as `budget` or `key`
    subject: str  # id of the changed thing
    at: float  # epoch seconds
    tenant: str = ""  # owner of the thing; "" for all
    author: str = ""  # as the person gave it; nothing proves it
    reason: str = ""  # as the person gave it
    body: str = "{}"  # JSON, whose form the kind decides


_NAMES = Change.__struct_fields__
_change = record_of(Change, _NAMES)
_LISTED = f"SELECT {columns(_NAMES)} FROM operator_changes"
_NEWEST = f"{_LISTED} WHERE kind = :kind ORDER BY at DESC, id DESC LIMIT 1"
_JUDGED = """
SELECT COUNT(*) FROM runs WHERE experiment = :experiment AND outcome IN ('success', 'failure')
"""
_PUT = insert("operator_changes", _NAMES)
_PUT_ONCE = f"{_PUT} ON CONFLICT (id) DO NOTHING"  # a write whose end was not seen is repeated
_SEARCHED = "lower(kind || ' ' || subject || ' ' || author || ' ' || reason || ' ' || body)"
_RETRY_S = 2.0
_MOST_CHARS = 500
_SAME_S = 600.0
_FILTERS = {
    "kind": "kind = :kind",
    "author": "author = :author",
    "since": "at >= :since",
    "until": "at < :until",
    "cursor": "(at, id) < (SELECT o.at, o.id FROM operator_changes AS o WHERE o.id = :cursor)",
}
_RESERVED = frozenset({GATEWAY, "steering", "budget", "operator"})


class ChangeStore:
    """The list of changes. Every method but `note` may raise StoreError."""

    def __init__(self, engine: Engine):
        self._engine = engine

    async def find(self, *, limit: int = 100, **wanted: Any) -> list[Change]:
        """Changes, newest first; None selects all. `kind`, `author`, `since`, `until`; `subjects`:
        of any of these; `text`: in any field; `cursor`: after the change with this id."""
        bound = FieldDict(limit=limit)
        forms = self._engine.forms
        filters = {
            **_FILTERS,
            "subjects": forms.among("subject", "subjects", "text"),
            "text": f"{forms.position(_SEARCHED, 'text')} > 0",
        }
        where = conditions({name: (filters[name], wanted[name]) for name in wanted}, bound)
        statement = f"{_LISTED} WHERE {where} ORDER BY at DESC, id DESC LIMIT :limit"
        return await self._engine.made(_change, statement, **bound)

    async def note(
        self, kind: str, act: str, subject: str, said: Fields, *, author: str = ""
    ) -> None:
        """Append what was done already: `act` in a word; `said`: the fields that were sent, with a
        reason and an author if these were given; secrets are masked. While the store is away it is
        logged with all fields, and written as soon as the store is back."""
        given = _masked({"act": act, **said})
        named = {"author": given.pop("author", "") or author}
        named["reason"] = given.pop("reason", "") or given.pop("comment", "")
        change = _act(act if act == "comment" else kind, subject, given, **named)
        try:
            await self._write(change)
        except StoreError as error:
            _log.error("not in the audit log yet", problem=str(error), **asdict(change))
            spawn(self._write_later(change))

    async def _write(self, change: Change) -> None:
        await self._engine.write(_PUT_ONCE, **row_of(change, _NAMES))

    async def _write_later(self, change: Change) -> None:
        while True:
            await asyncio.sleep(_RETRY_S)
            with suppress(StoreError):
                return await self._write(change)

    async def note_config(self, changed: Fields) -> None:
        """Append that a changed config was loaded, once for all gateways that load it."""
        subject = sha256(repr(changed).encode()).hexdigest()[:16]
        with suppress(StoreError):  # the log of the gateway has it
            newest = await self.find(kind="config", limit=1)
            last = newest[0] if newest else None
            if last is None or last.subject != subject or last.at < time.time() - _SAME_S:
                load = {"act": "load", **_masked(changed)}
                await self.append(last, load, kind="config", subject=subject, author=GATEWAY)

    async def put(self, change: Change, *, after: str | None) -> bool:
        """Append a change, unless another change of its kind was stored in the meantime.
        `after`: the id of the newest change that the author has seen, None for none. Returns
        False if nothing was stored."""

        async def work(connection: Connection) -> bool:
            await connection.take_turn("operator_changes")
            row = await connection.row(_NEWEST, kind=change.kind)
            newest = None
            if row:
                newest = _change(row)
            if (newest.id if newest else None) != after:
                return False
            # The clocks of those who write differ; the order of what they write must not.
            if newest:
                at = max(change.at, newest.at + 0.001)
            else:
                at = change.at
            await connection.execute_many(_PUT, [row_of(replace(change, at=at), _NAMES)])
            return True

        return await self._engine.transact(work)

    async def append(self, newest: Change | None, body: object, **named: str) -> bool:
        """Append a change, if `newest` is still the newest of its kind; `named`: its other
        fields."""
        return await self.put(_act(body=body, **named), after=newest.id if newest else None)

    async def put_pilot(
        self, pilot: Pilot, newest: Change | None, author: str, reason: str
    ) -> bool:
        """Append the new state of a pilot, after the `newest` change that its author knew."""
        return await self.append(
            newest,
            pilot,
            kind="pilot",
            subject=pilot.id,
            tenant=pilot.runs.tenant,
            author=author,
            reason=reason,
        )

    async def judged(self, experiment: str) -> int:
        """The runs of an experiment or a pilot whose success or failure is known."""
        return await self._engine.number(_JUDGED, experiment=experiment)


def persons_name(stated: str) -> str:
    """Returns the name that a caller states. Raises BadRequest: the gateway itself uses this
    name."""
    letters = filter(str.isalnum, normalize("NFKC", stated))
    if "".join(letters).casefold() in _RESERVED:
        raise BadRequest(f"author: {stated[:80]!r} is the gateway; state a person's name")
    return stated


def pilot_of(change: Change | None) -> Pilot | None:
    """Returns the pilot as a change left it; None without a change, and if this version cannot
    read it."""
    try:
        if change is not None:
            return msgspec.json.decode(change.body, type=Pilot)
        return None
    except msgspec.MsgspecError:
        return None


def _act(kind: str, subject: str, body: object, **named: str) -> Change:
    own = f"act-{token_hex(8)}"
    text = msgspec.json.encode(body).decode()
    return Change(id=own, kind=kind, subject=subject, at=time.time(), body=text, **named)


def _masked(value: Any, name: str = "") -> Any:
    """A value of JSON with every text cut, and without the secrets that its name or form tells."""
    if isinstance(value, Mapping):
        return {str(key): _masked(each, str(key)) for key, each in value.items()}
    if isinstance(value, list | tuple):
        return [_masked(each, name) for each in value]
    if value is None or isinstance(value, bool | int | float):
        return value
    label = f"{name}: "
    return mask_secrets(f"{label}{value}").removeprefix(label)[:_MOST_CHARS]
