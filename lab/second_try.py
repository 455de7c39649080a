"""Lessons at work: scripted agents in small environments, through a live gateway.

Every run is a conversation over HTTP. The upstream is the scripted agent: it reads what the gateway
sends, so that a lesson changes a run only by its words. An environment is a project of a tenant of
its own, and two people take turns; the learner looks after every run. The general texts of alarms
are off in all arms.
"""

from __future__ import annotations

import asyncio
import json
import random
import statistics
import tempfile
import time
from collections.abc import Coroutine, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Protocol, Self

import httpx

from gateway.app import build_app
from gateway.backends import open_stores
from gateway.config import settings_from_dict
from gateway.core.pattern import Lesson, Pattern, Status, Tier, Trust
from gateway.features.keys.keyring import make_key
from gateway.features.keys.store import KeyStore
from gateway.features.learning.context import project_of
from gateway.features.learning.life_cycle import LessonActions
from gateway.features.learning.reading import digest
from gateway.features.learning.worker import learning_of
from gateway.observability.logging import configure_logging
from gateway.server import uvicorn_config
from gateway.steering.guidance.lessons import LEARNED, QUOTED, SAID, STATED
from gateway.stores.learning import EvidenceRow, LessonFilter, StoredLesson
from gateway.stores.records import PromptMessage
from lab.acting import FINISH, GIVE_UP, Agent, Move, Run, World, worlds
from steering_gateway_testing import AppServer, ReceivedRequest, Reply, ScriptedUpstream, ToolCall

ARMS = ("off", "shadow", "shuffled", "misled", "oracle")
BLOCKS = ((1, 3), (4, 8), (9, 15), (16, 40))
RUNS = 15
_LESSONS = 2  # of other environments, in the arm with shuffled lessons
_AT_ONCE = 6
_PATIENT_MS = 60_000
_Z95 = 1.96


@dataclass(frozen=True, slots=True, kw_only=True)
class Played:
    """The run of one number in an environment; `tokens`: sent to the model, by four characters;
    `given`: texts of lessons in its last request."""

    world: str
    arm: str
    seed: int
    number: int
    success: bool
    steps: int
    tokens: int
    corrections: int
    given: int


class Actor(Protocol):
    """An agent of one run; `note`: its words when it stops."""

    note: str
    calls: int

    def act(self, texts: Iterable[str]) -> Move:
        """The next call, after the texts that it hears."""

    def saw(self, move: Move, worked: bool) -> None:
        """Note the result of a call."""


@dataclass(eq=False)
class Seat:
    """An agent at work, with the texts that it knows without the gateway; `messages`: those of its
    newest request, as they arrived."""

    agent: Actor
    known: tuple[str, ...]
    move: Move = FINISH
    tokens: int = 0
    given: int = 0
    messages: Sequence[Mapping[str, Any]] = ()

    def reply(self, request: ReceivedRequest) -> Reply:
        """The next answer of the model."""
        heard = [str(m["content"]) for m in request.messages if m["role"] != "assistant"]
        for text in self.known:
            heard = [each.replace(text, "") for each in heard]
        self.messages = request.messages
        self.tokens += len(json.dumps(request.messages)) // 4
        self.given = sum(each.count(mark) for each in heard for mark in (LEARNED, QUOTED, STATED))
        self.move = self.agent.act(heard)
        if self.move == FINISH:
            return Reply(f"It is done: {self.known[1]}")
        if self.move == GIVE_UP:
            return Reply(self.agent.note)
        call_id = f"call_{self.agent.calls}"
        call = ToolCall(self.move.tool, dict(self.move.arguments), id=call_id)
        return Reply("", tool_calls=(call,))


