"""The places where guidance made an upstream refuse a client's requests.

Clients send kinds of items that no documentation names yet, and upstreams check requests strictly.
A request that was refused with guidance and accepted as the client wrote it shows that the guidance
was at a wrong place: it is not used again for this client.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from typing import NamedTuple

from gateway.steering.guidance.edits import AppendToResult, Edit, InsertMessage
from gateway.steering.guidance.state import Place

REFUSED_STATUSES = frozenset({400, 413, 422})
"""Answers to a request whose form or size is wrong. Source: RFC 9110, 15.5; the 422 of servers that
validate with pydantic."""

_MOST_KEPT = 2_000  # clients and models are named by clients


class Client(NamedTuple):
    """Requests of one kind: those that one program of a tenant sends to one model."""

    tenant: str
    agent: str
    dialect: str
    model: str


def places_of(edits: Sequence[Edit]) -> frozenset[Place]:
    """The kinds of places that edits use."""
    return frozenset(map(_place_of, edits))


def _place_of(edit: Edit) -> Place:
    if isinstance(edit, InsertMessage):
        return "message"
    return "result" if isinstance(edit, AppendToResult) else "system"


class RefusedPlaces:
    """The places that are closed, by client; those that were used longest ago are forgotten."""

    def __init__(self) -> None:
        self._closed: OrderedDict[Client, frozenset[Place]] = OrderedDict()

    def closed(self, client: Client) -> frozenset[Place]:
        """The places where this client's requests take no guidance."""
        if not self._closed:  # a client without a refusal pays for no look-up
            return frozenset()
        return self._closed.get(client, frozenset())

    def close(self, client: Client, places: frozenset[Place]) -> None:
        """Do not use these places again for this client."""
        self._closed[client] = self.closed(client) | places
        self._closed.move_to_end(client)
        if len(self._closed) > _MOST_KEPT:
            self._closed.popitem(last=False)
