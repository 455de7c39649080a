"""How right a model reads: the reader's questions about labelled messages, project by project, and
about planted loops.

`python -m lab reader --model NAME SAID.jsonl ...` sends the gateway's own questions to any endpoint
of Chat Completions. Each file of labels is a project, and is judged by itself: what people write
differs more between projects than what models read.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx

from gateway.errors import ConfigError
from gateway.features.history.log_file import LogFile
from gateway.features.learning.reader.questions import (
    KIND,
    WRONG,
    Question,
    shown,
)
from gateway.features.learning.verdicts import USED_FROM
from gateway.reporting.statistics import wilson
from gateway.steering.transcript.interventions import AfterAnswer, said_in
from gateway.steering.transcript.message_kinds import ACCEPTING, accepted, kind_chances
from gateway.steering.transcript.steps import extract
from gateway.stores.learning import KINDS
from gateway.wire.coerce import as_mapping, as_text
from lab.rules import RULES, quoted
from lab.trouble import TROUBLE, shown_calls

AT_ONCE = 4  # calls on their way
_TIMEOUT_S = 120.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Said:
    """One labelled message. `event`: message, interrupt or reject; `lesson`: the rule that a reader
    found in it, "" for none."""

    typed: str
    before: str
    event: Any
    kind: str
    lesson: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Model:
    """A model behind Chat Completions."""

    name: str
    api_base: str
    key: str

    def ask(self, http: httpx.Client, question: Question, data: Mapping[str, str]) -> str | None:
        """What is kept of its answer, None for none. Raises: ConfigError, no answer."""
        body = {"model": self.name, "messages": question.messages(data)}
        headers = {"authorization": f"Bearer {self.key}"} if self.key else {}
        try:
            answer = http.post(f"{self.api_base}/chat/completions", json=body, headers=headers)
            answer.raise_for_status()
            text = as_text(answer.json()["choices"][0]["message"]["content"], "")
        except (httpx.HTTPError, ValueError, LookupError, TypeError) as error:
            raise ConfigError(f"--api-base {self.api_base}: {self.name}: {error!r}") from error
        return question.read(text)


def read_said(file: Path, sessions: Sequence[Path] = ()) -> list[Said]:
    """The labelled messages of a project, whole where their sessions are given.

    Raises ConfigError: a file cannot be read, or has no label.
    """
    whole = {
        record["id"]: record["messages"]
        for path in sessions
        for record in LogFile(path).records()
        if "messages" in record
    }
    rows = [row for row in LogFile(file).records() if row.get("category") in KINDS]
    if not rows:
        raise ConfigError(f"{file}: no labelled message: expected lines with said and category")
    return [
        Said(
            typed=_whole(row, whole.get(row["session"], ())) or row["said"],
            before=row["before"],
            event=row["kind"],
            kind=row["category"],
            lesson=row.get("lesson") or "",
        )
        for row in rows
    ]


def _whole(row: dict[str, Any], messages: Sequence[Any]) -> str:
    """The message in its session, of which the labels hold the beginning; "" if it is not there."""
    message = as_mapping(messages[row["at"]]) if row["at"] < len(messages) else {}
    typed = AfterAnswer(said=said_in([message])).words
    same = " ".join(typed.split()).startswith(" ".join(row["said"].split())[:100])
    return typed if same else ""


def answers(
    model: Model, question: Question, every: Sequence[Mapping[str, str]]
) -> list[str | None]:
    """The model's answers, in order."""
    with httpx.Client(timeout=_TIMEOUT_S) as http, ThreadPoolExecutor(AT_ONCE) as pool:
        return list(pool.map(lambda each: model.ask(http, question, each), every))


def report(model: Model, project: str, every: Sequence[Said]) -> Iterator[str]:
    """The lines about one project, each share with its 95 % interval."""
    asked = []
    for said in every:
        after = "answer" if said.event == "message" else said.event
        asked.append(shown(said.typed, said.before, after))
    kinds = answers(model, KIND, asked)
    known = [(said, kind) for said, kind in zip(every, kinds, strict=True) if kind is not None]
    yield f"{project}: {len(every)} messages, {len(every) - len(known)} answers in no form"
    yield f"  kind: right in {_share(sum(s.kind == kind for s, kind in known), len(known))}"
    for name, meant in (("corrects", WRONG), ("accepts", ACCEPTING)):
        yield _found(name, [(said.kind in meant, kind in meant) for said, kind in known])
    by_list = [(said.kind in ACCEPTING, _by_list(said)) for said in every]
    yield _found("accepts, by the list that ships", by_list)
    answered = zip(answers(model, RULES, asked), every, strict=True)
    rules = [quoted(answer or "", said.typed) for answer, said in answered]
    yield f"  rules: {rules.count(None)} answers in no form, or not typed so"
    labels = [bool(said.lesson) for said in every]
    yield _found("rules", list(zip(labels, map(bool, rules), strict=True)))


def _by_list(said: Said) -> bool:
    chances = kind_chances(said.typed, event=said.event, before=said.before)
    return accepted(chances) >= USED_FROM


def _found(name: str, pairs: Sequence[tuple[bool, bool]]) -> str:
    """How many of those found are right, and how many of the right ones are found."""
    both = sum(right and found for right, found in pairs)
    right, found = (sum(pair[n] for pair in pairs) for n in (0, 1))
    return f"  {name}: right {_share(both, found)}, found {_share(both, right)}"


def _share(hits: int, trials: int) -> str:
    if not trials:
        return "- of 0"
    low, high = wilson(hits, trials)
    return f"{hits / trials:.2f} [{low:.2f}, {high:.2f}] of {trials}"


def planted(model: Model, file: Path) -> Iterator[str]:
    """The line about planted loops and innocent repetitions, each read at its end."""
    rows = [row for row in LogFile(file).records() if row.get("kind") in ("loop", "innocent")]
    asked = []
    for row in rows:
        actions = [action for step in extract(row["messages"]) for action in step.actions]
        asked.append(shown_calls("the same was done again", actions))
    found = answers(model, TROUBLE, asked)
    pairs = [
        (row["kind"] == "loop", answer == "yes")
        for row, answer in zip(rows, found, strict=True)
        if answer is not None
    ]
    yield f"{file.name.partition('.')[0]}: {len(rows)} transcripts, {found.count(None)} in no form"
    yield _found("trouble", pairs)


def run_reader(
    files: Sequence[Path], sessions: Sequence[Path], loops: Sequence[Path], model: Model
) -> int:
    """Print the figures of each project, and of planted loops. Raises ConfigError."""
    for file in files:
        for line in report(model, file.name.partition(".")[0], read_said(file, sessions)):
            print(line)
    for line in (each for file in loops for each in planted(model, file)):
        print(line)
    return 0
