"""The smallest shell around identity: it keeps heads and branches in dictionaries."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from gateway.steering.conversation import (
    Branch,
    ConversationSettings,
    HeadRef,
    Incoming,
    Match,
    MatchKind,
    conversation_id,
    identify,
    match,
    read_request,
)
from gateway.wire.heads import extend
from gateway.wire.messages import reply_message

TOOLS = [{"type": "function", "function": {"name": "shell"}}]
TENANT = "t"


@dataclass(frozen=True, slots=True, kw_only=True)
class Call:
    """One request on its way."""

    conversation: str
    match: Match
    request: Incoming

    @property
    def kind(self) -> MatchKind:
        return self.match.kind


class Shell:
    """Does for identity what the pipeline does, without its I/O."""

    def __init__(self) -> None:
        self.refs: dict[bytes, list[HeadRef]] = {}
        self.branches: dict[str, Branch] = {}
        self._opened = 0

    def begin(
        self,
        messages: list[Any],
        *,
        headers: Mapping[str, str] | None = None,
        tools: Any = TOOLS,
        **body: Any,
    ) -> Call:
        """Let a request in."""
        body = {"messages": messages, "tools": tools, **body}
        identity = identify(headers or {}, body, ConversationSettings())
        request = read_request(headers or {}, body, TENANT)
        known = {head: self.refs.get(head, []) for _, head in request.heads.candidates()}
        explicit = conversation_id(TENANT, identity.value) if identity.value else None
        if explicit is None:
            named = {ref.conversation_id for refs in known.values() for ref in refs}
        else:
            named = {id for id in self.branches if self._root(id) == explicit}
        branches = {id: branch for id, branch in self.branches.items() if id in named}
        verdict = match(
            request, known, branches, conversation_id=explicit, weak=identity.weak, own=identity.own
        )
        return self._admit(verdict, request)

    def finish(self, call: Call, reply: Mapping[str, Any]) -> Call:
        """The whole reply to a request."""
        if call.kind is not MatchKind.SIDE:
            replied = extend(call.request.heads.state, [reply_message(reply)])
            served = call.request.heads.full
            self._store(replied.full, call.conversation, served)
            branch = self.branches[call.conversation]
            final = not reply.get("tool_calls")
            self._keep(branch.answered(served, replied.messages[0], final=final))
        return call

    def fail(self, call: Call) -> None:
        """A call that brought no whole reply."""
        self._keep(self.branches[call.conversation].failed(call.request.heads.full))

    def turn(self, messages: list[Any], reply: Mapping[str, Any], **how: Any) -> Call:
        """A request and its reply."""
        return self.finish(self.begin(messages, **how), reply)

    def _root(self, id: str) -> str:
        parent = self.branches[id].parent
        return id if parent is None else self._root(parent)

    def _admit(self, verdict: Match, request: Incoming) -> Call:
        id = verdict.conversation_id
        if id is None:
            self._opened += 1
            id = conversation_id(TENANT, request.heads.full.hex(), str(self._opened))
        match verdict.kind:
            case MatchKind.NEW | MatchKind.FORK:
                self._keep(request.opens(id, verdict.parent))
            case MatchKind.CONTINUE | MatchKind.COMPACTION:
                branch = self.branches[id]
                steps = max(branch.steps, request.heads.state.turns)
                self._keep(replace(branch.extended(request), steps=steps))
        if verdict.kind is not MatchKind.SIDE:
            self._store(request.heads.full, id, request.heads.full)
        return Call(conversation=id, match=verdict, request=request)

    def _store(self, head: bytes, id: str, served: bytes) -> None:
        ref = HeadRef(conversation_id=id, served=served)
        refs = self.refs.setdefault(head, [])
        if ref in refs:
            refs.remove(ref)
        refs.insert(0, ref)

    def _keep(self, branch: Branch) -> None:
        self.branches.pop(branch.conversation_id, None)
        self.branches = {branch.conversation_id: branch, **self.branches}


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
    """What a tool call gave."""
    return {"role": "tool", "tool_call_id": id, "content": text}
