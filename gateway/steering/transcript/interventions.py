"""Interventions of a person in the work of an agent, as the messages of a request show them.

Each kind is a row of `KINDS` with the function that finds it, each wording of a client a row of
`wordings.toml`; a new kind or client needs its row here and nothing else. The same rows read live
requests and the logs that agents keep on disk."""

import re
from collections.abc import Callable, Iterator, Sequence
from itertools import groupby
from typing import Any, Literal, NamedTuple

from gateway.core.step import Step
from gateway.data_files import read_toml
from gateway.steering.transcript.text_protocols import is_nudge
from gateway.steering.transcript.user_words import user_words
from gateway.values import Value
from gateway.wire.coerce import text_at
from gateway.wire.message_identity import content_text

WordedKind = Literal["interrupt", "reject"]

ACCEPTED_PLAN = "Implement the following plan:"
"""The text with which Claude Code begins afresh on a plan that the person accepted begins so.
It also tells of a rejected call and an interruption after the same answer, which are none."""
WORDS_CHARACTERS = 400  # of the person's words that are kept
_READ_CHARACTERS = 8192  # of a text: enough for the words, and for the secrets that are in them
_MOST_PARTS = 64  # of a message
_HEAD_CHARACTERS = 400  # a client's wording begins the text; what follows is the person's own


class Wording(NamedTuple):
    """One sentence by which a client tells its model what a person did, as in `wordings.toml`."""

    client: str  # name of the agent's program
    kind: WordedKind  # what the person did
    begins: str  # the first words of the sentence, by which it is found
    # finds the person's own words; None: the client passes nothing on of them
    words: re.Pattern[str] | None = None
    has: str = ""  # text that must also occur; "" = nothing more


_TABLE = read_toml(__package__, "wordings.toml")
_WORDS = {name: re.compile(words, re.DOTALL) for name, words in _TABLE["words"].items()}
WORDINGS = tuple(
    [Wording(**{**row, "words": _WORDS.get(row.get("words"))}) for row in _TABLE["rows"]]
)
_BEGINNINGS = tuple(row.begins.lower() for row in WORDINGS)
# Results of edits that the person changed before they were saved. Source: the tools of Cline, Roo
# Code, Gemini CLI and Claude Code. "Modified by the user or by a linter" does not say who it was.
_MADE_OTHERWISE = re.compile(
    r"The user made the following updates to your content"
    r"|User modified the `(?:new_string|content)`|The user modified your proposed changes"
)


def is_interruption(text: str) -> bool:
    """True if a client wrote this message to say that the person interrupted the model."""
    return _row(text, "interrupt") is not None


def rejection(text: str) -> str | None:
    """Returns the person's words in the result of a call that they rejected, "" without words;
    None if the text is not the result of a rejected call."""
    row = _row(text, "reject")
    if row is None:
        return None
    found = None
    if row.words:
        found = row.words.search(text)
    if found:
        return found[1].strip()
    return ""


def _row(text: str, kind: WordedKind) -> Wording | None:
    """The first row that fits, if it is of this kind: a longer beginning comes before a shorter."""
    head = text[:_HEAD_CHARACTERS].lstrip().removeprefix("Error: ").lower()
    if not head.startswith(_BEGINNINGS):
        return None
    rows = zip(_BEGINNINGS, WORDINGS, strict=True)
    found = (row for begins, row in rows if head.startswith(begins) and row.has in head)
    row = next(found, None)
    if row is not None and row.kind == kind:
        return row
    return None


class Intervention(Value):
    """One act of a person in a run."""

    kind: str  # a name of the table KINDS
    words: str = ""  # the person's own; "" without any
    # it is about the reply to the call that was made at the step where it is kept, which is no step
    # itself; else about that step
    of_reply: bool = False


class AfterAnswer(Value):
    """The messages and acts after an agent's newest answer."""

    said: tuple[str, ...] = ()  # texts of the user messages, without what the client added
    cut: bool = False  # the client broke off the answer's stream
    # the client took the answer out of the history, with the user message before
    dropped: bool = False

    @property
    def interruptions(self) -> list[str]:
        """The words after each interruption; of several in a row the last one counts."""
        found = [""] * (self.cut and bool(self.words))
        for is_stop, texts in groupby(self.said, is_interruption):
            if is_stop and found[-1:] != [""]:
                found.append("")
            elif found and not is_stop:
                found[-1] = "\n".join(texts)
        return found

    @property
    def words(self) -> str:
        """The person's own words."""
        own = (text for text in self.said if not (is_interruption(text) or is_nudge(text)))
        return "\n".join(own)[:_READ_CHARACTERS]


class Kind(NamedTuple):
    """One kind of intervention. Both functions give the person's words."""

    name: str  # in records and filters
    label: str  # for people
    # finds it in the results of a step; None: it is never there
    in_step: Callable[[Step], Iterator[str]] | None = None
    # finds it in what came after an answer
    in_answer: Callable[[AfterAnswer], Sequence[str]] | None = None


def step_interventions(step: Step) -> list[Intervention]:
    """Acts of the person on the calls of a step, as its results show them."""
    found = [
        Intervention(kind=kind.name, words=words[:_READ_CHARACTERS])
        for kind in KINDS
        if kind.in_step is not None
        for words in kind.in_step(step)
    ]
    return list(dict.fromkeys(found))


def answer_interventions(answer: AfterAnswer, *, of_reply: bool) -> list[Intervention]:
    """Acts of the person on an answer."""
    return [
        Intervention(kind=kind.name, words=words, of_reply=of_reply)
        for kind in KINDS
        if kind.in_answer is not None
        for words in kind.in_answer(answer)
    ]


def said_in(messages: Sequence[Any]) -> tuple[str, ...]:
    """Returns the texts of the user messages, without what a client wrote into them."""
    found = []
    for message in messages:
        if not isinstance(message, dict) or message.get("role") != "user":
            continue
        content = message.get("content")
        parts = content[:_MOST_PARTS] if isinstance(content, list) else ()
        texts = [text_at(part, "text") for part in parts if isinstance(part, dict)]
        found += texts or [content_text(content)]
    return tuple(filter(None, (user_words(text) for text in found if text)))


def _rejected(step: Step) -> Iterator[str]:
    for action in step.actions:
        words = rejection(action.observation[:_READ_CHARACTERS])
        if words is not None:
            yield words


def _undone(step: Step) -> Iterator[str]:
    for action in step.actions:
        result = action.observation[:_READ_CHARACTERS]
        if "ser m" in result and _MADE_OTHERWISE.search(result):
            yield ""


KINDS: tuple[Kind, ...] = (
    Kind(
        name="interrupt",
        label="interrupted",
        in_step=lambda step: ("" for a in step.actions if is_interruption(a.observation)),
        in_answer=lambda answer: answer.interruptions,
    ),
    Kind("reject", "call rejected", _rejected),
    Kind("rewind", "history rewound", in_answer=lambda a: [a.words] * a.dropped),
    Kind("correct", "answer corrected"),  # not read off messages: the reader says it
    Kind("undo", "edit undone", _undone),
)
KIND_LABELS = {kind.name: kind.label for kind in KINDS}
