"""Two strikes: an act follows a second alarm after a text about the same entry."""

from __future__ import annotations

import random
from typing import get_args

from hypothesis import given
from hypothesis import strategies as st

from gateway.core.acting import ActName
from gateway.core.decision_settings import Policy
from gateway.core.fold import RunFold
from gateway.core.guidance_plan import RECOVERED_STEPS
from gateway.core.guidance_settings import InjectionSettings
from gateway.core.guidance_text import HAND_OVER_TEXT
from gateway.core.monitors import Alarm
from gateway.core.routing import Routes, RoutingSettings
from gateway.core.steer import (
    CallFacts,
    Conclusion,
    RunMemory,
    RunPosition,
    SteeringRules,
    conclude,
    observe,
    propose,
)
from gateway.core.trouble import Act, Trouble, act_on
from gateway.steering.guidance.situation import READER
from steering_gateway_testing.planting import LOOPS
from tests.steering.robust.test_planted import coding_run

NAMES: tuple[ActName, ...] = get_args(ActName)
ENTRIES = ("test:a", "file:b", "url:c")
STEPS = st.lists(st.tuples(st.sets(st.sampled_from(ENTRIES)), st.booleans()), max_size=30)
"""Steps of a run: the entries with an alarm, and whether a text is given about them."""


def alarm(entry: str, step: int) -> Alarm:
    """An alarm about this entry."""
    sentence = f"{entry} failed for the {step}th time"
    return Alarm(
        monitor="streak",
        entry=entry,
        sentence=sentence,
        count=step,
        first_step=1,
        newest_step=step,
    )


@given(STEPS, st.sampled_from(NAMES), st.booleans(), st.booleans())
def test_an_act_follows_a_text_about_the_same_entry_once(
    steps: list[tuple[set[str], bool]], allowed: ActName, routes: bool, hands_over: bool
) -> None:
    """Never at the step of the text, never twice, and never beyond what is allowed."""
    memory, texts, done = Trouble(), dict[str, int](), list[str]()
    for step, (entries, speaks) in enumerate(steps, start=1):
        alarms = [alarm(entry, step) for entry in sorted(entries)]
        strikes = memory.strikes(alarms, step)
        act = Act()
        if strikes:
            act = act_on(strikes, allowed, routes=routes, hands_over=hands_over)
        expected = [e for e in sorted(entries) if texts.get(e, step) < step and e not in done]
        assert [each.entry for each in act.alarms] == expected
        assert bool(act.name) == bool(expected)
        assert not act.name or NAMES.index(act.name) <= NAMES.index(allowed)
        assert all(each.monitor in str(act.reasons) for each in act.alarms)
        done += expected
        memory = memory.after(act, step, alarmed_at=step if entries else None)
        if speaks:
            memory = memory.after_text(alarms, step)
            texts |= {entry: texts.get(entry, step) for entry in entries}
        again = memory.strikes(alarms, step)
        assert again == (), "the same call once more is decided as before"


@given(STEPS, STEPS)
def test_what_either_gateway_did_is_done(
    one: list[tuple[set[str], bool]], other: list[tuple[set[str], bool]]
) -> None:
    """Joining is symmetric, changes nothing that is known to both, and forgets nothing."""

    def after(steps: list[tuple[set[str], bool]]) -> Trouble:
        memory = Trouble()
        for step, (entries, speaks) in enumerate(steps, start=1):
            alarms = [alarm(entry, step) for entry in sorted(entries)]
            strikes = memory.strikes(alarms, step)
            act = Act()
            if strikes:
                act = act_on(strikes, "route", routes=True, hands_over=True)
            memory = memory.after(act, step, alarmed_at=step)
            memory = memory.after_text(alarms, step) if speaks else memory
        return memory

    left, right = after(one), after(other)
    both = left.merged(right)
    assert both == right.merged(left)
    assert left.merged(left) == left
    assert both.acted.keys() == left.acted.keys() | right.acted.keys()
    assert both.advised.keys() == left.advised.keys() | right.advised.keys()


def test_the_model_of_slow_stays_until_the_run_has_recovered() -> None:
    """From the act on, and until no alarm came for some steps."""
    act = act_on((alarm("test:a", 3),), "route", routes=True, hands_over=True)
    memory = Trouble().after(act, 3, alarmed_at=3)
    for step in range(3, 4 + RECOVERED_STEPS):
        assert memory.after(Act(), step, alarmed_at=3).routed == 3
    assert memory.after(Act(), 4 + RECOVERED_STEPS, alarmed_at=3).routed is None


def played(
    name: str,
    allowed: ActName,
    *,
    speaks: bool = True,
    **routes: str,
) -> list[Conclusion]:
    """The decisions of a run that goes round a planted loop."""
    healthy, fold, memory = coding_run(1), RunFold(Policy(), READER), RunMemory()
    rules = SteeringRules(
        reader=READER,
        on_trouble=allowed,
        injection=InjectionSettings(monitor_guidance=speaks),
        routes=Routes(by_state=routes),
        routing=RoutingSettings(escalate_at_severity=0),
    )
    found = []
    for step in [*healthy, *LOOPS[name](random.Random(1), healthy, 9)]:
        memory = observe(memory, [fold.push(step)], 0)
        call = CallFacts(requested="own")
        proposal = propose(rules, memory, RunPosition.of(fold), call)
        found.append(conclude(rules, memory, proposal, {}))
        memory = found[-1].memory
    return found


def acts(decisions: list[Conclusion]) -> list[str]:
    """The acts, in order."""
    return [d.proposal.act.name for d in decisions if d.proposal.act.name]


def test_each_allowed_act_is_taken_after_advice() -> None:
    """The first one comes after a text, with the alarm among the reasons."""
    for allowed in NAMES:
        found = played("identical call", allowed, SLOW="strong")
        first = next(n for n, each in enumerate(found) if each.proposal.act.name)
        assert found[first].proposal.act.name == allowed
        assert any(item.source == "monitor" for d in found[:first] for item in d.decided.items)
        assert found[first].reasons[0].startswith(f"trouble: {allowed}: ")


def test_route_does_something_only_where_a_model_is_mapped_to_slow() -> None:
    """Without one the second alarm is advice; with one the run has that model from then on."""
    found = played("identical call", "route")
    assert set(acts(found)) == {"advise"}
    assert {each.model for each in found} == {"own"}
    found = played("identical call", "route", SLOW="strong")
    first = next(n for n, each in enumerate(found) if each.proposal.act.name == "route")
    assert {each.model for each in found[first:]} == {"strong"}
    assert "routing: a failure is repeated in spite of advice" in found[first].reasons


def test_a_run_is_asked_to_hand_over_once() -> None:
    """The text stands alone in its call, and a later strike is advice."""
    found = played("identical call", "hand_over")
    texts = [[item.text for item in each.decided.items] for each in found]
    assert [HAND_OVER_TEXT] in texts
    assert sum(HAND_OVER_TEXT in each for each in texts) == 1


def test_nothing_follows_where_the_agent_was_not_advised() -> None:
    """A gateway that gives no texts does not act."""
    assert acts(played("identical call", "end", speaks=False)) == []
