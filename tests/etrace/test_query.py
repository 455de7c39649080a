"""The text of a look-up."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from gateway.steering.etrace.query import MAX_STEP_CHARS, query_text
from gateway.steering.steps import Action, Step


def test_a_step_is_its_thought_and_its_calls() -> None:
    """Reasoning stands in for a missing thought; the end of a failed call's result is added."""
    log = "x" * 5_000 + " KeyError: 'total'"
    failed = Action(name="bash", arguments="pytest", observation=log, is_error=True)
    passed = Action(name="open", arguments="a.py", observation="secret contents")
    steps = [Step(index=0, reasoning="why?", actions=(failed,)), Step(index=1, actions=(passed,))]
    text = query_text(steps, 5)
    assert text.splitlines()[0].startswith("why? bash pytest x")
    assert "KeyError: 'total'" in text
    assert text.splitlines()[1] == "open a.py"


@given(
    st.lists(st.builds(Step, index=st.just(0), thought=st.text(max_size=2_000)), max_size=8),
    st.integers(0, 6),
)
def test_a_query_is_bounded_and_made_of_the_newest_steps(steps: list[Step], count: int) -> None:
    """At most so many characters a step; no step asked for or nothing said gives no text."""
    text = query_text(steps, count)
    assert len(text) <= count * (MAX_STEP_CHARS + 1)
    if not any(step.thought.strip() for step in steps[-count:] if count):
        assert text == ""
