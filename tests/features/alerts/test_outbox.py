"""The queue of alerts against receivers that are down, slow, or answer with errors."""

from __future__ import annotations

import asyncio
import email
import hashlib
import hmac
import json
import logging
import sys
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from dataclasses import replace
from functools import partial
from io import StringIO
from itertools import pairwise
from typing import Any

import pytest

from gateway.backends import Stores
from gateway.config import LoggingSettings, settings_from_dict
from gateway.errors import ConfigError
from gateway.features.alerts.address import address_of, keep_address
from gateway.features.alerts.metrics import AlertMetrics
from gateway.features.alerts.outbox import AlertOutbox
from gateway.features.alerts.records import AlertRecord
from gateway.features.alerts.rules import Finding
from gateway.features.alerts.sender import send_alerts
from gateway.features.alerts.settings import AlertSettings
from gateway.observability.logging import configure_logging
from gateway.observability.metrics import Metrics
from gateway.stores.protocols import StoreBusy
from steering_gateway_testing.loopback import OneAnswer, an_answer, listening
from steering_gateway_testing.patience import ANSWER_S
from steering_gateway_testing.ports import LOOPBACK
from steering_gateway_testing.receiver import Receiver
from steering_gateway_testing.store_conformance.records import START
from tests.features.alerts.conftest import kept
from tests.severity_words import check_words

DEAD_URL = f"http://{LOOPBACK}:1/T0PSECRET"


def alert_settings(*sinks: dict[str, Any], **more: Any) -> AlertSettings:
    values = {"group_wait_s": 0, "retry_s": 5, "sinks": list(sinks), **more}
    return settings_from_dict({"alerts": values}, {}).of(AlertSettings)


def stuck(run_id: str = "r1", **changes: Any) -> Finding:
    values: dict[str, Any] = {
        "rule": "run_stuck",
        "subject": run_id,
        "severity": "danger",
        "title": f"{run_id} is stuck",
        "tenant": "acme",
        "facts": {"run_id": run_id, "steps": 7},
        "path": f"/dashboard/runs/{run_id}",
        "task": "Mend <the> fence",
    }
    return Finding(**(values | changes))


class Queue:
    """An outbox, its metrics, and what it published."""

    def __init__(self, stores: Stores, settings: AlertSettings) -> None:
        self.settings = settings
        self.metrics = Metrics().of(AlertMetrics)
        self.published: list[AlertRecord] = []
        self.usable = True
        self.outbox = AlertOutbox(
            kept(stores),
            lambda: self.settings,
            self.metrics,
            usable=lambda: self.usable,
            publish=self.published.append,
        )

    def sent(self, result: str, sink: str = "ops") -> float:
        return self.metrics.sent.labels(sink, result)._value.get()


@pytest.fixture
def queue(stores: Stores) -> Callable[[AlertSettings], Queue]:
    return partial(Queue, stores)


Make = Callable[[AlertSettings], Queue]


async def test_nothing_is_lost_by_a_receiver_that_fails(
    queue: Make, stores: Stores, receiver: Receiver
) -> None:
    """Down for ten minutes, then answering 500, then hanging: in the end it has every alert once,
    the pauses double, and another receiver had them all along."""
    other = Receiver()
    fine = {"name": "fine", "url": other.url}
    one = queue(alert_settings({"name": "ops", "url": DEAD_URL}, fine, timeout_s=ANSWER_S))
    for number in range(3):
        assert await one.outbox.take(stuck(f"r{number}"), START + number)
    tried, now = [], START + 3
    while now < START + 600:
        if await kept(stores).is_due(now):
            tried.append(now)
            await one.outbox.deliver(now)
        now += 1
    assert [later - earlier for earlier, later in pairwise(tried)] == [*(5, 10, 20, 40, 80, 160)]
    ops = {"name": "ops", "url": receiver.url}
    one.settings = alert_settings(ops, fine, timeout_s=ANSWER_S)
    receiver.status = 500
    assert await one.outbox.deliver(START + 700) == 0
    receiver.status = 200
    receiver.hold.clear()
    one.settings = alert_settings(ops, fine, timeout_s=0.5)
    assert await one.outbox.deliver(START + 2000) == 0
    states = [d for a in await kept(stores).list_alerts(tenant=None) for d in a.deliveries]
    assert {d.error for d in states if d.sink == "ops"} == {"no answer within 0.5 s"}
    receiver.hold.set()
    one.settings = alert_settings(ops, fine, timeout_s=ANSWER_S)
    assert await one.outbox.deliver(START + 4000) == 3
    wanted = [f"r{n} is stuck" for n in range(3)]
    assert sorted(receiver.titles()) == sorted(other.titles()) == wanted
    assert not await kept(stores).is_due(START + 9e9)
    assert (one.sent("sent"), one.sent("sent", "fine"), one.sent("given_up")) == (3, 3, 0)
    other.close()


