"""Recorded runs get only what the rules allow: caps, allowances, order, look-ups."""

from __future__ import annotations

import asyncio
from collections import Counter, deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
import pytest

from gateway.core.guidance_plan import RECOVERED_STEPS
from gateway.library.memory import PatternCopy
from gateway.stores.patterns import VectorSearch
from gateway.stores.sql.runs import RunStore
from steering_gateway_testing import AppServer, ScriptedUpstream
from steering_gateway_testing.agents import GUIDING, RETRIED, run_log
from steering_gateway_testing.control_plane import CONTROL
from steering_gateway_testing.patience import DEADLINE_MS
from steering_gateway_testing.recorded_agents import Run, calls_of, read_runs, recorded_replies
from tests.live.test_recorded_runs import DEVELOPMENT, SAMPLE

ORDER = ("skip", "monitor", "e3", "e1", "e2")
COOLDOWN = {"FAST": 5, "NORMAL": 3, "SLOW": 2, "SKIP": 2}
TOOLS = [{"type": "function", "function": {"name": "bash"}}]
RETRY_EVERY = 7
LEARNING = "learning"
"""The task that reads runs which are over (`Learning.loops`)."""
_SENT = ("role", "content", "tool_calls", "tool_call_id", "name")


@dataclass(kw_only=True)
class Looked:
    """The look-ups of one call: searches, lists of rules, texts embedded."""

    searches: list[VectorSearch] = field(default_factory=list)
    rules: int = 0
    embedded: int = 0

    @property
    def at_all(self) -> bool:
        return bool(self.searches or self.rules or self.embedded)


class Watch:
    """Counts the look-ups that requests cause in a gateway in this process.

    What reads runs that are over has the same embedder, and uses it whenever it has time.
    """

    def __init__(self, server: AppServer, patch: pytest.MonkeyPatch) -> None:
        self.now = Looked()
        embedder = server.app.runtime.opened.patterns.library.embedder
        search, universal, embed = PatternCopy.search, PatternCopy.universal, embedder.embed

        async def searching(patterns: PatternCopy, wanted: VectorSearch) -> Any:
            self.now.searches.append(wanted)
            return await search(patterns, wanted)

        async def listing(patterns: PatternCopy, *, limit: int) -> Any:
            self.now.rules += 1
            return await universal(patterns, limit=limit)

        async def embedding(texts: Sequence[str]) -> Any:
            if _task_name() != LEARNING:
                self.now.embedded += len(texts)
            return await embed(texts)

        patch.setattr(PatternCopy, "search", searching)
        patch.setattr(PatternCopy, "universal", listing)
        patch.setattr(embedder, "embed", embedding)

    def take(self) -> Looked:
        """The look-ups since the last call of `take`."""
        looked, self.now = self.now, Looked()
        return looked


def _task_name() -> str:
    task = asyncio.current_task()
    return task.get_name() if task else ""


@dataclass(kw_only=True)
class Given:
    """The guidance that one run has got so far."""

    monitor: list[int] = field(default_factory=list)
    kinds: Counter[str] = field(default_factory=Counter)
    tiers: Counter[str] = field(default_factory=Counter)
    e2_spent: set[str | None] = field(default_factory=set)
    fired: dict[int, list[str]] = field(default_factory=dict)


