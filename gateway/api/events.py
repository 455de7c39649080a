"""`/api/events`: what happens, as it happens, as server-sent events."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator

import orjson

from gateway.api.access import Access
from gateway.api.filters import TENANT
from gateway.api.operations import Answer, Call, Operation, Reply
from gateway.api.params import Param
from gateway.errors import Overloaded
from gateway.events import Event, Subscription, TooManySubscribers
from gateway.runtime import Runtime

KEEP_ALIVE_S = 15.0  # under the 60 s after which common proxies close a silent connection
_LOOK_UP_S = 1.0  # how soon a stream ends when the gateway shuts down

_UNTIL_IDLE = Param(
    name="until_idle_s",
    description="End the stream after so many seconds without an event; 0: never.",
    kind="integer",
    high=3600,
    default=0,
)


_LAST = Param(
    name="last-event-id",
    description="The `id` of the last event heard: what has come since is told first.",
    place="header",
)


async def get_events(call: Call) -> Reply:
    """The stream of the tenant's events, from now on or from the last one heard."""
    until_idle_s, after = call.values["until_idle_s"], call.values["last-event-id"]
    chunks = stream(call.runtime, call.access, call.tenant, until_idle_s, after)
    try:
        first = await anext(chunks)
    except TooManySubscribers as error:
        raise Overloaded(str(error), headers=(("retry-after", "5"),)) from None
    return Reply(media="text/event-stream", chunks=_with_first(first, chunks))


async def stream(
    runtime: Runtime,
    access: Access,
    tenant: str | None,
    until_idle_s: int,
    after: str | None = None,
) -> AsyncIterator[bytes]:
    """`ready`, then each event as it comes; `dropped` tells a reader that was too slow or away.

    Raises: TooManySubscribers, at the first item.
    """
    hub = runtime.events
    with hub.subscribe(tenant=tenant, after=after) as subscription:
        # One that catches up has its place in what follows.
        here = {} if after else {"id": hub.newest}
        yield _event("ready", {"tenant": access.tenant, **here}) + _dropped(subscription)
        spoken = heard = time.monotonic()
        while not runtime.draining:
            events = await subscription.take(_LOOK_UP_S)
            now = time.monotonic()
            if events:
                spoken = heard = now
                yield _dropped(subscription) + b"".join(_event(str(e["type"]), e) for e in events)
            elif now - spoken > KEEP_ALIVE_S:
                spoken = now
                yield b": still here\n\n"
            if until_idle_s and now - heard > until_idle_s:
                return


async def _with_first(first: bytes, rest: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
    yield first
    async for chunk in rest:
        yield chunk


def _dropped(subscription: Subscription) -> bytes:
    count, subscription.dropped = subscription.dropped, 0
    return _event("dropped", {"count": count}) if count else b""


def _event(name: str, event: Event) -> bytes:
    data = {key: value for key, value in event.items() if key != "id"}
    line = f"id: {event['id']}\n" if "id" in event else ""
    return b"%sevent: %s\ndata: %s\n\n" % (line.encode(), name.encode(), orjson.dumps(data))


OPERATIONS = (
    Operation(
        name="streamEvents",
        method="GET",
        path="/api/events",
        summary="Server-sent events: ready, step, outcome, pattern, dropped; numbers, no texts.",
        handler=get_events,
        params=(TENANT, _UNTIL_IDLE, _LAST),
        answers={200: Answer("The stream.", {"type": "string"}, "text/event-stream")},
        errors=(400, 403, 429),
    ),
)