async def test_it_is_given_up_at_last(queue: Make, stores: Stores) -> None:
    """After `give_up_s`, which is logged and counted, and shown in the list."""
    one = queue(alert_settings({"name": "ops", "url": DEAD_URL}, give_up_s=100))
    await one.outbox.take(stuck(), START)
    await one.outbox.deliver(START)
    await one.outbox.deliver(START + 101)
    assert not await kept(stores).is_due(START + 9e9)
    assert one.sent("given_up") == 1
    (state,) = (await kept(stores).list_alerts(tenant=None))[0].deliveries
    assert state.error.startswith("not reached")


async def test_a_flapping_run_is_one_alert(queue: Make, stores: Stores, receiver: Receiver) -> None:
    """Seen again and again, with gaps, for hours, through a restart: one message. After it was
    away for the cooldown it is a new one."""
    settings = alert_settings({"name": "ops", "url": receiver.url}, cooldown_s=600)
    for restart in range(3):
        one = queue(settings)
        for moment in range(0, 3000, 150):
            now = START + restart * 3000 + moment
            assert await one.outbox.take(stuck(), now) == (restart == moment == 0)
            await one.outbox.deliver(now)
    assert receiver.titles() == ["r1 is stuck"]
    assert await one.outbox.take(stuck(), START + 10_000)
    await one.outbox.deliver(START + 10_000)
    assert len(receiver.messages) == 2
    assert [alert.key for alert in one.published] == ["run_stuck:r1"]


async def test_two_gateways_send_one(queue: Make, receiver: Receiver) -> None:
    """Both see the same run, both deliver at once; and alerts of one time are one message."""
    settings = alert_settings({"name": "ops", "url": receiver.url}, group_wait_s=10)
    pair = [queue(settings) for _ in range(2)]
    raised = [await one.outbox.take(stuck(f"r{n}"), START + n) for n in range(4) for one in pair]
    assert sum(raised) == 4
    assert await asyncio.gather(*(one.outbox.deliver(START + 9) for one in pair)) == [0, 0]
    await asyncio.gather(*(one.outbox.deliver(START + 10) for one in pair))
    assert len(receiver.messages) == 1
    assert len(receiver.titles()) == 4


