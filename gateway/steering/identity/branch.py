"""State of a conversation for matching, changed by each request and reply; side requests."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from enum import Enum, StrEnum
from hashlib import blake2b

from msgspec import Struct
from msgspec.structs import replace

from gateway.steering.identity.ids import clean_call_ids, looks_unique, signature
from gateway.values import Texts, Value
from gateway.wire.coerce import as_list, as_mapping
from gateway.wire.message_identity import (
    content_text,
    digest_fields,
    history,
    system_text,
    tool_names,
)
from gateway.wire.prefix_hash import ChainState, PrefixHashes, extend, start_state

_HASH_BYTES = 8
_MAX_HASHES = 64
_LINE_CHARACTERS = 16  # shorter lines (headings, "Done.") occur in many replies
_TAG = re.compile(r"</?\w+>")


def line_hashes_of(text: str) -> tuple[bytes, ...]:
    """Digests of a reply's first lines, 8 bytes each; short lines and tags are left out."""
    return tuple(dict.fromkeys(hash_lines(text)))[:_MAX_HASHES]


def split_line_hashes(joined: bytes) -> tuple[bytes, ...]:
    """Line hashes that were concatenated, as a tuple."""
    return tuple(joined[at : at + _HASH_BYTES] for at in range(0, len(joined), _HASH_BYTES))


def hash_lines(text: str) -> Iterator[bytes]:
    """A digest of each line of a text, 8 bytes; short lines and tags are left out."""
    for line in text.splitlines():
        words = _TAG.sub("", line).strip()
        if len(words) >= _LINE_CHARACTERS:
            yield digest_fields("line", words)[:_HASH_BYTES]


# Characters of a system text in which its instruction is found: some begin with their name.
_SYSTEM_CHARACTERS = 700
_HEAD_CHARACTERS = 500
# Characters at the ends of a user message searched for the instruction, next to a quote.
_TAIL_CHARACTERS = 300
_VERB = (
    r"\b(?:generate|create|write|suggest|provide|give|produce|propose|craft|make|choose|output"
    r"|come up with|summari[sz]e|extract|(?:respond|reply|return|answer)(?: \w+){0,2} with|need"
    r"|naming)\b"
)
_LABEL = (
    r"(?:\b(?:titles?|headline)\b"
    r"|\b(?:short|concise|brief|descriptive|chat|conversation|session|thread)[ -]names?\b"
    r"|\bdescription of (?:this|the) (?:session|conversation|chat)\b)"
)
_WHAT = (
    r"\b(?:conversation|chat|(?:coding |agent )?session|thread|dialogue|discussion"
    r"|first message)s?\b"
)
_ASKS = re.compile(
    rf"{_VERB}[^.]{{0,100}}?{_LABEL}"
    rf"|\bnam(?:e|ing) (?:this|the|a|an|our) (?:\w+ ){{0,2}}?{_WHAT}"
    r"|\b(?:title|name|naming) (?:generator|assistant)\b"
    r"|(?:\u751f\u6210|\u8d77|\u62df|\u603b\u7ed3).{0,40}?(?:\u6807\u9898|\u540d\u79f0)"
)
_ABOUT = re.compile(
    rf"{_WHAT}|\b(?:user'?s? )(?:first )?message\b|\u5bf9\u8bdd|\u4f1a\u8bdd|\u804a\u5929"
)
# One of these is in each request for a title; searching for plain text costs a tenth.
_SIGNS = ("title", "headline", "nam", "description of", "\u6807\u9898", "\u540d\u79f0")
_NEAR_CHARACTERS = 200
_STARTS_WITHIN = 120  # a user message asks for a title at once; a task may mention titles later


def asks_for_title(system: str, messages: Sequence[object]) -> bool:
    """Whether a request without tools asks for a title of a conversation. `system`: its system
    text. The instruction is in the beginning of that, at the start of the first user message, or at
    either end of the last one. Source: the title requests of opencode, gptme, Claude Code, Zed,
    goose, Crush and Open WebUI."""
    if _instructs(system[:_SYSTEM_CHARACTERS]):
        return True
    outer = messages
    if len(messages) > 3:
        outer = [*messages[:3], *messages[-1:]]
    users = [each for each in outer if isinstance(each, dict) and each.get("role") == "user"]
    said = list(filter(None, (content_text(each.get("content")) for each in users)))
    if not said:
        return False
    heads = dict.fromkeys((said[0][:_HEAD_CHARACTERS], said[-1][:_HEAD_CHARACTERS]))
    asks = any(_instructs(head, within=_STARTS_WITHIN) for head in heads)
    return asks or _instructs(said[-1][-_TAIL_CHARACTERS:])


