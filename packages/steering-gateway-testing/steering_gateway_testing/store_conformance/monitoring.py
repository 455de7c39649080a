"""Checks of what pages and alerts ask of the run log: runs under way, usage by time, severity."""

from __future__ import annotations

import dataclasses
from typing import Any

from msgspec.structs import replace

from gateway.backends import Stores
from gateway.core.step import Action
from gateway.stores.filters import LIVE, RunFilter
from gateway.stores.lists import PageRequest
from gateway.stores.records import IMPORTED, StepContent, StepRow
from gateway.stores.under_way import LiveQuery
from gateway.stores.usage import UsageQuery
from steering_gateway_testing.store_conformance import records
from steering_gateway_testing.store_conformance.check import Check

QUERY = LiveQuery(since=records.START, begun=records.START - 99, spent_since=records.START + 3)
DAY = 86_400


def _fires(first: int, last: int, *names: str, **changes: Any) -> list[StepRow]:
    evidence = {name: f"{name} since {first}" for name in names}
    steps = range(first, last + 1)
    return [records.a_step(n, fired=names, evidence=evidence, **changes) for n in steps]


async def lists_runs_under_way(stores: Stores) -> None:
    """With neither an end nor an outcome, and a call since a time; the newest call first."""
    kinds: tuple[dict[str, Any], ...] = (
        *({}, {"ended_at": records.START + 9}, {"outcome": "success"}),
        *({"updated_at": records.START - 1}, {}),
    )
    for number, kind in enumerate(kinds):
        changes = {"updated_at": records.START + number, **kind}
        await stores.states.commit(records.one_run(number, started_at=records.START, **changes))
    assert [live.run.id for live in await stores.runs.live_runs(QUERY)] == ["r0004", "r0000"]
    late = LiveQuery(since=records.START, begun=records.START + 1, spent_since=records.START)
    assert await stores.runs.live_runs(late) == ()
    other = LiveQuery(
        since=records.START, begun=records.START, spent_since=records.START, tenant="nobody"
    )
    assert await stores.runs.live_runs(other) == ()
    one = LiveQuery(
        since=records.START,
        begun=records.START,
        spent_since=records.START,
        tenant=records.TENANT,
        limit=1,
    )
    assert len(await stores.runs.live_runs(one)) == 1


async def counts_the_steps_a_run_is_stuck(stores: Stores) -> None:
    """The newest steps in a row at which a monitor fired, other than that of the length."""
    steps = [records.a_first_step(), records.a_step(1), *_fires(2, 2, "streak"), records.a_step(3)]
    steps += [*_fires(4, 6, "streak", "call_count"), *_fires(7, 9, "hedge", state="SLOW")]
    guidance = (
        records.an_injection(0, source="e3", text="rules"),
        records.an_injection(5, source="monitor", text="first"),
        records.an_injection(8, source="e2", text="latest"),
        records.an_injection(9, source="e3", text="rules"),
    )
    call = records.a_call(
        steps=tuple(steps), injections=guidance, runs=(records.a_run(updated_at=records.START + 9),)
    )
    await stores.states.commit(call)
    (live,) = await stores.runs.live_runs(QUERY)
    assert (live.stuck_steps, live.severity) == (6, "danger")
    assert live.newest is not None
    assert (live.newest.step_index, live.newest.content) == (9, None)
    assert live.reasons == {"hedge": "hedge since 7"}
    assert live.guidance is not None
    assert (live.guidance.step_index, live.guidance.text) == (8, "latest")
    assert (live.recent_calls, live.spent_usd) == (7, 7 * 0.25)
    totals = live.run.totals
    assert (totals.injections, totals.advice) == (4, 2)
    assert dict(totals.guidance) == {"e3": 2, "monitor": 1, "e2": 1}


async def a_long_run_is_not_stuck(stores: Stores) -> None:
    """Its monitor alone is a warning, and a step without a call costs nothing."""
    steps = (*_fires(1, 9, "call_count", call=None),)
    await stores.states.commit(records.a_call(steps=steps, runs=(records.a_run(),)))
    (live,) = await stores.runs.live_runs(QUERY)
    assert (live.stuck_steps, live.severity) == (0, "warn")
    assert (live.spent_usd, live.recent_calls, live.guidance) == (None, 0, None)


