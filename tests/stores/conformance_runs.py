"""What every RunStore must do, as functions of an empty one and its state store."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from gateway.stores.base import VersionConflict
from gateway.stores.queries import (
    OUTCOMES,
    SORT_KEYS,
    AgentHealth,
    Facets,
    PageRequest,
    RecentRun,
    RunFilter,
)
from gateway.stores.records import StepContent
from gateway.stores.totals import RunRecord
from tests.stores.builders import (
    START,
    TENANT,
    a_call,
    a_chat,
    a_conversation,
    a_first_step,
    a_head,
    a_run,
    a_step,
    an_injection,
    history,
    one_run,
    some_content,
)
from tests.stores.conformance import Check, Stores

EVERY = RunFilter()


async def _ids(stores: Stores, runs: RunFilter = EVERY, **page: Any) -> list[str]:
    found = await stores.runs.list_runs(runs, PageRequest(**page))
    return [run.id for run in found.runs]


async def _only(stores: Stores) -> RunRecord:
    (run,) = (await stores.runs.list_runs(EVERY, PageRequest())).runs
    return run


async def returns_the_whole_trace(stores: Stores) -> None:
    """A run comes back with its description, and every row equal to the one that was saved."""
    update = a_run(sequence=2, experiment="x", arm="on", unit="u", profile="coding", mode="shadow")
    steps = (
        a_first_step(),
        a_step(
            1,
            state="SLOW",
            composite=0.625,
            fired=("streak", "hedge"),
            failure_type="loop",
            evidence={"streak": "bash x4"},
        ),
        a_step(2, call=None, content=None),
    )
    injections = (an_injection(1), an_injection(1, ordinal=1, source="skip", tier=None))
    call = a_call(runs=(update,), steps=steps, injections=injections)
    await stores.states.commit(call)
    trace = await stores.runs.get_run("r1", tenant=TENANT)
    assert trace is not None
    assert trace.steps == steps
    assert trace.injections == injections
    run = trace.run
    assert (run.conversation_id, run.tenant) == ("c1", TENANT)
    for name in type(update).__slots__:
        assert getattr(run, name) == getattr(update, name)


async def adds_up_a_run(stores: Stores) -> None:
    """Totals are the sums over the run's calls and scored steps, over however many commits."""
    await stores.states.commit(a_call())
    fired = a_step(1, composite=0.75, fired=("streak",), failure_type="loop", state="SLOW")
    clean = a_step(2, composite=0.25, call=a_chat(model_asked="large", error="timeout"))
    for version, step in enumerate((fired, clean), start=1):
        call = a_call(
            conversation=a_conversation(version=version),
            runs=(a_run(updated_at=START + version, state=step.state),),
            steps=(step,),
            injections=(an_injection(step.step_index, applied=step is fired),),
        )
        await stores.states.commit(call)
    totals = (await _only(stores)).totals
    assert (totals.steps, totals.scored_steps, totals.calls, totals.errors) == (2, 2, 3, 1)
    assert (totals.input_tokens, totals.cached_tokens, totals.cache_write_tokens) == (300, 240, 15)
    assert (totals.output_tokens, totals.reasoning_tokens) == (60, 21)
    assert (totals.cost_usd, totals.cost_unsteered_usd, totals.saved_usd) == (0.75, 3.0, 2.25)
    assert (totals.composite_peak, totals.composite_mean) == (0.75, 0.5)
    assert (totals.latency_s, totals.overhead_ms, totals.injections) == (4.5, 2.25, 1)
    assert totals.states == {"INIT": 1, "SLOW": 1, "NORMAL": 1}
    assert totals.fired == {"streak": 1}
    assert totals.failure_types == {"loop": 1}
    assert totals.models == {"small": 2, "large": 1}
    assert totals.severity == {"danger": 1, "low": 1}