def _instructs(text: str, within: int = _SYSTEM_CHARACTERS) -> bool:
    text = text.lower()
    # A generator for `any` would cost as much as the search.
    asked = None
    if [1 for sign in _SIGNS if sign in text]:
        asked = _ASKS.search(text)
    if asked is None or asked.start() > within:
        return False
    near = text[max(asked.start() - _NEAR_CHARACTERS, 0) : asked.end() + _NEAR_CHARACTERS]
    return _ABOUT.search(near) is not None


_SUMMARY_SYSTEM = re.compile(
    r"You are (?:a helpful AI assistant tasked with summarizing conversations"  # Claude Code
    r"|the component that summarizes internal chat history"  # Qwen Code, earlier Gemini CLI
    r"|a specialized system component responsible for distilling chat history"  # Gemini CLI
    r"|an? (?:anchored )?context summarization a(?:gent|ssistant))"  # opencode, pi
)
# Texts by which agents have their history summarised. Source: the agents' code, autumn 2026.
_SUMMARY_PROMPT = re.compile(
    r"\s*(?:CRITICAL: Respond with TEXT ONLY.{0,1500}?)?Your task is to create a detailed summary "
    r"of (?:the conversation so far|the RECENT portion of|this conversation)"  # Claude Code
    r"|\s*You are performing a CONTEXT CHECKPOINT COMPACTION",  # Codex, of other providers' models
    re.DOTALL,
)


def asks_for_summary(system: str, said: str) -> bool:
    """Whether a system text, or what is said last, has an agent's history summarised."""
    return bool(
        _SUMMARY_PROMPT.match(said) or _SUMMARY_SYSTEM.search(system, 0, _SYSTEM_CHARACTERS)
    )


def split_ending(message: object) -> tuple[str, list[object]]:
    """The text that ends a client's message, and the message without it: none, or one with results
    of calls. No text where the message is another's or ends with results."""
    if not isinstance(message, dict) or message.get("role") != "user":
        return "", []
    content = message.get("content")
    if isinstance(content, str):
        return content, []
    parts = as_list(content)
    end = len(parts)
    while end and isinstance(as_mapping(parts[end - 1]).get("text"), str):
        end -= 1
    rest: list[object] = [{**message, "content": parts[:end]}] if end else []
    return "".join([part["text"] for part in parts[end:]]), rest


# Types of the items that stand for a compacted history in the Responses API. No set: a client's
# type may be a list or an object, for which there is no hash.
COMPACTION_ITEMS = ("compaction", "compaction_summary", "context_compaction")


class Awaits(StrEnum):
    """Event that a conversation waits for. MODEL: a call is in progress. TOOLS: the latest reply
    called tools, whose results the client has to send. ANYTHING: the latest reply was a final
    answer, or the latest call failed."""

    MODEL = "model"
    TOOLS = "tools"
    ANYTHING = "anything"


class Arrival(Enum):
    """Arrival of the latest answer to the client, as far as it is known. UNKNOWN: there is no
    whole answer, it was not sent to its end, or another process sent it. SENDING: the whole answer
    is being recorded and sent."""

    UNKNOWN = 0
    SENDING = 1
    DONE = 2


class PrefixHashRef(Value):
    """The conversation of a stored prefix hash."""

    conversation_id: str  # the conversation whose request or reply has that hash
    served: bytes  # prefix hash of that whole request, also for the hash that covers its reply too


