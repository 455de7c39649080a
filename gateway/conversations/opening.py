"""Opening a conversation: a new one, or a fork with a copy of its parent's state."""

from __future__ import annotations

import secrets
from collections.abc import Sequence

from msgspec.structs import replace

from gateway.conversations.conversation import (
    MAX_DEPTH,
    Conversation,
    CurrentRun,
    History,
    RunStart,
    SeenDigests,
)
from gateway.conversations.index import ConversationIndex
from gateway.steering.fold import RunSnapshot
from gateway.steering.identity import (
    ConversationMatch,
    Identity,
    Incoming,
    MatchKind,
    child_id,
    conversation_id,
)
from gateway.steering.steer import RunMemory
from gateway.steering.transcript.user_words import task_of
from gateway.wire.messages import digest_fields


def open_conversation(
    index: ConversationIndex,
    verdict: ConversationMatch,
    identity: Identity,
    given: str | None,
    incoming: Incoming,
    tenant: str,
    now: float,
) -> Conversation:
    """Open the conversation that begins with this request, and add it to the index.

    `given`: the conversation's id when the client sends one. `now` in seconds of the epoch.
    """
    name = verdict.conversation_id or given
    if name is None:
        name = conversation_id(tenant, incoming.hashes.full.hex(), secrets.token_hex(8))
    elif verdict.kind is MatchKind.FORK and index.get(name) is not None:
        # A sample of a prompt of which more samples were taken than one hash is known under.
        name = child_id(name, secrets.token_bytes(8))
    branch = incoming.open_branch(name, verdict.parent)
    opened = Conversation(
        tenant=tenant,
        source=identity.source,
        external_key=identity.value,
        created_at=now,
        history=History(branch=replace(branch, task=task_digest(incoming.messages))),
        run=CurrentRun(started_at=now),
    )
    replaced = index.get(name)
    parent = index.get(verdict.parent) if verdict.parent else None
    if replaced is not None:
        # The stored runs keep their ids, so the new ones are counted after them.
        opened.unit, opened.ancestors = replaced.unit, replaced.ancestors
        opened.unsaved.version = replaced.unsaved.version
        opened.run.index = replaced.run.index + 1
        opened.run.start = RunStart(snapshot=RunSnapshot(run=opened.run.index))
    else:
        turns = incoming.hashes.turns[max(verdict.position - incoming.hashes.start, 0)]
        # One cache key may be that of all conversations of an application.
        if turns or not identity.weak:
            opened.unit = _join(index, opened, identity)
            opened.ancestors = _above(index, opened, identity)
        if parent is not None and verdict.position:
            _copy_state(parent, opened, verdict)
    index.add(opened)
    return opened


def task_digest(messages: Sequence[object]) -> bytes:
    """A digest of what the user first asks for, without what the client put around it."""
    return digest_fields("task", task_of(messages, 0))


def _join(index: ConversationIndex, opened: Conversation, identity: Identity) -> str:
    """The experiment's unit of a new conversation: its parent's; empty for one of its own.

    The parent is the branch it was forked from, or the conversation that the client names. One that
    is not known yet will have its own id as its unit.
    """
    branch = opened.history.branch
    parent = index.get(branch.parent) if branch.parent else None
    if parent is None and identity.parent is not None:
        named = conversation_id(opened.tenant, identity.parent)
        parent = index.get(named)
        if parent is None:
            return named
        opened.history.branch = replace(branch, parent=parent.id)
    return parent.experiment_unit if parent is not None else ""


def _above(index: ConversationIndex, opened: Conversation, identity: Identity) -> tuple[str, ...]:
    """The conversations above a new one, also those that are not known yet."""
    name = opened.history.branch.parent
    if name is None and identity.parent is not None:
        name = conversation_id(opened.tenant, identity.parent)
    if not name or name == opened.id:
        return ()
    parent = index.get(name)
    above = (*parent.ancestors, name) if parent is not None else (name,)
    return above if len(above) <= MAX_DEPTH else (above[0], *above[1 - MAX_DEPTH :])


def _copy_state(parent: Conversation, child: Conversation, verdict: ConversationMatch) -> None:
    """Copy what the parent has up to the messages that the child shares with it."""
    run, given, position = child.run, parent.run, verdict.position
    guidance = given.memory.guidance.up_to(position)
    run.memory = RunMemory(guidance=guidance)
    if verdict.prefix_hash == parent.history.branch.served_hash:
        run.memory = replace(given.memory, guidance=guidance)
        run.resting = dict(given.resting)
    run.index = given.index
    run.judged = dict(given.judged)
    run.priors = dict(given.priors)
    run.answers = [count for count in given.answers if count <= position]
    start = given.start
    if start is not None and start.offset <= position:
        # What a compaction removed is in the parent's run log only.
        run.start = replace(start, logged_in=parent.id)
    child.history.seen = SeenDigests(parent.history.seen.newest())