@dataclass(eq=False)
class Table:
    """A gateway with a scripted upstream in front of which the agents of all runs sit."""

    arm: str
    folder: Path
    seed: int
    places: Sequence[World] = field(default_factory=worlds)
    keys: dict[str, tuple[str, str]] = field(default_factory=dict)
    loop: asyncio.AbstractEventLoop | None = None
    _seats: dict[str, Seat] = field(default_factory=dict)

    def __enter__(self) -> Self:
        self.upstream = ScriptedUpstream(self._reply, record=0)
        self.upstream.start()
        self._settings = settings_from_dict(self.choices(), {})
        configure_logging(self._settings.logging)
        asyncio.run(self._prepare())
        self.app = build_app(self._settings)
        config = uvicorn_config(self.app, self._settings)
        config.app = self
        self.server = AppServer(self.app, config=config)
        self.server.start()
        return self

    def __exit__(self, *exc: object) -> None:
        self.server.stop()
        self.upstream.stop()

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        """Serve as the gateway does; its loop is noted."""
        self.loop = self.loop or asyncio.get_running_loop()
        await self.app(scope, receive, send)

    def _reply(self, request: ReceivedRequest) -> Reply:
        return self._seats[request.json["user"]].reply(request)

    def choices(self) -> dict[str, Any]:
        """The settings of the arm."""
        return {
            "default_upstream": {"api_base": self.upstream.base_url},
            "storage": {"path": str(self.folder / "runs.db"), "commit_limit_ms": _PATIENT_MS},
            "steering": {
                "mode": "shadow" if self.arm == "shadow" else "on",
                "deadline_ms": _PATIENT_MS,
                "max_wait_ms": _PATIENT_MS,
            },
            "etraces": {"enabled": False},
            "injection": {"monitor_guidance": False, "skip_directive": False},
            "learning": {
                "trials": "off" if self.arm == "off" else "on",
                "interval_s": 3600.0,
                "over_after_s": 0.001,
            },
            "logging": {"level": "error"},
        }

    async def _prepare(self) -> None:
        """Two keys for each environment, and in two arms what an operator has written."""
        stores = await open_stores(self._settings.storage)
        own_keys = stores.of(KeyStore)
        assert own_keys is not None
        for world in self.places:
            keys = [make_key(world.name, person) for person in ("ann", "ben")]
            for key in keys:
                await own_keys.add_key(key.record)
            self.keys[world.name] = (keys[0].text, keys[1].text)
            for pattern, row in self.brought(world):
                await stores.learning.learn([(pattern, [row])])
                if pattern.lesson and pattern.lesson.trust is not Trust.OPERATOR:
                    continue
                stored = await stores.learning.lesson(world.name, pattern.pattern_id)
                assert stored is not None
                actions = LessonActions(stores.learning)
                await actions.move(stored, Status.ACTIVE, "approved by the operator", time.time())
        await stores.close()

    def brought(self, world: World) -> list[tuple[Pattern, EvidenceRow]]:
        """The lessons that are there before the first run."""
        texts = placed(world, self.arm, self.seed)
        return [written(world, text, number) for number, text in enumerate(texts)]

    def seat(self, world: World, number: int) -> tuple[Seat, Run]:
        """The agent of one run, and its task."""
        run = Run(world, self.seed * 1000 + number)
        chance = random.Random(f"{world.name} {self.seed} {number}")  # noqa: S311 - no secret
        return Seat(Agent(run, chance), (world.about, run.task)), run

    async def play(self, http: httpx.AsyncClient, world: World, number: int) -> Played:
        """One run to its end, with its outcome reported."""
        seat, run = self.seat(world, number)
        name = f"{world.name}-{number}"
        self._seats[name] = seat
        headers = {"x-conversation-id": name, "x-gateway-key": self.keys[world.name][number % 2]}
        messages: list[dict[str, Any]] = [
            {"role": "system", "content": world.about},
            {"role": "user", "content": run.task},
        ]
        while True:
            body = {"model": "m", "messages": messages, "tools": world.tools(), "user": name}
            url = f"{self.server.base_url}/chat/completions"
            answer = (await http.post(url, json=body, headers=headers)).raise_for_status().json()
            message = answer["choices"][0]["message"]
            messages.append(message)
            if seat.move == FINISH and (said := run.objection()):
                messages.append({"role": "user", "content": said})
            elif seat.move in (FINISH, GIVE_UP):
                break
            else:
                text, worked = run.execute(seat.move)
                seat.agent.saw(seat.move, worked)
                call_id = message["tool_calls"][0]["id"]
                messages.append({"role": "tool", "tool_call_id": call_id, "content": text})
        success = run.success()
        url = f"{self.server.url}/api/runs/{name}/outcome"
        verdict = {"outcome": "success" if success else "failure"}
        (await http.post(url, json=verdict, headers=headers)).raise_for_status()
        return self.played(world, number, seat, run, success)

    def played(self, world: World, number: int, seat: Seat, run: Run, success: bool) -> Played:
        """A run that is over."""
        return Played(
            world=world.name,
            arm=self.arm,
            seed=self.seed,
            number=number,
            success=success,
            steps=seat.agent.calls,
            tokens=seat.tokens,
            corrections=run.corrections,
            given=seat.given,
        )

    @property
    def approves(self) -> bool:
        """Whether an operator approves every candidate at once."""
        return False

    async def learn(self) -> None:
        """Let the learner read all runs that are over."""
        learning = learning_of(self.app.runtime)
        assert learning.learner is not None
        while learning.learner.waiting:
            await self._there(learning.learner.look())
        if self.approves:
            for each in await self.lessons(Status.CANDIDATE, Status.TRIAL):
                actions = LessonActions(self.app.runtime.lessons)
                reason = "approved by the operator"
                await self._there(actions.move(each, Status.ACTIVE, reason, time.time()))
            learning.book.forget()

    async def lessons(self, *statuses: Status) -> list[StoredLesson]:
        """The lessons of these statuses, of all environments."""
        wanted = LessonFilter(statuses=statuses or tuple(Status))
        found: list[StoredLesson] = await self._there(self.app.runtime.lessons.lessons(wanted))
        return found

    async def _there(self, made: Coroutine[Any, Any, Any]) -> Any:
        """The result of a coroutine on the gateway's own loop."""
        assert self.loop is not None
        awaited: Future[Any] = asyncio.run_coroutine_threadsafe(made, self.loop)
        return await asyncio.wrap_future(awaited)


