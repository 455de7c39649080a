"""Recognising a conversation whose client sends only part of its history.

Some clients keep the newest messages, clear or cut what old calls gave, or put a summary in place
of what they drop. No prefix is left then, and short ids of calls (`call_0`, nine letters of
Mistral's) prove nothing. What is left are the replies: a client does not invent them.
"""

from __future__ import annotations

from collections.abc import Container, Mapping
from hashlib import blake2b

from gateway.steering.identity.branch import Awaits, Branch, Incoming
from gateway.steering.identity.rebuilt import LONG_REPLY_CHARACTERS, MANY_TURNS
from gateway.wire.messages import content_text, is_result
from gateway.wire.prefix_hash import PrefixHashes


def newest_key(tenant: str, reply: bytes) -> bytes:
    """The key, 16 bytes, under which a store finds the conversations whose latest reply has this
    digest."""
    named = tenant.encode("utf-8", "surrogatepass")
    return blake2b(reply + named, digest_size=16, person=b"gw-newest-reply1").digest()


def latest_turn(hashes: PrefixHashes) -> list[bytes]:
    """The digests of the messages from the latest reply on, the newest first; empty before the
    first reply."""
    found: list[bytes] = []
    for position in range(len(hashes.messages) - 1, -1, -1):
        if not hashes.state.turns or hashes.turns[position + 1] < hashes.state.turns:
            break
        digest = hashes.messages[position]
        if digest is not None:
            found.append(digest)
    return found


def is_window_of(
    request: Incoming, branch: Branch, seen: Container[bytes], *, begins: bool = False
) -> bool:
    """Whether a request follows the latest reply of an idle branch, whatever is left before it.

    `seen`: the digests of the messages of the branch's earlier requests. All replies before the
    latest one must be among them. Unless the request `begins` like the branch, one of the replies
    must be long; short ones are given twice, so that with them alone there must be several, and
    nothing new between them but results, which a client may have cleared.
    """
    if branch.awaits is Awaits.MODEL or branch.signature != request.signature:
        return False
    hashes, latest = request.hashes, branch.reply_digest
    if latest is None or latest not in latest_turn(hashes)[1:]:
        return False
    strange = longest = 0
    for position, digest in enumerate(hashes.messages):
        before, after = hashes.turns[position : position + 2]
        message = request.messages[hashes.start + position]
        if after > before:
            longest = max(longest, _length(message))
        if after == hashes.state.turns or digest is None or digest in seen:
            continue
        if after > before:
            return False
        strange += before > 0 and not is_result(message)
    return (
        begins
        or longest >= LONG_REPLY_CHARACTERS
        or (hashes.state.turns >= MANY_TURNS and not strange)
    )


def _length(reply: object) -> int:
    """Characters of a reply's text and of the arguments of its calls."""
    if not isinstance(reply, Mapping):
        return 0
    calls = reply.get("tool_calls")
    functions = (
        [each.get("function") for each in calls if isinstance(each, dict)]
        if isinstance(calls, list)
        else []
    )
    spoken = [each.get("arguments") for each in (reply, *functions) if isinstance(each, dict)]
    said = content_text(reply.get("content"))
    return len(said) + sum(len(each) for each in spoken if isinstance(each, str))
