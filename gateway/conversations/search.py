"""What is known of a request while its conversation is looked for."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from gateway.conversations.stored_responses import StoredResponse
from gateway.dialects import SteeredRequest
from gateway.steering.identity import Identity, Incoming


@dataclass(slots=True, kw_only=True)
class Search:
    """A request whose conversation is looked for.

    `given`: the conversation that the client's own id names, None without one. `response`: the
    stored answer that it continues from, `response_of` the conversation of that. `checked`: the
    conversation whose latest request it begins with, byte for byte; with other gateways it has
    been compared with the store. `root` and `tail`: hashes of that one's history, as they were
    when the request came. `unread`: as in Resolved.
    """

    request: SteeredRequest
    headers: Mapping[str, str]
    tenant: str
    identity: Identity
    given: str | None
    response: StoredResponse | None
    response_of: str
    checked: str | None
    root: bytes
    tail: bytes | None
    incoming: Incoming
    unread: str = ""