async def test_without_its_store_it_sends_from_memory(
    queue: Make, stores: Stores, receiver: Receiver, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The alert that the store is degraded gets out while it is, once, retries included; so does
    one whose write fails, and one that was sent and could not be noted is not sent again."""
    one = queue(alert_settings({"name": "ops", "url": DEAD_URL}))
    one.usable = False
    found = stuck("x", rule="store_degraded", subject="busy", tenant=None, path="")
    assert await one.outbox.take(found, START)
    assert not await one.outbox.take(found, START + 1)
    assert await one.outbox.deliver(START) == 0
    assert one.outbox.in_memory == 1
    one.settings = alert_settings({"name": "ops", "url": receiver.url})
    assert await one.outbox.deliver(START + 4) == 0
    assert await one.outbox.deliver(START + 5) == 1
    assert (one.outbox.in_memory, len(receiver.messages)) == (0, 1)

    one.usable = True

    async def refuse(*_: Any, **__: Any) -> None:
        raise StoreBusy("locked")

    with monkeypatch.context() as patch:
        patch.setattr(kept(stores), "raise_alert", refuse)
        assert await one.outbox.take(stuck("y"), START + 10)
    assert await one.outbox.deliver(START + 10) == 1
    assert await one.outbox.take(stuck("z"), START + 20)
    with monkeypatch.context() as patch:
        patch.setattr(kept(stores), "settle", refuse)
        assert await one.outbox.deliver(START + 20) == 1
    assert await kept(stores).is_due(START + 500)
    await one.outbox.deliver(START + 500)
    assert not await kept(stores).is_due(START + 9e9)
    assert receiver.titles() == ["x is stuck", "y is stuck", "z is stuck"]


async def test_each_kind_of_receiver_gets_its_form(queue: Make, stores: Stores) -> None:
    """A signed webhook, Slack's and Discord's forms, each only the rules it asked for; a task is
    quoted where that is configured, and never with a meaning of its own."""
    receivers = {kind: Receiver() for kind in ("webhook", "slack", "discord", "deaf")}
    sinks = [
        {"name": kind, "url": server.url, "kind": kind if kind != "deaf" else "webhook"}
        for kind, server in receivers.items()
    ]
    sinks[0]["secret"] = "s3cret"
    sinks[3]["rules"] = ["budget"]  # type: ignore[assignment]
    more = {"base_url": "https://gw.example/", "with_task": True}
    one = queue(alert_settings(*sinks, **more))
    await one.outbox.take(stuck(), START)
    await one.outbox.deliver(START)
    (told,) = receivers["webhook"].messages[0]["alerts"]
    assert told["link"] == "https://gw.example/dashboard/runs/r1"
    assert (told["rule"], told["severity_word"], told["tenant"]) == (
        "run_stuck",
        "in-trouble",
        "acme",
    )
    assert told["facts"] == {"run_id": "r1", "steps": 7, "task": "Mend <the> fence"}
    signed = receivers["webhook"].headers[0]["x-gateway-signature"]
    at, mac = (part.split("=")[1] for part in signed.split(","))
    body = receivers["webhook"].bodies[0]
    assert mac == hmac.new(b"s3cret", at.encode() + b"." + body, hashlib.sha256).hexdigest()
    text = receivers["slack"].messages[0]["text"]
    assert "Mend &lt;the&gt; fence" in text
    assert "<https://gw.example/dashboard/runs/r1|open>" in text
    content = receivers["discord"].messages[0]
    assert content["allowed_mentions"] == {"parse": []}
    assert "r1 is stuck" in content["content"]
    assert receivers["deaf"].messages == []
    for kind, server in receivers.items():
        assert check_words(server.messages) == ({"danger"} if kind == "webhook" else set())
    for server in receivers.values():
        server.close()


async def _told(queue: Queue, now: float, *found: Finding) -> None:
    for each in found:
        assert await queue.outbox.take(each, now)
    await queue.outbox.deliver(now)


async def test_six_stopped_runs_are_six_threads(queue: Make, receiver: Receiver) -> None:
    """Stuck, at the end of its budget, stopped: a webhook gets each alert with its thread, and chat
    two messages of each session, the first one and the last one with what was between."""
    chat = Receiver()
    one = queue(
        alert_settings(
            {"name": "ops", "url": receiver.url},
            {"name": "chat", "url": chat.url, "kind": "slack"},
        )
    )
    for n in range(6):
        run = f"c{n}.0"
        budget = stuck(run, rule="budget", subject=f"own:{run}:0.8", severity="warn", title="80 %")
        stopped = stuck(run, rule="run_stopped", title="stopped")
        for after, found in enumerate((stuck(run, severity="warn"), budget, stopped)):
            await _told(one, START + 100 * n + after, found)
    alerts = [alert for message in receiver.messages for alert in message["alerts"]]
    assert len(alerts) == 18
    assert {alert["thread"] for alert in alerts} == {f"c{n}" for n in range(6)}
    assert {alert["facts"]["session_id"] for alert in alerts} == {f"c{n}" for n in range(6)}
    openers = {alert["id"] for alert in alerts if not alert["update_of"]}
    assert len(openers) == 6
    assert {alert["update_of"] for alert in alerts} == {"", *openers}
    texts = [message["text"] for message in chat.messages]
    assert len(texts) == 12
    assert all("c5.0 is stuck" in text for text in texts[10:11])
    assert "80 %" in texts[11]
    assert "↳ 🔴 stopped" in texts[11]
    chat.close()


async def test_what_waits_in_a_thread_survives_a_restart(queue: Make, receiver: Receiver) -> None:
    """It is sent when the session was quiet for the cooldown, by whichever gateway is there."""
    settings = alert_settings({"name": "ops", "url": receiver.url, "kind": "slack"})
    run = "c1.0"
    later = stuck(run, rule="hand_over", severity="warn", title="handed over")
    await _told(queue(settings), START, stuck(run))
    await _told(queue(settings), START + 1, later)
    after = [queue(settings) for _ in range(2)]
    await asyncio.gather(*(each.outbox.deliver(START + 1800) for each in after))
    assert len(receiver.messages) == 1
    await asyncio.gather(*(each.outbox.deliver(START + 1801) for each in after))
    assert len(receiver.messages) == 2
    assert "handed over" in receiver.messages[1]["text"]


class Discord(OneAnswer):
    """A channel behind a webhook, as it looks to who reads it, and what was asked of it."""

    def __init__(self) -> None:
        self.channel: dict[str, str] = {}
        self.asked: list[str] = []
        super().__init__(self._answered)

    def _answered(self, head: bytes, body: bytes) -> bytes:
        method, target, _ = head.decode().split(" ", 2)
        path, _, query = target.partition("?")
        self.asked.append(method)
        assert path.startswith("/api/webhooks/1/T0K")
        assert "thread_id=7" in query
        if method == "PATCH":
            number = path.removeprefix("/api/webhooks/1/T0K/messages/")
            if number not in self.channel:
                return an_answer(b"{}", status=404)
        else:
            assert "wait=true" in query
            number = str(10**18 + len(self.asked))
        self.channel[number] = json.loads(body)["content"]
        said = {"author": {"id": "5"}, "id": number}
        return an_answer(json.dumps(said).encode(), content_type="application/json")

    @property
    def sink(self) -> dict[str, str]:
        """Its webhook."""
        url = f"{self.url}/api/webhooks/1/T0K?thread_id=7"
        return {"name": "ops", "url": url, "kind": "discord"}


@pytest.fixture
def discord() -> Iterator[Discord]:
    with Discord() as server:
        yield server


async def test_a_thread_is_one_message_of_discords_that_is_changed(
    queue: Make, discord: Discord
) -> None:
    """Eighteen alerts of six sessions are six messages, whichever gateway sends them; each says
    all, the newest last."""
    settings = alert_settings(discord.sink)
    for n in range(6):
        run = f"c{n}.0"
        budget = stuck(run, rule="budget", subject=f"own:{run}", severity="warn", title="80 %")
        stopped = stuck(run, rule="run_stopped", title="stopped " + "long " * 600)
        for after, found in enumerate((stuck(run, severity="warn"), budget, stopped)):
            await _told(queue(settings), START + 100 * n + after, found)
    assert (discord.asked.count("POST"), discord.asked.count("PATCH")) == (6, 12)
    for n, text in enumerate(discord.channel.values()):
        assert f"c{n}.0 is stuck" in text
        assert "↳ 🟠 80 %" in text
        assert text.index("80 %") < text.index("↳ 🔴 stopped")
        assert len(text) <= 2000


async def test_a_long_thread_of_discords_ends_with_the_newest(
    queue: Make, discord: Discord
) -> None:
    """Discord takes 2,000 letters."""
    one = queue(alert_settings(discord.sink))
    for after in range(12):
        more = stuck("c1.0", rule="budget", subject=str(after), title=f"{after} " + "x" * 290)
        await _told(one, START + after, more)
    (text,) = discord.channel.values()
    assert len(text) <= 2000
    assert "↳ 🔴 11 xx" in text
    assert "🔴 0 xx" not in text


async def test_a_question_is_a_message_of_its_own_at_discord(queue: Make, discord: Discord) -> None:
    """Discord tells nobody of a message that is changed."""
    one = queue(alert_settings(discord.sink))
    await _told(one, START, stuck("c1.0"))
    await _told(one, START + 1, stuck("c1.0", rule="approval_asked", title="may it go on?"))
    await _told(one, START + 2, stuck("c1.0", rule="run_stopped", title="stopped"))
    assert discord.asked == ["POST", "POST", "PATCH"]
    first, question = discord.channel.values()
    assert "may it go on?" in question
    assert "stopped" in first


async def test_a_message_that_is_gone_is_sent_again(queue: Make, discord: Discord) -> None:
    """What somebody has removed cannot be changed, and nothing is lost."""
    one = queue(alert_settings(discord.sink))
    await _told(one, START, stuck("c1.0"))
    discord.channel.clear()
    await _told(one, START + 1, stuck("c1.0", rule="run_stopped", title="stopped"))
    assert discord.channel == {}
    await one.outbox.deliver(START + 100)
    await _told(one, START + 101, stuck("c1.0", rule="hand_over", title="handed over"))
    assert discord.asked == ["POST", "PATCH", "POST", "PATCH"]
    (text,) = discord.channel.values()
    assert "stopped" in text
    assert "handed over" in text


async def test_a_server_that_says_no_id_gets_each_alert(queue: Make, receiver: Receiver) -> None:
    """It is not Discord, and cannot be asked to change anything."""
    one = queue(alert_settings({"name": "ops", "url": receiver.url, "kind": "discord"}))
    await _told(one, START, stuck("c1.0"))
    await _told(one, START + 1, stuck("c1.0", rule="run_stopped", title="stopped"))
    first, second = (message["content"] for message in receiver.messages)
    assert "is stuck" in first
    assert "stopped" in second


async def test_the_digest_is_one_message_and_danger_comes_at_once(
    queue: Make, receiver: Receiver
) -> None:
    """At its time everything that waited is one message, in more than one thread, and over
    `max_group`; what is in trouble, or asks a person, does not wait."""
    one = queue(
        alert_settings({"name": "ops", "url": receiver.url}, digest_at="07:00", max_group=2)
    )
    night = time.mktime((2026, 3, 10, 23, 0, 0, 0, 0, -1))
    morning = time.mktime((2026, 3, 11, 7, 0, 0, 0, 0, -1))
    mild = [stuck(f"c{n}.0", severity="warn") for n in range(5)]
    asked = stuck("c8.0", rule="approval_asked", severity="warn", title="may it?")
    await _told(one, night, *mild, stuck("c9.0"), asked)
    assert sorted(receiver.titles()) == ["c9.0 is stuck", "may it?"]
    await one.outbox.deliver(morning - 1)
    sent = len(receiver.messages)
    await one.outbox.deliver(morning)
    assert len(receiver.messages) == sent + 1
    assert len(receiver.messages[-1]["alerts"]) == 5
    with pytest.raises(ConfigError, match="digest_at"):
        alert_settings(digest_at="7")


async def test_what_waited_is_told_in_the_message_of_its_trouble(
    queue: Make, discord: Discord
) -> None:
    """With a digest: a mild alert of a session that comes into trouble is in that session's
    message, and in no other; what comes later in its thread waits for the digest."""
    one = queue(alert_settings(discord.sink, digest_at="07:00"))
    night = time.mktime((2026, 3, 10, 23, 0, 0, 0, 0, -1))
    morning = time.mktime((2026, 3, 11, 7, 0, 0, 0, 0, -1))
    budget = stuck("c1.0", rule="budget", subject="own", severity="warn", title="80 %")
    await _told(one, night, stuck("c2.0", severity="warn"), budget)
    assert discord.asked == []
    await _told(one, night + 1, stuck("c1.0"))
    await _told(one, night + 2, stuck("c1.0", rule="run_stopped", title="stopped"))
    assert discord.asked == ["POST", "PATCH"]
    (trouble,) = discord.channel.values()
    assert "80 %" in trouble
    assert "stopped" in trouble
    late = stuck("c1.0", rule="hand_over", severity="warn", title="handed over")
    await _told(one, night + 3, late)
    await one.outbox.deliver(morning)
    assert discord.asked.count("POST") == 2
    (same, digest) = discord.channel.values()
    assert same == trouble
    assert "c2.0 is stuck" in digest
    assert "handed over" in digest
    assert "80 %" not in digest


async def test_links_lead_to_where_an_operator_was(stores: Stores) -> None:
    """The configured address is first; else that of the last visit, also after a restart; one that
    somebody wrote into the database, and one of loopback, are not kept; else that of the server."""
    store = kept(stores)
    server = {"server": {"host": "0.0.0.0", "port": 9}}  # noqa: S104
    plain = settings_from_dict(server, {})
    named = settings_from_dict({**server, "alerts": {"base_url": "https://gw.example"}}, {})
    assert await address_of(plain, store, "") == "http://127.0.0.1:9"
    assert stores.controls is not None
    await stores.controls.use_key("admin")
    await keep_address(store, "http://localhost:9")
    assert await address_of(plain, store, "") == "http://127.0.0.1:9"
    await keep_address(store, "https://ops.example")
    assert await address_of(plain, store, "") == "https://ops.example"
    assert await address_of(plain, store, "http://localhost:9") == "https://ops.example"
    assert await address_of(plain, store, "https://new.example") == "https://new.example"
    assert await address_of(named, store, "https://new.example") == "https://gw.example"
    await store.keep_address("0000 https://evil.example")
    assert await address_of(plain, store, "") == "http://127.0.0.1:9"


@asynccontextmanager
async def logged() -> AsyncIterator[StringIO]:
    stream = StringIO()
    configure_logging(LoggingSettings(level="debug", format="json"), stream)
    logging.getLogger().setLevel(logging.DEBUG)
    try:
        yield stream
    finally:
        logging.getLogger().setLevel(logging.WARNING)


async def test_addresses_are_never_shown(queue: Make, stores: Stores, receiver: Receiver) -> None:
    """Neither in the log, nor in the list, nor in a printed setting, whatever fails."""
    async with logged() as lines:
        for url, status in ((DEAD_URL, 0), (receiver.url, 500), (receiver.url, 200)):
            settings = alert_settings({"name": "ops", "url": url, "secret": "T0PSECRET"})
            one = queue(settings)
            receiver.status = status
            await one.outbox.take(stuck(str(status)), START)
            await one.outbox.deliver(START)
            assert "T0PSECRET" not in repr(settings)
    listed = await kept(stores).list_alerts(tenant=None)
    assert "alert not sent" in lines.getvalue()
    assert "T0PSECRET" not in lines.getvalue() + repr(listed)


AN_ALERT = AlertRecord(
    id="1",
    key="k",
    rule="weekly_report",
    severity="low",
    title="Week of 2026-11-16",
    raised_at=START,
    facts={"lines": ["cost $2.50", "2 runs"]},
    path="/dashboard/week",
    thread="c-7",
    update_of="0",
)


class MailServer:
    """Takes one message by SMTP on a real port, and keeps it."""

    def __init__(self) -> None:
        self.lines: list[str] = []
        self.mail: list[str] = []

    async def answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Speak with one client until it quits."""
        writer.write(b"220 here\r\n")
        while line := (await reader.readline()).decode().rstrip("\r\n"):
            word = line.upper()
            self.lines.append(line)
            if word == "DATA":
                writer.write(b"354 go on\r\n")
                while (text := (await reader.readline()).decode().rstrip("\r\n")) != ".":
                    self.mail.append(text)
            writer.write(b"221 bye\r\n" if word == "QUIT" else b"250 ok\r\n")
        writer.close()


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # of its imports
async def test_an_alert_by_mail() -> None:
    """Apprise sends it to a real server; an address that it does not know, and a server that is not
    there, are errors without the address."""
    pytest.importorskip("apprise")
    mails = MailServer()
    query = "from=gateway@example.org&to=ann@example.org&format=text"

    async def send(url: str) -> str:
        settings = alert_settings({"name": "m", "kind": "apprise", "url": url})
        found = replace(settings, base_url="http://gateway.test")
        return (await send_alerts(found.sinks[0], [AN_ALERT], found))[0]

    async with listening(mails.answer) as port:
        assert await send(f"mailto://{LOOPBACK}:{port}?{query}") == ""
    assert "RCPT TO:<ann@example.org>".lower() in "\n".join(mails.lines).lower()
    mail = email.message_from_string("\n".join(mails.mail))
    assert (mail["subject"], mail["references"]) == ("Alert: c-7", "<0@gateway>")
    payload = mail.get_payload(decode=True)
    assert isinstance(payload, bytes)
    body = payload.decode()
    assert "cost $2.50\n2 runs\nhttp://gateway.test/dashboard/week" in body
    assert "T0PSECRET" not in await send(f"mailto://me:T0PSECRET@{LOOPBACK}:1?{query}")
    assert await send("nowhere://T0PSECRET") == "Apprise knows no such address: see alerts.sinks"


async def test_without_apprise_the_error_says_what_to_install(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Nothing imports it before it is used; an address without a scheme is refused."""
    monkeypatch.setitem(sys.modules, "apprise", None)
    found = alert_settings({"name": "m", "kind": "apprise", "url": "mailto://x"})
    error, _ = await send_alerts(found.sinks[0], [AN_ALERT], found)
    assert error == "Apprise is not installed: pip install '.[apprise]' in a clone of the gateway"
    with pytest.raises(ConfigError, match="must be an address of Apprise"):
        alert_settings({"name": "m", "kind": "apprise", "url": "ann"})