class Branch(Value):
    """One linear history: a conversation, or a fork of one. After a restart no call is in
    progress: load MODEL as ANYTHING."""

    conversation_id: str  # the conversation that this branch is
    served_hash: bytes  # prefix hash of the latest request served; one that extends it continues
    signature: bytes  # digest of the agent's tools and role; survives a rewritten history
    has_tools: bool  # its requests offer tools
    parent: str | None = None  # the conversation that it was forked from; None for a first branch
    # prefix hash of the request before the latest, which the client may extend again if the latest
    # call failed; None when it may not
    fallback_hash: bytes | None = None
    reply_digest: bytes | None = None  # digest of the latest reply alone; None before there is one
    # prefix hash of the latest request with its reply; None before there is one
    echoed_hash: bytes | None = None
    line_hashes: tuple[bytes, ...] = ()  # of the lines of the latest reply, when it was final
    # ids of the latest reply's calls; empty when the reply before had the same
    reply_calls: tuple[str, ...] = ()
    # ids of the calls in the latest turn of the request it answers
    served_calls: tuple[str, ...] = ()
    awaits: Awaits = Awaits.ANYTHING  # what may come next
    steps: int = 0  # scored steps
    model: str = ""  # named by the latest request; "" when unknown
    system: bytes = b""  # digest of the latest request's system text; empty when unknown
    delivery: Arrival = Arrival.UNKNOWN  # of the latest answer to the client; not stored
    # hash of the history from its first reply to its latest one, when that was final
    tail: bytes = b""
    task: bytes = b""  # digest of the user's first request
    retries: int = 0  # how often the latest request came again

    @property
    def may_be_retried(self) -> bool:
        """Whether the latest request has no whole answer, and none is on its way."""
        return self.delivery is Arrival.UNKNOWN and self.awaits is not Awaits.MODEL

    def has_model_of(self, request: Incoming) -> bool:
        """Whether the request names the model of the branch, as far as both are known."""
        return self.model in ("", request.model)

    def is_extended_by(self, ref: PrefixHashRef) -> bool:
        """Whether a history with this stored prefix hash continues the branch; else it forks."""
        return ref.conversation_id == self.conversation_id and (
            ref.served == self.served_hash
            or (self.awaits is Awaits.ANYTHING and ref.served == self.fallback_hash)
        )

    def awaits_results_of(self, request: Incoming) -> bool:
        """Whether the request brings the results of the calls that the latest reply made."""
        return bool(self.reply_calls) and self.reply_calls == request.calls

    def is_retried_by(self, request: Incoming, *, named: bool = False) -> bool:
        """True if a request with the same history as the branch's latest one is a retry of it.
        It is if the client marks it as a retry or names the conversation (`named`), or if the
        answer did not arrive whole; only in the last case may it ask another model."""
        ids = request.calls
        own = self.served_calls
        # Short ids prove no difference: some clients number the calls of a request again.
        differ = bool(ids and own) and ids != own and looks_unique(ids) and looks_unique(own)
        if self.signature != request.signature or differ:
            return False
        marked = named or request.client_retry
        return self.may_be_retried or (marked and self.has_model_of(request))

    def extended(self, request: Incoming) -> Branch:
        """The branch after a request that continues it or rewrites its history."""
        # A request without tools in a branch that has some asks for a summary: the same agent. Some
        # ask with other tools.
        bare = request.compacts or (self.has_tools and not request.has_tools)
        return replace(
            self,
            served_hash=request.hashes.state.digest,
            fallback_hash=self.served_hash,
            echoed_hash=None,
            signature=self.signature if bare else request.signature,
            has_tools=request.has_tools or self.has_tools,
            reply_calls=(),
            served_calls=request.calls,
            awaits=Awaits.MODEL,
            model=request.model,
            system=request.system,
            delivery=Arrival.UNKNOWN,
            tail=b"",
            retries=0,
        )

    def retried(self) -> Branch:
        """The branch after its latest request came again; nothing else changes."""
        return replace(self, retries=self.retries + 1)

    def answered(
        self,
        served: bytes,
        reply_digest: bytes | None,
        *,
        final: bool,
        line_hashes: tuple[bytes, ...] = (),
        calls: tuple[str, ...] = (),
        tail: bytes = b"",
        echoed_hash: bytes | None = None,
    ) -> Branch:
        """Returns the branch after a complete reply to the request with the prefix hash
        `served`. `final`: the reply calls no tool. `calls`: the ids of its calls, dropped if the
        turn before had the same: a provider that numbers the calls of each reply from one
        identifies nothing by them. A reply to a request that is no longer the latest leaves the
        branch unchanged."""
        if served != self.served_hash:
            return self
        return replace(
            self,
            fallback_hash=None,
            reply_digest=reply_digest,
            echoed_hash=echoed_hash,
            line_hashes=line_hashes,
            reply_calls=calls if calls != self.served_calls else (),
            awaits=Awaits.ANYTHING if final else Awaits.TOOLS,
            tail=tail,
        )

    def delivered(self, served: bytes, delivery: Arrival) -> Branch:
        """The branch with what is known of the way of the answer to the request `served`."""
        if served != self.served_hash:
            return self
        return replace(self, delivery=delivery)

    def failed(self, served: bytes) -> Branch:
        """The branch after a call without a complete reply; any request may come next."""
        if served != self.served_hash:
            return self
        return replace(self, awaits=Awaits.ANYTHING)


