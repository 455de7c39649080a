"""One session of an agent, as every reader gives it: messages, model calls, what the person did."""

import math
import re
from bisect import bisect_left
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime
from itertools import groupby
from typing import Any, Literal

from msgspec import Struct

from gateway.features.history.log_file import LogFile, Unread
from gateway.steering.sub_agents import Order
from gateway.steering.transcript.client_texts import typed_words
from gateway.steering.transcript.content import read_calls, read_content
from gateway.steering.transcript.interventions import (
    ACCEPTED_PLAN,
    is_interruption,
    rejection,
    said_in,
)
from gateway.steering.transcript.steps import CONSULTS
from gateway.text.secrets import mask_repeated
from gateway.values import FieldDict, Fields, Value
from gateway.wire.coerce import (
    as_int,
    as_mapping,
    as_number,
    as_text,
    text_at,
)
from gateway.wire.message_identity import digest_fields

HumanKind = Literal["message", "interrupt", "reject"]
# what the log has only a part of: nothing, the output of an answer that was logged before it
# ended, the steps of a sub-agent of which the last answer stands for more, or an answer's usage,
# of which it has none
Floor = Literal["", "output", "steps", "usage"]
AWAY_S = 1800.0  # a person who answers later than this has not been waited for


class ModelCall(Struct):
    """One answer of a model; a reader adds to it what later lines say."""

    position: int  # index of its message
    model: str = ""  # as the log names it; "" if unknown
    # the provider's own object, in any form that `tokens_of` reads; empty if the log has none
    usage: Mapping[str, Any] = {}
    at: float | None = None  # epoch seconds; None if unknown
    # seconds from the end of the answer before to the newest message or result that this one
    # answers, or to this one where the log has no times of those; not above 0 if unknown
    waited: float = 0.0
    key: str = ""  # the same in every file that holds a copy of this answer; "" if unknown
    cost_usd: float | None = None  # US dollars that the agent itself noted; None if it did not
    at_least: Floor = ""  # what the log has only a part of


class HumanTurn(Value):
    """One act of the person: a message, an interruption, or the rejection of a call."""

    kind: HumanKind  # which of them
    position: int  # index of the message that has it, or before which it happened
    text: str = ""  # the person's words; "" without any
    step: int = -1  # index of the answer that it followed; -1 before the first, or if not read yet
    at: float | None = None  # epoch seconds; None if unknown


class SessionFacts(Struct, kw_only=True):
    """Names and span of a session; a sub-agent's is a session of its own."""

    id: str  # the agent's own id of it
    agent: str  # name of the client
    project: str = ""  # working directory; "" if unknown
    parent: str = ""  # id of the session that started this one; "" for none
    order: Order = Order()  # of a sub-agent: what it was started for, as far as it is known
    title: str = ""  # as the agent shows it; "" without one
    started: float | None = None  # epoch seconds; None if unknown
    ended: float | None = None  # epoch seconds; None if unknown


class Origin(Value):
    """Names of a project that a log has beside its folder."""

    repository: str = ""  # owner and name; "" if unknown
    digest: str = ""  # SHA-256 of the path of the folder; "" if unknown


class FileFacts(SessionFacts, kw_only=True):
    """Facts that a file states of its sessions. Only its first session has its lines."""

    version: str = ""  # of the client; "" if unknown
    origin: Origin = Origin()  # of the project
    author: str = ""  # the person, where the log says it
    outcome: bool | None = None  # success, if the file says; None if it does not
    lines: int = 0  # of the file
    unread: Sequence[Unread] = ()  # lines that were not understood
    reasons: Mapping[str, int] = {}  # number of these lines, by reason
    # seconds by who took them: "model", "tool", "person", or "away" for a person's long pause;
    # empty if the log has no times. Permission is waited for by "tool" where a log does not note it
    spent: dict[str, float] = {}


