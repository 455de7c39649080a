"""Planted families: runs of one workload in which a hidden rule of the environment decides.

`families.txt` holds them as data. A line `X: tool {arguments} => result` (or `$ command => result`)
is a call with a letter; `runs:` spells each run with these letters, and ends it with its outcome:
`+` and `-` are reported, nothing is not. `<n>` is another number in each run, a line `x = a b c`
gives `<x>` one value in each run. `right:` is found in the text of a lesson that names the rule;
`also:` in one that is true without being the rule. Every other lesson that is tried is wrong.
"""

from __future__ import annotations

import itertools
import json
import re
from dataclasses import dataclass
from pathlib import Path

from gateway.backends import open_stores
from gateway.config.models import LearningSettings
from gateway.config.storage import StorageSettings
from gateway.learning.life_cycle import MAY_BE_PRIVATE, missing_support
from gateway.learning.worker import Learner
from gateway.steering.guidance.pattern import RETRIEVED, Status, content
from gateway.stores.learning import LessonFilter
from steering_gateway_testing.store_conformance.records import START
from tests.learning.distilling import stored
from tests.learning.runs import Call, shell


@dataclass(frozen=True)
class PlantedRun:
    """One run of a family: its calls, and whether it was reported to have succeeded."""

    calls: tuple[Call, ...]
    success: bool | None


@dataclass(frozen=True)
class Family:
    """Runs of one workload, and the texts that name its hidden rule."""

    name: str
    right: str
    also: str
    runs: tuple[PlantedRun, ...]

    def judge(self, text: str) -> str:
        """`right`, `also` or `wrong`, for the text of a lesson that is tried."""
        if re.search(self.right, text, re.IGNORECASE):
            return "right"
        return "also" if self.also and re.search(self.also, text, re.IGNORECASE) else "wrong"


def families() -> list[Family]:
    """All families of the file."""
    written = Path(__file__).with_suffix(".txt").read_text(encoding="utf-8")
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


def _run(spelled: str, said: dict[str, str], values: dict[str, str], number: int) -> PlantedRun:
    calls = []
    for letter in spelled.rstrip("+-"):
        line = said[letter].replace("<n>", str(17 + 23 * number))
        for value, choice in values.items():
            choices = choice.split()
            line = line.replace(f"<{value}>", choices[number % len(choices)])
        calls.append(_call(line))
    outcome = {"+": True, "-": False}.get(spelled[-1])
    return PlantedRun(calls=tuple(calls), success=outcome)


def _call(line: str) -> Call:
    asked, result = line.split(" => ", 1)
    result = result.replace("\\n", "\n").replace("\\t", "\t")
    if asked.startswith("$ "):
        return shell(asked[2:], result)
    tool, arguments = asked.split(" ", 1)
    return tool, json.loads(arguments), result


async def tried(family: Family, prompt: str = "You work here.") -> list[tuple[str, str]]:
    """Situation and text of every lesson that was in trial at some time, or needed only somebody
    who approves its names, with the runs read as they came."""
    stores = await open_stores(StorageSettings(path=":memory:"))
    settings = LearningSettings(trials="on", idle_s=0.001)
    learner = Learner(
        stores.learning, stores.runs, stores.states, lambda: settings, now=lambda: START + 100.0
    )
    found: dict[str, tuple[str, str]] = {}
    for number, run in enumerate(family.runs):
        outcome = {True: "success", False: "failure", None: None}[run.success]
        task = f"Please see to the {' '.join(_TASKS[number % len(_TASKS)])} of {family.name}"
        await stores.states.commit(stored(number, run.calls, outcome=outcome, task_preview=task))
        await learner.read(f"r{number:04}", None)
        await learner.review()
        for each in await stores.learning.lessons(LessonFilter()):
            status = each.pattern.lesson.status if each.pattern.lesson else None
            waits = status is Status.CANDIDATE and MAY_BE_PRIVATE in missing_support(each, ())
            if status not in RETRIEVED and not waits:
                continue
            texts = content(each.pattern.fields)
            found[texts.move] = (texts.situation, texts.move)
    await stores.close()
    return list(found.values())


_TASKS = tuple(itertools.permutations(("first", "other", "third")))