Branches = Mapping[str, Branch]  # branches by conversation id, most recently used first


class Found(Struct, frozen=True):
    """A stored prefix hash of the request's history, with the branch it belongs to."""

    position: int  # messages that the hash covers
    prefix_hash: bytes  # the stored digest
    ref: PrefixHashRef  # the conversation, and the request that has the hash
    branch: Branch  # the branch it belongs to, as it is now
    whole: bool  # the hash covers the whole request, which was served before
    current: bool  # a history that extends the hash continues its branch
    adjacent: bool  # the request is one reply ahead of the branch
    ahead: int  # assistant turns of the request after the hash

    @property
    def continues(self) -> bool:
        """Whether the request extends the branch, instead of repeating its latest request."""
        return self.current and not self.whole


class Incoming(Value):
    """Parts of a request that matching reads."""

    hashes: PrefixHashes  # chained digests of the request's history, one per message
    signature: bytes  # digest of the agent's tools and role; survives a rewritten history
    has_tools: bool  # it offers tools
    client_retry: bool = False  # the client's SDK marks it as a retry
    messages: Sequence[object] = ()  # those that `hashes` were computed from
    model: str = ""  # the requested name; "" when there is none
    system: bytes = b""  # digest of its system text; empty without one
    titles: bool = False  # it asks for the title of a conversation
    compacts: bool = False  # it asks for a summary of its own history
    # ids of the calls in the latest assistant turn; empty unless every call has one
    calls: tuple[str, ...] = ()

    def has_compaction(self, known: int = 0) -> bool:
        """Whether an item after the first `known` messages stands for a compacted history."""
        items = self.messages[known:]
        return any(as_mapping(each).get("type") in COMPACTION_ITEMS for each in items)

    def open_branch(self, conversation_id: str, parent: str | None = None) -> Branch:
        """A new branch that begins with this request."""
        return Branch(
            conversation_id=conversation_id,
            served_hash=self.hashes.state.digest,
            signature=self.signature,
            has_tools=self.has_tools,
            parent=parent,
            served_calls=self.calls,
            awaits=Awaits.MODEL,
            model=self.model,
            system=self.system,
        )


def is_client_retry(headers: Texts) -> bool:
    """Whether the client says that it sends the request again."""
    # Sent by the OpenAI and Anthropic SDKs, counted from 0.
    count = headers.get("x-stainless-retry-count", "")
    return count.isdecimal() and int(count[:9]) > 0


def read_request(
    headers: Texts,
    body: Mapping[str, object],
    tenant: str,
    *,
    resume: ChainState | None = None,
    own: Sequence[object] | None = None,
    messages: Sequence[object] | None = None,
    compacts: bool = False,
) -> Incoming:
    """The parts of a parsed request that matching reads; never raises. `headers` have lower-case
    names. `resume`: only the messages after its `count` are read; the caller guarantees that the
    messages before are the same, for the same tenant. `own`: the messages in the body,
    for a dialect that has them under another key than `messages` or `input`. `messages`: the whole
    history, when the body contains only a part of it."""
    client_retry = is_client_retry(headers)
    tools = tool_names(body)
    own = history(body) if own is None else own
    whole = own if messages is None else messages
    system = system_text(body, own)
    if resume is None or resume.count > len(whole):
        resume = start_state(tenant)
    hashes = extend(resume, whole[resume.count :])
    model = body.get("model")
    return Incoming(
        hashes=hashes,
        signature=signature(system, tools),
        system=blake2b(system.encode("utf-8", "surrogatepass"), digest_size=8).digest(),
        calls=clean_call_ids(hashes.state.call_ids),
        has_tools=bool(tools),
        client_retry=client_retry,
        messages=whole,
        model=model if isinstance(model, str) else "",
        compacts=compacts,
        titles=not tools and asks_for_title(system, own),
    )