def placed(world: World, arm: str, seed: int) -> list[str]:
    """The texts that the operator of an arm has written for an environment."""
    if arm == "oracle":
        return [world.oracle]
    chance = random.Random(f"{world.name} {seed}")  # noqa: S311 - no secret
    if arm == "misled":
        run = Run(world, seed)
        wrong = chance.choice(run.moves[-len(world.others) :])
        return [misleading(wrong, run.plan[-1])]
    if arm != "shuffled":
        return []
    others = [w.oracle for w in worlds() if w.domain == world.domain and w != world]
    return chance.sample(others, _LESSONS)


def misleading(wrong: Move, key: Move) -> str:
    """An instruction that sounds right and names the agent's own calls, but not the right one."""
    if wrong.head != key.head:
        return f"Call `{wrong.head}` before `{key.head}`."
    name, value = next(each for each in wrong.extras if each not in key.extras)
    shown = f"`{name} {value}`".replace(" `", "`") if wrong.words else f"`{value}` as `{name}`"
    return f"Call `{wrong.head}` with {shown}."


def written(world: World, text: str, number: int) -> tuple[Pattern, EvidenceRow]:
    """A rule of the environment's project by its operator."""
    project, _ = project_of([PromptMessage(role="system", text=world.about)])
    lesson = Lesson(key=f"{SAID}|{project}|{digest(text)}", origin="written", trust=Trust.OPERATOR)
    pattern = Pattern(
        tier=Tier.E1,
        fields={"task_context_embedding_text": "An operator wrote it.", "recommended_action": text},
        pattern_id=f"e1-written-{world.name}-{number}",
        tenant=world.name,
        source_trace_id=f"operator#{number}",
        lesson=lesson,
    )
    row = EvidenceRow(
        tenant=world.name,
        pattern_id=pattern.pattern_id,
        run_id="operator",
        step_index=1,
        kind=SAID,
        conversation="operator",
        task="operator",
        at=1.0,
    )
    return pattern, row


