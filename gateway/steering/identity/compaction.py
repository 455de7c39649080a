"""Recognition of a compaction: the client goes on, with a history that it shortened or rewrote.

There are two signs: results of the calls that the latest reply made (`_awaiting_results` in
`matching.py`), and what a branch has said or is about, together with an id from the client
(`rewritten`, `summarises`). Prompts that ask for a summary, and items that stand for a compacted
history: `branch.py`."""

from msgspec import Struct

from gateway.steering.identity.branch import (
    Awaits,
    Branch,
    Branches,
    Found,
    Incoming,
    hash_lines,
)
from gateway.wire.message_identity import content_text

_LEAST_SHARE = 0.25  # clients drop parts of a summary, such as the model's notes before it


class Named(Struct, frozen=True):
    """The id that the client sent; `weak` and `exclusive` as in `matching.match`."""

    conversation_id: str  # made of the tenant and the client's id
    weak: bool  # several conversations may share the id
    exclusive: bool  # the id names exactly one conversation


def rewritten(
    request: Incoming, branches: Branches, named: Named, found: Found | None
) -> Branch | None:
    """The branch that a request goes on with, when an id from the client comes with another history
    after a compaction; else None.

    Proof is the latest reply of a branch among the messages that are not known, or its lines in a
    client message there: the agent had asked for it as a summary, perhaps with another prompt and
    other tools. Without proof, the branch must have the same signature and no call in progress, and
    the history must have
    * an item that stands for a compacted history: then a branch matches even if it awaits results;
    * assistant turns: then a branch with scored steps matches, the one of the id itself first;
    * or none (a summary, a new list of tasks): then the branch of the id itself matches, if it
      awaits no tool results. One that does is still working, and the request is a second agent in
      parallel, unless the id is `exclusive`, the branch has scored steps, and the request's first
      messages are not the known ones."""
    position = found.position if found else 0
    fresh = request.hashes.messages[max(position - request.hashes.start, 0) :]
    alike = [
        branch
        for branch in branches.values()
        if branch.signature == request.signature and branch.awaits is not Awaits.MODEL
    ]
    alike.sort(key=lambda branch: branch.conversation_id != named.conversation_id)
    idle = [branch for branch in branches.values() if branch.awaits is Awaits.ANYTHING]
    proven = (b for b in alike if b.reply_digest and b.reply_digest in fresh)
    summed_up = (branch for branch in idle if summarises(request, branch, position))
    chosen = next(proven, None) or next(summed_up, None)
    if chosen is None and not named.weak and request.has_compaction(position):
        chosen = next(iter(alike), None)
    if chosen is None and not named.weak:
        known = found is not None and found.whole
        if request.hashes.state.turns == 0:
            own = [b for b in alike[:1] if b.conversation_id == named.conversation_id]
            busy = named.exclusive and not known
            chosen = next(
                (b for b in own if b.awaits is Awaits.ANYTHING or (busy and b.steps)), None
            )
        elif found is None or (named.exclusive and known):
            chosen = next((b for b in alike if b.steps), None)
    return chosen


def summarises(request: Incoming, branch: Branch, known: int = 0) -> bool:
    """Whether messages of the client, after the first `known`, repeat at least a quarter of the
    lines of the branch's latest reply."""
    lines = branch.line_hashes
    missing = set(lines)
    for message in request.messages[known:] if lines else ():
        if isinstance(message, dict) and message.get("role") not in (None, "assistant"):
            missing.difference_update(hash_lines(content_text(message.get("content"))))
    found = len(lines) - len(missing)
    return found > 0 and found >= len(lines) * _LEAST_SHARE
