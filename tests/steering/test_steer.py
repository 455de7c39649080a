"""The memory of a run, as `core.steer` keeps it."""

from __future__ import annotations

from gateway.core.routing import RoutedModel
from gateway.core.steer import Advice, RunMemory, observe, thrifty
from gateway.steering.runs_of_transcript import ConversationFold
from tests.steering.builders import REFERENCE, assistant, call, tool, user

STUCK = [
    message
    for number in range(12)
    for message in (
        assistant("", call(arguments='{"command": "pytest"}', id=f"c{number}")),
        tool("E   assert 1 == 2\n1 failed", id=f"c{number}"),
    )
]


def test_alarms_of_an_earlier_run_are_not_this_runs() -> None:
    """One request may bring the end of a run and the next one's first step."""
    fresh = [user("Now list the files."), assistant("", call("ls", id="n")), tool("a.py", id="n")]
    fold = ConversationFold(REFERENCE)
    outcomes = fold.extend([user(), *STUCK, assistant("Given up."), *fresh, assistant("", call())])
    earlier = [outcome for outcome in outcomes if outcome.run == 0]
    assert observe(RunMemory(), earlier, 0).guidance.fired_step is not None
    assert fold.current.index == 1
    assert observe(RunMemory(), outcomes, 1) == RunMemory()


def test_an_alarm_is_noted_at_its_newest_step() -> None:
    """A step that was noted before changes nothing."""
    fold = ConversationFold(REFERENCE)
    outcomes = fold.extend([user(), *STUCK])
    memory = observe(RunMemory(), outcomes, 0)
    assert memory.guidance.fired_step == max(o.index for o in outcomes if o.readings.fired)
    assert observe(memory, outcomes, 0) is memory


def test_a_budgets_cheaper_model_has_to_serve_the_call() -> None:
    """One that cannot is not used, and the reason says why; the model asked for needs no check."""
    routed = RoutedModel(model="big", pin=None)
    advice = Advice(cheaper="small")

    def none_serves(model: str) -> str | None:
        return f"{model} takes no tools"

    refused = thrifty(routed, advice, "asked", none_serves)
    assert refused.model == "big"
    assert refused.reasons == ("budget: small not used: small takes no tools",)
    for taken in (
        thrifty(routed, advice, "small", none_serves),
        thrifty(routed, advice, "asked", lambda model: None),
        thrifty(routed, advice, "asked", None),
    ):
        assert taken.model == "small"
        assert taken.reasons == ("budget: small instead of big",)
    assert thrifty(routed, Advice(), "asked", none_serves) is routed
