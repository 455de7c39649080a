"""The loop in a deterministic world: scripted agents in real failing environments.

An agent's calls are run for real, in a folder of their own, and what it says goes through a live
gateway. It has one rule: where its context names a way, it takes it with probability q; otherwise
it repeats what fails, and finds the right way by chance. All draws are by seed, environment, run
and step, the same in all arms. So this shows what the loop does with an agent that heeds texts
with probability q, and nothing about any model.

Whatever is named is followed, a wrong way also after it has failed: the harm of wrong texts is an
upper bound. Only commands of `loop.toml` are run, never one that was read.
"""

from __future__ import annotations

import asyncio
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import tomllib
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict, dataclass, field
from functools import cached_property, lru_cache
from multiprocessing import get_context
from pathlib import Path
from typing import Any

from gateway.core.guidance_text import HAND_OVER_TEXT, SKIP_DIRECTIVE
from gateway.core.pattern import Lesson, Pattern, Tier, Trust
from gateway.core.step import Action
from gateway.features.learning.context import project_of
from gateway.features.learning.life_cycle import lesson_id
from gateway.steering.evidence.failure_keys import read_action
from gateway.steering.identity.ids import draw
from gateway.stores.learning import EvidenceRow, StoredLesson
from gateway.stores.records import PromptMessage
from lab.acting import FINISH, GIVE_UP, REASONS, Move
from lab.second_try import Played, Seat, Table, rounds, written

ARMS = ("off", "guidance", "hand_over", "wrong_approved", "wrong_operator")
MORE_ARMS = ("wrong_model",)  # only by name: runs as in `off`
LEARNED = ("wrong_model", "wrong_approved", "wrong_operator")
LIMIT = 12  # calls of a run
FINDS = 0.05  # probability that a step finds the right way by itself, once something has failed
RUNS = 12  # of an environment
_STOPS = [re.compile(re.escape(text[:15])) for text in (HAND_OVER_TEXT, SKIP_DIRECTIVE)]
_LINK = f"""
link() {{
  case "$1" in python3|pypy3) ln -s '{os.path.realpath(sys.executable)}' ".bin/$1";;
  *) ln -s "$(command -v "$1")" ".bin/$1";; esac
}}
"""


def changes_after(runs: int) -> int:
    """The last run before an environment changes: three quarters come before."""
    return runs * 3 // 4


@dataclass(frozen=True)
class Place:
    """An environment; see `loop.toml`."""

    name: str
    kind: str
    about: str
    task: str
    setup: str
    changed: str
    programs: tuple[str, ...]
    first: tuple[str, ...]
    tries: tuple[str, ...]
    fix: tuple[str, ...]
    later: tuple[str, ...]
    wrong: tuple[str, ...]
    look: tuple[str, ...]
    said: str
    said_later: str
    lesson: str
    check: str
    names: Mapping[str, str]

    def tools(self) -> list[dict[str, Any]]:
        """A shell."""
        schema = {"type": "object", "properties": {"command": {"type": "string"}}}
        return [{"type": "function", "function": {"name": "bash", "parameters": schema}}]

    @cached_property
    def named(self) -> dict[str, re.Pattern[str]]:
        """Expressions by which a text names a way."""
        return {way: re.compile(text) for way, text in self.names.items()}


@lru_cache
def places() -> tuple[Place, ...]:
    """All environments."""
    read = tomllib.loads(Path(__file__).with_name("loop.toml").read_text(encoding="utf-8"))

    def filled(value: Any, names: Mapping[str, str]) -> Any:
        if isinstance(value, Mapping):
            return {key: filled(each, names) for key, each in value.items()}
        if isinstance(value, list):
            return tuple(filled(each, names) for each in value)
        for _ in range(2):  # a name may contain another one
            value = re.sub(r"@(\w+)@", lambda found: names[found[1]], value)
        return value

    found = []
    for kind, rows in read["environments"].items():
        for row in rows:
            shown = kind if kind in ("shell", "tool") else "house"
            own = filled(read[kind], row) | {"name": f"{shown}-{row['name']}", "kind": shown}
            found.append(Place(**own))
    return tuple(found)


