"""Steps, one assistant message each with everything that answers it, from messages or records."""

import re
import zlib
from collections import defaultdict, deque
from collections.abc import Iterable, Mapping, Sequence
from enum import Enum, auto
from typing import Any, Literal

from msgspec import Struct
from msgspec.structs import replace

from gateway.core.step import Action, Cue, Step
from gateway.steering.transcript import text_protocols
from gateway.steering.transcript.client_texts import is_note
from gateway.steering.transcript.content import (
    Content,
    RequestedCall,
    Result,
    is_turned_down,
    item_call,
    item_reasoning,
    item_result,
    read_calls,
    read_content,
    read_reasoning,
    read_result,
    without_guidance,
)
from gateway.values import Fields
from gateway.wire.coerce import text_at

_STOPS = 3
_STOPS_WITHIN = 12  # times that a person stopped the agent, and the steps they are in
CONSULTS = re.compile(
    r"(?i)ask_?(?:the_?)?user|user_?input|question|plan_?mode|plan_exit|request_permissions"
)  # its result is an opinion
_REMEMBERED_CHARS = 16  # shorter messages, such as "yes, please", are repeated by people


class StepChange(Enum):
    """Effect of one message on the newest step."""

    NONE = auto()
    OPENED = auto()  # a new step began; the one before can no longer change
    ANSWERED = auto()  # the newest step got a result, or the rest of its calls
    FINAL = auto()  # the newest step was a final answer: a user message follows


class Reply(Struct, kw_only=True):
    """An assistant message taken apart; calls that are found in its text later are moved to
    `calls`."""

    thought: str  # text next to the calls
    said: str  # its whole text, with the calls written into it
    reasoning: str  # text of the model's reasoning; "" without any
    calls: list[RequestedCall]  # in the order of the message
    textual: bool = False  # the calls were written as text
    # code in the text that may turn out to be a call; None without any
    block: text_protocols.TextCalls | None = None
    named: bool = False  # it names its speaker, as in the chat of a group of agents

    def write_calls(self, found: text_protocols.TextCalls) -> None:
        """Take calls that were found in the text out of it."""
        self.thought = found.thought
        self.calls = list(found.calls)
        self.textual = True


class Draft(Struct, kw_only=True, eq=False):
    """The newest step of a transcript, still open to answers."""

    reply: Reply  # the assistant message
    index: int  # number of the step in the conversation, from 0
    prompted: bool  # a user message came before it
    cue: Cue = ""  # direction that the message before it gave; "" for none
    results: list[Result] = []  # the answers so far
    followed: bool = False  # another message came after the reply
    # a message with the role of the user came after the reply: so far notes of a client alone
    heard: Literal["", "notes", "words"] = ""
    # checksum of a picture of the outcome, which chat clients send in a separate message
    image: int = 0

    @property
    def user_followed(self) -> bool:
        """Whether a message with the role of the user came after the reply."""
        return bool(self.heard)

    @property
    def acts(self) -> bool:
        """Whether it has an action so far."""
        return bool(self.reply.calls or self.results)

    def step(self) -> Step:
        """The step with the answers known so far."""
        actions = _actions(self.reply.calls, self.results)
        if self.image and actions:
            actions = (*actions[:-1], replace(actions[-1], image=self.image))
        return Step(
            index=self.index,
            thought=self.reply.thought,
            actions=actions,
            reasoning=self.reply.reasoning,
            prompted=self.prompted,
            cue=self.cue,
        )