async def rounds(table: Table, chosen: Sequence[World], runs: int) -> list[Played]:
    """All runs of an arm: those of one number together, each in its environment."""
    found: list[Played] = []
    free = asyncio.Semaphore(_AT_ONCE)
    async with httpx.AsyncClient(timeout=_PATIENT_MS / 1000, verify=False) as http:  # noqa: S501

        async def one(world: World, number: int) -> Played:
            async with free:
                return await table.play(http, world, number)

        for number in range(1, runs + 1):
            found += await asyncio.gather(*(one(world, number) for world in chosen))
            await table.learn()
    return found


def run_second_try(
    seeds: Iterable[int], arms: Sequence[str], names: str, runs: int, out: Path | None
) -> Iterator[str]:
    """Play the arms, and yield the lines of the tables as they can be counted."""
    chosen = [world for world in worlds() if names in world.name]
    found: list[Played] = []
    for seed in seeds:
        for arm in arms:
            with tempfile.TemporaryDirectory() as folder, Table(arm, Path(folder), seed) as table:
                found += asyncio.run(rounds(table, chosen, runs))
                lessons = asyncio.run(table.lessons())
            if out is not None:
                with out.open("a", encoding="utf-8") as file:
                    rows = [asdict(each) for each in found if (each.arm, each.seed) == (arm, seed)]
                    rows += [shown(each, arm, seed) for each in lessons]
                    file.writelines(json.dumps(row) + "\n" for row in rows)
    yield from tables(found)


def shown(stored: StoredLesson, arm: str, seed: int) -> dict[str, Any]:
    """A lesson for reading."""
    pattern = stored.pattern
    status = pattern.lesson.status.value if pattern.lesson else ""
    texts = {"lesson": dict(pattern.fields), "status": status, "tier": pattern.tier.value}
    return {"world": pattern.tenant, "arm": arm, "seed": seed, **texts}


def tables(found: Sequence[Played]) -> Iterator[str]:
    """Success, steps, tokens and corrections by run number, with the difference to `off`; the 95 %
    intervals are over environments."""
    arms = list(dict.fromkeys(each.arm for each in found))
    seeds = len({each.seed for each in found})
    yield f"{len({e.world for e in found})} environments, {seeds} seeds"
    yield "runs   arm       success %  against off       steps  tokens  corrected  given"
    for first, last in BLOCKS:
        block = [each for each in found if first <= each.number <= last]
        for arm in arms if block else ():
            played = {each.seed for each in block if each.arm == arm}
            own = by_world(block, arm, "success")
            base = by_world((e for e in block if e.seed in played), "off", "success")
            gain = [own[w] - base[w] for w in own.keys() & base.keys()]
            steps, tokens, corrected, given = (
                statistics.fmean(by_world(block, arm, what).values())
                for what in ("steps", "tokens", "corrections", "given")
            )
            yield (
                f"{first:>2}-{last:<3} {arm:9} {100 * statistics.fmean(own.values()):8.1f}  "
                f"{_interval(gain):>18} {steps:6.2f} {tokens:7.0f} {corrected:9.2f} {given:7.2f}"
            )


def by_world(found: Iterable[Played], arm: str, what: str) -> Mapping[str, float]:
    """The mean of something in each environment."""
    values: dict[str, list[float]] = {}
    for each in found:
        if each.arm == arm:
            values.setdefault(each.world, []).append(float(getattr(each, what)))
    return {world: statistics.fmean(some) for world, some in values.items()}


def _interval(values: Sequence[float]) -> str:
    if len(values) < 2:
        return ""
    mean = 100 * statistics.fmean(values)
    spread = 100 * _Z95 * statistics.stdev(values) / len(values) ** 0.5
    return f"{mean:+.1f} ({mean - spread:+.1f}, {mean + spread:+.1f})"
