"""A run log of a size that shows whether pages keep their pace, written straight to the file."""

from __future__ import annotations

import functools
import itertools
import random
from collections.abc import Iterator
from typing import Any

from gateway.config.storage import StorageSettings
from gateway.core.step import Action
from gateway.stores.records import (
    CallRecord,
    CallRow,
    ConversationRecord,
    InjectionRow,
    RunUpdate,
    StepContent,
    StepRow,
)
from gateway.stores.sqlite.database import Database
from gateway.stores.sqlite.engine import save_call

MONITORS = ("streak", "call_count", "edit_revert", "test_repeat", "diversity", "hedge")
_FAILURES = ("loop", "budget", "edit_revert", "test_repeat", "diversity", "hedge")
_AGENTS = ("coder/1.4", "OpenAI/Python", "opencode/0.9", "langgraph/0.6", "aider/0.86")
_TASKS = (
    "Repair the failing test in the parser and explain what was wrong",
    "Find out which customers were charged twice in March",
    "Move the settings page to the new form component",
    "Answer the question about the airline's change policy",
    "Make the import ten times faster without changing its output",
)
_BATCH = 200


async def write_runs(path: str, *, runs: int, steps: int, now: float, seed: int = 7) -> None:
    """`runs` runs with `steps` steps on average, the newest ending at `now`."""
    database = await Database.open(StorageSettings(path=path))
    made = _runs(random.Random(seed), runs, steps, now)
    try:
        while batch := list(itertools.islice(made, _BATCH)):
            await database.write(functools.partial(_save, batch))
    finally:
        await database.close()


def _save(batch: list[CallRecord], connection: Any) -> None:
    for call in batch:
        save_call(call, connection)


def _runs(chance: random.Random, runs: int, steps: int, now: float) -> Iterator[CallRecord]:
    for number in range(runs):
        length = max(2, round(chance.gauss(steps, steps / 3)))
        yield one_run(chance, number, length, now - (runs - number) * 60.0)


def one_run(chance: random.Random, number: int, length: int, started: float) -> CallRecord:
    """One run of `length` steps, with the ups and downs that real ones have."""
    run_id, conversation_id = f"c-{number:06}.0", f"c-{number:06}"
    arm = chance.choice(("on", "off"))
    hard = chance.random()
    rows = list(_steps(chance, run_id, length, started, hard))
    failed = chance.random() < 0.25 + 0.4 * hard - (0.08 if arm == "on" else 0)
    ended = started + 12.0 * length
    update = RunUpdate(
        id=run_id,
        started_at=started,
        updated_at=ended,
        ended_at=ended,
        state="END" if not failed else rows[-1].state,
        outcome=None if chance.random() < 0.1 else "failure" if failed else "success",
        outcome_source="header",
        agent=chance.choice(_AGENTS),
        task_preview=chance.choice(_TASKS),
        profile=chance.choice(("coding", "coding", "qa")),
        mode=arm,
        experiment="routing-2" if number % 2 else None,
        arm=arm if number % 2 else None,
        unit=f"task-{number}",
        policy_digest="p" * 64,
        identity_source="prefix",
        model_requested="gpt-4o",
    )
    conversation = ConversationRecord(
        id=conversation_id,
        tenant=("acme", "globex")[number % 2],
        source="prefix",
        created_at=started,
        updated_at=ended,
    )
    return CallRecord(
        conversation=conversation,
        runs=(update,),
        steps=tuple(rows),
        injections=tuple(_guidance(rows)) if arm == "on" else (),
    )


def _steps(
    chance: random.Random, run_id: str, length: int, started: float, hard: float
) -> Iterator[StepRow]:
    level, tokens = 0.25, 1800
    for index in range(length):
        level = min(0.98, max(0.03, level + chance.gauss(0.03 * (hard - 0.45), 0.07)))
        state = "FAST" if level < 0.2 else "SLOW" if level > 0.6 else "NORMAL"
        scores = {
            name: round(max(0.0, min(1.0, chance.gauss(level - 0.25, 0.2))), 4) for name in MONITORS
        }
        fired = tuple(name for name, value in scores.items() if value >= 0.6)
        tokens += chance.randint(200, 1500)
        model = {"FAST": "gpt-4o-mini", "SLOW": "gpt-4.1"}.get(state, "gpt-4o")
        yield StepRow(
            run_id=run_id,
            step_index=index,
            at=started + 12 * index,
            state="INIT" if index == 0 else state,
            difficulty=None if index == 0 else round(level, 4),
            scores={} if index == 0 else scores,
            composite=None if index == 0 else round(sum(scores.values()) / 6, 4),
            fired=fired if index else (),
            failure_type=_FAILURES[MONITORS.index(fired[0])] if fired and index else None,
            evidence=dict.fromkeys(fired, "the same call, four times") if index else {},
            call=_call(chance, index, model, tokens),
            content=_content(chance, index),
        )


def _call(chance: random.Random, index: int, model: str, tokens: int) -> CallRow:
    output = chance.randint(60, 700)
    price = {"gpt-4o-mini": 1.5e-7, "gpt-4.1": 2e-6}.get(model, 2.5e-6)
    return CallRow(
        request_id=f"req-{index}",
        model_requested="gpt-4o",
        model_asked=model,
        model_served=model,
        deployment="default",
        lane="native",
        finish_reason="tool_calls",
        input_tokens=tokens,
        cached_tokens=int(tokens * 0.8) if index > 1 else 0,
        cache_write_tokens=0,
        output_tokens=output,
        reasoning_tokens=0,
        cost_usd=price * (tokens * 0.4 + 4 * output),
        cost_unsteered_usd=2.5e-6 * (tokens * 0.4 + 4 * output),
        latency_s=chance.uniform(0.8, 9.0),
        first_byte_s=0.6,
        overhead_ms=chance.uniform(0.5, 1.4),
        timings_ms={"observe": 0.3, "look_up": 0.2},
        streamed=True,
        reasons=("state",),
    )


def _content(chance: random.Random, index: int) -> StepContent:
    word = chance.choice(("parser", "cache", "schema", "invoice", "timeout"))
    action = Action(
        name=chance.choice(("bash", "read_file", "edit")),
        arguments=f'{{"command": "grep -n {word} src/ -r | head -{index}"}}',
        observation=f"src/{word}.py:{index}: def load_{word}(): ...\n" * chance.randint(1, 12),
        is_error=chance.random() < 0.12,
    )
    return StepContent(
        thought=f"The {word} may be where it goes wrong. Let me look at how it is loaded.",
        actions=(action,),
    )


def _guidance(rows: list[StepRow]) -> Iterator[InjectionRow]:
    given = 0
    for row in rows:
        if row.fired and row.step_index % 4 == 0 and given < 5:
            given += 1
            yield InjectionRow(
                run_id=row.run_id,
                step_index=row.step_index,
                ordinal=0,
                source="monitor",
                failure_type=row.failure_type,
                severity="2",
                text="The same call has come back with the same result several times.",
                placement="system",
            )
