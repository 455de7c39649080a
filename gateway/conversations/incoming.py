"""What matching needs of a request, with the digests of its history."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping

from gateway.conversations.conversation import History
from gateway.dialects import SteeredRequest
from gateway.steering.identity import Incoming, read_request
from gateway.steering.identity.rebuilt import with_tails
from gateway.wire.prefix_hash import ChainState
from gateway.wire.request import BIG_BYTES

_MANY_MESSAGES = 1000
"""New messages whose digests are made in a thread: each takes some 10 us."""


async def off_the_loop(
    request: SteeredRequest,
    read: Callable[[], Incoming],
    resume: ChainState | None,
    tail: bytes = b"",
) -> Incoming:
    """What `read` gives; in a thread for a big request, whose digests take a tenth of a second.

    `resume`: the chain of the messages that need not be read again; `tail`: their tail hash.
    """
    new = len(request.transcript) - (resume.count if resume is not None else 0)
    is_big = len(request.raw) >= BIG_BYTES or new > _MANY_MESSAGES
    return await asyncio.to_thread(lambda: with_tails(read(), tail)) if is_big else read()


def resumed_chain(known: History | None) -> ChainState | None:
    """The chain of the latest request of a conversation, when that had all of its messages."""
    if known is None or known.prefix is None or known.chain is None:
        return None
    return known.chain if known.chain.count == known.prefix.count else None


def read_incoming(
    request: SteeredRequest, headers: Mapping[str, str], tenant: str, resume: ChainState | None
) -> Incoming:
    """The request as matching reads it; `resume`: the chain of the messages it begins with."""
    if request.earlier is not None:
        chain, transcript = request.earlier.chain, request.transcript
        own = request.own_messages
        return read_request(
            headers, request.body, tenant, resume=chain, own=own, messages=transcript
        )
    incoming = read_whole(headers, request, tenant, resume)
    if resume is not None and incoming.hashes.state.count == resume.count:
        # The same request again: a retry, or another run with an equal history so far. Only
        # the whole history distinguishes the two.
        return read_whole(headers, request, tenant)
    return incoming


def read_whole(
    headers: Mapping[str, str],
    request: SteeredRequest,
    tenant: str,
    resume: ChainState | None = None,
) -> Incoming:
    """A request that contains its whole history, possibly with references to stored items."""
    messages = request.transcript if request.named else None
    own = request.own_messages
    return read_request(headers, request.body, tenant, resume=resume, own=own, messages=messages)
