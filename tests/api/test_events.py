"""Live events: the hub, and the stream over HTTP."""

from __future__ import annotations

import asyncio
import itertools
import json
import threading
from collections.abc import Iterator
from typing import Any

import httpx
import pytest

from gateway.observability import live_events
from gateway.observability.live_events import EventHub, TooManySubscribers
from steering_gateway_testing import AppServer, ScriptedUpstream
from steering_gateway_testing.control_plane import a_finished_run, client_of
from tests.api.conftest import Start, with_keys

ACME, GLOBEX = "acme-key", "globex-key"


async def test_every_listener_hears_its_tenant() -> None:
    """One that listens to everything hears everything, in order."""
    hub = EventHub()
    with hub.subscribe(tenant=None) as operator, hub.subscribe(tenant="a") as tenant:
        for number, name in enumerate("aba"):
            hub.publish({"type": "step", "tenant": name, "n": number})
        assert [event["n"] for event in await operator.take(1)] == [0, 1, 2]
        assert [event["n"] for event in await tenant.take(1)] == [0, 2]


async def test_a_slow_listener_loses_the_oldest(monkeypatch: pytest.MonkeyPatch) -> None:
    """The queue is bounded, the loss is counted, and no other subscriber loses anything."""
    monkeypatch.setattr(live_events, "QUEUE_LIMIT", 3)
    hub = EventHub()
    with hub.subscribe(tenant=None) as slow:
        for number in range(5):
            hub.publish({"type": "step", "n": number})
        assert [event["n"] for event in await slow.take(1)] == [2, 3, 4]
        assert slow.dropped == 2


async def test_a_listener_that_comes_back_hears_what_it_missed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """From the event it names on, of its own tenant."""
    monkeypatch.setattr(live_events, "QUEUE_LIMIT", 3)
    hub = EventHub()
    with hub.subscribe(tenant="a") as listener:
        hub.publish({"type": "step", "tenant": "a", "n": 0})
        (received,) = await listener.take(1)
    assert hub.active
    for number in (1, 2):
        hub.publish({"type": "step", "tenant": "ab"[number % 2 == 0], "n": number})
    hub.publish({"type": "step", "tenant": "a", "n": 3})
    with hub.subscribe(tenant="a", after=received["id"]) as back:
        assert [event["n"] for event in await back.take(1)] == [1, 3]
        assert back.dropped == 0
    with hub.subscribe(tenant="a", after=hub.newest) as idle:
        assert await idle.take(0) == []
        assert idle.dropped == 0