async def sums_calls_by_time(stores: Stores) -> None:
    """By hour, day and week (from Monday, UTC) of the call; by model asked, agent or tenant."""
    monday = 1_699_833_600  # 2023-11-13 00:00
    moments = (monday - 1, monday, monday + 3599.9, monday + 3600, monday + DAY, monday + 7 * DAY)
    for number, at in enumerate(moments):
        model = "m2" if number == 1 else "small"
        steps = (records.a_step(1, at=at, call=records.a_chat(model_asked=model)),)
        agent = "qa" if number == 2 else "coder"
        await stores.states.commit(records.one_run(number, steps=steps, started_at=at, agent=agent))

    async def starts(bucket: Any, **more: Any) -> list[tuple[int, str, int]]:
        query = UsageQuery(since=monday - DAY, until=monday + 30 * DAY, bucket=bucket, **more)
        found = await stores.runs.usage(query)
        return [(p.start - monday, p.name, p.calls) for p in found if p.calls]

    assert await starts("hour") == [
        (-3600, "", 1),
        (0, "", 2),
        (3600, "", 1),
        (DAY, "", 1),
        (7 * DAY, "", 1),
    ]
    assert await starts("day") == [(-DAY, "", 1), (0, "", 3), (DAY, "", 1), (7 * DAY, "", 1)]
    assert await starts("week") == [(-7 * DAY, "", 1), (0, "", 4), (7 * DAY, "", 1)]
    assert await starts("week", by="model") == [
        (-7 * DAY, "small", 1),
        (0, "m2", 1),
        (0, "small", 3),
        (7 * DAY, "small", 1),
    ]
    in_week = await starts("week", by="agent", model="small")
    assert in_week[1:3] == [(0, "coder", 2), (0, "qa", 1)]
    assert await starts("day", agent="qa") == [(0, "", 1)]
    assert await starts("day", tenant="nobody") == []
    assert {name for _, name, _ in await starts("day", by="tenant")} == {records.TENANT}


async def sums_calls_by_tag(stores: Stores) -> None:
    """By the value of one tag of the run; runs without it have an empty name."""
    for number, tags in enumerate(({"team": "a"}, {"team": "b", "x": "1"}, {"team": "a"}, {})):
        call = records.a_call(
            conversation=records.a_conversation(f"c{number}"),
            runs=(records.a_run(f"r{number}", tags=tags),),
            steps=(records.a_step(1, f"r{number}"),),
        )
        await stores.states.commit(call)
    query = UsageQuery(
        since=records.START - DAY, until=records.START + DAY, bucket="week", by="tag:team"
    )
    found = await stores.runs.usage(query)
    assert [(p.name, p.calls, p.runs) for p in found] == [("", 1, 1), ("a", 2, 2), ("b", 1, 1)]
    found = await stores.runs.usage(dataclasses.replace(query, by="tag:none"))
    assert [(p.name, p.calls, p.runs) for p in found] == [("", 4, 4)]


async def sums_what_calls_were(stores: Stores) -> None:
    """Every number of a point: failed, unsteered, unpriced, estimated, repeated calls."""
    at = float(DAY * 19_000)
    calls = (
        records.a_chat("a"),
        records.a_chat("b", error="cut_off", cost_usd=None),
        records.a_chat("c", unsteered="deadline", latency_s=2.5, usage_estimated=True),
    )
    steps = [
        records.a_step(n, at=at, call=call, fired=("streak",) if n == 2 else ())
        for n, call in enumerate(calls, start=1)
    ]
    conversation = records.a_conversation()
    run = records.a_run(started_at=at, updated_at=at, outcome="success", outcome_source="api")
    record = records.a_call(conversation=conversation, runs=(run,), steps=tuple(steps))
    version = await stores.states.commit(record)
    again = records.a_step(3, at=at, call=records.a_chat("c", latency_s=1.0))
    later = records.a_conversation(version=version)
    await stores.states.commit(records.a_call(conversation=later, runs=(run,), steps=(again,)))
    (point,) = await stores.runs.usage(UsageQuery(since=at, until=at + 1))
    assert (point.calls, point.errors, point.unsteered, point.unpriced_calls) == (4, 1, 1, 1)
    assert (point.steps, point.alarms) == (3, 1)
    assert (point.input_tokens, point.cached_tokens, point.output_tokens) == (400, 320, 80)
    assert (point.cost_usd, point.latency_s) == (0.75, 6.5)
    estimated = (point.estimated_calls, point.estimated_tokens, point.estimated_usd)
    assert estimated == (1, 120, 0.25)
    assert (point.runs, point.successes, point.failures) == (1, 1, 0)
    assert (point.cached_share, point.success_rate) == (0.8, 1.0)
    assert await stores.runs.usage(UsageQuery(since=at + DAY, until=at + 9 * DAY)) == []


async def keeps_usage_of_removed_runs(stores: Stores) -> None:
    """Retention removes a run and its steps, and leaves what they cost."""
    await stores.states.commit(records.one_run(1))
    query = UsageQuery(since=records.START - DAY, until=records.START + DAY)
    before = sum(point.calls for point in await stores.runs.usage(query))
    await stores.runs.prune(older_than=records.START + 999)
    (point,) = await stores.runs.usage(query)
    assert (point.calls, point.runs) == (before, 0)


