"""Recorded runs sent to a gateway as their agents would send them, one request per model call."""

from __future__ import annotations

import asyncio
import gzip
import json
from collections import Counter, defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx

from gateway.core.decision_settings import Policy
from gateway.steering.runs_of_transcript import ConversationFold
from gateway.wire.prefix_hash import extend, start_state
from steering_gateway_testing.received import ReceivedRequest
from steering_gateway_testing.values import Reply, ToolCall

Run = Mapping[str, Any]
_SENT = ("role", "content", "tool_calls", "tool_call_id", "name")
WHICH = "x-test-reply"
"""Tells the scripted provider which recorded message to answer with; the gateway ignores it."""


def read_runs(path: Path) -> list[Run]:
    """The records of a JSONL file, gzipped or not."""
    opener = gzip.open if path.suffix == ".gz" else open
    with opener(path, "rt", encoding="utf-8") as lines:
        return [json.loads(line) for line in lines]


def recorded_replies(runs: Sequence[Run]) -> Callable[[ReceivedRequest], Reply]:
    """A provider that replies as the recorded model did."""
    known = {(run["id"], i): m for run in runs for i, m in enumerate(run["messages"])}

    def reply(request: ReceivedRequest) -> Reply:
        run_id, _, index = str(request.header(WHICH)).rpartition("|")
        message = known[run_id, int(index)]
        calls = tuple(
            ToolCall(c["function"]["name"], c["function"]["arguments"], id=c["id"])
            for c in message.get("tool_calls") or []
        )
        return Reply(message.get("content") or "", tool_calls=calls)

    return reply


@dataclass
class Report:
    """The results of a drive."""

    requests: int = 0
    identities: Counter[str] = field(default_factory=Counter)
    wrong: list[str] = field(default_factory=list)
    owners: dict[str, set[str]] = field(default_factory=lambda: defaultdict(set))
    homes: dict[str, set[str]] = field(default_factory=lambda: defaultdict(set))

    @property
    def merges(self) -> list[str]:
        """Conversations that got requests of several runs."""
        return [c for c, runs in self.owners.items() if len(runs) > 1]

    @property
    def splits(self) -> list[str]:
        """Runs whose requests are in several conversations."""
        return [r for r, conversations in self.homes.items() if len(conversations) > 1]


class Drive:
    """Sends runs, some at a time, and compares each answer's headers with the offline fold."""

    def __init__(
        self,
        url: Callable[[], str],
        *,
        policy: Policy | None = None,
        at_once: int = 8,
        first_call: int = 0,
    ) -> None:
        self.report = Report()
        self._url = url
        self._policy = policy or Policy()
        self._at_once = asyncio.Semaphore(at_once)
        self._histories: Counter[bytes] = Counter()
        self._first_call = first_call

    async def __call__(self, runs: Sequence[Run]) -> Report:
        self._histories = Counter(key for run in runs for key in histories(run))
        limits = httpx.Limits(max_keepalive_connections=0)
        async with httpx.AsyncClient(timeout=120, limits=limits) as client:
            await asyncio.gather(*(self._one(client, run, n) for n, run in enumerate(runs)))
        return self.report

    async def _one(self, client: httpx.AsyncClient, run: Run, number: int) -> None:
        async with self._at_once:
            messages = [{k: m[k] for k in _SENT if k in m} for m in run["messages"]]
            tools = _tools(messages)
            fold = ConversationFold(self._policy)
            keys = histories(run)
            for call, index in enumerate(calls_of(messages)):
                fold.extend(messages[:index])
                if call < self._first_call:
                    continue
                body: dict[str, Any] = {"model": "scripted", "messages": messages[:index]}
                body |= {"tools": tools} if tools else {}
                body |= {"stream": True} if number % 2 else {}
                answer = await self._send(client, body, f"{run['id']}|{index}")
                ends = "stream" not in body and fold.peek_final(messages[index])
                own = self._histories[keys[call]] == 1
                self._check(run["id"], fold, answer, own=own, ends=ends)

    async def _send(
        self, client: httpx.AsyncClient, body: dict[str, Any], which: str, **headers: str
    ) -> httpx.Response:
        self.report.requests += 1
        return await client.post(
            f"{self._url()}/chat/completions", json=body, headers={WHICH: which, **headers}
        )

    def _check(
        self, run_id: str, fold: ConversationFold, answer: httpx.Response, *, own: bool, ends: bool
    ) -> None:
        headers = answer.headers
        self.report.identities[headers.get("x-gateway-identity", "none")] += 1
        conversation = headers.get("x-gateway-conversation-id", "none")
        if own:
            # Runs are one conversation as long as their histories are the same.
            self.report.owners[conversation].add(run_id)
            self.report.homes[run_id].add(conversation)
        found = tuple(
            headers.get(f"x-gateway-{name}") for name in ("step", "state", "difficulty", "monitors")
        )
        wanted = expected(fold)
        if ends:
            wanted = (wanted[0], "END", *wanted[2:])
        if answer.status_code != 200 or found != wanted:
            self.report.wrong.append(f"{run_id}: {found}, not {wanted}")


def calls_of(messages: Sequence[Mapping[str, Any]]) -> list[int]:
    """The positions of the recorded replies: the lengths of the histories that were sent."""
    return [i for i, m in enumerate(messages) if m["role"] == "assistant"]


def histories(run: Run) -> list[bytes]:
    """One key per call: equal when two runs sent the same history, except what clients rewrite."""
    digests = extend(start_state("any"), run["messages"]).digests
    return [digests[index] for index in calls_of(run["messages"])]


def expected(fold: ConversationFold) -> tuple[str | None, ...]:
    """The steering headers that follow from the offline fold."""
    run = fold.current
    if not run.outcomes:
        return (str(run.steps), run.state.value, None, None)
    newest = run.outcomes[-1]
    fired = ",".join(newest.readings.fired)
    return (str(run.steps), run.state.value, f"{newest.difficulty:.4f}", fired)


def _tools(messages: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    names = {c["function"]["name"] for m in messages for c in m.get("tool_calls") or []}
    return [{"type": "function", "function": {"name": name}} for name in sorted(names)]
