"""`python -m bench.pages`: how long the queries of pages and API take on a large run log.

    python -m bench.pages --steps 10000000                       # a SQLite file
    python -m bench.pages --steps 10000000 --url postgresql://   # an empty database

The log is made by the database itself: runs of 33 steps, evenly over 30 days, of 12 agents, 6
models, 20 tenants and 4 teams. Each query is asked `--rounds` times through the store, as the pages
do, after one that is not counted. CPU is that of this process, and with `--server` (the id of the
database's first process) that of the database; on a busy machine it says more than the time.
"""

# ruff: noqa: S608 - statements are put together from names of this module

from __future__ import annotations

import argparse
import asyncio
import json
import os
import tempfile
import time
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from pathlib import Path

import apsw
import uvloop

from bench.processes import cpu_of
from bench.report import aligned, machine
from bench.statistics import percentile
from gateway.backends import Stores, open_stores
from gateway.config.storage import StorageSettings
from gateway.config.values import Secret
from gateway.features.postgres.schema import DAY_BITS, PARTITIONED
from gateway.stores.filters import RunFilter
from gateway.stores.lists import PageRequest
from gateway.stores.under_way import LiveQuery
from gateway.stores.usage import UsageQuery

STEPS = 33
"""Of a run."""

DAYS = 30
_DAY_S = 86_400
_SHAPES = 12  # kinds of runs
_AT_ONCE = 20_000  # runs of one statement
_CONTENT_BYTES = 300


def shapes() -> list[tuple[int, str]]:
    """The counters of each kind of run, as JSON."""
    found = []
    for kind in range(_SHAPES):
        model = f"model-{kind % 6}"
        trouble = kind % 4 == 0
        counts = {
            "states": {"INIT": 1, "NORMAL": 20, **({"SLOW": 12} if trouble else {"FAST": 12})},
            "fired": {"streak": 3, "test_repeat": 2} if trouble else {},
            "failure_types": {"loop": 3} if trouble else {},
            "models": {model: STEPS},
            "severity": {"low": 30, "danger": 3} if trouble else {"low": STEPS},
            "unsteered": {},
            "estimated": {},
            "guidance": {"e3": 1, "monitor": 2} if trouble else {"e3": 1},
        }
        found.append((kind, json.dumps(counts)))
    return found