async def grades_runs_on_one_scale(stores: Stores) -> None:
    """The summary counts runs by the severity that their totals have."""
    kinds: tuple[list[StepRow], ...] = (
        [records.a_step(1)],
        [records.a_step(1, composite=0.35)],
        [records.a_step(1, state="SLOW")],
        _fires(1, 4, "streak"),
        _fires(1, 9, "call_count"),
        _fires(1, 5, "streak"),
        [records.a_step(1, composite=0.6)],
        [records.a_step(1, state="SKIP")],
    )
    for number, steps in enumerate(kinds):
        await stores.states.commit(records.one_run(number, steps=tuple(steps)))
    page = await stores.runs.list_runs(RunFilter(), PageRequest(sort="started_at"))
    graded = [run.totals.worst_severity for run in reversed(page.runs)]
    assert graded == ["low", *["warn"] * 4, *["danger"] * 3]
    summary = await stores.runs.health_summary(RunFilter())
    assert summary.severity_runs == {"low": 1, "warn": 4, "danger": 3}
    assert [run.severity for run in summary.recent] == graded


async def scores_a_step_later(stores: Stores) -> None:
    """A step whose scorer failed takes its scores from a later call, once; its call stays."""
    unscored = records.a_step(
        1, composite=None, difficulty=None, scores={}, fired=(), failure_type=None,
        evidence={}, state="FAST", content=StepContent(reply_text="Called."),
    )  # fmt: skip
    await stores.states.commit(records.a_call(steps=(unscored,)))
    read = StepContent(thought="Read.", actions=(Action(name="bash", arguments="{}"),))
    scored = records.a_step(1, call=None, content=read)
    for version in (1, 2):
        later = records.a_call(
            conversation=records.a_conversation(version=version), steps=(scored, records.a_step(2))
        )
        await stores.states.commit(later)
    trace = await stores.runs.get_run("r1", tenant=records.TENANT)
    assert trace is not None
    whole = replace(read, reply_text="Called.")
    assert trace.steps[0] == replace(scored, at=unscored.at, call=unscored.call, content=whole)
    totals = trace.run.totals
    assert (totals.steps, totals.scored_steps, totals.calls, totals.retries) == (2, 2, 2, 0)
    assert {state: n for state, n in totals.states.items() if n} == {"NORMAL": 2}
    assert abs(totals.composite_sum - 2 * (scored.composite or 0)) < 1e-9
    (point,) = await stores.runs.usage(
        UsageQuery(since=records.START - 3600, until=records.START + 3600)
    )
    assert (point.steps, point.calls) == (2, 2)


async def leaves_imported_runs_out_of_sums(stores: Stores) -> None:
    """They are listed with the others, and are in a sum only where their mode is asked for."""
    assert stores.attribution is not None
    runs, attribution = stores.runs, stores.attribution
    for number, mode in enumerate(("on", IMPORTED, "shadow")):
        await stores.states.commit(
            records.one_run(number, mode=mode, started_at=records.START, updated_at=records.START)
        )
    modes = {None: 3, LIVE: 2, IMPORTED: 1, "shadow": 1}
    for wanted, number in modes.items():
        listed = await runs.list_runs(RunFilter(mode=wanted), PageRequest())
        assert len(listed.runs) == await runs.count_runs(RunFilter(mode=wanted)) == number
        summed = 2 if wanted is None else number
        health = await runs.health_summary(RunFilter(mode=wanted))
        assert (health.total_runs, len(health.recent)) == (summed, summed)
        groups = await attribution.groups(RunFilter(mode=wanted), "tenant")
        assert [group.sums.runs for group in groups] == [summed]
    by_mode = await attribution.groups(RunFilter(), "mode")
    assert sorted(group.value for group in by_mode) == ["on", "shadow"]
    assert [live.run.mode for live in await runs.live_runs(QUERY)] == ["shadow", "on"]
    (point,) = await runs.usage(UsageQuery(since=records.START - 3600, until=records.START + 3600))
    one = (await runs.list_runs(RunFilter(mode=IMPORTED), PageRequest())).runs[0].totals
    assert (point.runs, point.calls, point.steps) == (2, 2 * one.calls, 2 * one.scored_steps)
    assert point.input_tokens == 2 * one.input_tokens > 0


MONITORING_CHECKS: tuple[Check, ...] = (
    lists_runs_under_way,
    leaves_imported_runs_out_of_sums,
    counts_the_steps_a_run_is_stuck,
    a_long_run_is_not_stuck,
    sums_calls_by_time,
    sums_calls_by_tag,
    sums_what_calls_were,
    keeps_usage_of_removed_runs,
    grades_runs_on_one_scale,
    scores_a_step_later,
)
