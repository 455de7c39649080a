"""When guidance may be looked up and given: gates, cooldowns, caps, allowances."""

from __future__ import annotations

import pytest

from gateway.core.acting import ActionSignal
from gateway.core.fsm import FSMState
from gateway.core.guidance_choice import decide, passing
from gateway.core.guidance_plan import note, plan
from gateway.core.guidance_settings import EtraceSettings, Gates, InjectionSettings
from gateway.core.guidance_state import GuidanceState, Moment
from gateway.core.monitors import Readings
from gateway.core.pattern import Pattern, PatternMatch, Query, Tier, with_id
from gateway.steering.guidance.situation import READER
from tests.steering.guidance.builders import GATES, Call, Run, a_step, e1, e2, e3, match, readings


def tiers(call: Call) -> list[str]:
    """The tiers a call looked up."""
    return [query.tier.value for query in call.plan.queries]


def given_tiers(call: Call) -> list[str]:
    """The tiers of the items a call got, `monitor` for a monitor text."""
    return [item.tier.value if item.tier else "monitor" for item in call.decided.items]


def test_the_first_call_asks_for_universal_rules_only() -> None:
    """No step is scored yet, so nothing else is looked up or said."""
    call = Run().first()
    assert [(q.tier, q.text, q.top_k) for q in call.plan.queries] == [(Tier.E3, "", 5)]
    assert call.plan.monitor is None


def test_a_call_without_tools_is_left_as_it_is() -> None:
    """Universal rules are for agents; a later call with tools gets them, and `always` each run."""
    first = Moment(step=None, signal=ActionSignal(state=FSMState.INIT))
    for settings, asked in ((EtraceSettings(), 0), (EtraceSettings(e3_when="always"), 1)):
        planned = plan(GuidanceState(), first, settings, InjectionSettings(), GATES)
        assert len(planned.queries) == asked
    assert tiers(Run().step()) == ["e3"]


def test_universal_rules_are_given_once() -> None:
    """After they were injected they are not looked up again."""
    run = Run(lookup=lambda query: [match(e3())] if query.tier is Tier.E3 else [])
    assert given_tiers(run.first()) == ["e3"]
    assert "e3" not in tiers(run.step())


@pytest.mark.parametrize("answer", [None, []])
def test_an_error_or_an_empty_answer_spends_nothing(answer: list[PatternMatch] | None) -> None:
    """Each tier is looked up again until something was injected."""
    run = Run(lookup=lambda query: answer)
    run.first()
    for _ in range(3):
        assert tiers(run.step(seen=readings("streak"))) == ["e3", "e1", "e2"]
    assert run.state.e1_count == 0


def test_fast_looks_nothing_up() -> None:
    """In FAST no tier is queried, whatever the monitors say; monitor texts are still given."""
    call = Run().step(FSMState.FAST, readings("streak"))
    assert call.plan.queries == ()
    assert call.plan.monitor is not None
    assert call.plan.reasons == ("look-up: none in FAST",)


@pytest.mark.parametrize(
    ("seen", "is_open"),
    [
        (readings(composite=0.15), False),
        (readings(composite=0.1501), True),
        (readings("hedge", composite=0.06), True),
        (readings(composite=0.0), False),
        (Readings(scores={}, composite=0.0), True),
    ],
)
def test_the_e1_gate_opens_on_a_fired_monitor_or_a_composite_above_the_line(
    seen: Readings, is_open: bool
) -> None:
    """0.15 itself does not open it; without any monitor it is open."""
    call = Run().step(seen=seen)
    assert ("e1" in tiers(call)) is is_open
    assert ("e1: gate closed" in call.plan.reasons) is not is_open


def test_a_fired_monitor_keeps_the_gate_open_for_two_steps() -> None:
    """A fire at step k opens k, k+1 and k+2, not k+3."""
    run = Run()
    calls = [run.step(seen=readings("hedge", composite=0.06))]
    calls += [run.step(seen=readings(composite=0.0)) for _ in range(3)]
    assert ["e1" in tiers(call) for call in calls] == [True, True, True, False]


def test_steps_that_arrive_together_are_all_looked_back_on() -> None:
    """Fires of steps that no call was decided for count as well."""
    state = note(GuidanceState(), 3, readings("hedge"))
    state = note(state, 4, readings())
    moment = Moment(
        step=5, signal=ActionSignal(state=FSMState.NORMAL, readings=readings(composite=0.0))
    )
    planned = plan(state, moment, EtraceSettings(), InjectionSettings(), GATES)
    assert "e1: gate closed" not in planned.reasons
    assert note(state, 3, readings("hedge")) == state


