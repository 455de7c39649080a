"""`gateway alerts`: a test of the receivers, and what was reported."""

import time
from argparse import Namespace
from secrets import token_hex
from typing import Any

from gateway.backends import Stores
from gateway.commands.declared import declare
from gateway.commands.store import answer, kept, say
from gateway.config import Settings, load_settings
from gateway.errors import ConfigError
from gateway.features.alerts.address import address_of
from gateway.features.alerts.records import AlertRecord, DeliveryState
from gateway.features.alerts.sender import send_alerts
from gateway.features.alerts.settings import AlertSettings
from gateway.features.alerts.store import AlertStore
from gateway.text import formatting
from gateway.text.sanitize import one_line


def add_alerts(commands: Any) -> None:
    """Declare the command and its verbs."""
    declare(commands, __name__, {"alerts test": _test_alerts, "alerts list": _list_alerts})


async def _test_alerts(args: Namespace) -> int:
    settings = load_settings(args.config)
    known = settings.of(AlertSettings).sinks
    sinks = [s for s in known if args.sink in (None, s.name)]
    if not known:
        raise ConfigError("alerts test: the config names no receiver (alerts.sinks)")
    if not sinks:
        names = ", ".join(s.name for s in known)
        raise ConfigError(f"alerts test: no {args.sink!r} among alerts.sinks: {names}")
    title = "A test of the gateway's alerts: nothing is wrong"
    own_id = token_hex(8)
    now = time.time()
    alert = AlertRecord(
        id=own_id, key="test", rule="test", severity="warn", title=title, raised_at=now
    )
    failed = 0
    for sink in sinks:
        error, _ = await send_alerts(sink, [alert], settings.of(AlertSettings))
        failed += bool(error)
        result = {"sink": sink.name, "kind": sink.kind, "error": error or None}
        answer(args, result, f"{sink.name}: {error or 'sent'}")
    if failed:
        return 1
    return 0


def _sent(delivery: DeliveryState) -> str:
    """The state of a delivery, in a word."""
    if not delivery.done_at:
        return "waiting"
    if delivery.error:
        return "failed"
    return "sent"


async def _list_alerts(stores: Stores, settings: Settings, args: Namespace) -> None:
    # Imported here: pydantic is loaded only where it is used.
    from gateway.features.alerts.api import stored_alert_view

    store = kept(stores.of(AlertStore), "this store keeps no alerts")
    found = await store.list_alerts(tenant=args.tenant, limit=args.limit)
    address = await address_of(settings, store, "")
    for stored in found:
        alert = stored.alert
        states = ", ".join(f"{each.sink} {_sent(each)}" for each in stored.deliveries)
        title = f"{one_line(alert.title, 100)}  [{states}]"
        when = formatting.ago(alert.raised_at)
        line = f"{when:>10}  {alert.severity_word:10}  {alert.rule:18}  {title}"
        answer(args, stored_alert_view(stored, address), line)
    if not found and not args.json:
        say("no alerts")