class Audit:
    """Sends runs one after the other; `wrong` lists every call that broke a rule."""

    def __init__(
        self, server: AppServer, upstream: ScriptedUpstream, patch: pytest.MonkeyPatch
    ) -> None:
        self.wrong: list[str] = []
        self.seen: Counter[str] = Counter()
        self._url = f"{server.url}/v1/chat/completions"
        self._searched: dict[tuple[str, int], str] = {}
        self._upstream = upstream
        self._watch = Watch(server, patch)

    async def __call__(self, runs: Sequence[Run]) -> None:
        async with httpx.AsyncClient(timeout=120) as client:
            for run in runs:
                await self._one(client, run)

    async def _one(self, client: httpx.AsyncClient, run: Run) -> None:
        messages = [{k: m[k] for k in _SENT if k in m} for m in run["messages"]]
        given, conversation = Given(), {"x-conversation-id": run["id"]}
        runs = 0
        for number, index in enumerate(calls_of(messages)):
            headers = {**conversation, "x-test-reply": f"{run['id']}|{index}"}
            body = {"model": "scripted", "messages": messages[:index], "tools": TOOLS}
            answer = await client.post(self._url, json=body, headers=headers)
            sent, looked = self._upstream.last.body, self._watch.take()
            if answer.headers.get("x-gateway-step") == "0":
                given, runs = Given(), runs + 1
            # An agent that is only in a wrong directory is not asked to stop.
            lost = "cd: " in str(messages[index - 1].get("content"))
            broken = [*self._broken(answer.headers, looked, given, lost=lost)]
            if looked.searches:
                run_id = f"{answer.headers['x-gateway-conversation-id']}.{runs - 1}"
                step = int(answer.headers["x-gateway-step"])
                self._searched[run_id, step] = f"{run['id']}, call {number}"
            if number % RETRY_EVERY == 0:
                again = await client.post(self._url, json=body, headers={**headers, **RETRIED})
                repeated = self._watch.take()
                if again.headers["x-gateway-identity"] != "retry":
                    broken.append(f"a retry is {again.headers['x-gateway-identity']}")
                elif self._upstream.last.body != sent:
                    broken.append("a retry sends other bytes")
                elif repeated.embedded:
                    broken.append("a retry embeds again")
                self.seen["retries"] += 1
            self.wrong += [f"{run['id']}, call {number}: {what}" for what in broken]
            await asyncio.sleep(0)

    def _broken(
        self, headers: httpx.Headers, looked: Looked, given: Given, *, lost: bool
    ) -> list[str]:
        step, state = int(headers["x-gateway-step"]), headers["x-gateway-state"]
        fired = [name for name in headers.get("x-gateway-monitors", "").split(",") if name]
        given.fired[step] = fired
        items = [i.split(":", 1) for i in headers.get("x-gateway-guidance", "").split(",") if i]
        tiers = [tier for tier, _ in items]
        self.seen.update(tiers)
        self.seen[state] += 1
        broken = []
        if tiers != sorted(tiers, key=ORDER.index):
            broken.append(f"order {tiers}")
        if state != "END" and ("skip" in tiers) != (state == "SKIP" and not lost):
            broken.append(f"{tiers} in {state}")
        if state == "FAST" and looked.at_all:
            broken.append(f"FAST looked up {looked}")
        if step == 0 and (looked.searches or looked.embedded or set(tiers) - {"e3"}):
            broken.append(f"the first call looked up {looked}")
        broken += self._searches(looked, given)
        broken += self._allowances(step, state, items, looked, given)
        return broken

    def _searches(self, looked: Looked, given: Given) -> list[str]:
        broken = []
        for search in looked.searches:
            self.seen[f"{search.tier.value} searches"] += 1
            if search.tier.value == "e1" and given.tiers["e1"]:
                broken.append("e1 searched, its allowance spent")
            if search.tier.value == "e2" and search.failure_type in given.e2_spent:
                broken.append(f"e2 searched, {search.failure_type} spent")
        return broken

    def _allowances(
        self, step: int, state: str, items: list[list[str]], looked: Looked, given: Given
    ) -> list[str]:
        broken = []
        for tier in {tier for tier, _ in items} - {"monitor", "skip"}:
            given.tiers[tier] += 1
            if tier != "e2" and given.tiers[tier] > 1:
                broken.append(f"{tier} given again")
            if tier == "e2":
                given.e2_spent |= {s.failure_type for s in looked.searches if s.tier.value == "e2"}
        for kind in [kind for tier, kind in items if tier == "monitor"]:
            if given.monitor and step - given.monitor[-1] < COOLDOWN.get(state, 3):
                broken.append(f"monitor text at {given.monitor[-1]} and {step} in {state}")
            if given.monitor and step - given.monitor[-1] > RECOVERED_STEPS:
                given.kinds.clear()  # the run may have recovered in between
            given.monitor.append(step)
            given.kinds[kind] += 1
            if len(given.monitor) > 5 or given.kinds[kind] > 5:
                broken.append(f"monitor texts {given.kinds}")
        return broken

    async def gates(self, log: RunStore) -> None:
        """Check every search against the recorded readings of its step and the two before."""
        for (run_id, step), call in self._searched.items():
            found = await log.get_run(run_id, tenant=None)
            if found is None:  # a reply without a call ended no run: none of a person follows it
                conversation, _, ordinal = run_id.rpartition(".")
                found = await log.get_run(f"{conversation}.{int(ordinal) - 1}", tenant=None)
            assert found is not None
            rows = {
                row.step_index: row for row in found.steps if step - 2 <= row.step_index <= step
            }
            composite = rows[step].composite or 0.0
            if composite <= 0.15 and not any(row.fired for row in rows.values()):
                self.wrong.append(f"{call}: searched at {composite}, with nothing fired")