def test_e1_is_injected_once_a_run_by_default() -> None:
    """After one injection the tier is not looked up again; two are possible by setting."""

    def answer(query: Query) -> list[PatternMatch]:
        return [match(e1(text)) for text in ("a", "b", "c")] if query.tier is Tier.E1 else []

    for allowed in (1, 2):
        run = Run(lookup=answer, etraces=EtraceSettings(e1_per_run=allowed))
        calls = [run.step(seen=readings("streak")) for _ in range(4)]
        assert ["e1" in given_tiers(call) for call in calls].count(True) == allowed
        assert ["e1" in tiers(call) for call in calls].count(True) == allowed
        ids = run.state.pattern_ids
        assert len(ids) == len(set(ids)) == allowed


def test_e2_is_injected_once_for_each_failure_type() -> None:
    """Up to two patterns at once; another failure type has its own allowance."""

    def answer(query: Query) -> list[PatternMatch]:
        if query.tier is not Tier.E2:
            return []
        return [match(e2(f"{query.failure_type} {n}")) for n in range(3)]

    run = Run(lookup=answer, etraces=EtraceSettings(e2_when="always"))
    seen = [readings(), readings(), readings("streak"), readings("streak"), readings("hedge")]
    calls = [run.step(seen=each) for each in seen]
    assert [given_tiers(call).count("e2") for call in calls] == [2, 0, 2, 0, 2]
    assert calls[1].plan.reasons[-1] == "e2: allowance spent"
    assert calls[2].plan.queries[-1].failure_type == "loop"


def test_e2_can_be_kept_for_runs_at_risk() -> None:
    """With `at_risk` it shares the e1 gate."""
    run = Run(etraces=EtraceSettings(e2_when="at_risk"))
    assert "e2" not in tiers(run.step(seen=readings(composite=0.1)))
    assert "e2" in tiers(run.step(seen=readings(composite=0.2)))


def test_a_run_that_says_nothing_is_not_looked_up() -> None:
    """Without any text there is no query, and no allowance is spent."""
    moment = Moment(
        step=0, signal=ActionSignal(state=FSMState.NORMAL, readings=readings("streak")), recent=()
    )
    planned = plan(
        GuidanceState(e3_done=True), moment, EtraceSettings(), InjectionSettings(), GATES
    )
    assert planned.queries == ()


def test_the_query_is_made_of_the_newest_steps() -> None:
    """Three steps for e1, five for e2, oldest first."""
    steps = [a_step(index, f"thought {index}") for index in range(5)]
    moment = Moment(
        step=4,
        signal=ActionSignal(state=FSMState.NORMAL, readings=readings("streak")),
        reader=READER,
        recent=steps,
        model="gpt-4o",
    )
    planned = plan(
        GuidanceState(e3_done=True), moment, EtraceSettings(), InjectionSettings(), GATES
    )
    e1_query, e2_query = planned.queries
    assert [f"thought {index}" in e1_query.text for index in range(5)] == [False, False] + [
        True
    ] * 3
    assert e2_query.text.index("thought 0") < e2_query.text.index("thought 4")
    assert (e1_query.top_k, e2_query.top_k, e1_query.model) == (1, 2, "gpt-4o")


@pytest.mark.parametrize(
    ("state", "steps"),
    [(FSMState.FAST, 5), (FSMState.NORMAL, 3), (FSMState.SLOW, 2), (FSMState.SKIP, 2)],
)
def test_monitor_texts_wait_for_the_cooldown_of_the_state(state: FSMState, steps: int) -> None:
    """Between two texts lie at least the state's steps."""
    run = Run(injection=InjectionSettings(monitor_cap=100))
    told = [bool(run.step(state, readings("streak")).decided.items) for _ in range(3 * steps)]
    assert [index for index, each in enumerate(told) if each] == [0, steps, 2 * steps]


def test_a_persisting_problem_escalates_and_then_falls_silent() -> None:
    """Each severity of a failure is said once; no text comes twice."""
    run = Run()
    calls = [run.step(FSMState.SLOW, readings("streak")) for _ in range(12)]
    items = [item for call in calls for item in call.decided.items]
    assert [item.severity for item in items] == [1, 2, 3, 4, 5]
    assert len({item.text for item in items}) == 5
    assert calls[-1].plan.reasons[-1] == "monitor: cap reached"


def test_a_text_held_back_is_not_lost() -> None:
    """What the cooldown held back is said when it is over, with its own severity."""
    run = Run()
    run.step(FSMState.NORMAL, readings("streak"))
    assert run.step(FSMState.NORMAL, readings("hedge")).plan.reasons[-1] == "monitor: cooling down"
    run.step(FSMState.NORMAL, readings("hedge"))
    told = run.step(FSMState.NORMAL, readings("hedge")).plan.monitor
    assert told is not None
    assert (told.failure_type, told.severity) == ("hedge", 1)


