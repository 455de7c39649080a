"""What steering a request waits for, remembers and reports around the pure decision."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec.structs import replace

from gateway.conversations.apply_reply import note_failed
from gateway.conversations.conversation import CurrentRun, RunStart, Undecided
from gateway.conversations.decision import Decision
from gateway.conversations.steer_request import forget
from gateway.core.edits import Edit
from gateway.core.fsm import FSMState
from gateway.core.pattern import Lesson, Pattern, Status, Tier, Trust
from gateway.core.placement import GuidanceTarget
from gateway.core.steer import Advice, RunPosition
from gateway.dialects.base import EarlierHistory
from gateway.steering.identity import MatchKind
from gateway.steering.identity.branch import Awaits
from gateway.tasks import DeadlinePassed
from tests.conversations.steering import (
    REQUESTED,
    TENANT,
    Agent,
    Expiring,
    Judge,
    Lessons,
    Patterns,
)

ROUTED = {"model_routing": {"FAST": "small", "NORMAL": "middle", "SLOW": "large"}}
JUDGED = {
    "steering": {"deadline_ms": 10_000},
    "difficulty": {"scorer": "judge", "judge": {"model": "j"}},
    "model_list": [{"model_name": "j", "litellm_params": {"model": "openai/j", "api_key": "k"}}],
}
GUIDED = {
    "etraces": {"e2_when": "always", "e1_composite": 0.0, "e2_gate": 0.0},
    "learning": {"trials": "on"},
}


def edits(result: Decision) -> tuple[Edit, ...]:
    """The guidance of a call, as edits of its messages."""
    return result.placed.edits if result.placed is not None else ()


def a_lesson() -> Pattern:
    """One that is given whenever it fits."""
    return Pattern(
        tier=Tier.E2,
        fields={"situation": "The test fails again.", "unlock": "Read the assertion first."},
        pattern_id="l-1",
        lesson=Lesson(
            key="k", status=Status.ACTIVE, origin="distilled", trust=Trust.OPERATOR, share=1.0
        ),
    )


async def test_a_retry_goes_to_the_model_of_the_first_attempt() -> None:
    """Whatever has happened to that model since, and in every mode."""
    agent = Agent(ROUTED)
    await agent.turn(0)
    first = await agent.call()
    assert first.model == "middle"
    pinned = first.conversation.run.memory.pinned_model
    assert (first.placed, pinned and pinned.model) == (None, "middle")
    agent.lost(first)
    agent.refusals = {"middle": "too long", "small": "too long", "large": "too long"}
    again = await agent.call()
    assert again.resolved.match.kind is MatchKind.RETRY
    assert again.model == "middle"
    agent.lost(again)
    off = await agent.call(mode="off")
    assert off.model == "middle"
    agent.lost(off)
    late = await agent.resolved()
    late = agent.late(late)
    assert late.model == "middle"
    agent.lost(late)
    agent.model = "another"
    other = await agent.call()
    assert (other.resolved.match.kind, other.model) == (MatchKind.RETRY, "another")


async def test_a_retry_of_an_unsteered_call_is_decided() -> None:
    """It has no model of its own to repeat; that of the call before it is not its."""
    agent = Agent(ROUTED)
    await agent.turn(0)
    assert (await agent.turn(1)).model == "middle"
    late = await agent.resolved()
    late = agent.late(late)
    agent.lost(late)
    agent.refusals = {"middle": "too long", "small": "too long", "large": "too long"}
    again = await agent.call()
    assert (again.resolved.match.kind, again.model) == (MatchKind.RETRY, REQUESTED)


async def test_a_model_is_used_again_after_the_calls_that_it_rests() -> None:
    """Retries do not count: the client has not got on."""
    agent = Agent({**ROUTED, "routing": {"rest_calls": 2}})
    await agent.turn(0)
    result = await agent.call()
    result = agent.steerer.use_requested_model(result, agent.request)
    assert result.model == REQUESTED
    run = result.conversation.run
    assert run.resting == {"middle": 2}
    assert run.memory.pinned_model is None
    assert run.routed is not None
    assert run.routed.model == REQUESTED
    agent.lost(result)
    result = await agent.call()
    assert result.resolved.match.kind is MatchKind.RETRY
    assert run.resting == {"middle": 2}
    agent.answered(result, 1)
    resting = await agent.turn(2)
    assert resting.model == REQUESTED
    assert any("it refused a call, 1 more without it" in reason for reason in resting.reasons)
    assert (await agent.turn(3)).model == "middle"


@pytest.mark.parametrize(
    ("muted", "texts", "model"),
    [((), 1, "large"), (("streak",), 1, "large"), (("test_repeat", "streak"), 0, "middle")],
)
async def test_nothing_follows_from_an_alarm_that_is_muted(
    muted: tuple[str, ...], texts: int, model: str
) -> None:
    """It is recorded as it fired, but no text is sent and no model chosen for it, and the call says
    so."""
    escalating = {"etraces": {"e2_when": "always"}, "routing": {"escalate_at_severity": 1}}
    agent = Agent({**ROUTED, **escalating})
    agent.muted = frozenset(muted)
    for number in range(4):
        result = await agent.turn(number)
    newest = result.position.latest
    assert newest is not None
    assert newest.readings.fired == ("test_repeat",)
    assert (len(edits(result)), result.model) == (texts, model)
    assert ("alarm muted for project ''" in result.reasons) is ("test_repeat" in muted)


def test_a_run_begins_with_nothing_of_the_one_before() -> None:
    """Neither judged scores nor calls that are not decided about yet belong to it."""
    run = CurrentRun(index=1, workload_noted=True)
    run.judge("key", 0.5)
    run.undecided = [
        Undecided(position=RunPosition(run=1, step=0, state=FSMState.NORMAL), messages=3)
    ]
    run.begin(2, now=9.0)
    assert run == CurrentRun(index=2, started_at=9.0, memory=run.memory)


async def test_the_decision_is_made_in_the_conversations_turn() -> None:
    """What it waits for, it waits for with the conversation locked."""
    patterns, locked = Patterns(), list[bool]()
    agent = Agent(GUIDED, lookup=patterns)

    async def advise() -> Advice:
        [found] = agent.index._by_id.values()
        locked.append(found.lock.locked())
        return Advice(wrap_up="budget: nearly spent", cheaper="cheap")

    result = await agent.turn(0, advise=advise)
    assert locked == [True]
    decided = result.conclusion and result.conclusion.decided
    assert (result.model, bool(decided and decided.directive)) == ("cheap", True)
    assert "budget: nearly spent" in result.reasons


async def test_look_ups_are_made_for_the_tenant() -> None:
    """What they find is decided about, and placed."""
    patterns, lessons = Patterns(wait_s=0.02), Lessons(a_lesson())
    agent = Agent(GUIDED, lookup=patterns, lessons=lessons)
    first = await agent.turn(0)
    assert first.conclusion is not None
    assert [item.tier for item in first.conclusion.decided.items] == [Tier.E3]
    assert patterns.asked[0][1].kind == "coding"
    timings: dict[str, float] = {}
    second = await agent.turn(1, timings=timings)
    assert {tenant for tenant, _ in patterns.asked} == {TENANT}
    assert {tenant for tenant, _ in lessons.asked} == {TENANT}
    assert second.conclusion is not None
    decided = second.conclusion.decided
    assert {"l-1", "e2-0"} <= {i.match.pattern.pattern_id for i in decided.items if i.match}
    lookup = second.conclusion.proposal.lessons
    assert lookup is not None
    assert lookup.unit == f"{second.conversation.id}.0"
    assert second.conclusion.memory.guidance.decided_step == 1
    assert timings["look_up"] >= 15  # both look-ups: the second one does not wait


@pytest.mark.parametrize(("check", "asked"), [(1, 0), (2, 1), (3, 1)])
async def test_a_passed_deadline_ends_the_decision(check: int, asked: int) -> None:
    """After the scores, the patterns or the lessons: the steps are kept, the decision is not."""
    patterns, lessons = Patterns(), Lessons(a_lesson())
    agent = Agent(GUIDED, lookup=patterns, lessons=lessons)
    first = await agent.turn(0)
    before = first.conversation.run.memory
    patterns.asked.clear()
    result = await agent.resolved()
    with pytest.raises(DeadlinePassed):
        await agent.steered(result, Expiring(check))
    result = agent.made
    assert bool(patterns.asked) is bool(asked)
    assert bool(lessons.asked) is (check == 3)
    assert (result.observed, result.position.step) == (True, 1)
    assert result.conversation.unsaved.steps
    assert result.conversation.run.memory.guidance == before.guidance
    # Nothing is scored again for the record.
    result = await agent.caught_up(result)
    assert (result.position.step, result.conversation.run.unscored_calls) == (1, 0)


async def test_an_unsteered_call_repeats_what_was_injected() -> None:
    """And no more: what was begun for it is forgotten."""
    agent = Agent(GUIDED, lookup=Patterns())
    first = await agent.turn(0)
    assert edits(first)
    late = await agent.call()
    begun = late.conclusion
    late = agent.late(late)
    assert begun is not None
    assert (late.unsteered, late.conclusion) == ("deadline", None)
    assert "unsteered: deadline" in late.reasons
    assert late.model == REQUESTED
    assert late.placed is not None
    assert late.placed.added == ()
    off = await agent.resolved("off")
    off = replace(off, placed=first.placed)
    off = agent.late(off)
    assert off.placed is None


async def test_a_server_that_keeps_the_history_is_not_given_blocks_again() -> None:
    """It has stored those between messages; an unsteered call adds none of them."""
    agent = Agent(GUIDED, lookup=Patterns())
    agent.target = GuidanceTarget(late_system=True)
    first = await agent.turn(0)
    second = await agent.turn(1)
    late = await agent.resolved()
    late = agent.late(late)
    assert len(edits(late)) == len(edits(second)) > len(edits(first))
    agent.request.earlier = EarlierHistory(chain=late.resolved.incoming.hashes.state)
    late = agent.late(late)
    assert edits(late) == edits(first)  # of the system prompt, which is sent with each call


async def test_an_unsteered_call_of_a_new_run_has_nothing_to_repeat() -> None:
    """The guidance of the run before it is over."""
    agent = Agent(GUIDED, lookup=Patterns())
    await agent.turn(0)
    last = await agent.call()
    agent.finish(last, {"role": "assistant", "content": "Done: the parser works."}, "stop")
    last.conversation.unsaved.ended_run = 0
    agent.messages.append({"role": "user", "content": "Now the lexer."})
    late = await agent.resolved()
    assert late.position.run == 1
    late = agent.late(late)
    assert late.placed is None


async def test_a_refused_model_gets_its_guidance_again_for_the_requested_one() -> None:
    """The requested model's API may want it elsewhere; without a decision, earlier guidance."""
    agent = Agent({**GUIDED, **ROUTED}, lookup=Patterns())
    await agent.turn(0)
    result = await agent.call()
    assert (result.model, agent.targets[-1]) == ("middle", "middle")
    result = replace(result, placed=None)
    result = agent.steerer.use_requested_model(result, agent.request)
    assert (edits(result) != (), agent.targets[-1]) == (True, REQUESTED)
    assert result.conversation.run.memory.guidance.decided_step == 1
    agent.answered(result, 1)
    late = await agent.resolved()
    late = agent.late(late)
    memory = late.conversation.run.memory
    late = replace(late, placed=None)
    late = agent.steerer.use_requested_model(late, agent.request)
    assert edits(late) != ()
    assert late.conversation.run.memory is memory