class Session(FileFacts, kw_only=True):
    """One session of one agent."""

    # as the agent's model saw them, each answer one `assistant` message
    messages: list[FieldDict] = []
    calls: list[ModelCall] = []  # one for each answer
    human: list[HumanTurn] = []  # acts of the person, in their order
    compactions: list[int] = []  # indices of the messages that replaced all earlier ones
    moment: float = 0.0  # epoch seconds that `spent` has reached; 0 before the first
    answered_at: float = math.inf  # epoch seconds of the newest answer's end; inf before the first
    sent_at: float = 0.0  # epoch seconds of the newest message or result; 0 before the first

    def took(self, who: str, at: float | None) -> None:
        """Count the time since the last known moment for `who`: it ended at `at`. A moment before
        that one counts for nobody: calls at the same time overlap."""
        if at is None:
            return
        if who != "model":
            self.sent_at = at
        passed = at - (self.moment or at)
        if passed > 0:
            if who == "person" and passed > AWAY_S:
                who = "away"
            self.spent[who] = self.spent.get(who, 0.0) + passed
        self.moment = max(at, self.moment)

    def wrote(self, at: float | None) -> None:
        """Note that an answer, or the next part of it, ended at `at`."""
        self.took("model", at)
        self.answered_at = at or self.answered_at

    def answered(self, call_id: object, at: float | None, *, refused: bool) -> None:
        """Count the time of a call that has its result now: a call that asks the person, and one
        that the person refused, was waiting for the person."""
        who = "person" if refused else "tool"
        for made in self.calls[-1:]:
            message = self.messages[made.position]
            for call in read_calls(message, read_content(message.get("content"))):
                if call.id == call_id and CONSULTS.search(call.name):
                    who = "person"
        self.took(who, at)

    def at(self, value: object) -> float | None:
        """Read a time stamp, extend the session's span to it, and return it."""
        moment = epoch(value)
        if moment is not None:
            self.started = min(moment, self.started or moment)
            self.ended = max(moment, self.ended or moment)
        return moment

    def about(self, line: Fields) -> None:
        """Take from a line what Claude Code and Qwen Code write into each about its session."""
        if not _UUID.fullmatch(self.id):
            self.id = own_id(line.get("sessionId")) or self.id
        self.version = text_at(line, "version") or self.version
        self.project = self.project or text_at(line, "cwd")

    def reply(self, text: str = "", reasoning: str = "", **noted: Any) -> FieldDict:
        """Add an answer of the model and return its message; `noted`: more of its ModelCall."""
        message: FieldDict = {"role": "assistant", "content": text}
        if reasoning:
            message["reasoning_content"] = reasoning
        at = noted.get("at")
        waited = (self.sent_at or at or 0.0) - self.answered_at
        self.wrote(at)
        self.calls.append(ModelCall(position=len(self.messages), waited=waited, **noted))
        self.messages.append(message)
        return message

    def result(
        self,
        call_id: object,
        content: object,
        at: float | None = None,
        *,
        failed: bool = False,
        rejected: bool | None = None,
    ) -> None:
        """Add the result of a call. `rejected`: the person refused it; None: its text says so."""
        message = {"role": "tool", "tool_call_id": call_id, "content": content}
        said = rejection(as_text(content, ""))
        self.answered(call_id, at, refused=bool(rejected) or said is not None)
        self.messages.append({**message, "is_error": True} if failed else message)
        if rejected or (rejected is None and said is not None):
            self.did("reject", said or "", at, back=1)

    def typed(self, text: str, at: float | None) -> None:
        """Note an act of the person that a result or a notice of Gemini CLI reports: a rejected
        call, or interrupted work."""
        text = text.removeprefix("<untrusted_context>").lstrip()
        if (said := rejection(text)) is not None:
            self.did("reject", said, at, back=1)
        elif is_interruption(text):
            self.did("interrupt", at=at)

    def user(self, content: object, words: str = "", at: float | None = None) -> None:
        """Add a message with the role of the user; `words`: what a person typed of it."""
        if words:
            self.did("message", words, at)
        self.sent_at = at or self.sent_at
        self.messages.append({"role": "user", "content": content})

    def compact(self, *contents: object) -> None:
        """Add the messages that replace all earlier ones."""
        self.compactions.append(len(self.messages))
        for content in contents:
            self.messages.append({"role": "user", "content": content, "compact": True})

    def did(
        self, kind: HumanKind, text: str = "", at: float | None = None, *, back: int = 0
    ) -> None:
        """Note an act of the person: at the next message, or `back` messages before it. A text
        that a client wrote is none, and nobody speaks to a sub-agent."""
        if kind == "message":
            words = typed_words(text)
            if text and not words:
                return
            text = words
            self.took("person", at)
        elif kind == "interrupt":
            self.took("model", at)
        if not self.parent or kind == "reject":
            position = len(self.messages) - back
            self.human.append(HumanTurn(kind=kind, position=position, text=text.strip(), at=at))

    def join_stops(self) -> None:
        """Make one act of an interruption and what stands beside it after the same answer, which
        a log may repeat: for each call that it stopped, as an event and as a message, or with the
        call that the person rejected to stop the agent. A message between two makes them two."""
        answers = [call.position for call in self.calls]
        ends = [-1, *answers, len(self.messages)]
        kept: list[HumanTurn] = []
        for (after, is_said), row in groupby(
            self.human, lambda t: (bisect_left(answers, t.position), t.kind == "message")
        ):
            turns = list(row)
            said = said_in(self.messages[ends[after] + 1 : ends[after + 1]])
            if is_said:
                kept += turns
            elif not any(text.startswith(ACCEPTED_PLAN) for text in said):
                kept += [t for t in turns if t.text or t.kind != "interrupt"] or turns[:1]
        self.human = kept

    def name_calls(self) -> None:
        """Give each answer without an id of its own one that is made of its time and content, so
        that a copy of it in another file has the same."""
        known = Counter(call.key for call in self.calls)
        made: Counter[str] = Counter()
        for call in self.calls:
            if call.at is None or (known[call.key] == 1 and own_id(call.key)):
                continue
            message = self.messages[call.position]
            key = digest_fields(str(call.at), repr(call.usage), repr(message)).hex()
            made[key] += 1
            call.key = f"{key}:{made[key]}"