def _columns(now: float, runs: int, postgres: bool) -> dict[str, dict[str, str]]:
    """Of each table its columns as expressions of `i`, the run's number, and `j`, the step's."""
    at = f"({now} - ({runs} - i) * {DAYS * _DAY_S / runs})"
    day = f"CAST(floor({at} / {_DAY_S}) AS {'bigint' if postgres else 'integer'})"
    pk = f"(({day} << {DAY_BITS}) + i)" if postgres else "(i + 1)"
    blob, js = ("'\\x00'::bytea", "::jsonb") if postgres else ("x'00'", "")
    yes = "true" if postgres else "1"
    tenant, name = "('tenant-' || (i % 20))", "('c-' || i)"
    zero = dict.fromkeys(("retries", "errors", "cache_write_tokens", "reasoning_tokens"), "0")
    conversation = {
        "pk": "i + 1", "id": name, "tenant": tenant, "source": "'prefix'", "version": "33",
        "created_at": at, "updated_at": f"{at} + 600", "served_head": blob, "message_count": "66",
        "signature": blob, "has_tools": yes, "state": blob,
    }  # fmt: skip
    run = {
        "pk": pk, "id": f"{name} || '.0'", "conversation_pk": "i + 1", "tenant": tenant,
        "sequence": "0", "started_at": at, "updated_at": f"{at} + 600",
        "ended_at": f"CASE WHEN i % 5 = 0 THEN NULL ELSE {at} + 600 END",
        "state": "CASE WHEN i % 5 = 0 THEN 'NORMAL' ELSE 'END' END",
        "outcome": "CASE i % 3 WHEN 0 THEN 'success' WHEN 1 THEN 'failure' END",
        "outcome_source": "'api'", "agent": f"('agent-' || (i % {_SHAPES}))",
        "task_preview": "('Repair the parser of module ' || i)", "profile": "'coding'",
        "mode": "'on'", "policy_digest": "'p'", "identity_source": "'prefix'",
        "experiment": "CASE WHEN i % 50 = 0 THEN 'trial' END",
        "arm": "CASE WHEN i % 50 = 0 THEN 'on' END",
        "model_requested": "('model-' || (i % 6))", "steps": str(STEPS),
        "scored_steps": str(STEPS), "calls": str(STEPS), "injections": "3", **zero,
        "input_tokens": "40000 + i % 1000", "cached_tokens": "30000", "output_tokens": "4000",
        "unpriced_calls": "0", "cost_usd": "0.05 + (i % 97) * 0.01", "cost_unsteered_usd": "0.06",
        "saved_usd": "0.01", "composite_peak": "(i % 101) / 101.0", "composite_sum": "5.0",
        "latency_s": "60.0", "overhead_ms": "90.0", "counts": f"k.counts{js}",
        "key_name": "('key-' || (i % 40))",
        "tags": f"""('{{"team": "team-' || (i % 4) || '"}}'){js}""",
    }  # fmt: skip
    step = {
        "run_pk": pk, "step_index": "j", "at": f"{at} + j * 18", "state": "'NORMAL'",
        "difficulty": "0.3", "composite": "(j % 10) / 10.0",
        "failure_type": "CASE WHEN j % 10 = 9 THEN 'loop' END",
        "readings": """'{"scores":{"streak":0.2},"fired":[],"evidence":{}}'""",
        "call": """'{"request_id":"r","model_requested":"m","model_asked":"m","status":200,"""
        """"cost_usd":0.002,"latency_s":2.0,"overhead_ms":3.0,"input_tokens":1200}'""",
        "content": f"'{{\"thought\":\"{'x' * _CONTENT_BYTES}\"}}'",
    }  # fmt: skip
    return {"conversations": conversation, "runs": run, "steps": step}


def statements(now: float, runs: int, *, postgres: bool) -> Iterator[str]:
    """What fills an empty database, in parts."""
    values = ", ".join(f"({kind}, '{counts}')" for kind, counts in shapes())
    for table, columns in _columns(now, runs, postgres).items():
        names, expressions = ", ".join(columns), ", ".join(columns.values())
        for first in range(0, runs, _AT_ONCE):
            end = min(first + _AT_ONCE, runs)
            several = f", {_numbers('j', 1, STEPS + 1)}" if table == "steps" else ""
            yield (
                f"WITH RECURSIVE k (kind, counts) AS (VALUES {values}), "
                f"{_numbers('i', first, end)}{several} "
                f"INSERT INTO {table} ({names}) SELECT {expressions} FROM of_i "
                f"{'CROSS JOIN of_j' if several else ''} JOIN k ON k.kind = i % {_SHAPES}"
            )
    hour = "CAST(floor(started_at / 3600) AS bigint) * 3600"
    summed = "count(*) * 33, 0, 0, 0, count(*) * 33, count(*), sum(input_tokens)"
    yield (
        "INSERT INTO usage_by_hour (hour, tenant, agent, model, tags, calls, errors, unsteered, "
        "unpriced_calls, steps, alarms, input_tokens, cached_tokens, output_tokens, cost_usd, "
        f"latency_s) SELECT {hour}, tenant, agent, model_requested, tags, {summed}, "
        "sum(cached_tokens), sum(output_tokens), sum(cost_usd), sum(latency_s) FROM runs "
        "GROUP BY 1, 2, 3, 4, 5"
    )
    yield "ANALYZE"
    if postgres:  # what its own cleaning does in time
        yield "VACUUM runs"


def _numbers(name: str, first: int, end: int) -> str:
    return (
        f"of_{name} ({name}) AS (SELECT {first} UNION ALL "
        f"SELECT {name} + 1 FROM of_{name} WHERE {name} < {end - 1})"
    )