async def keeps_unknown_costs_unknown(stores: Stores) -> None:
    """A call without a price makes no zero: it is counted, and the sum covers the others."""
    unpriced = a_chat(cost_usd=None, cost_unsteered_usd=None)
    await stores.states.commit(a_call(steps=(a_first_step(call=unpriced),)))
    totals = (await _only(stores)).totals
    assert (totals.cost_usd, totals.saved_usd, totals.unpriced_calls) == (None, None, 1)
    half_known = a_step(1, call=a_chat(cost_unsteered_usd=None))
    call = a_call(conversation=a_conversation(version=1), steps=(half_known,))
    await stores.states.commit(call)
    totals = (await _only(stores)).totals
    assert (totals.cost_usd, totals.unpriced_calls) == (0.25, 1)
    assert (totals.cost_unsteered_usd, totals.saved_usd) == (None, None)


async def records_a_retry_on_its_step(stores: Stores) -> None:
    """The same request again is no new step: its spending adds up, its reply is the newest."""
    first, again = (
        a_step(1),
        a_step(
            1,
            state="SKIP",
            composite=1.0,
            call=a_chat("again", status=200, cached_tokens=None, attempts=2),
            content=some_content(reply_text="Second."),
        ),
    )
    await stores.states.commit(a_call(steps=(first,), injections=(an_injection(),)))
    retry = a_call(
        conversation=a_conversation(version=1), steps=(again,), injections=(an_injection(),)
    )
    await stores.states.commit(retry)
    trace = await stores.runs.get_run("r1", tenant=TENANT)
    assert trace is not None
    (step,) = trace.steps
    assert (step.state, step.composite) == (first.state, first.composite)
    assert step.call is not None
    assert (step.call.request_id, step.call.retries, step.call.attempts) == ("again", 1, 3)
    assert (step.call.input_tokens, step.call.cached_tokens, step.call.cost_usd) == (200, 80, 0.5)
    assert step.content is not None
    assert step.content.reply_text == "Second."
    totals = trace.run.totals
    assert (totals.steps, totals.scored_steps, totals.calls, totals.retries) == (1, 1, 2, 1)
    assert (totals.cost_usd, totals.injections) == (0.5, 1)
    assert totals.states == {"NORMAL": 1}
    assert len(trace.injections) == 1


async def adds_the_call_to_a_step_known_before(stores: Stores) -> None:
    """A step first learnt of without a call takes the call later; that is no retry."""
    await stores.states.commit(a_call(steps=(a_step(1, call=None),)))
    same = a_call(conversation=a_conversation(version=1), steps=(a_step(1, call=None),))
    await stores.states.commit(same)
    later = a_call(conversation=a_conversation(version=2), steps=(a_step(1, content=None),))
    await stores.states.commit(later)
    trace = await stores.runs.get_run("r1", tenant=TENANT)
    assert trace is not None
    assert trace.steps == (a_step(1),)
    totals = trace.run.totals
    assert (totals.scored_steps, totals.calls, totals.retries) == (1, 1, 0)


async def keeps_what_the_first_call_said(stores: Stores) -> None:
    """Later calls move a run on; its start, its task and its arm stay the first one's."""
    await stores.states.commit(a_call(runs=(a_run(experiment="x", arm="on", unit="u"),)))
    later = a_run(
        sequence=9,
        started_at=START + 50,
        updated_at=START + 60,
        ended_at=START + 61,
        state="END",
        agent="other",
        task_preview="other",
        experiment="y",
        arm="off",
        unit="v",
        mode="off",
        policy_digest="p2",
        model_requested="larger",
    )
    call = a_call(conversation=a_conversation(version=1), runs=(later,), steps=())
    await stores.states.commit(call)
    run = await _only(stores)
    assert (run.sequence, run.started_at, run.agent) == (0, START, "coder")
    assert (run.experiment, run.arm, run.unit) == ("x", "on", "u")
    assert (run.state, run.updated_at, run.ended_at) == ("END", START + 60, START + 61)
    assert (run.mode, run.policy_digest, run.model_requested) == ("off", "p2", "larger")
    reopened = replace(later, ended_at=None)
    call = a_call(conversation=a_conversation(version=2), runs=(reopened,), steps=())
    await stores.states.commit(call)
    assert (await _only(stores)).ended_at == START + 61


