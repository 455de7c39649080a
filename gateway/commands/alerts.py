"""`gateway alerts`: sends a test to every sink, and lists what was reported."""

from __future__ import annotations

import argparse
import asyncio
import json
import secrets
import time
from typing import Any

from gateway.backends import Stores
from gateway.commands.store import add_common, add_verb, say
from gateway.config import Settings, load_settings
from gateway.errors import ConfigError
from gateway.stores.alerts import AlertRecord, StoredAlert
from gateway.text.formatting import ago
from gateway.text.sanitize import one_line


def add_parser(commands: Any) -> None:
    """Declare the command and its verbs."""
    alerts = commands.add_parser("alerts", help="test the receivers of alerts, list alerts")
    verbs = alerts.add_subparsers(required=True, metavar="VERB")
    summary = "send a test alert to the receivers, and tell which took it"
    test = verbs.add_parser("test", help=summary)
    add_common(test)
    test.set_defaults(run=lambda args: asyncio.run(_test(args)))
    test.add_argument("--sink", help="only to this one (alerts.sinks)")
    listed = add_verb(verbs, "list", "alerts, newest first", _list, existing=True)
    listed.add_argument("--tenant", help="only those about runs of this tenant")
    listed.add_argument("--limit", type=int, default=20, help="most alerts (default: 20)")


async def _test(args: argparse.Namespace) -> int:
    from gateway.alerts.sender import AlertSender

    settings = load_settings(args.config)
    sinks = [s for s in settings.alerts.sinks if args.sink in (None, s.name)]
    if not sinks:
        names = ", ".join(s.name for s in settings.alerts.sinks)
        known = (
            f"no {args.sink!r} among alerts.sinks: {names}"
            if names
            else "the config names no receiver (alerts.sinks)"
        )
        raise ConfigError(f"alerts test: {known}")
    alert = AlertRecord(
        id=secrets.token_hex(8),
        key="test",
        rule="test",
        severity="warn",
        title="A test of the gateway's alerts: nothing is wrong",
        raised_at=time.time(),
    )
    sender, failed = AlertSender(), 0
    try:
        for sink in sinks:
            error = await sender.send(sink, [alert], settings.alerts)
            failed += bool(error)
            result = {"sink": sink.name, "kind": sink.kind, "error": error or None}
            say(json.dumps(result) if args.json else f"{sink.name}: {error or 'sent'}")
    finally:
        await sender.aclose()
    return 1 if failed else 0


async def _list(stores: Stores, settings: Settings, args: argparse.Namespace) -> None:
    from gateway.api.alerts import stored_alert_view

    found = await stores.alerts.list_alerts(tenant=args.tenant, limit=args.limit)
    for stored in found:
        if args.json:
            say(json.dumps(stored_alert_view(stored, settings)))
        else:
            say(_line(stored))
    if not found and not args.json:
        say("no alerts")


def _line(stored: StoredAlert) -> str:
    alert = stored.alert
    states = ", ".join(
        f"{d.sink} {'failed' if d.done_at and d.error else 'sent' if d.done_at else 'waiting'}"
        for d in stored.deliveries
    )
    title = one_line(alert.title, 100)
    return f"{ago(alert.raised_at):>10}  {alert.severity:6}  {alert.rule:18}  {title}  [{states}]"