def test_a_failure_without_a_text_is_named() -> None:
    """One that only patterns know of: nothing is said about it."""
    call = Run().step(seen=readings("streak", failure_type="own_kind"))
    assert call.plan.monitor is None
    assert "monitor: no text for own_kind" in call.plan.reasons


def test_the_cap_holds_over_all_failures() -> None:
    """Five monitor texts in a run, whatever they are about."""
    run = Run()
    kinds = ["streak", "hedge", "diversity", "test_repeat"]
    commands = ["make", "grep -rn x .", "cat a.py", "pytest"]
    calls = []
    for n in range(40):
        run.command = commands[n // 4 % 4]
        calls.append(run.step(FSMState.SLOW, readings(kinds[n % 4])))
    assert sum(len(call.decided.items) for call in calls) == 5
    assert calls[-1].plan.reasons[-1] == "monitor: cap reached"


@pytest.mark.parametrize(("composite", "told"), [(0.3499, False), (0.35, True)])
def test_a_high_composite_alone_is_enough_for_a_text(composite: float, told: bool) -> None:
    """From 0.35 on the worst monitor's failure is named though none fired."""
    seen = Readings(scores={"streak": 0.5, "hedge": 0.55}, composite=composite)
    monitor = Run().step(seen=seen).plan.monitor
    assert (monitor is not None) is told
    if monitor:
        assert monitor.failure_type == "hedge"


def test_the_skip_directive_is_given_on_every_call_in_skip() -> None:
    """It has no cap and no cooldown, and leaves with the state."""
    run = Run()
    calls = [run.step(FSMState.SKIP, readings("streak")) for _ in range(8)]
    assert all(call.decided.directive for call in calls)
    assert not run.step(FSMState.NORMAL, readings("streak")).decided.directive
    off = Run(injection=InjectionSettings(skip_directive=False))
    assert not off.step(FSMState.SKIP).decided.directive


def test_a_block_has_one_order() -> None:
    """Monitor text, universal rules, instance, failure patterns."""

    def answer(query: Query) -> list[PatternMatch]:
        made = {Tier.E1: e1, Tier.E2: e2, Tier.E3: e3}[query.tier]
        return [match(made(text)) for text in ("a", "b")]

    call = Run(lookup=answer).step(seen=readings("streak"))
    assert given_tiers(call) == ["monitor", "e3", "e3", "e1", "e2", "e2"]


def test_only_matches_over_the_gate_are_used() -> None:
    """The tier's gate, a pattern's own threshold in its place, never under the floor."""
    query = Query(tier=Tier.E2, text="x", top_k=9, gate=0.6, floor=0.25)
    found = [
        match(e2("over"), 0.7),
        match(e2("at"), 0.6),
        match(e2("under"), 0.59),
        match(e2("own", gate_threshold=0.4), 0.45),
        match(e2("strict", gate_threshold=0.9), 0.8),
        match(e2("any", gate_threshold=0.0), 0.2),
    ]
    kept = [item.pattern.fields["intervention"] for item in passing(query, found)]
    assert kept == ["over", "at", "own"]


def test_a_record_tells_patterns_that_cleared_the_gate_from_those_that_were_only_near() -> None:
    """Between floor and gate a pattern is listed, and did not clear; below the floor it is not."""
    found = [match(e1("over"), 0.9), match(e1("near"), 0.4), match(e1("far"), 0.1)]
    run = Run(lookup=lambda query: found if query.tier is Tier.E1 else [])
    call = run.step(seen=readings("streak"))
    listed = [(each.similarity, each.cleared) for each in call.decided.candidates]
    assert listed == [(0.9, True), (0.4, False)]
    assert [each.match for each in call.decided.items if each.match] == found[:1]


def test_matches_come_best_first_each_once_and_none_that_was_given() -> None:
    """Duplicates collapse, excluded ids are skipped, ties go by id, `top_k` bounds."""
    old, new, same = e2("old"), e2("new"), e2("same")
    query = Query(tier=Tier.E2, text="x", top_k=2, exclude=frozenset({old.pattern_id}), gate=0.5)
    found = [match(old, 0.99), match(same, 0.7), match(new, 0.7), match(new, 0.7)]
    ids = [item.pattern.pattern_id for item in passing(query, found)]
    assert ids == sorted([new.pattern_id, same.pattern_id])


def _rule_for(kind: str, text: str) -> Pattern:
    """A universal rule for one kind of agent."""
    return with_id(Pattern(tier=Tier.E3, fields={"instruction": text, "tags": [kind]}))


def test_universal_rules_come_in_the_order_of_their_ids() -> None:
    """Those for all agents first, then those for the query's kind; others are left out."""
    plain = [e3(f"Rule {n}.") for n in range(4)]
    own = [_rule_for("code", f"Own rule {n}.") for n in range(2)]
    other = _rule_for("chat", "Another's rule.")
    query = Query(tier=Tier.E3, text="", top_k=9, kind="code")
    ids = [sorted(each.pattern_id for each in group) for group in (plain, own)]
    for given in ([*plain, *own, other], [other, *own[::-1], *plain[::-1]]):
        found = passing(query, [match(each) for each in given])
        assert [each.pattern.pattern_id for each in found] == [*ids[0], *ids[1]]


def test_a_further_pattern_has_to_be_about_as_near() -> None:
    """Behind the best one by more than the margin, a second is left out."""
    found = [match(e2("best"), 0.8), match(e2("near"), 0.79), match(e2("far"), 0.7)]
    query = Query(tier=Tier.E2, text="x", top_k=3, gate=0.5, margin=0.05)
    assert len(passing(query, found)) == 2
    planned = Run().step(seen=readings("streak")).plan.queries[-1]
    assert planned.margin == EtraceSettings().e2_margin


def test_without_a_failure_type_the_stricter_gate_holds() -> None:
    """A failure named by a monitor is half the evidence; without it the text has to carry more."""
    gates = Gates(e1=0.5, e2=0.5, e2_untyped=0.6)
    asked = [
        plan(
            GuidanceState(),
            Moment(
                step=1,
                signal=ActionSignal(state=FSMState.NORMAL, readings=seen),
                reader=READER,
                recent=[a_step(1)],
            ),
            EtraceSettings(e2_when="always"),
            InjectionSettings(),
            gates,
        ).queries[-1]
        for seen in (readings("streak"), readings())
    ]
    assert [query.gate for query in asked] == [0.5, 0.6]


def test_texts_that_do_not_fit_the_block_are_left_out_and_not_charged() -> None:
    """The block's bound holds; what was dropped may come at a later step."""
    long = "word " * 390
    run = Run(
        lookup=lambda query: [match(e1(long))] if query.tier is Tier.E1 else [],
        injection=InjectionSettings(max_block_chars=1_000),
    )
    call = run.step(seen=readings("streak"))
    assert given_tiers(call) == ["monitor"]
    assert run.state.e1_count == 0


def test_a_decision_is_the_same_each_time_and_made_once() -> None:
    """From the state before, the same; from the state after, nothing new to look up or say."""
    run = Run(lookup=lambda query: [match(e1())] if query.tier is Tier.E1 else [])
    call = run.step(seen=readings("streak"))
    assert run.preview(call.moment, call.before).decided == call.decided
    again = run.preview(call.moment, run.state)
    assert (again.plan.queries, again.plan.monitor, again.decided.items) == ((), None, ())


def test_switched_off_parts_stay_silent() -> None:
    """Neither look-ups nor monitor texts without their setting."""
    run = Run(
        etraces=EtraceSettings(enabled=False),
        injection=InjectionSettings(monitor_guidance=False),
        lookup=lambda query: [match(e3())],
    )
    assert run.first().decided.items == ()
    assert run.step(seen=readings("streak")).decided.items == ()
    none = EtraceSettings(e1_top_k=0, e2_top_k=0, e3_max=0)
    assert tiers(Run(etraces=none).step(seen=readings("streak"))) == []


def test_an_unasked_answer_is_ignored() -> None:
    """Patterns of a tier that was not queried never reach the block."""
    planned = plan(
        GuidanceState(),
        Moment(step=None, signal=ActionSignal(state=FSMState.INIT)),
        EtraceSettings(),
        InjectionSettings(),
        GATES,
    )
    assert (
        decide(GuidanceState(), planned, {Tier.E1: [match(e1())]}, InjectionSettings()).items == ()
    )


@pytest.mark.parametrize(
    ("settings", "change", "message"),
    [
        (EtraceSettings, {"e1_steps": 0}, "e1_steps"),
        (EtraceSettings, {"e2_per_type": -1}, "e2_per_type"),
        (EtraceSettings, {"e1_gate": 1.1}, "e1_gate"),
        (InjectionSettings, {"cooldown_steps": {"INIT": 1}}, "cooldown_steps"),
        (InjectionSettings, {"cooldown_steps": {"FAST": -1}}, "cooldown_steps"),
        (InjectionSettings, {"max_field_chars": 10}, "max_field_chars"),
    ],
)
def test_bad_settings_are_refused_by_name(settings, change, message) -> None:
    """The message starts with the field."""
    with pytest.raises(ValueError, match=f"^{message}: "):
        settings(**change)


def test_one_cooldown_can_be_changed_alone() -> None:
    """States that are not named keep their default; INIT counts as NORMAL."""
    settings = InjectionSettings(cooldown_steps={"FAST": 9})
    assert [settings.cooldown(s) for s in ("FAST", "NORMAL", "INIT", "SKIP")] == [9, 3, 3, 2]