async def keeps_two_runs_of_one_call_apart(stores: Stores) -> None:
    """A call that ends one run and begins the next writes to both."""
    call = a_call(
        runs=(a_run("r1", state="END", ended_at=START + 1), a_run("r2", sequence=1)),
        steps=(a_step(1, "r1", call=None), a_first_step("r2")),
    )
    await stores.states.commit(call)
    first = await stores.runs.get_run("r1", tenant=TENANT)
    second = await stores.runs.get_run("r2", tenant=TENANT)
    assert first is not None
    assert second is not None
    assert (first.run.totals.calls, second.run.totals.calls) == (0, 1)
    assert [step.step_index for step in first.steps] == [1]
    assert [step.step_index for step in second.steps] == [0]


async def shows_a_run_in_part(stores: Stores) -> None:
    """A trace can be had without texts, from a step on, and up to another."""
    steps = (a_first_step(), a_step(1), a_step(2))
    injections = (an_injection(1), an_injection(2))
    await stores.states.commit(a_call(steps=steps, injections=injections))
    bare = await stores.runs.get_run("r1", tenant=TENANT, content=False)
    tail = await stores.runs.get_run("r1", tenant=TENANT, after_step=1)
    assert bare is not None
    assert tail is not None
    assert bare.steps == tuple(replace(step, content=None) for step in steps)
    assert (tail.steps, tail.injections) == (steps[2:], injections[1:])
    middle = await stores.runs.get_run("r1", tenant=TENANT, after_step=0, limit=1)
    assert middle is not None
    assert (middle.steps, middle.injections) == (steps[1:2], injections[:1])


async def takes_outcomes(stores: Stores) -> None:
    """An outcome is set from outside, replaced by the next, and refused when it is no outcome."""
    await stores.states.commit(a_call())
    assert (await _only(stores)).outcome is None
    for outcome in OUTCOMES:
        assert await stores.runs.set_outcome("r1", outcome, source="api", tenant=TENANT)
        run = await _only(stores)
        assert (run.outcome, run.outcome_source) == (outcome, "api")
    assert await stores.runs.set_outcome("r1", "success", source="cli", tenant=None)
    assert not await stores.runs.set_outcome("r2", "success", source="api", tenant=TENANT)
    assert not await stores.runs.set_outcome("r1", "failure", source="api", tenant="other")
    assert (await _only(stores)).outcome == "success"
    with pytest.raises(ValueError, match="outcome"):
        await stores.runs.set_outcome("r1", "great", source="api", tenant=TENANT)


async def prefers_reported_outcomes(stores: Stores) -> None:
    """A derived outcome yields to a reported one, and never replaces it."""
    said = [("success", "derived"), ("failure", "header"), ("success", "derived"), (None, "")]
    seen = []
    for version, (outcome, source) in enumerate(said):
        run = a_run(outcome=outcome, outcome_source=source)
        call = a_call(conversation=a_conversation(version=version), runs=(run,), steps=())
        await stores.states.commit(call)
        seen.append((await _only(stores)).outcome)
    assert seen == ["success", "failure", "failure", "failure"]


