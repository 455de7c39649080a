"""Delivery of one message to one receiver. Error texts leave the address out."""

import asyncio
import hmac
import importlib
import logging
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from hashlib import sha256
from html import escape
from urllib.parse import quote

import orjson

from gateway import __version__
from gateway.features.alerts.records import AlertRecord
from gateway.features.alerts.settings import SINK_PLUGINS, AlertSettings, AlertSink, SinkKind
from gateway.tasks import loading
from gateway.text.formatting import counted, iso
from gateway.text.sanitize import one_line
from gateway.values import FieldDict, Texts

SIGNATURE_HEADER = "x-gateway-signature"
_DISCORD_CHARS = 2000  # Source: Discord's limit of a message's content
_ANSWER_BYTES = 65_536
_TASK_CHARS = 120
_MARKS = {"danger": "🔴", "warn": "🟠", "low": "🔵"}


def alert_view(alert: AlertRecord, base_url: str | None) -> FieldDict:
    """An alert as plain values."""
    about = "id rule severity_word severity title tenant facts raised_at thread update_of"
    return {
        **{name: getattr(alert, name) for name in about.split()},
        "link": _link(alert, base_url),
    }


def signature(secret: str, body: bytes, at: int) -> str:
    """`t=<seconds of the epoch>,v1=<hex>`: HMAC-SHA-256 over the time, a dot and the body."""
    mac = hmac.new(secret.encode(), b"%d." % at + body, sha256)
    return f"t={at},v1={mac.hexdigest()}"


def _link(alert: AlertRecord, base_url: str | None) -> str | None:
    return f"{base_url.rstrip('/')}{alert.path}" if base_url and alert.path else None


def _line(alert: AlertRecord) -> str:
    task = str(alert.facts.get("task") or "")
    title = f"{_MARKS[alert.severity]} {one_line(alert.title, 300)}"
    if task:
        title += f" “{one_line(task, _TASK_CHARS)}”"
    names = ("session_id", "run_id", "agent", "model", "deployment")
    about = [
        f"{name} {one_line(str(alert.facts[name]), 60)}" for name in names if name in alert.facts
    ]
    if alert.tenant:
        about.append(f"tenant {one_line(alert.tenant, 40)}")
    about.append(iso(alert.raised_at))
    more = "".join(f"\n{one_line(line, 300)}" for line in alert.facts.get("lines", ()))
    return f"{title} ({', '.join(about)}){more}"


def _lines(
    alerts: Sequence[AlertRecord],
    base_url: str | None,
    link_form: str,
    escaped: Callable[[str], str] = str,
) -> str:
    """One line for each alert, with its link in `link_form`; what follows in a thread is marked."""
    lines = []
    threads = set()
    for alert in sorted(alerts, key=lambda each: (each.opener, each.raised_at)):
        link = _link(alert, base_url)
        line = escaped(_line(alert)) + (link_form.format(link) if link else "")
        lines.append(f"↳ {line}" if alert.opener in threads else line)
        threads.add(alert.opener)
    return "\n".join(lines)


def _webhook(alerts: Sequence[AlertRecord], base_url: str | None) -> FieldDict:
    return {"alerts": [alert_view(alert, base_url) for alert in alerts]}


def _slack(alerts: Sequence[AlertRecord], base_url: str | None) -> FieldDict:
    # Source: Slack's mrkdwn, which gives `&`, `<` and `>` a meaning.
    return {"text": _lines(alerts, base_url, " <{}|open>", escaped=partial(escape, quote=False))}


def _discord(alerts: Sequence[AlertRecord], base_url: str | None) -> FieldDict:
    text = _lines(alerts, base_url, " <{}>")
    if len(text) > _DISCORD_CHARS:
        text = "…" + text[1 - _DISCORD_CHARS :]  # the newest stand last
    return {"content": text, "allowed_mentions": {"parse": []}}


