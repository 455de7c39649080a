"""Checks of RunStore: lists, filters, summaries, exports."""

from __future__ import annotations

import dataclasses
from typing import Any

from msgspec.structs import replace

from gateway.backends import Stores
from gateway.core.step import Action
from gateway.errors import BudgetExceeded
from gateway.stores.filters import Facets, RunFilter
from gateway.stores.health import SPREAD, AgentHealth, RecentRun
from gateway.stores.lists import SORT_KEYS, PageRequest
from gateway.stores.records import PromptMessage
from gateway.stores.totals import HAND_OVER
from steering_gateway_testing.store_conformance import records
from steering_gateway_testing.store_conformance.check import Check, raises

EVERY = RunFilter()
# What the record of a run in an experiment has in common with that of a run, and with its totals.
_DESCRIBED = (
    *("id", "started_at", "arm", "outcome", "profile", "agent", "model_requested", "tenant"),
    "policy_digest",
)
_SUMMED = (
    *("steps", "scored_steps", "input_tokens", "cached_tokens", "composite_peak"),
    *("composite_sum", "injections", "models", "estimated"),
)

_ODD_RUN: dict[str, Any] = {
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
# Of three runs, of which the second is the odd one.
_MATCHES: tuple[tuple[dict[str, Any], set[int]], ...] = (
    ({}, {1, 2, 3}),
    ({"tenant": records.TENANT}, {1, 3}),
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
    ({"since": records.START + 2}, {2, 3}),
    ({"until": records.START + 2}, {1}),
    ({"since": records.START + 2, "until": records.START + 3}, {2}),
    ({"task": "FAILING"}, {1, 3}),
    ({"task": "100% of the_"}, {2}),
    ({"task": "100_"}, set()),
    ({"task": "%"}, {2}),
    ({"severity": "danger"}, {2}),
    ({"severity": "low"}, {1, 3}),
    ({"severity": "warn"}, set()),
    ({"search": "failing TEST"}, {1, 3}),
    ({"search": "fail tes"}, {1, 3}),
    ({"search": "te"}, set()),
    ({"search": '"test failing"'}, set()),
    ({"search": "the-docs"}, {2}),
    ({"search": "docs denied"}, {2}),
    ({"search": "listing"}, set()),
    ({"search": "größer"}, {2}),
    ({"search": "' OR \"* NOT ^(a:b) \\ \x00 & | !"}, set()),
    ({"search": "***"}, set()),
    ({"search": " "}, {1, 2, 3}),
    ({"search": "rate_limit"}, {2}),
    ({"tenant": records.TENANT, "state": "SKIP"}, set()),
    ({"arm": "off", "model": "tiny", "task": "docs"}, {2}),
)


async def _ids(stores: Stores, runs: RunFilter = EVERY, **page: Any) -> list[str]:
    found = await stores.runs.list_runs(runs, PageRequest(**page))
    return [run.id for run in found.runs]


async def filters_runs(stores: Stores) -> None:
    """Each filter, and each combination, selects exactly the runs that match."""
    failed = Action(name="bash", arguments="{}", observation="Permission denied", is_error=True)
    said = PromptMessage(role="user", text="Größer, \x00 bitte.")
    odd = records.a_step(
        1,
        state="SKIP",
        fired=("hedge",),
        failure_type="hedge",
        call=records.a_chat(model_asked="tiny", error="rate_limit"),
        content=records.some_content(messages=(said,), actions=(failed,)),
    )
    await stores.states.commit(records.one_run(1))
    await stores.states.commit(records.one_run(2, steps=(odd,), **_ODD_RUN))
    await stores.states.commit(records.one_run(3))
    for wanted, expected in _MATCHES:
        runs = RunFilter(**wanted)
        found = await _ids(stores, runs)
        assert {int(run_id[1:]) for run_id in found} == expected, wanted
        assert await stores.runs.count_runs(runs) == len(expected), wanted


async def filters_by_any_name(stores: Stores) -> None:
    """Also by names that JSON escapes, and not by a part of one."""
    names = ('say "hi"', "back\\slash", "tab\tand\x1f", "größer/é", "$.x", "x")
    for number, name in enumerate(names, start=1):
        step = records.a_step(1, call=records.a_chat(model_asked=name))
        await stores.states.commit(records.one_run(number, steps=(step,)))
    for number, name in enumerate(names, start=1):
        assert await _ids(stores, RunFilter(model=name)) == [f"r{number:04}"], name
    assert await _ids(stores, RunFilter(model="hi")) == []


async def searches_results_of_tools(stores: Stores) -> None:
    """The beginning and the end of each result are found, together with words of other texts, and
    no longer once the run is removed; a text of no use to the database stops no other."""
    long = f"Traceback TypeError {'x ' * 3000}midway {'y ' * 3000} the end: 3 failed\x00"
    results = ("ok", long)
    for number, result in enumerate(results, start=1):
        action = Action(name="bash", arguments="{}", observation=result)
        step = records.a_step(1, content=records.some_content(actions=(action,)))
        await stores.states.commit(records.one_run(number, steps=(step,)))
    found = {"typeerror": {2}, '"3 failed"': {2}, "midway": set(), "Failing typeerror": {2}}
    for words, expected in found.items():
        got = {int(name[1:]) for name in await _ids(stores, RunFilter(search=words))}
        assert got == expected, words
    for number in range(3, 700):  # more than one batch of them
        action = Action(name="bash", arguments="{}", observation=f"result{number}")
        step = records.a_step(1, content=records.some_content(actions=(action,)))
        await stores.states.commit(records.one_run(number, steps=(step,)))
    for number in (3, 300, 699):
        assert await stores.runs.count_runs(RunFilter(search=f'"result{number}"')) == 1, number
    assert not await stores.runs.index_results()
    await stores.runs.prune(older_than=records.START + 1e6)
    assert await stores.runs.count_runs(RunFilter(search="typeerror")) == 0


async def spreads_runs(stores: Stores) -> None:
    """Median and 95th percentile of what has a value."""
    nothing = (await stores.runs.newest_runs(EVERY)).spread
    assert (nothing.runs, nothing.p50) == (0, dict.fromkeys(SPREAD))
    for number in range(1, 21):
        took = records.START + number * 2
        call = records.one_run(
            number, steps=(records.a_step(1, call=records.a_chat(cost_usd=None)),), updated_at=took
        )
        await stores.states.commit(call)
    found = (await stores.runs.newest_runs(EVERY)).spread
    assert (found.runs, found.p50["cost_usd"], found.p95["calls"]) == (20, None, 1)
    assert (found.p50["duration_s"], found.p95["duration_s"]) == (10, 19)
    assert ((await stores.runs.newest_runs(RunFilter(agent="nobody"))).spread).runs == 0


async def a_common_word_is_found_in_the_newest_runs(stores: Stores) -> None:
    """A search gives the newest runs with its words, whether most runs have them or few, in
    whatever order they were stored; `until` leads on to all others."""
    words = {"every": range(210), "half": range(0, 210, 2), "old": range(5), "few": (3, 205)}
    for number in reversed(range(210)):
        task = " ".join(word for word, numbers in words.items() if number in numbers)
        await stores.states.commit(records.one_run(number, task_preview=task))
    for word, numbers in words.items():
        newest = await stores.runs.newest_runs(RunFilter(search=word))
        seen = sorted(newest.sessions, reverse=True)
        assert seen == [f"c{n:04}" for n in sorted(numbers, reverse=True)][: len(seen)], word
        assert newest.every == (word in ("old", "few")), word
        assert newest.spread.runs == len(seen) >= min(len(numbers), 50), word
        if not newest.every:
            wanted = RunFilter(search=word, until=newest.oldest)
            seen += (await stores.runs.newest_runs(wanted)).sessions
        assert set(seen) == {f"c{n:04}" for n in numbers}, word


async def forgets_the_words_of_removed_runs(stores: Stores) -> None:
    """A removed run is found no more, also when its number is given to another one."""
    await stores.states.commit(records.one_run(1, task_preview="an unusual wish"))
    assert await stores.runs.count_runs(RunFilter(search="unusual")) == 1
    await stores.runs.prune(older_than=records.START + 1000)
    await stores.states.commit(
        records.one_run(2, started_at=records.START + 2000, updated_at=records.START + 2000)
    )
    assert await stores.runs.count_runs(RunFilter(search="unusual")) == 0


async def orders_runs(stores: Stores) -> None:
    """Every sort key works in both directions, and an unknown cost sorts below zero."""
    costs = {1: 0.5, 2: None, 3: 0.0}
    for number, cost in costs.items():
        step = records.a_step(
            4 - number,
            composite=number / 10,
            call=records.a_chat(cost_usd=cost, input_tokens=number * 7 % 10),
        )
        run_id = f"r{number:04}"
        call = records.one_run(number, steps=(step,), updated_at=records.START + 100 - number)
        await stores.states.commit(replace(call, steps=(replace(step, run_id=run_id),)))
    ascending = {
        "started_at": [1, 2, 3],
        "updated_at": [3, 2, 1],
        "duration": [3, 2, 1],
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
    """Pages have no gaps and no repetitions, also where runs have equal sort values."""
    for number in range(7):
        await stores.states.commit(records.one_run(number, started_at=records.START + number // 3))
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
                page = dataclasses.replace(page, cursor=found.next_cursor)
            whole = await _ids(stores, sort=sort, descending=descending)
            assert seen == whole
            assert len(set(seen)) == 7


async def refuses_invalid_cursors(stores: Stores) -> None:
    """An invalid cursor is a ValueError, for runs and for conversations."""
    for cursor in ("", "x", "!!!", "bnVsbA", "WzEsMl0", "W3RydWUsInIiXQ", "é"):
        with raises(ValueError, "cursor"):
            await stores.runs.list_runs(EVERY, PageRequest(cursor=cursor))
        with raises(ValueError, "cursor"):
            await stores.runs.list_conversations(tenant=None, cursor=cursor)


async def hides_other_tenants(stores: Stores) -> None:
    """No method shows one tenant's runs or conversations to another."""
    await stores.states.commit(records.one_run(1, experiment="x"))
    await stores.states.commit(records.one_run(2, tenant="other", agent="b", experiment="x"))
    mine = RunFilter(tenant=records.TENANT)
    assert await _ids(stores, mine) == ["r0001"]
    assert await stores.runs.count_runs(mine) == 1
    assert await stores.runs.get_run("r0002", tenant=records.TENANT) is None
    assert await stores.runs.get_run("r0002", tenant=None) is not None
    conversations = await stores.runs.list_conversations(tenant=records.TENANT)
    assert [record.id for record in conversations.conversations] == ["c0001"]
    assert (await stores.runs.facets(tenant=records.TENANT)).agents == ("coder",)
    assert (await stores.runs.health_summary(mine)).total_runs == 1
    experiment = await stores.runs.experiment_runs("x", tenant=records.TENANT)
    assert [run.id for run in experiment] == ["r0001"]
    assert [trace.run.id async for trace in stores.runs.export_runs(mine)] == ["r0001"]


async def lists_conversations(stores: Stores) -> None:
    """Conversations come newest first, page by page, with the number of their runs."""
    for number in range(5):
        await stores.states.commit(records.one_run(number))
    keyed = records.a_conversation("keyed", external_key="k", created_at=records.START - 1)
    await stores.states.commit(records.a_call(conversation=keyed, runs=(), steps=()))
    pages, cursor = [], None
    while True:
        page = await stores.runs.list_conversations(tenant=records.TENANT, limit=4, cursor=cursor)
        pages.append(page.conversations)
        if (cursor := page.next_cursor) is None:
            break
    assert [len(page) for page in pages] == [4, 2]
    listed = [*pages[0], *pages[1]]
    assert [record.id for record in listed] == [*(f"c000{n}" for n in (4, 3, 2, 1, 0)), "keyed"]
    assert [record.runs for record in listed] == [1, 1, 1, 1, 1, 0]
    (found,) = (
        await stores.runs.list_conversations(tenant=records.TENANT, external_key="k")
    ).conversations
    assert (found.id, found.external_key, found.version) == ("keyed", "k", 1)


async def lists_the_values_that_occur(stores: Stores) -> None:
    """Facets are the distinct values in the runs, sorted, without empty ones."""
    assert await stores.runs.facets(tenant=None) == Facets()
    fired = records.a_step(1, failure_type="loop", call=records.a_chat(model_asked="b"))
    await stores.states.commit(
        records.one_run(1, agent="z", experiment="x2", arm="on", steps=(fired,))
    )
    await stores.states.commit(records.one_run(2, agent="", experiment="x1", arm="off"))
    tags = {"team": "web", "owner": "ann"}
    await stores.states.commit(records.one_run(3, agent="a", experiment="x1", arm="on", tags=tags))
    assert await stores.runs.facets(tenant=None) == Facets(
        agents=("a", "z"),
        models=("b", "small"),
        failure_types=("loop",),
        experiments=("x1", "x2"),
        arms=("off", "on"),
        tags=("owner", "team"),
    )


async def summarizes_nothing(stores: Stores) -> None:
    """Without runs every number is zero, and the cost unknown."""
    summary = await stores.runs.health_summary(EVERY)
    assert (summary.total_runs, summary.clean_run_rate, summary.mean_composite) == (0, 0.0, 0.0)
    assert (summary.cost_usd, summary.saved_usd, summary.cached_share) == (None, None, 0.0)
    assert (summary.by_agent, summary.recent, dict(summary.fires)) == ((), (), {})


async def summarizes_health(stores: Stores) -> None:
    """Clean runs, fires, severity and states, per agent. Source: docs/names.md, the dashboard."""
    bad = (
        records.a_step(
            1, composite=0.75, fired=("streak", "hedge"), failure_type="loop", state="SLOW"
        ),
        records.a_step(2, composite=0.5, fired=("streak",), state="SLOW"),
    )
    await stores.states.commit(records.one_run(1, outcome="success", outcome_source="api"))
    await stores.states.commit(records.one_run(2, steps=bad, agent="qa", outcome="failure"))
    await stores.states.commit(records.one_run(3, steps=(records.a_step(1, composite=0.3499),)))
    await stores.states.commit(
        records.one_run(4, steps=(records.a_step(1, composite=0.35, call=None),))
    )
    summary = await stores.runs.health_summary(EVERY)
    assert (summary.total_runs, summary.total_steps, summary.runs_with_fires) == (4, 5, 1)
    assert (summary.success_runs, summary.failure_runs) == (1, 1)
    assert (summary.clean_runs, summary.clean_run_rate) == (2, 0.5)
    assert summary.mean_composite == round((0.25 + 0.75 + 0.5 + 0.3499 + 0.35) / 5, 4)
    assert summary.peak_composite == 0.75
    assert summary.fires == {"streak": 2, "hedge": 1}
    assert summary.severity == {"low": 2, "warn": 2, "danger": 1}
    assert summary.steps_by_severity == {"no-alarm": 2, "at-risk": 2, "in-trouble": 1}
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
        run_id="r0002",
        started_at=records.START + 2,
        steps=2,
        mean_composite=0.625,
        peak_composite=0.75,
        severity_word="in-trouble",
        severity="danger",
    )
    assert summary.severity_runs == {"low": 2, "warn": 1, "danger": 1}
    assert summary.runs_by_severity == {"no-alarm": 2, "at-risk": 1, "in-trouble": 1}
    late = await stores.runs.health_summary(RunFilter(since=records.START + 3))
    assert (late.total_runs, late.runs_with_fires) == (2, 0)


async def marks_runs_that_were_handed_over(stores: Stores) -> None:
    """By the first step at which the text was given, and by the first time of each act."""
    for step in (1, 2):
        text = records.an_injection(step, "r0000", source=HAND_OVER, tier=None, pattern_id=None)
        acted = records.a_step(step, "r0000", acts=(HAND_OVER,), at=records.START + step)
        steps = (records.a_first_step("r0000"), acted)
        record = replace(records.one_run(0, steps=steps), injections=(text,))
        record = replace(record, conversation=replace(record.conversation, version=step - 1))
        await stores.states.commit(record)
    (handed,) = (await stores.runs.list_runs(EVERY, PageRequest(limit=1))).runs
    assert (handed.handed_over, handed.totals.guidance) == (1, {HAND_OVER: 2})
    assert handed.totals.acts == {HAND_OVER: records.START + 1}


async def shows_the_last_thirty_runs(stores: Stores) -> None:
    """The sparkline holds the newest thirty runs, oldest first."""
    for number in range(33):
        await stores.states.commit(records.one_run(number, steps=()))
    recent = (await stores.runs.health_summary(EVERY)).recent
    assert [run.run_id for run in recent] == [f"r{number:04}" for number in range(3, 33)]


async def reads_the_newest_runs_only(stores: Stores) -> None:
    """A summary and the choices of a filter cover so many runs, whatever the log has besides; all
    experiments are named."""
    for number in range(5):
        arm, agent = ("on", f"agent-{number}") if number else (None, "")
        run = records.one_run(number, agent=agent, experiment=f"x{number // 2}", arm=arm, unit="u")
        await stores.states.commit(run)
    summary = await stores.runs.health_summary(EVERY, newest=3)
    assert ([r.run_id for r in summary.recent][-3:], summary.total_runs, summary.limited) == (
        ["r0002", "r0003", "r0004"],
        3,
        True,
    )
    assert sum(summary.severity_runs.values()) == sum(a.runs for a in summary.by_agent) == 3
    whole = await stores.runs.health_summary(EVERY, newest=5)
    assert (whole.total_runs, whole.limited) == (5, False)
    facets = await stores.runs.facets(tenant=records.TENANT, newest=2)
    assert (facets.agents, facets.arms) == (("agent-3", "agent-4"), ("on",))
    assert facets.experiments == ("x0", "x1", "x2")
    assert (await stores.runs.facets(tenant="nobody")).experiments == ()


async def exports_everything_in_order(stores: Stores) -> None:
    """An export gives each matching run once, oldest first, with its rows, over several pages."""
    for number in reversed(range(205)):
        await stores.states.commit(records.one_run(number, experiment="x" if number % 2 else None))
    seen = [trace async for trace in stores.runs.export_runs(EVERY)]
    assert [trace.run.id for trace in seen] == [f"r{number:04}" for number in range(205)]
    assert all(len(trace.steps) == 2 for trace in seen)
    bare = [trace async for trace in stores.runs.export_runs(EVERY, content=False)]
    assert all(step.content is None for trace in bare for step in trace.steps)
    experiment = await stores.runs.experiment_runs("x", tenant=None)
    assert [run.id for run in experiment] == [f"r{number:04}" for number in range(1, 205, 2)]


async def reads_the_runs_of_an_experiment(stores: Stores) -> None:
    """The narrow record of a run says what its full one says; a run without a unit is its
    conversation's, and a run with a call of unknown price has no cost."""
    calls = (records.a_chat(), records.a_chat(cost_usd=None), records.a_chat(usage_estimated=True))
    for number, call in enumerate(calls):
        steps = (records.a_step(1, f"r{number:04}", call=call),)
        changes = {"experiment": "x", "arm": "on", "unit": f"task-{number}" if number else None}
        await stores.states.commit(
            records.one_run(number, steps=steps, outcome="success", **changes)
        )
    found = await stores.runs.experiment_runs("x", tenant=records.TENANT)
    for run in found:
        trace = await stores.runs.get_run(run.id, tenant=records.TENANT)
        assert trace is not None
        for kind, names in ((trace.run, _DESCRIBED), (trace.run.totals, _SUMMED)):
            assert [getattr(run, name) for name in names] == [getattr(kind, n) for n in names]
        assert run.tokens == trace.run.totals.input_tokens + trace.run.totals.output_tokens
    assert [run.unit for run in found] == ["c0000", "task-1", "task-2"]
    assert [run.cost_usd for run in found] == [0.25, None, 0.25]
    assert [bool(run.estimated) for run in found] == [False, False, True]
    assert [run.saved_usd for run in found] == [0.75, None, 0.75]
    assert [run.counts["models"] == run.models for run in found] == [True] * 3
    every = await stores.runs.experiment_runs(None, tenant=None, since=records.START + 1)
    assert [run.unit for run in every] == ["task-1", "task-2"]
    before = await stores.runs.experiment_runs(None, tenant=None, until=records.START + 1)
    assert [run.unit for run in before] == ["c0000"]


async def reads_what_texts_came_to(stores: Stores) -> None:
    """Characters of the texts that were sent, once for each call that read them; not those of
    shadow mode; unknown where a text is not stored. A refused run says who stopped it."""
    refused = records.a_chat(
        status=429, error=BudgetExceeded.label, reasons=(f"{BudgetExceeded.label}: x",)
    )
    texts = (("abcd", True), ("abcd", False), ("[omitted: 4 characters, sha256 0]", True))
    for number, (text, applied) in enumerate(texts):
        run = f"r{number:04}"
        call = records.one_run(
            number, steps=tuple(records.a_step(n, run, call=refused) for n in (1, 2, 3))
        )
        told = records.an_injection(2, run, text=text, applied=applied)
        await stores.states.commit(replace(call, injections=(told,)))
    found = await stores.runs.experiment_runs(None, tenant=records.TENANT)
    assert [run.text_chars for run in found] == [8, 0, -1]
    assert [run.stopped and run.stopped.words for run in found] == ["stopped by a budget"] * 3


RUN_LIST_CHECKS: tuple[Check, ...] = (
    filters_runs,
    filters_by_any_name,
    searches_results_of_tools,
    spreads_runs,
    a_common_word_is_found_in_the_newest_runs,
    forgets_the_words_of_removed_runs,
    orders_runs,
    pages_through_runs,
    refuses_invalid_cursors,
    hides_other_tenants,
    reads_what_texts_came_to,
    lists_conversations,
    lists_the_values_that_occur,
    summarizes_nothing,
    summarizes_health,
    marks_runs_that_were_handed_over,
    shows_the_last_thirty_runs,
    reads_the_newest_runs_only,
    exports_everything_in_order,
    reads_the_runs_of_an_experiment,
)