# Low gates, so that there is much guidance to check.
EAGER = {
    "steering": {"deadline_ms": DEADLINE_MS},
    "etraces": {"e2_gate": 0.3, "recall_threshold": 0.0},
    "learning": {"interval_s": 0.01},  # it reads runs beside the calls, and embeds what it finds
}
NEAR_MANY = {
    "tier": "e1",
    "gate_threshold": 0.0,
    "fields": {"situation": "get_user_details and get_order_details again", "unlock": "ask"},
}

Start = Callable[..., AppServer]


async def audited(
    start: Start,
    upstream: ScriptedUpstream,
    runs: list[Run],
    path: Path,
    settings: dict[str, Any],
    patch: pytest.MonkeyPatch,
) -> Audit:
    upstream.default = recorded_replies(runs)
    upstream.requests = deque(maxlen=1)
    server = start({**settings, "storage": {"path": str(path)}})
    url = f"{server.url}/api/patterns?tenant=default"
    await asyncio.to_thread(httpx.post, url, json=NEAR_MANY, headers=CONTROL)
    audit = Audit(server, upstream, patch)
    await audit(runs)
    async with run_log(path) as log:
        await audit.gates(log)
    print(dict(audit.seen))
    return audit


async def test_the_rules_hold_at_every_call_of_recorded_runs(
    gateway_server: Start,
    upstream: ScriptedUpstream,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """With the reference's monitors, which fire at almost every step."""
    runs = read_runs(SAMPLE)[::18]
    settings = {**GUIDING, "etraces": EAGER["etraces"]}
    audit = await audited(gateway_server, upstream, runs, tmp_path / "a.db", settings, monkeypatch)
    assert audit.wrong == []
    seen = ("e3", "e1", "e2", "monitor", "FAST", "retries", "e1 searches", "e2 searches")
    assert [name for name in seen if not audit.seen[name]] == []


@pytest.mark.parametrize(("file", "every"), [(SAMPLE, 36), DEVELOPMENT], ids=["sample", "all"])
@pytest.mark.parametrize("eager", [False, True])
async def test_the_rules_hold_with_the_shipped_monitors(
    gateway_server: Start,
    upstream: ScriptedUpstream,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    file: Path,
    every: int,
    eager: bool,
) -> None:
    """With the shipped settings, and with low gates."""
    settings = EAGER if eager else {"steering": {"deadline_ms": DEADLINE_MS}}
    runs = read_runs(file)[::every]
    audit = await audited(gateway_server, upstream, runs, tmp_path / "a.db", settings, monkeypatch)
    assert audit.wrong == []