@pytest.mark.parametrize("after", ["", "nobody's", "\u0663"])
async def test_an_id_that_is_not_kept(after: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Events may be missing, which the subscriber learns as one dropped event."""
    monkeypatch.setattr(live_events, "QUEUE_LIMIT", 1)
    hub = EventHub()
    old = hub.newest
    for _ in range(2):
        hub.publish({"type": "step"})
    for unknown in (after, old):
        with hub.subscribe(tenant=None, after=unknown) as listener:
            assert listener.dropped == 1
            assert await listener.take(0) == []


async def test_nothing_happening_ends_a_wait() -> None:
    """A listener gets an empty answer in time, and an event as soon as it comes."""
    hub = EventHub()
    with hub.subscribe(tenant=None) as listener:
        assert await listener.take(0.01) == []
        waiting = asyncio.ensure_future(listener.take(30))
        await asyncio.sleep(0)
        hub.publish({"type": "step"})
        assert len(await waiting) == 1


async def test_subscribers_come_and_go(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody listening costs nothing; too many are refused."""
    monkeypatch.setattr(live_events, "MAX_SUBSCRIBERS", 1)
    monkeypatch.setattr(live_events, "LINGER_S", 0.0)
    hub = EventHub()
    seen = [hub.active]
    with hub.subscribe(tenant=None):
        seen.append(hub.active)
        with pytest.raises(TooManySubscribers), hub.subscribe(tenant=None):
            pass
    assert [*seen, hub.active] == [False, True, False]


class Listener:
    """Reads a gateway's events in a thread, until the gateway drains."""

    def __init__(self, server: AppServer, key: str | None = None) -> None:
        self.events: list[tuple[str, dict[str, Any]]] = []
        self._server = server
        self._news = threading.Condition()
        self._thread = threading.Thread(target=self._read, args=(key,), daemon=True)
        self._thread.start()
        self._wait_for(1)

    def end(self, count: int) -> list[tuple[str, dict[str, Any]]]:
        """All events, once there are `count` of them and the stream has ended."""
        self._wait_for(count)
        self._server.app.runtime.draining = True
        self._thread.join(120)
        assert not self._thread.is_alive()
        return self.events

    def _wait_for(self, count: int) -> None:
        with self._news:
            assert self._news.wait_for(lambda: len(self.events) >= count, 120), self.events

    def _read(self, key: str | None) -> None:
        with (
            client_of(self._server, key) as client,
            client.stream("GET", "/api/events") as answer,
        ):
            for event in _events(answer.iter_lines()):
                with self._news:
                    self.events.append(event)
                    self._news.notify_all()


def _events(lines: Iterator[str]) -> Iterator[tuple[str, dict[str, Any]]]:
    name = ""
    for line in lines:
        if line.startswith("event: "):
            name = line.removeprefix("event: ")
        elif line.startswith("data: "):
            yield name, json.loads(line.removeprefix("data: "))


def test_a_run_is_published_while_it_runs(start: Start, upstream: ScriptedUpstream) -> None:
    """`ready`, then one event a step with numbers and names, then the outcome; no texts."""
    server = start()
    listener = Listener(server)
    run_id = a_finished_run(server, upstream, task="My secret is in the kitchen.")
    with client_of(server) as client:
        client.post(f"/api/runs/{run_id}/outcome", json={"outcome": "success"})
    events = listener.end(6)
    assert [name for name, _ in events] == ["ready", *["step"] * 4, "outcome"]
    steps = [event for name, event in events if name == "step"]
    assert [event["step"] for event in steps] == [0, 1, 2, 3]
    assert {event["run_id"] for event in steps} == {run_id}
    assert [event["ended"] for event in steps] == [False, False, False, True]
    assert steps[-1]["model_asked"] == "gpt-4o"
    assert steps[-1]["cost_usd"] > 0
    assert "kitchen" not in json.dumps(events)


def test_a_line_that_was_lost_is_taken_up(start: Start, upstream: ScriptedUpstream) -> None:
    """A browser names the last event it got, and hears the others before new ones."""
    server = start()
    with client_of(server) as client:
        with client.stream("GET", "/api/events") as answer:
            last = next(line for line in answer.iter_lines() if line.startswith("id: "))
        a_finished_run(server, upstream)
        for last_id, names in ((last[4:], ["ready", *["step"] * 4]), ("?", ["ready", "dropped"])):
            headers = {"last-event-id": last_id}
            with client.stream("GET", "/api/events", headers=headers) as answer:
                heard = itertools.islice(_events(answer.iter_lines()), len(names))
                assert [name for name, _ in heard] == names


@with_keys
def test_a_tenant_hears_its_own(start: Start, upstream: ScriptedUpstream) -> None:
    """Another tenant's run makes no sound."""
    server = start(auth={"gateway_keys": {"acme": ACME, "globex": GLOBEX}})
    listener = Listener(server, ACME)
    theirs = a_finished_run(server, upstream, key=GLOBEX)
    ours = a_finished_run(server, upstream, key=ACME)
    events = listener.end(5)
    assert {event["run_id"] for name, event in events if name == "step"} == {ours}
    assert theirs not in json.dumps(events)


def test_streams_end_when_the_gateway_does(start: Start) -> None:
    """A listener does not hold up the shutdown."""
    server = start()
    listener = Listener(server)
    assert [name for name, _ in listener.end(1)] == ["ready"]


def test_too_many_subscribers_are_refused(start: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    """With a time to come back."""
    monkeypatch.setattr(live_events, "MAX_SUBSCRIBERS", 0)
    with httpx.stream("GET", f"{start().url}/api/events") as answer:
        assert answer.status_code == 429
        assert answer.headers["retry-after"]