class Work:
    """One task in a folder of its own."""

    def __init__(self, place: Place, folder: Path, number: int = 0, *, changed: bool) -> None:
        self.place, self.folder, self.changed = place, folder, changed
        self.task = f"{place.task} {REASONS[number % len(REASONS)]}"
        self.corrections = 0
        self.texts: list[str] = []  # all results and objections
        (folder / ".bin").mkdir(parents=True)
        for name in place.programs:
            (folder / ".bin" / name).symlink_to(shutil.which(name) or name)
        self._prepare(place.setup)
        if changed:
            self._prepare(place.changed)

    def _prepare(self, script: str) -> None:
        done = self._run(f"set -e\n{_LINK}{script}", os.environ["PATH"])
        assert done.returncode == 0, done.stderr

    def _run(self, command: str, path: str) -> subprocess.CompletedProcess[str]:
        own = {"PATH": path, "HOME": str(self.folder), "LC_ALL": "C", "GIT_CONFIG_NOSYSTEM": "1"}
        return subprocess.run(  # noqa: S603 - a command of loop.toml
            ["/bin/bash", "-c", command],
            cwd=self.folder,
            env=own,
            text=True,
            errors="replace",
            capture_output=True,
            timeout=60,
            check=False,
        )

    def execute(self, move: Move) -> tuple[str, bool]:
        """Run one command: its output with the exit code of a failure, and whether it worked."""
        done = self._run(dict(move.arguments)["command"], str(self.folder / ".bin"))
        text = (done.stdout + done.stderr).replace(str(self.folder), "/project").strip()
        if done.returncode:
            text = f"{text}\nexit code {done.returncode}".strip()
        self.texts.append(text or "(no output)")
        return self.texts[-1], done.returncode == 0

    def objection(self) -> str:
        """The words of a person when the agent claims what is not so, once."""
        if self.corrections or self.success() or not self.place.said:
            return ""
        self.corrections = 1
        self.texts.append(self.place.said_later if self.changed else self.place.said)
        return self.texts[-1]

    def success(self) -> bool:
        """Whether the task is done, by what is in the folder."""
        return self._run(self.place.check, os.environ["PATH"]).returncode == 0


class Follower:
    """The agent of one run: a script, and with probability `q` what its context names."""

    note = "I stop here and hand over: what I tried failed, and I do not know why."

    def __init__(self, work: Work, q: float, draws: str) -> None:
        self.work, self.q, self.draws = work, q, draws
        self.calls = self.astray = self.tried = 0
        self.failed = self.looked = self.stopped = self.told = False
        self.works = False
        self.waiting: list[str] = list(work.place.first)
        self.way = ""
        self.results: list[str] = []  # of the ways that it has taken

    def act(self, texts: Iterable[str]) -> Move:
        """The next call."""
        self.calls += 1
        heard = "\n".join(texts)
        self._note_told(heard)
        if self.works and not self.waiting:
            return FINISH
        if self.calls > LIMIT:
            return GIVE_UP
        if not self.waiting:
            self._choose(heard)
        if self.stopped:
            return GIVE_UP
        command = self.waiting.pop(0)
        return FINISH if command == FINISH.tool else Move("bash", (("command", command),))

    def _note_told(self, heard: str) -> None:
        heard = _without(heard, self.work.texts)
        self.told = self.told or bool(self.work.place.named[self.right].search(heard))

    @property
    def right(self) -> str:
        """The way that works."""
        return "later" if self.work.changed else "fix"

    def _choose(self, heard: str) -> None:
        place = self.work.place
        heard = _without(heard, self.results)
        ways = [way for way, form in place.named.items() if form.search(heard)]
        if self.looked and "look" in ways:
            ways.remove("look")
        if any(form.search(heard) for form in _STOPS):
            ways.append("stop")
        if ways and self._drawn("follow") < self.q:
            self.way = ways[int(self._drawn("which") * len(ways))]
        elif self.failed and self._drawn("find") < FINDS:
            self.way = self.right
        else:
            self.way = "tries"
            self.waiting = [place.tries[self.tried % len(place.tries)]]
            self.tried += 1
            return
        self.stopped = self.way == "stop"
        self.looked = self.looked or self.way == "look"
        self.astray += self.way not in ("stop", "look", self.right)
        self.waiting = [] if self.stopped else list(getattr(place, self.way))

    def _drawn(self, purpose: str) -> float:
        return draw(f"{self.draws} {self.calls}", purpose)

    def saw(self, move: Move, worked: bool) -> None:
        """Note the result of a call; the last one of a way decides."""
        if not worked:
            self.failed = True
        if self.way in ("fix", "later", "wrong"):
            self.results.append(self.work.texts[-1])
        if not self.waiting and self.way not in ("", "look"):
            self.works = worked


def _without(heard: str, texts: Iterable[str]) -> str:
    for text in sorted(texts, key=len, reverse=True):
        heard = heard.replace(text, "")
    return heard


@dataclass(frozen=True, slots=True, kw_only=True)
class Trip(Played):
    """A run of the loop. `told`: whether a text of the gateway named the right way; `astray`: how
    often a way was taken that no longer or never works; `stopped`: it handed over."""

    q: float
    changed: bool
    told: bool
    astray: int
    stopped: bool


