"""Checks of RunStore: what a run's calls add up to."""

from __future__ import annotations

from msgspec.structs import replace

from gateway.backends import Stores
from gateway.steering.transcript.interventions import Intervention
from gateway.stores.filters import OUTCOMES, RunFilter
from gateway.stores.lists import PageRequest
from gateway.stores.records import RunUpdate, StepContent, StepRow
from gateway.stores.totals import RunRecord
from steering_gateway_testing.store_conformance import records
from steering_gateway_testing.store_conformance.check import Check, raises


async def _only(stores: Stores) -> RunRecord:
    (run,) = (await stores.runs.list_runs(RunFilter(), PageRequest())).runs
    return run


async def returns_the_whole_trace(stores: Stores) -> None:
    """A run comes back with its description, and every row equal to the saved one."""
    update = records.a_run(
        sequence=2, experiment="x", arm="on", unit="u", profile="coding", mode="shadow"
    )
    steps = (
        records.a_first_step(),
        records.a_step(
            1,
            state="SLOW",
            composite=0.625,
            fired=("streak", "hedge"),
            failure_type="loop",
            evidence={"streak": "bash x4"},
        ),
        records.a_step(2, call=None, content=None),
    )
    injections = (
        records.an_injection(1),
        records.an_injection(1, ordinal=1, source="skip", tier=None),
    )
    call = records.a_call(runs=(update,), steps=steps, injections=injections)
    await stores.states.commit(call)
    trace = await stores.runs.get_run("r1", tenant=records.TENANT)
    assert trace is not None
    assert trace.steps == steps
    assert trace.injections == injections
    run = trace.run
    assert (run.conversation_id, run.tenant) == ("c1", records.TENANT)
    for name in update.__struct_fields__:
        assert getattr(run, name) == getattr(update, name)


async def counts_calls_aside(stores: Stores) -> None:
    """A call of the session without a step has a negative number: it is in all sums and no trace,
    once; the run that begins after it has its own task."""
    await stores.states.commit(
        records.a_call(runs=(records.a_run(task_preview=""),), steps=(records.a_step(-7),))
    )
    for version in (1, 2):
        call = records.a_call(
            conversation=records.a_conversation(version=version),
            runs=(records.a_run(task_preview="Fix it."),),
            steps=(records.a_first_step(), records.a_step(-7)),
        )
        await stores.states.commit(call)
    run = await _only(stores)
    assert (run.task_preview, run.totals.calls, run.totals.steps) == ("Fix it.", 2, 0)
    assert run.totals.states == {"INIT": 1}
    trace = await stores.runs.get_run(run.id, tenant=records.TENANT)
    assert trace is not None
    assert [step.step_index for step in trace.steps] == [0]