class StepReader:
    """Reads a transcript message by message; the newest step is `draft`. Never raises."""

    def __init__(self) -> None:
        self.draft: Draft | None = None
        self._steps = 0
        self._native = self._textual = self._blocks = self._prompted = False
        self._cue: Cue = ""
        # Reasoning of an item whose reply has not come yet.
        self._reasoning = ""
        # Checksums of longer user messages after steps: a harness repeats itself.
        self._user_messages: set[int] = set()
        # Steps at which the person stopped the agent, the newest ones.
        self._stops: deque[int] = deque(maxlen=_STOPS)

    def read(self, message: object) -> StepChange:
        """Read the next message of the transcript."""
        if not isinstance(message, dict):
            return self._unreadable()
        role = message.get("role")
        if role == "assistant":
            reply = self._reply(message)
            if self._reasoning:
                reply.reasoning = reply.reasoning or self._reasoning
                self._reasoning = ""
            # Only an answer's own items have a phase; other messages in a row may be of several.
            if "phase" in message and self._continues(reply):
                return StepChange.ANSWERED
            return self._take(reply)
        if role in ("tool", "function"):
            return self._result(read_result(message, message.get("tool_call_id")))
        if role == "user":
            return self._user(read_content(message.get("content")))
        if role in ("system", "developer"):
            if self.draft is None:
                self._learn(read_content(message.get("content")).text)
            return StepChange.NONE
        if role is None and isinstance(message.get("type"), str):
            return self._item(message)
        return self._unreadable()

    def would_call(self, reply: object) -> bool:
        """Whether an assistant message, were it the next one, calls anything in any protocol."""
        return isinstance(reply, dict) and bool(self._reply(reply).calls)

    def _unreadable(self) -> StepChange:
        if self.draft is not None:
            self.draft.followed = True
        return StepChange.NONE

    def _learn(self, prompt: str) -> None:
        if text_protocols.asks_for_blocks(prompt):
            self._blocks = self._textual = True

    def _reply(self, message: Mapping[str, object]) -> Reply:
        content = read_content(message.get("content"))
        thought = content.text.strip() or without_guidance(text_at(message, "refusal")).strip()
        reply = Reply(
            thought=thought,
            said=thought,
            reasoning=read_reasoning(message, content),
            calls=read_calls(message, content),
            named=bool(message.get("name")),
        )
        if reply.calls or self._native:
            return reply
        found = text_protocols.find_calls(thought)
        reply.block = text_protocols.find_block(thought, unlabelled=self._blocks)
        if found is None and self._blocks:
            found = reply.block
            reply.block = None
        if found is not None:
            reply.write_calls(found)
        return reply

    def _take(self, reply: Reply) -> StepChange:
        self._textual = self._textual or reply.textual
        self._native = self._native or bool(reply.calls and not reply.textual)
        before = self.draft
        only_calls = reply.calls and not (reply.thought or reply.reasoning)
        if only_calls and before is not None and not (before.followed or before.acts):
            before.reply.calls = reply.calls
            before.reply.textual = reply.textual
            before.reply.block = None
            return StepChange.ANSWERED
        stops = self._stops
        at = self._steps
        if len(stops) == _STOPS and stops[-1] == at - 1 and at - stops[0] <= _STOPS_WITHIN + 1:
            self._cue = "stopped"
        self.draft = Draft(reply=reply, index=at, prompted=self._prompted, cue=self._cue)
        self._steps += 1
        self._prompted = False
        self._cue = ""
        return StepChange.OPENED

    def _continues(self, reply: Reply) -> bool:
        """True if a text item belongs to the answer of the items before it, which now has it."""
        draft = self.draft
        if draft is None or draft.followed or reply.calls or draft.reply.textual:
            return False
        before = draft.reply
        before.thought = "\n\n".join(filter(None, (before.thought, reply.thought)))
        before.said = "\n\n".join(filter(None, (before.said, reply.said)))
        before.reasoning = "\n".join(filter(None, (before.reasoning, reply.reasoning)))
        return True

    def _item(self, item: Mapping[str, object]) -> StepChange:
        if (result := item_result(item)) is not None:
            return self._result(result)
        if (call := item_call(item)) is not None:
            return self._call_item(call)
        shown = item_reasoning(item)
        if shown or item.get("type") == "reasoning":
            self._reasoning = "\n".join(filter(None, (self._reasoning, shown)))
            return StepChange.NONE
        return self._unreadable()

    def _call_item(self, call: RequestedCall) -> StepChange:
        """One more call of the reply under way, or a reply that is nothing but this call."""
        draft = self.draft
        reasoning = self._reasoning
        self._reasoning = ""
        if draft is None or draft.followed:
            return self._take(Reply(thought="", said="", reasoning=reasoning, calls=[call]))
        self._native = True
        reply = draft.reply
        if reply.textual:
            # What looked like a written call came together with real ones.
            reply.thought = reply.said
            reply.calls = []
            reply.textual = False
        reply.block = None
        reply.calls.append(call)
        reply.reasoning = "\n".join(filter(None, (reply.reasoning, reasoning)))
        return StepChange.ANSWERED

    def _result(self, result: Result) -> StepChange:
        draft = self.draft
        if draft is None or (draft.user_followed and not draft.acts):
            return StepChange.NONE
        draft.followed = True
        draft.results.append(result)
        if is_turned_down(result.text):
            self._stop(draft)
        return StepChange.ANSWERED

    def _stop(self, draft: Draft) -> None:
        consults = [1 for call in draft.reply.calls if CONSULTS.search(call.name)]
        if not (consults or draft.index in self._stops):
            self._stops.append(draft.index)

    def _user(self, content: Content) -> StepChange:
        draft = self.draft
        if draft is None:
            self._learn(content.text)
            return StepChange.NONE
        if content.results:
            changes = [self._result(each) for each in content.results]
            if StepChange.ANSWERED in changes:
                return StepChange.ANSWERED
            return StepChange.NONE
        if content.guidance_only or draft.heard == "words":
            return StepChange.NONE
        draft.followed = True
        draft.heard = "words"
        if is_note(content.text):
            draft.heard = "notes"
        if draft.acts:
            draft.image = content.image
        change = self._answer(draft, content.text)
        if change is StepChange.NONE and draft.image:
            return StepChange.ANSWERED
        return change

    def _answer(self, draft: Draft, answer: str) -> StepChange:
        """The first user message after a step: a result, a complaint, or the end of the run."""
        reply = draft.reply
        if reply.textual:
            if text_protocols.answer_calls(reply.calls, answer):
                return StepChange.ANSWERED
            return StepChange.NONE
        cut = len(draft.results) < len(reply.calls) or not (draft.acts or reply.thought)
        if cut or is_turned_down(answer):
            self._stop(draft)
        checksum = zlib.crc32(answer.encode("utf-8", "surrogatepass"))
        self._cue = text_protocols.read_cue(answer)
        nudges = self._cue == "go"
        silent = answer[:1] in ("[", "(") and answer.rstrip()[-1:] in ("]", ")")
        self._prompted = not (
            nudges or silent or draft.heard == "notes" or checksum in self._user_messages
        )
        if len(answer) >= _REMEMBERED_CHARS:
            self._user_messages.add(checksum)
        if draft.acts:
            return StepChange.NONE
        if reply.block is not None and text_protocols.looks_like_output(answer):
            reply.write_calls(reply.block)
            self._textual = self._blocks = True
            text_protocols.answer_calls(reply.calls, answer)
            return StepChange.ANSWERED
        if text_protocols.is_complaint(answer, textual=self._textual):
            self._prompted = False
            return StepChange.NONE
        if nudges or draft.heard == "notes":
            return StepChange.NONE
        return StepChange.FINAL