async def fill(settings: StorageSettings, now: float, runs: int) -> None:
    """Make the log in the database, whose tables exist and are empty."""
    if settings.url is None:
        connection = apsw.Connection(settings.path)
        connection.pragma("synchronous", "off")
        for sql in statements(now, runs, postgres=False):
            await asyncio.to_thread(connection.execute, sql)
        connection.close()
        return
    import asyncpg

    client = await asyncpg.connect(str(settings.url))
    for day in range(int(now // _DAY_S) - DAYS - 1, int(now // _DAY_S)):
        for table in PARTITIONED:
            name = f"{table}_{time.strftime('%Y%m%d', time.gmtime(day * _DAY_S))}"
            span = f"FROM ({day << DAY_BITS}) TO ({(day + 1) << DAY_BITS})"
            await client.execute(f"CREATE TABLE {name} PARTITION OF {table} FOR VALUES {span}")
    for sql in statements(now, runs, postgres=True):
        await client.execute(sql)
    await client.close()


Ask = Callable[[], Awaitable[object]]


def queries(stores: Stores, now: float, runs: int) -> Mapping[str, Ask]:
    """What the pages and the API ask, by name."""
    log, sums, trees = stores.runs, stores.attribution, stores.sessions
    assert sums is not None
    assert trees is not None
    every, mine = RunFilter(), RunFilter(tenant="tenant-3")
    week, today = RunFilter(since=now - 7 * _DAY_S), int(now // _DAY_S) * _DAY_S

    def page(runs: RunFilter = every, **how: str) -> Ask:
        return lambda: log.list_runs(runs, PageRequest(**how))  # type: ignore[arg-type]

    def listed(runs: RunFilter = every, **how: str) -> Ask:
        return lambda: trees.list_sessions(runs, PageRequest(**how))  # type: ignore[arg-type]

    def usage(days: int, bucket: str, by: str | None = None) -> Ask:
        query = UsageQuery(since=today - days * _DAY_S, until=now, bucket=bucket, by=by)  # type: ignore[arg-type]
        return lambda: log.usage(query)

    wanted = {
        "runs: newest": page(),
        "runs: of a tenant": page(mine),
        **{f"runs: by {sort}": page(sort=sort) for sort in ("steps", "tokens", "cost", "peak")},
        "runs: by updated_at": page(sort="updated_at"),
        "runs: of a model": page(RunFilter(model="model-2")),
        "runs: of no model": page(RunFilter(model="nothing")),
        "runs: of a failure type": page(RunFilter(failure_type="loop")),
        "runs: of no failure type": page(RunFilter(failure_type="none")),
        "runs: of a state": page(RunFilter(state="SLOW")),
        "runs: of a monitor": page(RunFilter(monitor="streak")),
        "runs: task found": page(RunFilter(task="parser")),
        "runs: task not found": page(RunFilter(task="no such words")),
        "runs: of a tag": page(RunFilter(tags=(("team", "team-1"),))),
        "runs: of no tag": page(RunFilter(tags=(("none", None),))),
        "runs: of a key": page(RunFilter(key_name="key-7")),
        "runs: of no agent": page(RunFilter(agent="nobody")),
        "runs: unfinished": page(RunFilter(outcome="unfinished")),
        "runs: of an experiment": page(RunFilter(experiment="trial")),
    }
    return {
        **wanted,
        "sessions: newest": listed(),
        **{f"sessions: by {sort}": listed(sort=sort) for sort in ("updated_at", "steps", "cost")},
        "sessions: of a model": listed(RunFilter(model="model-2")),
        "sessions: task not found": listed(RunFilter(task="no such words")),
        "sessions: count": lambda: trees.count_sessions(every),
        "session": lambda: trees.session(f"c-{runs // 2}", tenant=None),
        "count: all": lambda: log.count_runs(every),
        "count: of a tenant": lambda: log.count_runs(mine),
        "count: of a model": lambda: log.count_runs(RunFilter(model="model-2")),
        "count: task not found": lambda: log.count_runs(RunFilter(task="no such words")),
        "facets": lambda: log.facets(tenant=None),
        "facets of a tenant": lambda: log.facets(tenant="tenant-3"),
        "health: all": lambda: log.health_summary(every),
        "health: a week": lambda: log.health_summary(week),
        "health: a day": lambda: log.health_summary(RunFilter(since=now - _DAY_S)),
        "health: of a tenant": lambda: log.health_summary(mine),
        "now: under way": lambda: log.live_runs(LiveQuery.at(now)),
        "now: today": lambda: log.usage(UsageQuery(since=today, until=today + _DAY_S)),
        "usage: 48 hours": usage(2, "hour"),
        "usage: 30 days": usage(30, "day"),
        "usage: 26 weeks by model": usage(182, "week", "model"),
        "usage: 30 days by a tag": usage(30, "day", "tag:team"),
        "groups: by model": lambda: sums.groups(every, "model"),
        "groups: by key, a week": lambda: sums.groups(week, "key"),
        "groups: by a tag": lambda: sums.groups(every, "tag:team"),
        "run: its steps": lambda: log.get_run(f"c-{runs // 2}.0", tenant=None),
        "conversations": lambda: log.list_conversations(tenant=None),
        "runs of an experiment": lambda: log.experiment_runs("trial", tenant=None),
    }


async def measure(options: argparse.Namespace, home: Path) -> list[list[str]]:
    """One line a query: milliseconds."""
    url = Secret(options.url) if options.url else None
    path = options.path or str(home / "pages.db")
    settings = StorageSettings(url=url, path=path)
    now, runs = time.time(), options.steps // STEPS
    stores = await open_stores(settings)
    try:
        if await stores.runs.count_runs(RunFilter()):
            page = await stores.runs.list_runs(RunFilter(), PageRequest(limit=1))
            now, runs = page.runs[0].started_at, await stores.runs.count_runs(RunFilter())
        else:
            begun = time.perf_counter()
            await fill(settings, now, runs)
            print(f"{runs:,} runs filled in {time.perf_counter() - begun:.0f} s", flush=True)
        rows = [["query", "median ms", "most ms", "CPU ms", "database"]]
        for name, ask in queries(stores, now, runs).items():
            if options.only and options.only not in name:
                continue
            rows.append([name, *await _timed(ask, options.rounds, options.server)])
            print(*rows[-1], sep="\t", flush=True)
        return rows
    finally:
        await stores.close()


async def _timed(ask: Ask, rounds: int, server: int | None) -> list[str]:
    taken, cpu = list[float](), [0.0, 0.0]
    for number in range(rounds + 1):
        if number == 1:
            cpu = _cpu_ms(server)
        begun = time.perf_counter()
        try:
            await ask()
        except Exception as error:  # a limit of the store is a finding
            return [type(error).__name__, str(error)[:60]]
        if number:
            taken.append((time.perf_counter() - begun) * 1000)
    paid = [(now - then) / rounds for now, then in zip(_cpu_ms(server), cpu, strict=True)]
    return [f"{value:.1f}" for value in (percentile(taken, 50), max(taken), *paid)]


def _cpu_ms(server: int | None) -> list[float]:
    return [time.process_time() * 1000, 0.0 if server is None else cpu_of(server) * 1000]


def main(arguments: Sequence[str] | None = None) -> None:
    """Fill, measure and print."""
    parser = argparse.ArgumentParser(prog="python -m bench.pages", description=__doc__)
    parser.add_argument("--steps", type=int, default=1_000_000)
    parser.add_argument("--url", help="of a database for this bench alone")
    parser.add_argument("--server", type=int, help="the id of the database's first process")
    parser.add_argument("--path", help="of a file to keep")
    parser.add_argument("--only", help="queries whose names contain this")
    parser.add_argument("--rounds", type=int, default=3)
    options = parser.parse_args(arguments)
    with tempfile.TemporaryDirectory(prefix="gateway-pages-") as home:
        rows = uvloop.run(measure(options, Path(home)))
    print(f"\n{machine()}; load {os.getloadavg()[0]:.1f}\n\n{aligned(rows)}")


if __name__ == "__main__":
    main()