@dataclass(eq=False)
class LoopTable(Table):
    """The gateway of one arm, with the agents that follow with probability `q`; `read`: whole
    conversations, by their names."""

    q: float = 1.0
    change: int = changes_after(RUNS)
    read: dict[str, Sequence[Mapping[str, Any]]] = field(default_factory=dict)
    trips: Sequence[Played] = ()
    learned: Sequence[StoredLesson] = ()

    def choices(self) -> dict[str, Any]:
        """The settings of the arm."""
        made = super().choices()
        made["learning"] |= {"trials": "on" if self.arm in LEARNED else "off"}
        if self.arm in ("guidance", "hand_over"):
            made |= {"etraces": {"enabled": True}, "injection": {}}
        if self.arm == "hand_over":
            made["control"] = {"on_trouble": "hand_over"}
        return made

    @property
    def approves(self) -> bool:
        """Whether an operator approves every candidate at once."""
        return self.arm in ("wrong_approved", "wrong_operator")

    def brought(self, world: Any) -> list[tuple[Pattern, EvidenceRow]]:
        """The poisoned lesson of the arm."""
        if self.arm == "wrong_operator":
            return [written(world, world.lesson, 0)]
        return [distilled(world)] if self.arm.startswith("wrong_") else []

    def seat(self, world: Any, number: int) -> tuple[Any, Any]:
        """The agent of one run, and its task."""
        folder = self.folder / f"{world.name}-{number}"
        work = Work(world, folder, number, changed=number > self.change)
        agent = Follower(work, self.q, f"{self.seed} {world.name} {number}")
        return Seat(agent, (world.about, work.task)), work

    def played(self, world: Any, number: int, seat: Any, run: Any, success: bool) -> Trip:
        """A run that is over."""
        found = super().played(world, number, seat, run, success)
        agent = seat.agent
        self.read[f"{world.name}-{number}"] = seat.messages
        shutil.rmtree(run.folder)
        return Trip(
            **asdict(found),
            q=self.q,
            changed=number > self.change,
            told=agent.told,
            astray=agent.astray,
            stopped=agent.stopped,
        )


def distilled(place: Place) -> tuple[Pattern, EvidenceRow]:
    """A wrong lesson of the same situation as a model would have written it: it answers the key of
    the failure that the agent's first try really has."""
    with tempfile.TemporaryDirectory() as folder:
        work = Work(place, Path(folder) / "work", changed=False)
        for command in (*place.first, place.tries[0]):
            text, _ = work.execute(Move("bash", (("command", command),)))
    call = Action(name="bash", arguments=f'{{"command": {json.dumps(command)}}}', observation=text)
    failure = read_action(call).failure
    assert failure is not None, text
    scope, shown = project_of([PromptMessage(role="system", text=place.about)])
    marks = {"head": failure.head, "kind": failure.kind, "scope": scope, "project": shown}
    lesson = Lesson(key=failure.key, origin="distilled", trust=Trust.MODEL, applies_when=marks)
    fields = {
        "task_context_embedding_text": "A model wrote it.",
        "recommended_action": place.lesson,
    }
    pattern = Pattern(
        tier=Tier.E1,
        fields=fields,
        pattern_id=lesson_id(Tier.E1, place.name, failure.key, place.lesson),
        tenant=place.name,
        source_trace_id="poison#1",
        lesson=lesson,
    )
    row = EvidenceRow(
        tenant=place.name,
        pattern_id=pattern.pattern_id,
        run_id="poison",
        step_index=1,
        kind="fix",
        conversation="poison",
        task="poison",
        at=1.0,
    )
    return pattern, row


def play(arm: str, seed: int, q: float, names: str, runs: int) -> LoopTable:
    """All runs of an arm with one `q`, through a gateway of their own."""
    chosen: Any = [place for place in places() if names in place.name]
    change = changes_after(runs)
    with (
        tempfile.TemporaryDirectory() as folder,
        LoopTable(arm, Path(folder), seed, chosen, q=q, change=change) as table,
    ):
        table.trips = asyncio.run(rounds(table, chosen, runs))
        table.learned = asyncio.run(table.lessons())
    return table


def trips_of(arm: str, seed: int, q: float, names: str, runs: int) -> list[Played]:
    """The runs alone, for another process."""
    return list(play(arm, seed, q, names, runs).trips)


def run_loop(
    qs: Sequence[float],
    *,
    seeds: int = 1,
    arms: Sequence[str] = ARMS,
    names: str = "",
    runs: int = RUNS,
    jobs: int = 1,
) -> list[Any]:
    """All runs of all arms, `jobs` gateways at a time."""
    ways = [(arm, seed, q, names, runs) for seed in range(seeds) for q in qs for arm in arms]
    with ProcessPoolExecutor(jobs, mp_context=get_context("spawn")) as pool:
        waiting = [pool.submit(trips_of, *way) for way in ways]
        return [trip for each in waiting for trip in each.result()]
