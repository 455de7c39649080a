"""The queue of alerts: when each is sent, and when a failed delivery is tried again.

It is in the store, which several gateways share, and in memory while the store cannot be used.
What was taken in is sent until the receiver has it, or `alerts.give_up_s` are over."""

import asyncio
import dataclasses
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from secrets import token_hex
from typing import Any

from msgspec.structs import replace

from gateway.features.alerts.metrics import AlertMetrics
from gateway.features.alerts.records import AlertRecord, QueuedAlert, Settled
from gateway.features.alerts.rules import Finding
from gateway.features.alerts.sender import send_alerts
from gateway.features.alerts.settings import AlertSettings, AlertSink
from gateway.features.alerts.store import AlertStore
from gateway.features.alerts.when_sent import digest_at, due_at, in_digest
from gateway.holds import answer_path
from gateway.observability.logging import get_logger
from gateway.stores.controls import Control
from gateway.stores.protocols import StoreError
from gateway.stores.sql.controls import ControlStore

_MOST_IN_MEMORY = 1000
_REFRESHES = 4  # a condition that lasts is noted in the store so often within a cooldown
_LEASE_MARGIN_S = 30.0
_WEEKLY_S = 8 * 86_400.0  # one report of a week, whichever gateway finds it


def key_of(asked: Control) -> str:
    """The subject of the alert about a question."""
    return f"{asked.subject}:{asked.at:.3f}"