async def test_guidance_that_the_upstream_refuses_is_forgotten() -> None:
    """The places where it was are named; what came with this call is not given again, and what
    earlier calls got stays remembered."""
    agent = Agent(GUIDED, lookup=Patterns())
    first = await agent.turn(0)
    earlier = first.conversation.run.memory.guidance.injections
    result = await agent.call()
    assert result.placed is not None
    assert result.placed.added
    places = forget(result, result.placed)
    assert len(places) >= 1
    assert result.conversation.run.memory.guidance.injections == earlier


async def test_scoring_that_fails_is_made_up_for_from_the_transcript(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """No fold stays half read; calls without a scored step are counted, their retries are not."""
    agent = Agent({})
    first = await agent.turn(0)
    run = first.conversation.run

    def broken(*_: Any) -> Any:
        raise ArithmeticError

    with monkeypatch.context() as patch:
        patch.setattr("gateway.core.fold.next_state", broken)
        for expected in (1, 1):
            result = await agent.resolved()
            with pytest.raises(ArithmeticError):
                await agent.steered(result)
            result = agent.made
            assert (run.fold, result.observed) == (None, False)
            with pytest.raises(ArithmeticError):
                await agent.caught_up(result)
            assert run.unscored_calls == expected
            agent.lost(result)
    late = await agent.resolved()
    late = await agent.caught_up(late)
    assert (late.observed, late.position.step, run.unscored_calls) == (True, 1, 0)
    assert late.conclusion is None


async def test_a_client_that_has_gone_is_not_waited_for() -> None:
    """The conversation takes any request next."""
    agent = Agent({})
    await agent.turn(0)
    result = await agent.call()
    before = result.conversation.history.branch.awaits
    note_failed(result)
    after = result.conversation.history.branch.awaits
    assert (before, after) == (Awaits.MODEL, Awaits.ANYTHING)


async def test_what_the_judge_is_asked_for() -> None:
    """The newest step of a call that is decided; its score counts at once, and stays."""
    judge = Judge(0.99)
    agent = Agent(JUDGED, judge=judge)
    await agent.turn(0)
    assert judge.asked == 0  # there was no step yet
    result = await agent.call()
    assert result.position.latest is not None
    assert (judge.asked, result.position.latest.difficulty) == (1, 0.99)
    agent.answered(result, 1)
    await agent.call(mode="off")
    assert judge.asked == 1
    none = Agent(JUDGED, judge=Judge(None))
    await none.turn(0)
    assert "score: the ledger, none from the judge" in (await none.call()).reasons


async def test_a_retry_does_not_ask_the_judge() -> None:
    """Its step may have none from the first attempt, which was decided without it."""
    judge = Judge(None)
    agent = Agent(JUDGED, judge=judge)
    await agent.turn(0)
    agent.lost(await agent.call())
    result = await agent.call()
    assert (result.resolved.match.kind, judge.asked) == (MatchKind.RETRY, 1)


async def test_earlier_steps_are_read_once() -> None:
    """Those of a run that continues without its history; not while its fold is in memory."""
    read = list[tuple[str, str]]()

    class History:
        async def read(self, tenant: str, conversation_id: str, upto: object) -> list[Any]:
            read.append((tenant, conversation_id))
            return []

    agent = Agent({}, history=History())
    first = await agent.turn(0)
    run = first.conversation.run
    snapshot = first.conversation.snapshot()
    assert snapshot is not None
    run.start, run.fold = RunStart(snapshot=snapshot, logged_in="c-other"), None
    await agent.turn(1)
    await agent.turn(2)
    assert read == [(TENANT, "c-other")]


async def test_what_is_recorded_of_a_call() -> None:
    """The opening once, later messages with the call that brings them, tasks not stored yet."""
    agent = Agent({})
    first = await agent.turn(0)
    assert [prompt.role for prompt in first.prompts] == ["system", "user"]
    assert (first.tasks, first.position.state) == ({0: "Fix the parser."}, FSMState.INIT)
    agent.messages.append({"role": "user", "content": "Mind the lexer."})
    second = await agent.turn(1)
    # The store has nothing of this run, as if it had begun elsewhere.
    assert [prompt.text for prompt in second.prompts[-1:]] == ["Mind the lexer."]
    assert len(second.prompts) == 3
    assert second.position.state is FSMState.NORMAL
    second.conversation.stored(1, second.conversation.snapshot())
    third = await agent.turn(2)
    assert (third.prompts, third.tasks) == ((), {})
    assert third.position.step == 2
    assert set(third.conversation.unsaved.steps) == {(0, 2)}
    last = await agent.call()
    agent.finish(last, {"role": "assistant", "content": "Done: both work."}, "stop")
    agent.messages.append({"role": "user", "content": "Now the docs."})
    following = await agent.call()
    assert (following.position.run, following.conversation.run.index) == (1, 1)
    assert following.tasks == {1: "Now the docs."}
    assert following.conversation.run.started_at == 2.0


async def test_steps_are_counted_and_alarms_remembered() -> None:
    """A run's memory has the newest alarm; the branch knows how many steps were scored."""
    agent = Agent({"monitors": {"suite": "reference"}})
    for number in range(9):
        result = await agent.turn(number)
    assert result.conversation.run.memory.guidance.fired_step is not None
    assert result.conversation.history.branch.steps == 8


async def test_what_is_shown_but_not_sent_is_not_repeated() -> None:
    """In mode `shadow` the guidance is decided and placed; the agent has not read it."""
    agent = Agent(GUIDED, lookup=Patterns())
    shadow = await agent.turn(0, mode="shadow")
    assert shadow.placed is not None
    assert shadow.conversation.run.memory.guidance.injections == ()
    assert shadow.conversation.run.memory.guidance.e3_done
    other = Agent(GUIDED, lookup=Patterns())
    sent = await other.turn(0)
    assert len(sent.conversation.run.memory.guidance.injections) == 1


async def test_nothing_is_decided_when_steering_is_off() -> None:
    """Steps are scored all the same."""
    patterns = Patterns()
    agent = Agent({**GUIDED, **ROUTED}, lookup=patterns)
    await agent.turn(0, mode="off")
    result = await agent.call(mode="off")
    assert (result.model, result.conclusion, patterns.asked) == (REQUESTED, None, [])
    assert (result.position.step, result.observed) == (1, True)


async def test_tools_of_the_request() -> None:
    """Their cache markers count, of which a request may have four; what is no tool is left out."""
    marked = {
        "type": "function",
        "function": {"name": "bash"},
        "cache_control": {"type": "ephemeral"},
    }
    found = []
    for tools in ([marked], [marked] * 4, ["bash", *[marked] * 4]):
        agent = Agent({**GUIDED, "injection": {"placement": "system"}}, lookup=Patterns())
        agent.tools, agent.target = tools, GuidanceTarget(breakpoints=True)
        result = await agent.turn(0)
        found.append("ephemeral" in repr(edits(result)))
    assert found == [True, False, False]
