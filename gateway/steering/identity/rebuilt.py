"""Recognition of conversations whose client rebuilt their beginning or keeps a window of them.

Some clients write a new first message (date, list of files) when they continue a conversation that
they saved. Its prefix hashes change with that message; from the first reply on it is the same."""

from collections.abc import Container, Mapping, Sequence
from hashlib import blake2b

from msgspec.structs import replace

from gateway.steering.identity.branch import Awaits, Branch, Incoming
from gateway.wire.coerce import as_mapping, mapping_at, mappings_at, text_at
from gateway.wire.message_identity import SYSTEM_ROLES, content_text, is_result
from gateway.wire.prefix_hash import PrefixHashes

LONG_REPLY_CHARACTERS = 200  # longer replies are not given twice; shorter ones are
_MOST_SINCE = 500  # messages that a user sends after one reply
MANY_TURNS = 3  # replies from which on even short ones are not the same in two conversations


def with_tails(request: Incoming, tail: bytes) -> Incoming:
    """A request with its tail hashes; `tail`: that of the messages before those of its hashes."""
    hashes = request.hashes
    count = len(request.hashes.messages)
    end = count
    if not hashes.start:
        end = end_of_reply(request.messages) or count
    known = hashes.tail(tail, last=end)
    tails = {(tail, 0, end): known, (tail, 0, count): hashes.tail(known, end)}
    return replace(request, hashes=replace(hashes, tails=tails))


def tail_key(tenant: str, tail: bytes) -> bytes:
    """The key, 16 bytes, under which a store finds the conversation with this tail hash."""
    return _key(tenant, tail, b"gw-tail-key-01")


def newest_key(tenant: str, reply: bytes) -> bytes:
    """The key, 16 bytes, under which a store finds the conversations with this latest reply."""
    return _key(tenant, reply, b"gw-newest-reply1")


def _key(tenant: str, digest: bytes, person: bytes) -> bytes:
    named = tenant.encode("utf-8", "surrogatepass")
    return blake2b(digest + named, digest_size=16, person=person).digest()


def end_of_reply(messages: Sequence[object]) -> int | None:
    """Number of messages up to the latest reply; None unless the user answers that."""
    count = len(messages)
    for end in range(count, 0, -1)[:_MOST_SINCE]:
        role = as_mapping(messages[end - 1]).get("role")
        if role == "assistant":
            if end < count:
                return end
            return None
        if role != "user" and role not in SYSTEM_ROLES:
            return None
    return None


def is_distinctive(hashes: PrefixHashes, messages: Sequence[object], end: int) -> bool:
    """Whether no two conversations have the same messages from the first reply to this end."""
    said = content_text(as_mapping(messages[end - 1]).get("content"))
    return hashes.state.turns >= MANY_TURNS or len(said) >= LONG_REPLY_CHARACTERS


def latest_turn(hashes: PrefixHashes) -> list[bytes]:
    """The digests of the messages from the latest reply on, the newest first; empty without one."""
    newest = hashes.state.turns
    found = []
    for position in range(len(hashes.messages) - 1, -1, -1):
        if not newest or hashes.turns[position + 1] < newest:
            break
        if (digest := hashes.messages[position]) is not None:
            found.append(digest)
    return found


def is_window_of(
    request: Incoming, branch: Branch, seen: Container[bytes], *, begins: bool
) -> bool:
    """Whether a request follows the latest reply of an idle branch, whatever is left before it.
    `seen`: the digests of the messages of the branch's earlier requests, with all replies before
    the latest one. Unless the request `begins` like the branch, one of the replies must be long, or
    there must be several, and nothing new between them but results, which a client may clear."""
    if branch.awaits is Awaits.MODEL or branch.signature != request.signature:
        return False
    hashes = request.hashes
    if branch.reply_digest is None or branch.reply_digest not in latest_turn(hashes)[1:]:
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
    several = hashes.state.turns >= MANY_TURNS and not strange
    return begins or longest >= LONG_REPLY_CHARACTERS or several


def _length(reply: object) -> int:
    """Characters of a reply's text and of the arguments of its calls."""
    if not isinstance(reply, Mapping):
        return 0
    calls = mappings_at(reply, "tool_calls")
    spoken = [reply, *(mapping_at(call, "function") for call in calls)]
    arguments = [text_at(each, "arguments") for each in spoken]
    return len(content_text(reply.get("content"))) + sum(map(len, arguments))
