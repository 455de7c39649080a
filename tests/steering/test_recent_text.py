"""The newest steps as one text, for look-ups and judges."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from gateway.core.step import MAX_STEP_CHARS, Action, Step, recent_text


def test_a_step_is_its_thought_and_its_calls() -> None:
    """Reasoning replaces a missing thought; the end of a failed call's result is added."""
    log = "x" * 5_000 + " KeyError: 'total'"
    failed = Action(name="bash", arguments="pytest", observation=log, is_error=True)
    passed = Action(name="open", arguments="a.py", observation="secret contents")
    steps = [Step(index=0, reasoning="why?", actions=(failed,)), Step(index=1, actions=(passed,))]
    text = recent_text(steps, 5)
    assert text.splitlines()[0].startswith("why? bash pytest x")
    assert "KeyError: 'total'" in text
    assert text.splitlines()[1] == "open a.py"


@given(
    st.lists(st.builds(Step, index=st.just(0), thought=st.text(max_size=2_000)), max_size=8),
    st.integers(0, 6),
)
def test_a_query_is_bounded_and_has_the_newest_steps(steps: list[Step], count: int) -> None:
    """Each step has a limit of characters; no steps or no words give an empty text."""
    text = recent_text(steps, count)
    assert len(text) <= count * (MAX_STEP_CHARS + 1)
    if not any(step.thought.strip() for step in steps[-count:] if count):
        assert text == ""
