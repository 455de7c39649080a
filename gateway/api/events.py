"""`/api/events`: live events as server-sent events."""

import time
from collections.abc import AsyncIterator
from typing import Annotated, ClassVar

import orjson
from pydantic import Field

from gateway.api.operations import ApiRequest, ApiResponse, Body, Operations
from gateway.api.params import TenantParameter, Text
from gateway.auth.access import Access
from gateway.errors import Overloaded
from gateway.observability.live_events import Event, Subscription, TooManySubscribers
from gateway.runtime import Runtime

OPERATIONS = Operations()


KEEP_ALIVE_S = 15.0  # under the 60 s after which common proxies close a silent connection
_POLL_S = 1.0  # how soon a stream ends when the gateway shuts down


class EventParameters(TenantParameter):
    """Position in the stream of events."""

    in_headers: ClassVar[frozenset[str]] = frozenset({"last-event-id"})

    last_event_id: Annotated[
        Text | None,
        Field(
            alias="last-event-id",
            description="The `id` of the last event received: later ones are sent first.",
        ),
    ] = None


@OPERATIONS.add("GET /api/events", Body(str, "The stream.", "text/event-stream"), errors=(429,))
async def stream_events(request: ApiRequest[EventParameters]) -> ApiResponse:
    """Server-sent events: ready, step, outcome, pattern, alert, dropped; no texts."""
    after = request.params.last_event_id
    chunks = stream(request.runtime, request.access, request.tenant, after=after)
    try:
        first = await anext(chunks)
    except TooManySubscribers as error:
        raise Overloaded(str(error), headers=(("retry-after", "5"),)) from None

    async def all_chunks() -> AsyncIterator[bytes]:
        yield first
        async for chunk in chunks:
            yield chunk

    return ApiResponse(media="text/event-stream", chunks=all_chunks())


async def stream(
    runtime: Runtime, access: Access, tenant: str | None, after: str | None = None
) -> AsyncIterator[bytes]:
    """`ready`, then each event when it happens; `dropped` counts events the client missed. Raises:
    TooManySubscribers, at the first item."""
    hub = runtime.events
    with hub.subscribe(tenant=tenant, after=after) as subscription:
        # A client that resumes takes its position from the events that follow.
        if after:
            position = {}
        else:
            position = {"id": hub.newest}
        yield _event("ready", {"tenant": access.tenant, **position}) + _dropped(subscription)
        last_sent = time.monotonic()
        while not runtime.draining:
            events = await subscription.take(_POLL_S)
            now = time.monotonic()
            if events:
                last_sent = now
                yield _dropped(subscription) + b"".join(_event(str(e["type"]), e) for e in events)
            elif now - last_sent > KEEP_ALIVE_S:
                last_sent = now
                yield b": keep-alive\n\n"


def _dropped(subscription: Subscription) -> bytes:
    count = subscription.dropped
    subscription.dropped = 0
    if count:
        return _event("dropped", {"count": count})
    return b""


def _event(name: str, event: Event) -> bytes:
    data = {key: value for key, value in event.items() if key != "id"}
    line = ""
    if "id" in event:
        line = f"id: {event['id']}\n"
    return b"%sevent: %s\ndata: %s\n\n" % (line.encode(), name.encode(), orjson.dumps(data))
