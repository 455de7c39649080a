"""The real resolver driven by function calls, without HTTP; nothing is stored."""

from __future__ import annotations

import asyncio
import functools
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import orjson
from msgspec.structs import replace

from gateway.backends import open_stores
from gateway.config.settings import SteeringSettings
from gateway.config.storage import StorageSettings
from gateway.conversations.apply_reply import (
    AppliedReply,
    apply_reply,
    note_delivered,
    note_ended,
    note_sending,
    replies_in,
)
from gateway.conversations.conversation import Conversation
from gateway.conversations.decision import Decision
from gateway.conversations.in_memory import ConversationIndex
from gateway.conversations.loading import ConversationLoader
from gateway.conversations.resolve import ConversationResolver, Resolved
from gateway.core.fsm import FSMState
from gateway.core.steer import RunPosition
from gateway.dialects import CHAT, SteeredRequest
from gateway.steering.identity import (
    Branch,
    ConversationMatch,
    ConversationSettings,
    Incoming,
    MatchKind,
    PrefixHashRef,
)
from gateway.stores.protocols import StateStore

TOOLS = [{"type": "function", "function": {"name": "shell"}}]
TENANT = "t"


@dataclass(frozen=True, slots=True, kw_only=True)
class Call:
    """One request in progress."""

    resolved: Resolved
    found: Conversation | None  # its conversation; None for a side request

    @property
    def conversation(self) -> str:
        """The id of its conversation, or of the one that a side request belongs to."""
        if self.found is not None:
            return self.found.id
        return self.match.conversation_id or ""

    @property
    def match(self) -> ConversationMatch:
        return self.resolved.match

    @property
    def request(self) -> Incoming:
        return self.resolved.incoming

    @property
    def kind(self) -> MatchKind:
        return self.resolved.match.kind


@functools.cache
def _empty_store() -> tuple[asyncio.Runner, StateStore]:
    """A store that stays empty, and the event loop that it was opened on."""
    runner = asyncio.Runner()
    stores = runner.run(open_stores(StorageSettings(path=":memory:")))
    return runner, stores.states


def an_index(
    conversations: int, transcripts: int, *, transcripts_mb: int = 1024, prefix_mb: int = 1
) -> ConversationIndex:
    """An empty index that keeps so many conversations and transcripts in memory."""
    return ConversationIndex(
        SteeringSettings(
            max_conversations_in_memory=conversations,
            max_transcripts_in_memory=transcripts,
            max_transcript_memory_mb=transcripts_mb,
            max_prefix_memory_mb=prefix_mb,
        )
    )


def a_resolver(
    index: ConversationIndex, store: StateStore, *, shared: bool = False
) -> ConversationResolver:
    """A resolver with the settings that hold where nothing is configured."""
    loader = ConversationLoader(index, store)
    return ConversationResolver(index, loader, ConversationSettings(), shared=shared)


def parsed(index: ConversationIndex, tenant: str, body: Mapping[str, Any]) -> SteeredRequest:
    """A chat request, read as far as the index does not know its beginning."""
    raw = orjson.dumps(body)
    return CHAT.parse(raw, orjson.loads, index.bodies.longest(tenant, raw, CHAT.list_key))


class Driver:
    """A gateway's resolver and index, and the pipeline's part around them."""

    def __init__(self) -> None:
        self._runner, store = _empty_store()
        self.index = an_index(10_000, 10_000, transcripts_mb=16384, prefix_mb=16)
        self._resolver = a_resolver(self.index, store)

    @property
    def branches(self) -> dict[str, Branch]:
        """The branch of every conversation, without the count of retries."""
        known = self.index._by_id.items()
        return {id: replace(each.history.branch, retries=0) for id, each in known}

    @property
    def refs(self) -> dict[bytes, list[PrefixHashRef]]:
        """The requests known under each prefix hash."""
        return self.index._prefix_hashes

    def begin(
        self,
        messages: list[Any],
        *,
        headers: Mapping[str, str] | None = None,
        tools: Any = TOOLS,
        **body: Any,
    ) -> Call:
        """Resolve a request."""
        fields = {"model": "m", "messages": messages, "tools": tools, **body}
        request = parsed(self.index, TENANT, fields)
        resolved, found = self.resolve(request, headers or {})
        if found is not None and resolved.match.kind in (MatchKind.CONTINUE, MatchKind.COMPACTION):
            branch = found.history.branch
            turns = max(branch.steps, resolved.incoming.hashes.state.turns)
            found.history.branch = replace(branch, steps=turns)
        return Call(resolved=resolved, found=found)

    def resolve(
        self, request: SteeredRequest, headers: Mapping[str, str]
    ) -> tuple[Resolved, Conversation | None]:
        """The conversation of a parsed request."""
        return self._runner.run(self._resolver.resolve(request, headers, TENANT, now=0.0))

    def finish(self, call: Call, reply: Mapping[str, Any]) -> Call:
        """Apply the complete reply to a request."""
        if call.found is not None:
            decision, applied = self.answer(call, reply)
            note_delivered(decision, applied)
            note_ended(decision)
        return call

    def answer(self, call: Call, reply: Mapping[str, Any]) -> tuple[Decision, AppliedReply]:
        """Apply the complete reply to a request; it is not sent yet."""
        assert call.found is not None
        finish = "tool_calls" if reply.get("tool_calls") else "stop"
        completion = {"choices": [{"message": dict(reply), "finish_reason": finish}]}
        decision = _decision(call.resolved, call.found)
        note_sending(decision)
        applied = apply_reply(decision, completion, replies_in(completion), self.index)
        return decision, applied

    def fail(self, call: Call) -> None:
        """End a call without a complete reply."""
        if call.found is not None:
            decision = _decision(call.resolved, call.found)
            apply_reply(decision, None, [], self.index)

    def turn(self, messages: list[Any], reply: Mapping[str, Any], **how: Any) -> Call:
        """A request and its reply."""
        return self.finish(self.begin(messages, **how), reply)


def _decision(resolved: Resolved, conversation: Conversation) -> Decision:
    return Decision(
        resolved=resolved,
        mode="off",
        conversation=conversation,
        position=RunPosition(run=0, step=0, state=FSMState.INIT),
        model="m",
    )


def says(text: str) -> dict[str, Any]:
    """A user message."""
    return {"role": "user", "content": text}


def answers(text: str) -> dict[str, Any]:
    """A final answer."""
    return {"role": "assistant", "content": text}


def calls(command: str, id: str = "call_1") -> dict[str, Any]:
    """A reply that calls the one tool."""
    function = {"name": "shell", "arguments": f'{{"command": "{command}"}}'}
    call = {"id": id, "type": "function", "function": function}
    return {"role": "assistant", "content": None, "tool_calls": [call]}


def result(text: str, id: str = "call_1") -> dict[str, Any]:
    """The result of a tool call."""
    return {"role": "tool", "tool_call_id": id, "content": text}
