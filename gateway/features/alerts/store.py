"""Alerts and their deliveries."""

from collections.abc import Mapping, Sequence

import orjson

from gateway.features.alerts.records import (
    AlertRecord,
    DeliveryState,
    QueuedAlert,
    Settled,
    StoredAlert,
)
from gateway.stores.sql.engine import Connection, Engine, Row, columns, insert, record_of, row_of

_ABOUT = ("id", "key", "rule", "severity", "title", "raised_at", "tenant")
_NAMES = (*_ABOUT, "facts", "path", "thread", "update_of")
_STATE = ("sink", "attempts", "next_at", "done_at", "error")
# One statement decides whether a key is new, so that two gateways agree.
_SEE = """
INSERT INTO alert_keys (key, alert_id, seen_at) VALUES (:key, :id, :raised_at)
ON CONFLICT (key) DO UPDATE SET
    alert_id = CASE WHEN alert_keys.seen_at <= :before THEN excluded.alert_id
        ELSE alert_keys.alert_id END,
    seen_at = CASE WHEN alert_keys.seen_at > excluded.seen_at THEN alert_keys.seen_at
        ELSE excluded.seen_at END
RETURNING alert_id
"""
# The alert that opened the thread, which is over when none was raised in it for a while.
_OPENER = """
SELECT CASE WHEN update_of = '' THEN id ELSE update_of END FROM alerts
WHERE thread = :thread AND raised_at > :before ORDER BY raised_at DESC, id DESC LIMIT 1
"""
_SAID = """
SELECT d.sink, max(CASE WHEN a.severity = 'danger' THEN 1 ELSE 0 END)
FROM alerts AS a JOIN alert_deliveries AS d ON d.alert_id = a.id
WHERE a.thread = :thread AND :opener IN (a.id, a.update_of) GROUP BY d.sink
"""
_SESSION = """
SELECT CASE WHEN c.root_id IS NULL THEN c.id ELSE c.root_id END
FROM runs AS r JOIN conversations AS c ON c.pk = r.conversation_pk WHERE r.id = :run
"""
_ADDRESS = "SELECT sealed FROM alert_addresses"
_KEEP_ADDRESS = """
INSERT INTO alert_addresses (id, sealed) VALUES (0, :sealed)
ON CONFLICT (id) DO UPDATE SET sealed = excluded.sealed
"""
_INSERT = insert("alerts", _NAMES)
_DELIVER = """
INSERT INTO alert_deliveries (alert_id, sink, attempts, next_at, owner, leased_until, error)
VALUES (:alert_id, :sink, 0, :next_at, '', 0, '')
"""
_ENDS = ("run_stopped", "approval_asked")  # never wait: the thread ends, or a person has to answer
_DUE = "done_at IS NULL AND next_at <= :now AND leased_until <= :now"
_IS_DUE = f"SELECT EXISTS (SELECT 1 FROM alert_deliveries WHERE {_DUE})"
# What is due is asked for twice: another gateway may have claimed it since.
_CLAIM = f"""
UPDATE alert_deliveries SET owner = :owner, leased_until = :until
WHERE (alert_id, sink) IN (
    SELECT alert_id, sink FROM (
        SELECT alert_id, sink,
            row_number() OVER (PARTITION BY sink ORDER BY next_at, alert_id) AS place
        FROM alert_deliveries WHERE {_DUE}
    ) AS due WHERE place <= :limit
) AND {_DUE}
RETURNING alert_id, sink, attempts, message
"""
# What waits in a thread goes with what is due in it.
_CLAIM_HELD = """
UPDATE alert_deliveries SET owner = :owner, leased_until = :until
WHERE done_at IS NULL AND leased_until <= :now AND EXISTS (
    SELECT 1 FROM alerts AS own, alerts AS other, alert_deliveries AS d
    WHERE own.id = alert_deliveries.alert_id AND own.thread <> '' AND other.thread = own.thread
    AND d.alert_id = other.id AND d.sink = alert_deliveries.sink
    AND d.owner = :owner AND d.leased_until = :until
)
RETURNING alert_id, sink, attempts, message
"""
_SETTLE = """
UPDATE alert_deliveries SET attempts = attempts + :failed, next_at = :next_at,
    done_at = :done_at, error = :error, message = :message, owner = '', leased_until = 0
WHERE alert_id = :alert_id AND sink = :sink AND owner = :owner
"""
# What a receiver that changes its messages has been sent of a thread goes with what is new in it,
# but for a question, and for what could not be changed: these are messages of their own.
_TOLD = """
SELECT d.alert_id, d.sink, 0, d.message
FROM alerts AS a JOIN alert_deliveries AS d ON d.alert_id = a.id
WHERE d.message <> '' AND EXISTS (
    SELECT 1 FROM alerts AS new JOIN alert_deliveries AS due ON due.alert_id = new.id
    WHERE due.owner = :owner AND due.leased_until = :until AND due.sink = d.sink
    AND due.attempts = 0 AND new.rule <> 'approval_asked' AND new.thread = a.thread
    AND new.update_of IN (a.id, a.update_of) AND new.update_of <> ''
)
"""
_ONE = f"SELECT {columns(_NAMES)} FROM alerts WHERE id = :id"
_LIST = f"""
SELECT {columns(_NAMES, "a.")},
    CASE WHEN k.alert_id = a.id THEN k.seen_at ELSE a.raised_at END
FROM alerts AS a LEFT JOIN alert_keys AS k ON k.key = a.key
WHERE CAST(:tenant AS TEXT) IS NULL OR a.tenant = :tenant
ORDER BY a.raised_at DESC, a.id DESC LIMIT :limit
"""
_STATES = f"SELECT {columns(_STATE)} FROM alert_deliveries WHERE alert_id = :id ORDER BY sink"
_FORGET_KEYS = "DELETE FROM alert_keys WHERE seen_at < :older_than"
_OLD = """
SELECT id FROM alerts WHERE raised_at < :older_than
AND NOT EXISTS (SELECT 1 FROM alert_keys AS k WHERE k.alert_id = alerts.id)
"""
_TABLE = "alert_deliveries"


