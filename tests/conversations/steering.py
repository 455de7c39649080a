"""The real resolver and steerer driven by function calls, without HTTP; nothing is stored."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from typing import Any

import orjson
from msgspec.structs import replace

from gateway.backends import open_stores
from gateway.config.storage import StorageSettings
from gateway.conversations.apply_reply import apply_reply, note_delivered, replies_in
from gateway.conversations.decision import Decision
from gateway.conversations.observe import unobserved
from gateway.conversations.resolve import ConversationResolver
from gateway.conversations.steer_request import RequestSteerer, unsteered
from gateway.core.guidance_choice import LessonMatch, LessonQuery
from gateway.core.guidance_settings import Gates
from gateway.core.pattern import Pattern, PatternMatch, Query, Tier
from gateway.core.placement import GuidanceTarget
from gateway.core.steer import Found
from gateway.core.step import Step
from gateway.dialects import SteeredRequest
from gateway.offline.replay import policy_from_dict
from gateway.tasks import DeadlinePassed, OwnTime
from tests.conversations.driver import a_resolver, an_index, parsed

TENANT = "team"
REQUESTED = "asked"

BASH = {"type": "function", "function": {"name": "bash"}}
TASK = [
    {"role": "system", "content": "You repair programs."},
    {"role": "user", "content": "Fix the parser."},
]


def calls(command: str, id: str) -> dict[str, Any]:
    """A reply that calls the one tool."""
    function = {"name": "bash", "arguments": orjson.dumps({"command": command}).decode()}
    call = {"id": id, "type": "function", "function": function}
    return {"role": "assistant", "content": None, "tool_calls": [call]}


def step(number: int, command: str = "pytest", result: str = "E   assert 1 == 2\n1 failed") -> Any:
    """A reply with a call, and the message with its result."""
    id = f"call_{number}"
    return calls(command, id), {"role": "tool", "tool_call_id": id, "content": result}


class Patterns:
    """A library that answers each look-up with one pattern; it notes what it was asked, and whether
    the conversation was locked meanwhile."""

    gates = Gates(e1=0.0, e2=0.0)

    def __init__(self, wait_s: float = 0.0) -> None:
        self.asked: list[tuple[str, Query]] = []
        self.wait_s = wait_s

    async def look_up_all(self, queries: Sequence[Query], tenant: str) -> Found:
        await asyncio.sleep(self.wait_s)
        self.asked += [(tenant, query) for query in queries]
        return {query.tier: [self._match(query)] for query in queries}

    def _match(self, query: Query) -> PatternMatch:
        name = f"{query.tier.value}-{len(query.exclude)}"
        text = {"instruction": f"Advice {name}."}
        fields = text if query.tier is Tier.E3 else {"situation": "Stuck.", "unlock": name}
        return PatternMatch(
            pattern=Pattern(tier=query.tier, fields=fields, pattern_id=name), similarity=0.9
        )


class Lessons:
    """Learned lessons that answer every look-up with the same one."""

    def __init__(self, lesson: Pattern) -> None:
        self.lesson = lesson
        self.asked: list[tuple[str, LessonQuery]] = []

    async def find(self, query: LessonQuery, tenant: str) -> Sequence[LessonMatch]:
        if not query.keys:
            return []
        self.asked.append((tenant, query))
        return [LessonMatch(pattern=self.lesson, key=query.keys[0])]


class Judge:
    """A model that gives every step the same score; None: it has none in time."""

    def __init__(self, score: float | None) -> None:
        self.answer = score
        self.asked = 0

    async def score(self, steps: Sequence[Step], whose: Any, run: int) -> float | None:
        self.asked += 1
        return self.answer


class Expiring(OwnTime):
    """A deadline that has passed at the check of this number; the first one is 1."""

    def __init__(self, at: int = 0) -> None:
        super().__init__(3600.0)
        self._left = at

    def check(self) -> None:
        self._left -= 1
        if self._left == 0:
            raise DeadlinePassed


class Agent:
    """One client of a gateway with these settings; its history, and its latest request.

    `refusals`: why a model cannot serve, by its name. `targets`: the models that were asked how
    guidance may be placed for them. `others`: what the steerer is made with. `shared`: other
    gateways use its store, which is away.
    """

    shared = False

    def __init__(self, settings: Mapping[str, Any], **others: Any) -> None:
        self.rules = policy_from_dict(settings).rules
        self.refusals: dict[str, str] = {}
        self.targets: list[str] = []
        self.target = GuidanceTarget()
        self.steerer = RequestSteerer(
            self.rules,
            target_of=self._target,
            refusal=lambda model, _: self.refusals.get(model),
            **others,
        )
        self.messages: list[Any] = list(TASK)
        self.tools: list[Any] = [BASH]
        self.model = REQUESTED
        self.index = an_index(100, 100)
        self._resolver: ConversationResolver | None = None
        self.request: SteeredRequest
        self.muted = frozenset[str]()
        self.made: Decision

    async def resolved(self, mode: str = "on") -> Decision:
        """The next request, which sends the history, before it is steered."""
        if self._resolver is None:
            stores = await open_stores(StorageSettings(path=":memory:"))
            self._resolver = a_resolver(self.index, stores.states, shared=self.shared)
            await stores.close()
        body = {"model": self.model, "messages": self.messages, "tools": self.tools}
        self.request = parsed(self.index, TENANT, body)
        found, conversation = await self._resolver.resolve(self.request, {}, TENANT, now=1.0)
        assert conversation is not None
        expected = unobserved(found, conversation, mode, model=self.model)
        return replace(expected, muted=self.muted)

    async def call(
        self, *, mode: str = "on", own_time: OwnTime | None = None, **how: Any
    ) -> Decision:
        """The next request, steered; `how`: further arguments of `steer`."""
        return await self.steered(await self.resolved(mode), own_time, **how)

    async def steered(
        self, decision: Decision, own_time: OwnTime | None = None, **how: Any
    ) -> Decision:
        """The request with its decision made; `made` is how far that came before an error."""
        how.setdefault("timings", {})
        self.made = decision
        own_time = own_time or Expiring()
        async for made in self.steerer.steer(decision, self.request, 2.0, own_time, **how):
            self.made = made
        return self.made

    async def caught_up(self, decision: Decision) -> Decision:
        """The request with its steps scored, once it was sent without that."""
        return await self.steerer.catch_up(decision, self.request, 3.0, timings={})

    def late(self, decision: Decision) -> Decision:
        """The request without a decision in time."""
        plain = unsteered(decision, self.request, "deadline")
        return self.steerer.place_earlier(plain, self.request)

    async def turn(self, number: int, **how: Any) -> Decision:
        """A request, its answer that calls the tool, and the failing result."""
        result = await self.call(**how)
        self.answered(result, number)
        return result

    def answered(self, result: Decision, number: int) -> None:
        """The answer to a request has arrived, and the agent has done what it says."""
        reply, outcome = step(number)
        self.finish(result, reply, "tool_calls")
        self.messages.append(outcome)

    def lost(self, result: Decision) -> None:
        """No whole answer has arrived: the same request again is a retry."""
        apply_reply(result, None, [], self.index)

    def finish(self, result: Decision, reply: Mapping[str, Any], reason: str) -> None:
        """A whole answer has arrived; it belongs to the history from now on."""
        completion = {"choices": [{"message": dict(reply), "finish_reason": reason}]}
        applied = apply_reply(result, completion, replies_in(completion), self.index)
        note_delivered(result, applied)
        self.messages.append(reply)

    def _target(self, model: str) -> GuidanceTarget:
        self.targets.append(model)
        return self.target