def _apprise(alerts: Sequence[AlertRecord], base_url: str | None) -> FieldDict:
    if len(alerts) == 1:
        title = alerts[0].title
    else:
        title = counted(len(alerts), "alert")
    return {"title": one_line(title, 120), "body": _lines(alerts, base_url, "\n{}")}


# Each kind of receiver, with the JSON body of its messages.
KINDS: Mapping[SinkKind, Callable[[Sequence[AlertRecord], str | None], FieldDict]] = {
    "webhook": _webhook,
    "slack": _slack,
    "discord": _discord,
    "apprise": _apprise,
    **{each.name: each.load() for each in SINK_PLUGINS},
}


async def _by_apprise(url: str, message: Texts, timeout_s: float) -> str:
    """Send by the package Apprise, which is loaded only for that; the error, or an empty text."""
    try:
        apprise = await loading(importlib.import_module, "apprise")
    except ImportError:
        return "Apprise is not installed: pip install '.[apprise]' in a clone of the gateway"
    logging.getLogger("apprise").disabled = True  # its messages may quote the address
    receivers = apprise.Apprise()
    if not receivers.add(url):
        return "Apprise knows no such address: see alerts.sinks"
    try:
        sent = await asyncio.wait_for(receivers.async_notify(**message), timeout_s)
    except TimeoutError:
        return f"no answer within {timeout_s:g} s"
    return "" if sent else "not taken by the receiver"


async def send_alerts(
    sink: AlertSink, alerts: Sequence[AlertRecord], settings: AlertSettings, message_id: str = ""
) -> tuple[str, str]:
    """Send `alerts` to `sink`, or change a message there to say them. Returns the error, or an
    empty text, and the message's id, where it can be changed. Takes `timeout_s` at most."""
    message = KINDS[sink.kind](alerts, settings.base_url)
    url = str(sink.url)
    if sink.kind == "apprise":
        thread = alerts[0].thread
        if sink.by_mail and thread:
            # Readers of mail show as one what has one subject and refers to the same message.
            message["title"] = one_line(f"Alert: {thread}", 120)
            joint = "&" if "?" in url else "?"
            url += f"{joint}+References={quote(f'<{alerts[0].opener}@gateway>')}"
        return await _by_apprise(url, message, settings.timeout_s), ""
    method = "POST"
    if sink.edits:
        url, _, query = url.partition("?")
        if message_id:
            method = "PATCH"
            url += f"/messages/{message_id}"
        url += f"?wait=true&{query}"  # the answer is to say the id
    body = orjson.dumps(message)
    headers = {"content-type": "application/json", "accept-encoding": "identity"}
    headers["user-agent"] = f"gateway/{__version__}"
    if sink.secret is not None:
        headers[SIGNATURE_HEADER] = signature(sink.secret, body, int(time.time()))
    # Only alerts need it, and its client reads the system's certificates.
    await loading(importlib.import_module, "httpx")
    import httpx

    logging.getLogger("httpx").setLevel(logging.WARNING)  # its messages quote the address
    # The environment's proxy counts, as for providers.
    client = await loading(partial(httpx.AsyncClient, timeout=None))
    try:
        async with (
            asyncio.timeout(settings.timeout_s),
            client,
            client.stream(method, url, content=body, headers=headers) as answer,
        ):
            content = b""
            if sink.edits:
                content = await anext(answer.aiter_raw(_ANSWER_BYTES), b"")
            if answer.is_success:
                return "", _id_in(content)
            return f"status {answer.status_code}", ""
    except TimeoutError:
        return f"no answer within {settings.timeout_s:g} s", ""
    except (httpx.HTTPError, httpx.InvalidURL, OSError, ValueError) as error:
        # Not its text: it may quote the address, which may hold a secret.
        return f"not reached ({type(error).__name__})", ""


def _id_in(answer: bytes) -> str:
    """The id of the message that Discord has made or changed; "" where the answer says none."""
    with suppress(ValueError, TypeError, LookupError):
        return str(int(orjson.loads(answer)["id"]))
    return ""