class AlertStore:
    """The queue of alerts, which several gateways may share. Every method may raise StoreError."""

    def __init__(self, engine: Engine):
        self._engine = engine

    async def raise_alert(
        self,
        alert: AlertRecord,
        sinks: Mapping[str, float],
        *,
        cooldown_s: float,
        held: Mapping[str, float] = {},
    ) -> bool:
        """Store `alert` with a delivery to each receiver, due at the given time. Returns False
        if its key was seen less than `cooldown_s` before: then only the time of the last
        sighting is updated, so that a condition that flaps is one alert. `held`: receivers with
        the time until which what follows in a thread waits, unless it ends the thread, or is the
        first danger in it."""
        row = row_of(alert, _NAMES)
        row["facts"] = orjson.dumps(dict(alert.facts)).decode()
        before = alert.raised_at - cooldown_s
        key = row_of(alert, ("key", "id", "raised_at"))

        async def work(connection: Connection) -> bool:
            await connection.take_turn(_TABLE)  # two gateways would open a thread twice
            if await connection.value(_SEE, **key, before=before) != alert.id:
                return False
            due = dict(sinks)
            opener = None
            if alert.thread:
                opener = await connection.value(_OPENER, thread=alert.thread, before=before)
            if opener is not None:
                row["update_of"] = opener
                said = await connection.fetch(_SAID, thread=alert.thread, opener=opener)
                for sink, danger in said if alert.rule not in _ENDS else ():
                    if sink in due and (danger or alert.severity != "danger"):
                        due[sink] = max(due[sink], held.get(sink, 0.0))
            await connection.fetch(_INSERT, **row)
            deliveries = [{"alert_id": alert.id, "sink": s, "next_at": at} for s, at in due.items()]
            await connection.execute_many(_DELIVER, deliveries)
            return True

        return await self._engine.transact(work)

    async def session_of(self, run: str) -> str:
        """The id of the session that a run belongs to; "" where the run is not stored."""
        rows = await self._engine.fetch(_SESSION, run=run)
        return str(rows[0][0]) if rows else ""

    async def address(self) -> str:
        """The address of the gateway that was kept last, with its seal; "" for none."""
        rows = await self._engine.fetch(_ADDRESS)
        return str(rows[0][0]) if rows else ""

    async def keep_address(self, sealed: str) -> None:
        """Keep the address of the gateway, with its seal."""
        await self._engine.write(_KEEP_ADDRESS, sealed=sealed)

    @property
    def secret(self) -> bytes:
        """Derived from the admin key; empty without one."""
        return self._engine.secret

    async def is_due(self, now: float) -> bool:
        """True if `claim` would return anything."""
        return bool((await self._engine.fetch(_IS_DUE, now=now))[0][0])

    async def claim(
        self, owner: str, now: float, *, lease_s: float, limit: int
    ) -> list[QueuedAlert]:
        """The oldest deliveries due at `now`, at most `limit` of each sink, taken by `owner` until
        `now + lease_s`, or until they are settled. With what their threads have said in messages
        that are changed."""

        async def work(connection: Connection) -> list[QueuedAlert]:
            # Claims of two gateways take their turns: each changes rows in no certain order.
            await connection.take_turn(_TABLE)
            lease = {"owner": owner, "now": now, "until": now + lease_s}
            found = []
            due = [*await connection.fetch(_CLAIM, **lease, limit=limit)]
            if due:
                due += await connection.fetch(_CLAIM_HELD, **lease)
                due += await connection.fetch(_TOLD, **lease)
            for alert_id, sink, tries, message in due:
                (row,) = await connection.fetch(_ONE, id=alert_id)
                alert = _alert_of(row)
                found.append(QueuedAlert(alert=alert, sink=sink, attempts=tries, message=message))
            return found

        claimed = await self._engine.transact(work)
        return sorted(claimed, key=lambda delivery: (delivery.sink, delivery.alert.raised_at))

    async def settle(self, owner: str, results: Sequence[Settled], now: float) -> None:
        """Note the results of attempts, except for deliveries that another gateway has claimed
        since."""
        rows = [
            {
                **row_of(result, ("alert_id", "sink", "next_at", "error", "message")),
                "owner": owner,
                "failed": int(bool(result.error)),
                "done_at": now if result.done else None,
            }
            for result in results
        ]

        async def work(connection: Connection) -> None:
            await connection.take_turn(_TABLE)
            await connection.execute_many(_SETTLE, rows)

        await self._engine.transact(work)

    async def list_alerts(self, *, tenant: str | None, limit: int = 50) -> list[StoredAlert]:
        """Returns the alerts, newest first. `tenant` None: all alerts, also those that belong to
        no tenant."""

        async def work(connection: Connection) -> list[StoredAlert]:
            found = []
            for *row, seen_at in await connection.fetch(_LIST, tenant=tenant, limit=limit):
                alert = _alert_of(row)
                states = await connection.fetch(_STATES, id=alert.id)
                deliveries = tuple(map(record_of(DeliveryState, _STATE), states))
                found.append(StoredAlert(alert=alert, seen_at=seen_at, deliveries=deliveries))
            return found

        return await self._engine.view(work)

    async def prune_alerts(self, older_than: float) -> int:
        """Remove alerts raised and last seen before a time, delivered or not; returns how many."""

        async def work(connection: Connection) -> int:
            await connection.take_turn(_TABLE)
            await connection.fetch(_FORGET_KEYS, older_than=older_than)
            ids = [{"id": row[0]} for row in await connection.fetch(_OLD, older_than=older_than)]
            for table, column in ((_TABLE, "alert_id"), ("alerts", "id")):
                await connection.execute_many(f"DELETE FROM {table} WHERE {column} = :id", ids)
            return len(ids)

        return await self._engine.transact(work)


def _alert_of(row: Row) -> AlertRecord:
    at = len(_ABOUT)
    return record_of(AlertRecord, _NAMES)((*row[:at], orjson.loads(row[at]), *row[at + 1 :]))
