"""Planted families: runs of one workload in which a hidden rule of the environment decides.

`families.txt` is what an earlier way of learning was built on and judged by; it was taken away with
that, and stands here as it was. `families_unseen.txt` was written before this way of learning, by
other ideas, and not looked at while it was made. A line `X: tool {arguments} => result` (or
`$ command => result`) is a call with a letter; `runs:` spells each run with these letters, and ends
it with its outcome: `+` and `-` are reported, nothing is not. `<n>` is another number in each run,
a line `x = a b c` gives `<x>` one value in each run. `right:` is found in the text of a lesson that
names the rule; `also:` in one that is true without being the rule. Every other lesson that is given
is wrong."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from pathlib import Path

from gateway.backends import Stores, open_stores
from gateway.config.storage import StorageSettings
from gateway.core.guidance_choice import LessonQuery
from gateway.core.pattern import Status, content
from gateway.features.learning.lessons_in_memory import LessonBook
from gateway.features.learning.settings import LearningSettings
from gateway.features.learning.worker import Learner
from gateway.stores.learning import LessonFilter
from gateway.stores.protocols import StoreError
from gateway.stores.records import PromptMessage
from steering_gateway_testing.store_conformance import records
from tests.features.learning.runs import Call, read, shell, stored


@dataclass(frozen=True)
class Family:
    """Runs of one workload, and the texts that name its hidden rule."""

    name: str
    right: str
    also: str
    runs: tuple[tuple[tuple[Call, ...], str | None], ...]  # calls and the reported outcome

    def judge(self, text: str) -> str:
        """`right`, `also` or `wrong`, for the text of a lesson that is given."""
        if re.search(self.right, text, re.IGNORECASE):
            return "right"
        return "also" if self.also and re.search(self.also, text, re.IGNORECASE) else "wrong"


def families(name: str = "families") -> list[Family]:
    """All families of a file."""
    written = Path(__file__).with_name(f"{name}.txt").read_text(encoding="utf-8")
    return [_family(block) for block in re.split(r"(?m)^## ", written)[1:]]


def _family(block: str) -> Family:
    name, *lines = block.strip().splitlines()
    said = dict(line.split(": ", 1) for line in lines if ": " in line.split("{")[0])
    values = dict(line.split(" = ") for line in lines if re.match(r"\w = ", line))
    runs = said["runs"].split()
    return Family(
        name=name,
        right=said["right"],
        also=said.get("also", ""),
        runs=tuple(_run(spelled, said, values, number) for number, spelled in enumerate(runs)),
    )


def _run(
    spelled: str, said: dict[str, str], values: dict[str, str], number: int
) -> tuple[tuple[Call, ...], str | None]:
    calls = []
    for letter in spelled.rstrip("+-"):
        line = said[letter].replace("<n>", str(17 + 23 * number))
        for value, choice in values.items():
            choices = choice.split()
            line = line.replace(f"<{value}>", choices[number % len(choices)])
        calls.append(_call(line))
    return tuple(calls), {"+": "success", "-": "failure"}.get(spelled[-1])


def _call(line: str) -> Call:
    asked, result = line.split(" => ", 1)
    result = result.replace("\\n", "\n").replace("\\t", "\t")
    if asked.startswith("$ "):
        return shell(asked[2:], result)
    tool, arguments = asked.split(" ", 1)
    return tool, json.loads(arguments), result


async def given(family: Family) -> tuple[list[str], list[str]]:
    """The texts that a run which meets the family's failures would be given, after all its runs
    were read as they came; and those that it would be given but for their names, which its tools
    and its failing calls do not have, so that an operator has to approve them."""
    stores = await open_stores(StorageSettings(path=":memory:"))
    for number, (calls, outcome) in enumerate(family.runs):
        await learn(stores, number, calls, outcome=outcome)
    met = [call for calls, _ in family.runs for call in calls]
    texts = await answers(stores, met)
    active = await stores.learning.lessons(LessonFilter(statuses=(Status.ACTIVE,)))
    await stores.close()
    moves = [content(each.pattern.fields).move for each in active]
    return texts, [move for move in moves if move not in texts]


async def learn(stores: Stores, number: int, calls: tuple[Call, ...], **how: object) -> None:
    """Store one more run and read it."""
    await stores.states.commit(stored(number, calls, **how))
    await read_one(stores, number)


async def read_one(stores: Stores, number: int) -> None:
    """Read a stored run, once more or for the first time."""
    settings = LearningSettings(trials="on")
    learner = Learner(
        stores.learning, stores.runs, lambda: settings, now=lambda: records.START + 10_000
    )
    await learner.read(f"r{number:04}", None)


async def answers(
    stores: Stores, calls: list[Call], tenant: str = records.TENANT, opening: str = ""
) -> list[str]:
    """The texts for the failures of these calls."""

    def failed(error: Exception) -> None:
        raise StoreError(str(error))

    book = LessonBook(stores.learning, failed=failed)
    keys = dict.fromkeys(call.key for call in read(calls) if call.key)
    prompts = records.a_first_step("r").content
    messages = prompts.messages if prompts else ()
    if opening:
        messages = (PromptMessage(role="system", text=f"Working directory: {opening}"),)
    query = LessonQuery(
        keys=tuple(keys),
        exclude=frozenset(),
        actions=tuple(call.action for call in read(calls) if call.key),
        opening=lambda: messages,
        declared=lambda: [(tool, [*arguments]) for tool, arguments, _ in calls],
    )
    return [content(match.pattern.fields).move for match in await book.find(query, tenant)]