def _actions(calls: Sequence[RequestedCall], results: Sequence[Result]) -> tuple[Action, ...]:
    """Returns the calls with their results, matched by id, and the rest in order. Without any
    call each result becomes an action; surplus results are dropped."""
    if not calls:
        return tuple([_action(RequestedCall(name=result.name), result) for result in results])
    by_id: defaultdict[str, deque[int]] = defaultdict(deque)
    for at, call in enumerate(calls):
        by_id[call.id].append(at)
    matched = {}
    rest = []
    for result in results:
        if waiting := by_id.get(result.id) if result.id else None:
            matched[waiting.popleft()] = result
        else:
            rest.append(result)
    free = [at for at in range(len(calls)) if at not in matched]
    matched.update(zip(free, rest, strict=False))
    return tuple(_action(call, matched.get(at)) for at, call in enumerate(calls))


def _action(call: RequestedCall, result: Result | None) -> Action:
    if result is None:
        return Action(name=call.name, arguments=call.arguments, observation=call.observation or "")
    return Action(
        name=call.name,
        arguments=call.arguments,
        observation=result.text,
        is_error=result.is_error,
        image=result.image,
    )


def extract(messages: Sequence[Any]) -> tuple[Step, ...]:
    """The steps of a whole transcript of chat messages, index from 0; never raises."""
    reader = StepReader()
    drafts = []
    for message in messages:
        if reader.read(message) is StepChange.OPENED and reader.draft is not None:
            drafts.append(reader.draft)
    return tuple(draft.step() for draft in drafts)


def count_steps(messages: Sequence[Any]) -> int:
    """The number of steps that `extract` finds."""
    reader = StepReader()
    return [reader.read(message) for message in messages].count(StepChange.OPENED)


def steps_from_records(records: Iterable[Fields]) -> tuple[Step, ...]:
    """Steps from plain step records, in order; never raises. Keys, all optional: `action` (tool
    name; when missing or empty the first entry of `tool_calls`), `action_input`, `thought`,
    `observation`, `is_error` or `observation_is_error`; other types than text count as empty.
    Source: docs/names.md, the step record."""
    return tuple(_record_step(index, record) for index, record in enumerate(records))


def _record_step(index: int, record: object) -> Step:
    if not isinstance(record, Mapping):
        return Step(index=index)
    name = text_at(record, "action")
    listed = record.get("tool_calls")
    if not name and listed and isinstance(listed, list | tuple):
        first = listed[0]
        entry = first
        if isinstance(first, str):
            entry = {"name": first}
        name = read_calls({"tool_calls": [entry]}, Content())[0].name
    action = Action(
        name=name,
        arguments=text_at(record, "action_input"),
        observation=text_at(record, "observation"),
        is_error=bool(record.get("is_error") or record.get("observation_is_error")),
    )
    # A result without a call still counts for the monitors that look at results.
    actions = (action,) if action != Action(name="") else ()
    return Step(index=index, thought=text_at(record, "thought"), actions=actions)