async def adds_up_a_run(stores: Stores) -> None:
    """Totals are the sums over the run's calls and scored steps, over however many commits."""
    await stores.states.commit(records.a_call())
    fired = records.a_step(1, composite=0.75, fired=("streak",), failure_type="loop", state="SLOW")
    clean = records.a_step(
        2, composite=0.25, call=records.a_chat(model_asked="large", error="timeout")
    )
    for version, step in enumerate((fired, clean), start=1):
        call = records.a_call(
            conversation=records.a_conversation(version=version),
            runs=(records.a_run(updated_at=records.START + version, state=step.state),),
            steps=(step,),
            injections=(records.an_injection(step.step_index, applied=step is fired),),
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
    """A call without a price does not count as free: the sum covers the others."""
    unpriced = records.a_chat(cost_usd=None, cost_unsteered_usd=None)
    await stores.states.commit(records.a_call(steps=(records.a_first_step(call=unpriced),)))
    totals = (await _only(stores)).totals
    assert (totals.cost_usd, totals.saved_usd, totals.unpriced_calls) == (None, None, 1)
    half_known = records.a_step(1, call=records.a_chat(cost_unsteered_usd=None))
    call = records.a_call(conversation=records.a_conversation(version=1), steps=(half_known,))
    await stores.states.commit(call)
    totals = (await _only(stores)).totals
    assert (totals.cost_usd, totals.unpriced_calls) == (0.25, 1)
    assert (totals.cost_unsteered_usd, totals.saved_usd) == (None, None)


async def records_a_retry_on_its_step(stores: Stores) -> None:
    """A repeated request adds no step: its tokens and costs add up, the reply is the newest."""
    first, again = (
        records.a_step(1),
        records.a_step(
            1,
            state="SKIP",
            composite=1.0,
            call=records.a_chat("again", status=200, cached_tokens=None, attempts=2),
            content=records.some_content(reply_text="Second."),
        ),
    )
    await stores.states.commit(records.a_call(steps=(first,), injections=(records.an_injection(),)))
    retry = records.a_call(
        conversation=records.a_conversation(version=1),
        steps=(again,),
        injections=(records.an_injection(),),
    )
    await stores.states.commit(retry)
    trace = await stores.runs.get_run("r1", tenant=records.TENANT)
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


async def counts_a_repeated_commit_once(stores: Stores) -> None:
    """A call that is the newest stored at its step already is not counted again."""
    call = records.a_call(injections=(records.an_injection(0),))
    await stores.states.commit(call)
    before = await stores.runs.get_run("r1", tenant=records.TENANT)
    again = replace(call, conversation=records.a_conversation(version=1))
    assert await stores.states.commit(again) == 2
    assert await stores.runs.get_run("r1", tenant=records.TENANT) == before


async def adds_the_call_to_a_step_known_before(stores: Stores) -> None:
    """A step stored without a call can get its call later; that is no retry."""
    await stores.states.commit(records.a_call(steps=(records.a_step(1, call=None),)))
    same = records.a_call(
        conversation=records.a_conversation(version=1), steps=(records.a_step(1, call=None),)
    )
    await stores.states.commit(same)
    later = records.a_call(
        conversation=records.a_conversation(version=2), steps=(records.a_step(1, content=None),)
    )
    await stores.states.commit(later)
    trace = await stores.runs.get_run("r1", tenant=records.TENANT)
    assert trace is not None
    assert trace.steps == (records.a_step(1),)
    totals = trace.run.totals
    assert (totals.scored_steps, totals.calls, totals.retries) == (1, 1, 0)


async def keeps_the_fields_of_the_first_call(stores: Stores) -> None:
    """Later calls change a run's state, but not its start, its task or its arm."""
    await stores.states.commit(
        records.a_call(runs=(records.a_run(experiment="x", arm="on", unit="u"),))
    )
    later = records.a_run(
        sequence=9,
        started_at=records.START + 50,
        updated_at=records.START + 60,
        ended_at=records.START + 61,
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
    call = records.a_call(conversation=records.a_conversation(version=1), runs=(later,), steps=())
    await stores.states.commit(call)
    run = await _only(stores)
    assert (run.sequence, run.started_at, run.agent) == (0, records.START, "coder")
    assert (run.experiment, run.arm, run.unit) == ("x", "on", "u")
    assert (run.state, run.updated_at, run.ended_at) == (
        "END",
        records.START + 60,
        records.START + 61,
    )
    assert (run.mode, run.policy_digest, run.model_requested) == ("off", "p2", "larger")
    reopened = replace(later, ended_at=None)
    call = records.a_call(
        conversation=records.a_conversation(version=2), runs=(reopened,), steps=()
    )
    await stores.states.commit(call)
    assert (await _only(stores)).ended_at == records.START + 61


async def keeps_two_runs_of_one_call_apart(stores: Stores) -> None:
    """A call that ends one run and starts the next writes to both."""
    call = records.a_call(
        runs=(
            records.a_run("r1", state="END", ended_at=records.START + 1),
            records.a_run("r2", sequence=1),
        ),
        steps=(records.a_step(1, "r1", call=None), records.a_first_step("r2")),
    )
    await stores.states.commit(call)
    first = await stores.runs.get_run("r1", tenant=records.TENANT)
    second = await stores.runs.get_run("r2", tenant=records.TENANT)
    assert first is not None
    assert second is not None
    assert (first.run.totals.calls, second.run.totals.calls) == (0, 1)
    assert [step.step_index for step in first.steps] == [1]
    assert [step.step_index for step in second.steps] == [0]


async def shows_a_run_in_part(stores: Stores) -> None:
    """A trace can be read without texts, and from one step to another."""
    steps = (records.a_first_step(), records.a_step(1), records.a_step(2))
    injections = (records.an_injection(1), records.an_injection(2))
    await stores.states.commit(records.a_call(steps=steps, injections=injections))
    bare = await stores.runs.get_run("r1", tenant=records.TENANT, content=False)
    tail = await stores.runs.get_run("r1", tenant=records.TENANT, after_step=1)
    assert bare is not None
    assert tail is not None
    assert bare.steps == tuple(replace(step, content=None) for step in steps)
    assert (tail.steps, tail.injections) == (steps[2:], injections[1:])
    middle = await stores.runs.get_run("r1", tenant=records.TENANT, after_step=0, limit=1)
    assert middle is not None
    assert (middle.steps, middle.injections) == (steps[1:2], injections[:1])


async def takes_outcomes(stores: Stores) -> None:
    """A reported outcome is stored, replaced by the next one, and refused when it is unknown."""
    await stores.states.commit(records.a_call())
    assert (await _only(stores)).outcome is None
    for outcome in OUTCOMES:
        assert await stores.runs.set_outcome("r1", outcome, source="api", tenant=records.TENANT)
        run = await _only(stores)
        assert (run.outcome, run.outcome_source) == (outcome, "api")
    assert await stores.runs.set_outcome("r1", "success", source="cli", tenant=None)
    assert not await stores.runs.set_outcome("r2", "success", source="api", tenant=records.TENANT)
    assert not await stores.runs.set_outcome("r1", "failure", source="api", tenant="other")
    assert (await _only(stores)).outcome == "success"
    with raises(ValueError, "outcome"):
        await stores.runs.set_outcome("r1", "great", source="api", tenant=records.TENANT)


async def prefers_reported_outcomes(stores: Stores) -> None:
    """A derived outcome is replaced by a reported one, and never the other way round."""
    said = [("success", "derived"), ("failure", "header"), ("success", "derived"), (None, "")]
    seen = []
    for version, (outcome, source) in enumerate(said):
        run = records.a_run(outcome=outcome, outcome_source=source)
        call = records.a_call(
            conversation=records.a_conversation(version=version), runs=(run,), steps=()
        )
        await stores.states.commit(call)
        seen.append((await _only(stores)).outcome)
    assert seen == ["success", "failure", "failure", "failure"]


async def keeps_what_a_person_did(stores: Stores) -> None:
    """Acts are counted and kept once, at new steps and at stored ones, and add nothing else to the
    run; one that is not stored is not made by them."""
    reject = Intervention(kind="reject", words="not like this")
    wrong = Intervention(kind="correct", words="that is wrong", of_reply=True)
    content = records.some_content(human=(reject,))
    steps = (records.a_first_step(), records.a_step(1, content=content))
    await stores.states.commit(records.a_call(runs=(records.a_run(),), steps=steps))
    stored = await _only(stores)
    more = (RunUpdate(id="r1", started_at=0.0, updated_at=0.0), records.a_run("r2", sequence=1))
    gone = RunUpdate(id="gone", started_at=0.0, updated_at=0.0)
    rows = [
        StepRow(
            run_id=name,
            step_index=1,
            at=records.START,
            state="END",
            content=StepContent(human=acts),
        )
        for name, acts in (("r1", (reject, wrong)), ("gone", (wrong,)))
    ]
    for version in (1, 2):
        again = records.a_call(
            conversation=records.a_conversation(version=version),
            runs=(*more, gone),
            steps=(*rows, records.a_first_step("r2")),
        )
        await stores.states.commit(again)
    traces = [await stores.runs.get_run(name, tenant=records.TENANT) for name in ("r1", "gone")]
    assert traces[1] is None
    assert traces[0] is not None
    totals = replace(stored.totals, human={"reject": 1, "correct": 1})
    assert (stored.totals.human, traces[0].run) == ({"reject": 1}, replace(stored, totals=totals))
    assert traces[0].steps[1] == records.a_step(1, content=replace(content, human=(reject, wrong)))
    for kind, names in (("correct", ["r1"]), ("undo", [])):
        page = await stores.runs.list_runs(RunFilter(intervention=kind), PageRequest())
        assert [run.id for run in page.runs] == names
    late = records.a_call(
        conversation=records.a_conversation(version=3),
        runs=(records.a_run(),),
        steps=(
            records.a_step(
                1, call=records.a_chat("again"), content=records.some_content(reply_text="Second.")
            ),
        ),
    )
    await stores.states.commit(late)
    trace = await stores.runs.get_run("r1", tenant=records.TENANT)
    assert trace is not None
    assert trace.steps[1].content == records.some_content(
        reply_text="Second.", human=(reject, wrong)
    )
    assert trace.run.totals.human == {"reject": 1, "correct": 1}


RUN_CHECKS: tuple[Check, ...] = (
    returns_the_whole_trace,
    adds_up_a_run,
    counts_calls_aside,
    keeps_unknown_costs_unknown,
    records_a_retry_on_its_step,
    counts_a_repeated_commit_once,
    adds_the_call_to_a_step_known_before,
    keeps_the_fields_of_the_first_call,
    keeps_two_runs_of_one_call_apart,
    shows_a_run_in_part,
    takes_outcomes,
    prefers_reported_outcomes,
    keeps_what_a_person_did,
)
