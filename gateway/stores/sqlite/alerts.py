"""Alerts in SQLite, in SQL that other databases know, too."""

# ruff: noqa: S608 - statements are put together from names of this package; values are bound

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

import apsw
import orjson

from gateway.stores.alerts import (
    AlertRecord,
    Delivery,
    DeliveryState,
    Settled,
    StoredAlert,
)
from gateway.stores.sqlite.database import Database

# One statement decides whether a key is new, so that two gateways agree.
_SEE = """
INSERT INTO alert_keys (key, alert_id, seen_at) VALUES (?1, ?2, ?3)
ON CONFLICT (key) DO UPDATE SET
    alert_id = CASE WHEN alert_keys.seen_at <= ?4 THEN excluded.alert_id
        ELSE alert_keys.alert_id END,
    seen_at = max(alert_keys.seen_at, excluded.seen_at)
RETURNING alert_id
"""
_INSERT = """
INSERT INTO alerts (id, key, rule, severity, title, raised_at, tenant, facts, path)
VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)
"""
_DELIVER = """
INSERT INTO alert_deliveries
    (alert_id, sink, attempts, next_at, owner, leased_until, done_at, error)
VALUES (?, ?, 0, ?, '', 0, NULL, '')
"""
_DUE = "done_at IS NULL AND next_at <= ?1 AND leased_until <= ?1"
_IS_DUE = f"SELECT EXISTS (SELECT 1 FROM alert_deliveries WHERE {_DUE})"
# What is due is asked for twice, for databases that run two claims side by side.
_CLAIM = f"""
UPDATE alert_deliveries SET owner = ?2, leased_until = ?3
WHERE (alert_id, sink) IN (
    SELECT alert_id, sink FROM (
        SELECT alert_id, sink,
            row_number() OVER (PARTITION BY sink ORDER BY next_at, alert_id) AS place
        FROM alert_deliveries WHERE {_DUE}
    ) AS due WHERE place <= ?4
) AND {_DUE}
RETURNING alert_id, sink, attempts
"""
_SETTLE = """
UPDATE alert_deliveries
SET attempts = attempts + ?, next_at = ?, done_at = ?, error = ?, owner = '', leased_until = 0
WHERE alert_id = ? AND sink = ? AND owner = ?
"""
_COLUMNS = "id, key, rule, severity, title, raised_at, tenant, facts, path"
_ONE = f"SELECT {_COLUMNS} FROM alerts WHERE id = ?"
_LIST = """
SELECT a.id, a.key, a.rule, a.severity, a.title, a.raised_at, a.tenant, a.facts, a.path,
    CASE WHEN k.alert_id = a.id THEN k.seen_at ELSE a.raised_at END
FROM alerts AS a LEFT JOIN alert_keys AS k ON k.key = a.key
WHERE ?1 IS NULL OR a.tenant = ?1 ORDER BY a.raised_at DESC, a.id DESC LIMIT ?2
"""
_STATES = """
SELECT sink, attempts, next_at, done_at, error FROM alert_deliveries
WHERE alert_id = ? ORDER BY sink
"""


class SQLiteAlertStore:
    """`AlertStore` over a Database."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def raise_alert(
        self, alert: AlertRecord, sinks: Mapping[str, float], *, cooldown_s: float
    ) -> bool:
        """See AlertStore."""
        return await self._database.write(partial(_raise, alert, dict(sinks), cooldown_s))

    async def is_due(self, now: float) -> bool:
        """See AlertStore."""

        def work(connection: apsw.Connection) -> bool:
            return bool(connection.execute(_IS_DUE, (now,)).get)

        return await self._database.read(work)

    async def claim(self, owner: str, now: float, *, lease_s: float, limit: int) -> list[Delivery]:
        """See AlertStore."""
        return await self._database.write(partial(_claim, owner, now, lease_s, limit))

    async def settle(self, owner: str, results: Sequence[Settled], now: float) -> None:
        """See AlertStore."""

        def work(connection: apsw.Connection) -> None:
            for result in results:
                failed = bool(result.error)
                values = (failed, result.next_at, now if result.done else None, result.error)
                connection.execute(_SETTLE, (*values, result.alert_id, result.sink, owner))

        await self._database.write(work)

    async def list_alerts(self, *, tenant: str | None, limit: int = 50) -> list[StoredAlert]:
        """See AlertStore."""
        return await self._database.read(partial(_list, tenant, limit))

    async def prune_alerts(self, older_than: float) -> int:
        """See AlertStore."""
        return await self._database.write(partial(_prune, older_than))


def _raise(
    alert: AlertRecord, sinks: Mapping[str, float], cooldown_s: float, connection: apsw.Connection
) -> bool:
    seen = (alert.key, alert.id, alert.raised_at, alert.raised_at - cooldown_s)
    if connection.execute(_SEE, seen).get != alert.id:
        return False
    facts = orjson.dumps(dict(alert.facts)).decode()
    about = (alert.id, alert.key, alert.rule, alert.severity, alert.title)
    connection.execute(_INSERT, (*about, alert.raised_at, alert.tenant, facts, alert.path))
    connection.executemany(_DELIVER, [(alert.id, sink, at) for sink, at in sinks.items()])
    return True


def _claim(
    owner: str, now: float, lease_s: float, limit: int, connection: apsw.Connection
) -> list[Delivery]:
    rows: list[Any] = connection.execute(_CLAIM, (now, owner, now + lease_s, limit)).fetchall()
    found = []
    for alert_id, sink, attempts in rows:
        alert = _alert_of(connection.execute(_ONE, (alert_id,)).fetchall()[0])
        found.append(Delivery(alert=alert, sink=sink, attempts=attempts))
    return sorted(found, key=lambda delivery: (delivery.sink, delivery.alert.raised_at))


def _list(tenant: str | None, limit: int, connection: apsw.Connection) -> list[StoredAlert]:
    found = []
    rows: list[Any] = connection.execute(_LIST, (tenant, limit)).fetchall()
    for *row, seen_at in rows:
        alert = _alert_of(row)
        states: list[Any] = connection.execute(_STATES, (alert.id,)).fetchall()
        deliveries = tuple(
            DeliveryState(sink=sink, attempts=tries, next_at=next_at, done_at=done, error=error)
            for sink, tries, next_at, done, error in states
        )
        found.append(StoredAlert(alert=alert, seen_at=seen_at, deliveries=deliveries))
    return found


def _prune(older_than: float, connection: apsw.Connection) -> int:
    connection.execute("DELETE FROM alert_keys WHERE seen_at < ?", (older_than,))
    old = """
        SELECT id FROM alerts WHERE raised_at < ?
        AND NOT EXISTS (SELECT 1 FROM alert_keys AS k WHERE k.alert_id = alerts.id)
    """
    ids = [(name,) for (name,) in connection.execute(old, (older_than,))]
    connection.executemany("DELETE FROM alert_deliveries WHERE alert_id = ?", ids)
    connection.executemany("DELETE FROM alerts WHERE id = ?", ids)
    return len(ids)


def _alert_of(row: Sequence[Any]) -> AlertRecord:
    values = dict(zip(_COLUMNS.split(", "), row, strict=True))
    values["facts"] = orjson.loads(values["facts"])
    return AlertRecord(**values)