async def filters_runs(stores: Stores) -> None:
    """Each filter admits the runs that fit it and no others, and so do filters together."""
    special: dict[str, Any] = {
        "tenant": "other",
        "agent": "qa-bot",
        "experiment": "x",
        "arm": "off",
        "mode": "shadow",
        "model_requested": "huge",
        "state": "END",
        "outcome": "failure",
        "task_preview": "100% of the_docs",
    }
    odd = a_step(
        1, state="SKIP", fired=("hedge",), failure_type="hedge", call=a_chat(model_asked="tiny")
    )
    await stores.states.commit(one_run(1))
    await stores.states.commit(one_run(2, steps=(odd,), **special))
    await stores.states.commit(one_run(3))
    filters: list[tuple[dict[str, Any], set[int]]] = [
        ({}, {1, 2, 3}),
        ({"tenant": TENANT}, {1, 3}),
        ({"tenant": "other"}, {2}),
        ({"conversation_id": "c0003"}, {3}),
        ({"conversation_id": "nothing"}, set()),
        ({"agent": "qa-bot"}, {2}),
        ({"experiment": "x"}, {2}),
        ({"arm": "off"}, {2}),
        ({"mode": "on"}, {1, 3}),
        ({"model": "tiny"}, {2}),
        ({"model": "huge"}, {2}),
        ({"model": "small"}, {1, 3}),
        ({"state": "END"}, {2}),
        ({"state": "SKIP"}, {2}),
        ({"state": "NORMAL"}, {1, 3}),
        ({"failure_type": "hedge"}, {2}),
        ({"monitor": "hedge"}, {2}),
        ({"monitor": "streak"}, set()),
        ({"outcome": "failure"}, {2}),
        ({"outcome": "unfinished"}, {1, 3}),
        ({"since": START + 2}, {2, 3}),
        ({"until": START + 2}, {1}),
        ({"since": START + 2, "until": START + 3}, {2}),
        ({"task": "FAILING"}, {1, 3}),
        ({"task": "100% of the_"}, {2}),
        ({"task": "100_"}, set()),
        ({"task": "%"}, {2}),
        ({"tenant": TENANT, "state": "SKIP"}, set()),
        ({"arm": "off", "model": "tiny", "task": "docs"}, {2}),
    ]
    for wanted, expected in filters:
        runs = RunFilter(**wanted)
        found = await _ids(stores, runs)
        assert {int(run_id[1:]) for run_id in found} == expected, wanted
        assert await stores.runs.count_runs(runs) == len(expected), wanted


async def orders_runs(stores: Stores) -> None:
    """Every sort key orders both ways, and an unknown cost is below zero."""
    costs = {1: 0.5, 2: None, 3: 0.0}
    for number, cost in costs.items():
        step = a_step(
            4 - number,
            composite=number / 10,
            call=a_chat(cost_usd=cost, input_tokens=number * 7 % 10),
        )
        run_id = f"r{number:04}"
        call = one_run(number, steps=(step,), updated_at=START + 100 - number)
        await stores.states.commit(replace(call, steps=(replace(step, run_id=run_id),)))
    ascending = {
        "started_at": [1, 2, 3],
        "updated_at": [3, 2, 1],
        "steps": [3, 2, 1],
        "tokens": [3, 2, 1],
        "cost": [2, 3, 1],
        "peak": [1, 2, 3],
    }
    # 7, 14 % 10 = 4, 21 % 10 = 1 input tokens; equal output.
    assert set(ascending) == set(SORT_KEYS)
    for sort, order in ascending.items():
        expected = [f"r{number:04}" for number in order]
        assert await _ids(stores, sort=sort, descending=False) == expected, sort
        assert await _ids(stores, sort=sort, descending=True) == expected[::-1], sort


