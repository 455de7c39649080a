"""What identity remembers of a conversation, and how a request and its reply change that."""

from __future__ import annotations

import enum
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from gateway.steering.identity.ids import sane_calls, signature
from gateway.steering.identity.summary import retold
from gateway.wire.heads import ChainState, Heads, chain_digests
from gateway.wire.messages import history, system_text, tool_names


class Awaits(enum.StrEnum):
    """What a conversation waits for."""

    MODEL = "model"
    """A call is on its way."""
    TOOLS = "tools"
    """The latest reply asked for tools: the client owes their results."""
    ANYTHING = "anything"
    """The latest reply was a final answer, or the latest call failed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HeadRef:
    """Who stored a head: a conversation, when it served the request with the head `served`.

    Under the head of that request itself, `served` is that head; under the head extended by a reply
    it is still the head of the request replied to.
    """

    conversation_id: str
    served: bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class Branch:
    """One line of history: a conversation, or what forked off one.

    `served_head`: head of the latest request served; replies to it continue the branch.
    `fallback_head`: the one before, which the client may extend again if the latest call failed.
    `reply_digest`: digest of the latest reply by itself; `reply_marks`: those of its lines, when it
    was final (see `summary.marks_of`). `signature`: see `ids.signature`. `steps`: scored steps.
    `reply_calls`: ids of the calls in the latest reply, while they are a sign of that reply alone;
    `served_calls`: those of the latest turn in the request it answers.
    After a restart no call is on its way: load MODEL as ANYTHING.
    """

    conversation_id: str
    served_head: bytes
    signature: bytes
    has_tools: bool
    parent: str | None = None
    fallback_head: bytes | None = None
    reply_digest: bytes | None = None
    reply_marks: tuple[bytes, ...] = ()
    reply_calls: tuple[str, ...] = ()
    served_calls: tuple[str, ...] = ()
    awaits: Awaits = Awaits.ANYTHING
    steps: int = 0

    def holds(self, ref: HeadRef) -> bool:
        """Whether what extends this stored head continues the branch, instead of leaving it."""
        if ref.conversation_id != self.conversation_id:
            return False
        if ref.served == self.served_head:
            return True
        return self.awaits is Awaits.ANYTHING and ref.served == self.fallback_head

    def owed(self, request: Incoming) -> bool:
        """Whether the request brings the results of the calls that the latest reply made."""
        return bool(self.reply_calls) and self.reply_calls == request.calls

    def extended(self, request: Incoming) -> Branch:
        """After a request that continues or rewrites the branch was let in.

        One without the tools of the others (it asks for a summary) is no sign of another agent.
        """
        bare = self.has_tools and not request.has_tools
        return replace(
            self,
            served_head=request.heads.full,
            fallback_head=self.served_head,
            signature=self.signature if bare else request.signature,
            has_tools=request.has_tools or self.has_tools,
            reply_calls=(),
            served_calls=request.calls,
            awaits=Awaits.MODEL,
        )

    def answered(
        self,
        served: bytes,
        reply_digest: bytes | None,
        *,
        final: bool,
        marks: tuple[bytes, ...] = (),
        calls: tuple[str, ...] = (),
    ) -> Branch:
        """After a whole reply to the request with the head `served`; `final`: it calls no tool.

        `marks`: those of a final reply's lines. `calls`: the ids of its calls; a provider that
        numbers them anew in each reply makes no sign with them. A reply to a request that is no
        longer the latest leaves the branch as it is.
        """
        if served != self.served_head:
            return self
        awaits = Awaits.ANYTHING if final else Awaits.TOOLS
        return replace(
            self,
            fallback_head=None,
            reply_digest=reply_digest,
            reply_marks=marks,
            reply_calls=calls if calls != self.served_calls else (),
            awaits=awaits,
        )

    def failed(self, served: bytes) -> Branch:
        """After a call that brought no whole reply: the client may send it again, or another."""
        return self if served != self.served_head else replace(self, awaits=Awaits.ANYTHING)


@dataclass(frozen=True, slots=True, kw_only=True)
class Incoming:
    """A request as matching sees it; `client_retry`: the client says that it sends it again.

    `messages` are those that `heads` were made from.
    """

    heads: Heads
    signature: bytes
    has_tools: bool
    client_retry: bool = False
    messages: Sequence[object] = ()

    @property
    def calls(self) -> tuple[str, ...]:
        """The ids of the calls of the latest turn as they came; none unless each call has one."""
        return sane_calls(self.heads.state.call_ids)

    def retells(self, branch: Branch, known: int = 0) -> bool:
        """Whether what comes after the first `known` messages was made from the branch's latest
        reply: it was a summary."""
        return bool(branch.reply_marks) and retold(branch.reply_marks, self.messages[known:])

    def opens(self, conversation_id: str, parent: str | None = None) -> Branch:
        """The branch that begins with this request."""
        return Branch(
            conversation_id=conversation_id,
            served_head=self.heads.full,
            signature=self.signature,
            has_tools=self.has_tools,
            parent=parent,
            served_calls=self.calls,
            awaits=Awaits.MODEL,
        )


def _says_retry(headers: Mapping[str, str]) -> bool:
    # Sent by the OpenAI and Anthropic SDKs, counted from 0.
    count = headers.get("x-stainless-retry-count", "")
    return count.isdecimal() and int(count[:9]) > 0


def read_request(
    headers: Mapping[str, str],
    body: Mapping[str, object],
    tenant: str,
    *,
    resume: ChainState | None = None,
    messages: Sequence[object] | None = None,
) -> Incoming:
    """What matching needs of a parsed request; never raises.

    `headers` have lower-case names. `resume`: see `gateway.wire.heads.chain_digests`. `messages`:
    the history, where the body does not bring all of it.
    """
    tools = tool_names(body)
    whole = history(body) if messages is None else messages
    return Incoming(
        heads=chain_digests(whole, tenant, resume=resume),
        signature=signature(system_text(body), tools),
        has_tools=bool(tools),
        client_retry=_says_retry(headers),
        messages=whole,
    )
