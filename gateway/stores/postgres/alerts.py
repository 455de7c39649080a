"""Alerts in PostgreSQL."""

# ruff: noqa: S608 - statements are put together from names of this package; values are bound

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import asyncpg
import orjson

from gateway.stores.alerts import AlertRecord, Delivery, DeliveryState, Settled, StoredAlert
from gateway.stores.postgres.database import Database
from gateway.stores.postgres.text import read_text, stored_text

# One statement decides whether a key is new, so that two gateways agree.
_SEE = """
INSERT INTO alert_keys AS k (key, alert_id, seen_at) VALUES ($1, $2, $3)
ON CONFLICT (key) DO UPDATE SET
    alert_id = CASE WHEN k.seen_at <= $4 THEN excluded.alert_id ELSE k.alert_id END,
    seen_at = greatest(k.seen_at, excluded.seen_at)
RETURNING alert_id
"""
_NAMES = ("id", "key", "rule", "severity", "title", "raised_at", "tenant", "facts", "path")
_COLUMNS = ", ".join(_NAMES)
_INSERT = f"INSERT INTO alerts ({_COLUMNS}) VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9)"
_DELIVER = """
INSERT INTO alert_deliveries
    (alert_id, sink, attempts, next_at, owner, leased_until, done_at, error)
VALUES ($1, $2, 0, $3, '', 0, NULL, '')
"""
_DUE = "done_at IS NULL AND next_at <= $1 AND leased_until <= $1"
_IS_DUE = f"SELECT EXISTS (SELECT 1 FROM alert_deliveries WHERE {_DUE})"
# What is due is asked for twice: another gateway may have claimed it since.
_CLAIM = f"""
UPDATE alert_deliveries SET owner = $2, leased_until = $3
WHERE (alert_id, sink) IN (
    SELECT alert_id, sink FROM (
        SELECT alert_id, sink,
            row_number() OVER (PARTITION BY sink ORDER BY next_at, alert_id) AS place
        FROM alert_deliveries WHERE {_DUE}
    ) AS due WHERE place <= $4
) AND {_DUE}
RETURNING alert_id, sink, attempts
"""
# Claims of two gateways take their turns: each changes rows in no certain order.
_TURN = "LOCK TABLE alert_deliveries IN SHARE ROW EXCLUSIVE MODE"
_SETTLE = """
UPDATE alert_deliveries
SET attempts = attempts + $1, next_at = $2, done_at = $3, error = $4, owner = '', leased_until = 0
WHERE alert_id = $5 AND sink = $6 AND owner = $7
"""
_SOME = f"SELECT {_COLUMNS} FROM alerts WHERE id = ANY($1::text[])"
_LIST = f"""
SELECT {", ".join(f"a.{name}" for name in _NAMES)},
    CASE WHEN k.alert_id = a.id THEN k.seen_at ELSE a.raised_at END
FROM alerts AS a LEFT JOIN alert_keys AS k ON k.key = a.key
WHERE $1::text IS NULL OR a.tenant = $1 ORDER BY a.raised_at DESC, a.id DESC LIMIT $2
"""
_STATES = """
SELECT sink, attempts, next_at, done_at, error FROM alert_deliveries
WHERE alert_id = $1 ORDER BY sink
"""
_OLD = """
SELECT id FROM alerts WHERE raised_at < $1
AND NOT EXISTS (SELECT 1 FROM alert_keys AS k WHERE k.alert_id = alerts.id)
"""


class PostgresAlertStore:
    """`AlertStore` over a Database."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def raise_alert(
        self, alert: AlertRecord, sinks: Mapping[str, float], *, cooldown_s: float
    ) -> bool:
        """See AlertStore."""
        values = {name: getattr(alert, name) for name in _NAMES}
        values["facts"] = orjson.dumps(dict(alert.facts)).decode()
        row = [stored_text(v) if isinstance(v, str) else v for v in values.values()]

        async def work(connection: asyncpg.Connection) -> bool:
            seen = (row[1], row[0], alert.raised_at, alert.raised_at - cooldown_s)
            if await connection.fetchval(_SEE, *seen) != row[0]:
                return False
            await connection.execute(_INSERT, *row)
            for sink, at in sinks.items():
                await connection.execute(_DELIVER, row[0], stored_text(sink), at)
            return True

        return await self._database.transact(work)

    async def is_due(self, now: float) -> bool:
        """See AlertStore."""
        ((due,),) = await self._database.fetch(_IS_DUE, now)
        return bool(due)

    async def claim(self, owner: str, now: float, *, lease_s: float, limit: int) -> list[Delivery]:
        """See AlertStore."""

        async def work(connection: asyncpg.Connection) -> list[Delivery]:
            await connection.execute(_TURN)
            rows = await connection.fetch(_CLAIM, now, owner, now + lease_s, limit)
            found = await connection.fetch(_SOME, [alert_id for alert_id, _, _ in rows])
            alerts = {row[0]: _alert_of(row) for row in found}
            return [
                Delivery(alert=alerts[alert_id], sink=read_text(sink), attempts=attempts)
                for alert_id, sink, attempts in rows
            ]

        claimed = await self._database.transact(work)
        return sorted(claimed, key=lambda delivery: (delivery.sink, delivery.alert.raised_at))

    async def settle(self, owner: str, results: Sequence[Settled], now: float) -> None:
        """See AlertStore."""

        async def work(connection: asyncpg.Connection) -> None:
            await connection.execute(_TURN)
            for result in results:
                done = now if result.done else None
                how = (int(bool(result.error)), result.next_at, done, stored_text(result.error))
                which = (stored_text(result.alert_id), stored_text(result.sink), owner)
                await connection.execute(_SETTLE, *how, *which)

        await self._database.transact(work)

    async def list_alerts(self, *, tenant: str | None, limit: int = 50) -> list[StoredAlert]:
        """See AlertStore."""
        owner = None if tenant is None else stored_text(tenant)

        async def work(connection: asyncpg.Connection) -> list[StoredAlert]:
            found = []
            for *row, seen_at in await connection.fetch(_LIST, owner, limit):
                states = await connection.fetch(_STATES, row[0])
                deliveries = tuple(map(_state_of, states))
                found.append(
                    StoredAlert(alert=_alert_of(row), seen_at=seen_at, deliveries=deliveries)
                )
            return found

        return await self._database.view(work)

    async def prune_alerts(self, older_than: float) -> int:
        """See AlertStore."""

        async def work(connection: asyncpg.Connection) -> int:
            await connection.execute(_TURN)
            await connection.execute("DELETE FROM alert_keys WHERE seen_at < $1", older_than)
            ids = [name for (name,) in await connection.fetch(_OLD, older_than)]
            for table, column in (("alert_deliveries", "alert_id"), ("alerts", "id")):
                sql = f"DELETE FROM {table} WHERE {column} = ANY($1::text[])"
                await connection.execute(sql, ids)
            return len(ids)

        return await self._database.transact(work)


def _state_of(row: Sequence[Any]) -> DeliveryState:
    sink, attempts, next_at, done_at, error = row
    return DeliveryState(
        sink=read_text(sink),
        attempts=attempts,
        next_at=next_at,
        done_at=done_at,
        error=read_text(error),
    )


def _alert_of(row: Sequence[Any]) -> AlertRecord:
    values = dict(zip(_NAMES, map(read_text, row), strict=True))
    values["facts"] = orjson.loads(values["facts"])
    return AlertRecord(**values)