async def pages_through_runs(stores: Stores) -> None:
    """Pages follow each other without a gap or a repeat, ties and later arrivals included."""
    for number in range(7):
        await stores.states.commit(one_run(number, started_at=START + number // 3))
    for sort in ("started_at", "peak"):
        for descending in (True, False):
            seen: list[str] = []
            page = PageRequest(limit=2, sort=sort, descending=descending)
            while True:
                found = await stores.runs.list_runs(EVERY, page)
                assert len(found.runs) <= 2
                seen += [run.id for run in found.runs]
                if found.next_cursor is None:
                    break
                page = replace(page, cursor=found.next_cursor)
            whole = await _ids(stores, sort=sort, descending=descending)
            assert seen == whole
            assert len(set(seen)) == 7


async def refuses_foreign_cursors(stores: Stores) -> None:
    """A cursor that is not one of ours is a ValueError, for runs and for conversations."""
    for cursor in ("", "x", "!!!", "bnVsbA", "WzEsMl0", "W3RydWUsInIiXQ", "é"):
        with pytest.raises(ValueError, match="cursor"):
            await stores.runs.list_runs(EVERY, PageRequest(cursor=cursor))
        with pytest.raises(ValueError, match="cursor"):
            await stores.runs.list_conversations(tenant=None, cursor=cursor)


async def hides_other_tenants(stores: Stores) -> None:
    """One tenant's runs and conversations are not there for another, by any method."""
    await stores.states.commit(one_run(1, experiment="x"))
    await stores.states.commit(one_run(2, tenant="other", agent="b", experiment="x"))
    mine = RunFilter(tenant=TENANT)
    assert await _ids(stores, mine) == ["r0001"]
    assert await stores.runs.count_runs(mine) == 1
    assert await stores.runs.get_run("r0002", tenant=TENANT) is None
    assert await stores.runs.get_run("r0002", tenant=None) is not None
    conversations = await stores.runs.list_conversations(tenant=TENANT)
    assert [record.id for record in conversations.conversations] == ["c0001"]
    assert (await stores.runs.facets(tenant=TENANT)).agents == ("coder",)
    assert (await stores.runs.health_summary(mine)).total_runs == 1
    experiment = await stores.runs.experiment_runs("x", tenant=TENANT)
    assert [run.id for run in experiment] == ["r0001"]
    assert [trace.run.id async for trace in stores.runs.export_runs(mine)] == ["r0001"]


async def lists_conversations(stores: Stores) -> None:
    """Conversations come newest first, page by page, with how many runs they have."""
    for number in range(5):
        await stores.states.commit(one_run(number))
    keyed = a_conversation("keyed", external_key="k", created_at=START - 1)
    await stores.states.commit(a_call(conversation=keyed, runs=(), steps=()))
    pages, cursor = [], None
    while True:
        page = await stores.runs.list_conversations(tenant=TENANT, limit=4, cursor=cursor)
        pages.append(page.conversations)
        if (cursor := page.next_cursor) is None:
            break
    assert [len(page) for page in pages] == [4, 2]
    listed = [*pages[0], *pages[1]]
    assert [record.id for record in listed] == [*(f"c000{n}" for n in (4, 3, 2, 1, 0)), "keyed"]
    assert [record.runs for record in listed] == [1, 1, 1, 1, 1, 0]
    (found,) = (await stores.runs.list_conversations(tenant=TENANT, external_key="k")).conversations
    assert (found.id, found.external_key, found.version) == ("keyed", "k", 1)


async def names_what_occurs(stores: Stores) -> None:
    """Facets are the distinct values there are, sorted, without the empty ones."""
    assert await stores.runs.facets(tenant=None) == Facets()
    fired = a_step(1, failure_type="loop", call=a_chat(model_asked="b"))
    await stores.states.commit(one_run(1, agent="z", experiment="x2", arm="on", steps=(fired,)))
    await stores.states.commit(one_run(2, agent="", experiment="x1", arm="off"))
    await stores.states.commit(one_run(3, agent="a", experiment="x1", arm="on"))
    assert await stores.runs.facets(tenant=None) == Facets(
        agents=("a", "z"),
        models=("b", "small"),
        failure_types=("loop",),
        experiments=("x1", "x2"),
        arms=("off", "on"),
    )


async def summarizes_nothing(stores: Stores) -> None:
    """Without runs every figure is zero, and cost unknown."""
    summary = await stores.runs.health_summary(EVERY)
    assert (summary.total_runs, summary.clean_run_rate, summary.mean_composite) == (0, 0.0, 0.0)
    assert (summary.cost_usd, summary.saved_usd, summary.cached_share) == (None, None, 0.0)
    assert (summary.by_agent, summary.recent, dict(summary.fires)) == ((), (), {})


async def summarizes_health(stores: Stores) -> None:
    """The figures of reference section 12: clean runs, fires, severity, states, per agent."""
    bad = (
        a_step(1, composite=0.75, fired=("streak", "hedge"), failure_type="loop", state="SLOW"),
        a_step(2, composite=0.5, fired=("streak",), state="SLOW"),
    )
    await stores.states.commit(one_run(1, outcome="success", outcome_source="api"))
    await stores.states.commit(one_run(2, steps=bad, agent="qa", outcome="failure"))
    await stores.states.commit(one_run(3, steps=(a_step(1, composite=0.3499),)))
    await stores.states.commit(one_run(4, steps=(a_step(1, composite=0.35, call=None),)))
    summary = await stores.runs.health_summary(EVERY)
    assert (summary.total_runs, summary.total_steps, summary.runs_with_fires) == (4, 5, 1)
    assert (summary.success_runs, summary.failure_runs) == (1, 1)
    assert (summary.clean_runs, summary.clean_run_rate) == (2, 0.5)
    assert summary.mean_composite == round((0.25 + 0.75 + 0.5 + 0.3499 + 0.35) / 5, 4)
    assert summary.peak_composite == 0.75
    assert summary.fires == {"streak": 2, "hedge": 1}
    assert summary.severity == {"low": 2, "warn": 2, "danger": 1}
    assert summary.states == {"INIT": 1, "NORMAL": 3, "SLOW": 2}
    assert summary.failure_types == {"loop": 1}
    assert summary.models == {"small": 5}
    assert (summary.calls, summary.input_tokens, summary.cached_share) == (5, 500, 0.8)
    assert (summary.cost_usd, summary.saved_usd, summary.unpriced_calls) == (1.25, 3.75, 0)
    assert summary.by_agent == (
        AgentHealth(
            agent="coder",
            runs=3,
            mean_composite=round((0.25 + 0.3499 + 0.35) / 3, 4),
            peak_composite=0.35,
        ),
        AgentHealth(agent="qa", runs=1, mean_composite=0.625, peak_composite=0.75),
    )
    assert [run.run_id for run in summary.recent] == ["r0001", "r0002", "r0003", "r0004"]
    assert summary.recent[1] == RecentRun(
        run_id="r0002", started_at=START + 2, steps=2, mean_composite=0.625, peak_composite=0.75
    )
    late = await stores.runs.health_summary(RunFilter(since=START + 3))
    assert (late.total_runs, late.runs_with_fires) == (2, 0)


async def shows_the_last_thirty_runs(stores: Stores) -> None:
    """The sparkline holds the newest thirty runs, oldest first."""
    for number in range(33):
        await stores.states.commit(one_run(number, steps=()))
    recent = (await stores.runs.health_summary(EVERY)).recent
    assert [run.run_id for run in recent] == [f"r{number:04}" for number in range(3, 33)]


async def exports_everything_in_order(stores: Stores) -> None:
    """An export gives each admitted run once, oldest first, with its rows; more than a page."""
    for number in reversed(range(205)):
        await stores.states.commit(one_run(number, experiment="x" if number % 2 else None))
    seen = [trace async for trace in stores.runs.export_runs(EVERY)]
    assert [trace.run.id for trace in seen] == [f"r{number:04}" for number in range(205)]
    assert all(len(trace.steps) == 2 for trace in seen)
    bare = [trace async for trace in stores.runs.export_runs(EVERY, content=False)]
    assert all(step.content is None for trace in bare for step in trace.steps)
    experiment = await stores.runs.experiment_runs("x", tenant=None)
    assert [run.id for run in experiment] == [f"r{number:04}" for number in range(1, 205, 2)]


async def removes_what_is_old(stores: Stores) -> None:
    """Age removes runs and conversations not touched since, with all their rows and heads."""
    whole = history("old", 3)
    for number in range(30):
        call = one_run(number, steps=(a_first_step(), a_step(1)))
        head = a_head(call.conversation.id, whole if number < 20 else history(f"n{number}", 3))
        await stores.states.commit(replace(call, heads=(head,)))
    lively = a_call(
        conversation=a_conversation("lively", created_at=START, updated_at=START + 100),
        runs=(a_run("old-run"), a_run("new-run", updated_at=START + 100)),
        steps=(a_first_step("old-run"), a_first_step("new-run")),
        injections=(an_injection(0, "old-run"),),
    )
    await stores.states.commit(lively)
    report = await stores.runs.prune(older_than=START + 25)
    assert (report.conversations, report.runs) == (25, 26)
    assert report.bytes_after <= report.bytes_before
    assert set(await _ids(stores)) == {"new-run", *(f"r{number:04}" for number in range(25, 30))}
    assert await stores.states.find_heads(TENANT, whole) == []
    assert await stores.states.load(TENANT, "c0003") is None
    assert await stores.states.load(TENANT, "lively") is not None
    assert await stores.runs.get_run("old-run", tenant=None) is None
    (kept,) = await stores.states.find_heads(TENANT, history("n29", 3))
    assert kept.conversation_id == "c0029"


async def starts_anew_after_removal(stores: Stores) -> None:
    """A removed conversation conflicts with version 0, and can then begin again."""
    await stores.states.commit(a_call(heads=(a_head("c1", history("a", 2)),)))
    await stores.runs.prune(older_than=START + 1)
    with pytest.raises(VersionConflict):
        await stores.states.commit(a_call(conversation=a_conversation(version=1)))
    assert await stores.states.commit(a_call()) == 1
    assert await stores.states.find_heads(TENANT, history("a", 2)) == []
    trace = await stores.runs.get_run("r1", tenant=TENANT)
    assert trace is not None
    assert len(trace.steps) == 1


async def makes_room(stores: Stores) -> None:
    """Over its size, the longest untouched go first, and what is in use stays."""
    text = "x" * 20_000
    for number in range(60):
        step = a_first_step(content=StepContent(thought=text))
        await stores.states.commit(one_run(number, steps=(step,)))
    idle = await stores.runs.prune(max_bytes=10**9)
    assert (idle.conversations, idle.runs) == (0, 0)
    report = await stores.runs.prune(max_bytes=idle.bytes_before // 2)
    assert 0 < report.conversations < 60
    assert report.runs == report.conversations
    assert report.bytes_after <= idle.bytes_before // 2
    left = await _ids(stores, descending=False, limit=100)
    assert left == [f"r{number:04}" for number in range(60 - len(left), 60)]
    active = START + 60 - 3
    await stores.runs.prune(max_bytes=0, active_since=active)
    assert await _ids(stores, descending=False) == ["r0057", "r0058", "r0059"]


RUN_CHECKS: tuple[Check, ...] = (
    returns_the_whole_trace,
    adds_up_a_run,
    keeps_unknown_costs_unknown,
    records_a_retry_on_its_step,
    adds_the_call_to_a_step_known_before,
    keeps_what_the_first_call_said,
    keeps_two_runs_of_one_call_apart,
    shows_a_run_in_part,
    takes_outcomes,
    prefers_reported_outcomes,
    filters_runs,
    orders_runs,
    pages_through_runs,
    refuses_foreign_cursors,
    hides_other_tenants,
    lists_conversations,
    names_what_occurs,
    summarizes_nothing,
    summarizes_health,
    shows_the_last_thirty_runs,
    exports_everything_in_order,
    removes_what_is_old,
    starts_anew_after_removal,
    makes_room,
)