def family(sessions: Mapping[str, Session]) -> Iterator[Session]:
    """The session under "", and those of its sub-agents under their names, as far as they have
    messages. Each of them may hold the id of the session."""
    for name, session in sessions.items():
        if name:
            session.parent = session.id
            session.id = f"{session.id}/{name}"
        if session.messages:
            yield session


def order_beside(log: LogFile) -> Order:
    """The order that newer versions of some clients write into a file beside a sub-agent's log."""
    path = log.path.with_name(f"{log.stem}.meta.json")
    if not path.is_file():
        return Order()
    noted = as_mapping(LogFile(path).document())
    task = mask_repeated(text_at(noted, "description"))
    return Order(kind=text_at(noted, "agentType"), task=task)


_UUID = re.compile(r"[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}")
_MASKED = re.compile(r"(?i)[\W_0]*$|.*(?:x{3}|\*{2}|redact|mask|remov|hidden|anonym|scrub)")


def own_id(*names: object) -> str:
    """The first of these names that is an id, "" if none is: logs are published with ids masked."""
    return next((n for n in names if isinstance(n, str) and not _MASKED.match(n)), "")


def add_call(answer: FieldDict, call_id: object, name: object, *, arguments: object) -> None:
    """Add the call of a tool to an answer of the model."""
    call = {"id": call_id, "type": "function", "function": {"name": name, "arguments": arguments}}
    answer.setdefault("tool_calls", []).append(call)


def chat_usage(
    prompt: object, made: object, cached: object = 0, written: object = 0, thoughts: object = 0
) -> FieldDict:
    """Counts of tokens in the form of Chat Completions: the prompt includes those read from and
    written to a cache, the completion those of reasoning."""
    details = {"cached_tokens": as_int(cached, 0), "cache_creation_tokens": as_int(written, 0)}
    return {
        "prompt_tokens": as_int(prompt, 0),
        "prompt_tokens_details": details,
        "completion_tokens": as_int(made, 0),
        "completion_tokens_details": {"reasoning_tokens": as_int(thoughts, 0)},
    }


def token_counts(given: Fields) -> Counter[str]:
    """The counts in an object, by their names; 0 under any other name."""
    return Counter({name: as_int(value, 0) for name, value in given.items()})


def joined(*texts: object, by: str = "\n") -> str:
    """The texts that are not empty, one after another."""
    return by.join(text for text in texts if isinstance(text, str) and text)


_LATEST = 4_102_444_800.0  # seconds of the epoch at the start of 2100; a later time is none


def epoch(value: object) -> float | None:
    """A time stamp as seconds of the epoch: ISO 8601, or a number of seconds or milliseconds; None
    for one before 1970 or from 2100 on."""
    moment = as_number(value, 0.0)
    if moment > 1e11:
        moment /= 1000
    elif isinstance(value, str):
        try:
            moment = datetime.fromisoformat(value).timestamp()
        except ValueError:
            return None
    if 0 < moment < _LATEST:
        return moment
    return None