@dataclass(eq=False)
class AlertOutbox:
    """Takes in what the rules find, and delivers it. Alerts that are kept in memory are lost if
    the process ends before the receiver has them."""

    store: AlertStore  # alerts and their deliveries
    settings: Callable[[], AlertSettings]  # gives those in force
    metrics: AlertMetrics  # deliveries by result
    usable: Callable[[], bool]  # False: alerts are kept in memory, not in the store
    publish: Callable[[AlertRecord], None]  # gets each new alert, for live pages
    controls: ControlStore | None = field(default=None, init=False)  # of the questions asked
    # gives the address of the gateway for links, where the settings have none
    address: Callable[[], Awaitable[str]] | None = field(default=None, init=False)
    # random name under which this process claims deliveries
    _owner: str = field(default_factory=lambda: token_hex(8), init=False)
    # By key: last seen, last stored.
    _seen: dict[str, tuple[float, float]] = field(default_factory=dict, init=False)
    # Deliveries that the store does not have, and their next attempt, by alert and sink.
    _waiting: dict[tuple[str, str], tuple[QueuedAlert, float]] = field(
        default_factory=dict, init=False
    )
    # Sent, and not yet noted in the store.
    _sent: set[tuple[str, str]] = field(default_factory=set, init=False)
    # one entry for each failed delivery
    _log: Any = field(default_factory=lambda: get_logger("gateway.alerts"), init=False)

    @property
    def in_memory(self) -> int:
        """Deliveries that wait outside the store."""
        return len(self._waiting)

    async def take(self, found: Finding, now: float) -> bool:
        """Queue an alert about `found` at `now` (epoch); False when it is a known condition."""
        settings = self.settings()
        sinks = settings.sinks_of(found.rule)
        if not sinks:
            return False
        seen, noted = self._seen.get(found.key, (float("-inf"), float("-inf")))
        if len(self._seen) > _MOST_IN_MEMORY:
            self._seen = {
                k: at for k, at in self._seen.items() if now - at[0] < settings.cooldown_s
            }
        known = now - seen < settings.cooldown_s
        if known and now - noted < settings.cooldown_s / _REFRESHES:
            self._seen[found.key] = (now, noted)
            return False
        self._seen[found.key] = (now, now)
        facts = dict(found.facts)
        if settings.with_task and found.task:
            facts["task"] = found.task
        if session := await self._session(str(facts.get("run_id") or "")):
            facts["session_id"] = session
        alert = AlertRecord(
            id=token_hex(8),
            key=found.key,
            rule=found.rule,
            severity=found.severity,
            title=found.title,
            raised_at=now,
            tenant=found.tenant,
            facts=facts,
            path=found.path,
            thread=facts.get("session_id") or found.trouble or found.key,
        )
        if in_digest(found, settings):
            at = digest_at(now, settings)
        else:
            at = due_at(found.rule, now, settings)
        due = dict.fromkeys(sinks, at)
        cooldown_s = {"weekly_report": _WEEKLY_S}.get(found.rule, settings.cooldown_s)
        is_new = await self._keep(alert, due, cooldown_s, known=known)
        if is_new:
            self.metrics.raised.labels(found.rule).inc()
            self._log.warning(
                "alert", rule=found.rule, severity_word=alert.severity_word, about=found.subject
            )
            self.publish(alert)
        return is_new

    async def _session(self, run: str) -> str:
        """The id of a run's session; of its conversation while the store does not know it."""
        known = ""
        if self.usable():
            with suppress(StoreError):
                known = await self.store.session_of(run)
        return known or run.rpartition(".")[0]

    async def _keep(
        self, alert: AlertRecord, due: Mapping[str, float], cooldown_s: float, *, known: bool
    ) -> bool:
        if self.usable():
            try:
                end = alert.raised_at + self.settings().cooldown_s
                held = {sink.name: end for sink in self.settings().sinks if sink.holds}
                return await self.store.raise_alert(alert, due, cooldown_s=cooldown_s, held=held)
            except StoreError as error:
                self._log.warning("alert kept in memory", reason=str(error))
        if known:
            return False
        for sink, at in due.items():
            self._waiting[alert.id, sink] = (QueuedAlert(alert=alert, sink=sink), at)
        if len(self._waiting) > _MOST_IN_MEMORY:
            self._waiting = dict(list(self._waiting.items())[-_MOST_IN_MEMORY:])
            self._log.error("alerts dropped: too many wait in memory")
        return True

    async def deliver(self, now: float) -> int:
        """Send everything due at `now` (epoch); returns how many deliveries arrived."""
        settings = self.settings()
        stored = await self._claim(now, settings)
        in_memory = {key: one for key, (one, next_at) in self._waiting.items() if next_at <= now}
        batches: dict[str, list[QueuedAlert]] = {}
        for delivery in (*stored, *in_memory.values()):
            batches.setdefault(delivery.sink, []).append(delivery)
        if not batches:
            return 0
        sinks = {sink.name: sink for sink in settings.sinks}
        results = await asyncio.gather(
            *(self._send(sinks.get(name), batch, now) for name, batch in batches.items())
        )
        settled = {(one.alert_id, one.sink): one for batch in results for one in batch}
        for key, delivery in in_memory.items():
            if settled[key].done:
                self._waiting.pop(key, None)
                self._sent.discard(key)
            elif key in self._waiting:
                again = replace(delivery, attempts=delivery.attempts + 1)
                self._waiting[key] = (again, settled[key].next_at)
        await self._settle([settled[d.alert.id, d.sink] for d in stored], now)
        return sum(not one.error for one in settled.values())

    async def _claim(self, now: float, settings: AlertSettings) -> list[QueuedAlert]:
        lease_s = settings.timeout_s + _LEASE_MARGIN_S
        try:
            if self.usable() and await self.store.is_due(now):
                return await self.store.claim(
                    self._owner,
                    now,
                    lease_s=lease_s,
                    limit=_MOST_IN_MEMORY if settings.digest_at else settings.max_group,
                )
        except StoreError as error:
            self._log.warning("queue of alerts not read", reason=str(error))
        return []

    async def _send(
        self, sink: AlertSink | None, batch: Sequence[QueuedAlert], now: float
    ) -> list[Settled]:
        """One message for all of `batch`."""
        settings = self.settings()
        if settings.base_url is None and self.address is not None:
            settings = dataclasses.replace(settings, base_url=await self.address())
        if sink is None:
            return [_settled(delivery, "there is no such sink any more") for delivery in batch]
        fresh = [d for d in batch if (d.alert.id, d.sink) not in self._sent]
        # What waits for the digest is claimed with what is due in its thread.
        due = {d.alert.thread for d in fresh if not (d.message or in_digest(d.alert, settings))}
        groups: dict[str, list[QueuedAlert]] = {}
        for delivery in fresh:
            # Nobody hears of a message that is changed, and a question is for a person.
            changed = sink.edits and delivery.alert.rule != "approval_asked"
            apart = (sink.by_mail or changed) and (delivery.message or delivery.alert.thread in due)
            groups.setdefault(delivery.alert.thread if apart else "", []).append(delivery)
        settled = [_settled(d) for d in batch if d not in fresh]
        for thread, group in groups.items():
            alerts = [await self._with_links(d.alert, settings.base_url) for d in group]
            changed_id = thread and max(d.message for d in group)  # the newest: Discord's numbers
            error, message = await send_alerts(sink, alerts, settings, message_id=changed_id)
            result = "failed" if error else "sent"
            self.metrics.sent.labels(sink.name, result).inc(sum(not d.message for d in group))
            if error:
                self._log.warning("alert not sent", sink=sink.name, reason=error, alerts=len(group))
            else:
                self._sent.update((d.alert.id, d.sink) for d in group)
            for each in group:
                end = self._after(each, error, now, limits=settings)
                settled.append(replace(end, message=thread and message))
        return settled

    async def _with_links(self, alert: AlertRecord, base_url: str | None) -> AlertRecord:
        """The alert with the links that answer its question, if that is open: what is stored can be
        read with the key of an agent."""
        if alert.rule != "approval_asked" or self.controls is None:
            return alert
        listed: Sequence[Control] = ()
        with suppress(StoreError):
            listed = await self.controls.list_controls()
        for each in listed:
            if each.action == "ask" and alert.key.endswith(f":{key_of(each)}"):
                base = (base_url or "").rstrip("/")
                key = self.controls.engine.secret
                links = {n: base + answer_path(each, n, key) for n in ("yes", "no")}
                lines = [f"{name}: {link}" for name, link in links.items() if base_url]
                return replace(alert, facts={**alert.facts, **links, "lines": lines})
        return alert

    def _after(
        self, delivery: QueuedAlert, error: str, now: float, limits: AlertSettings
    ) -> Settled:
        if not error:
            return _settled(delivery)
        if now - delivery.alert.raised_at >= limits.give_up_s:
            self.metrics.sent.labels(delivery.sink, "given_up").inc()
            self._log.error("alert given up", sink=delivery.sink, alert=delivery.alert.id)
            return _settled(delivery, error)
        pause_s = min(limits.retry_s * 2 ** min(delivery.attempts, 32), limits.max_retry_s)
        return replace(_settled(delivery, error), done=False, next_at=now + pause_s)

    async def _settle(self, results: Sequence[Settled], now: float) -> None:
        try:
            if results:
                await self.store.settle(self._owner, results, now)
                self._sent.difference_update((one.alert_id, one.sink) for one in results)
        except StoreError as error:
            # They are due again when the lease ends; what was sent is not sent again by us.
            self._log.warning("deliveries of alerts not recorded", reason=str(error))

    async def prune(self, now: float) -> None:
        """Remove alerts that are older than `alerts.keep_days`."""
        if self.usable():
            await self.store.prune_alerts(now - self.settings().keep_days * 86_400)


def _settled(delivery: QueuedAlert, error: str = "") -> Settled:
    return Settled(
        alert_id=delivery.alert.id, sink=delivery.sink, done=True, next_at=0.0, error=error
    )
