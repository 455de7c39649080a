"""The system and user messages of a request that are recorded next to its steps."""

from __future__ import annotations

from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from gateway.conversations.observe import later_messages, opening_prompts, prompts_in
from gateway.core.step import Action, Step
from gateway.steering.transcript.user_words import task_of
from gateway.stores.records import PromptMessage
from tests.steering.builders import assistant, call, system, tool, user

ANYTHING = st.recursive(
    st.none() | st.integers() | st.text(max_size=5),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.sampled_from(["role", "content", "type", "text"]), inner, max_size=3)
    ),
    max_leaves=8,
)
MESSAGES = st.lists(
    st.sampled_from([system(), user(), assistant("x"), assistant(None, call()), tool()]) | ANYTHING,
    max_size=8,
)


def texts(found: list[PromptMessage]) -> list[tuple[str, str]]:
    return [(item.role, item.text) for item in found]


def test_an_opening_ends_at_the_first_reply() -> None:
    """System and user messages before it, in their order and roles; nothing after it."""
    developer = {"role": "developer", "content": "Be brief."}
    messages = [system("Be kind."), developer, user("One."), assistant("Yes?"), user("Two.")]
    found = texts(opening_prompts({}, messages, 0))
    assert found == [("system", "Be kind."), ("developer", "Be brief."), ("user", "One.")]


def test_a_later_run_opens_with_the_system_prompt_too() -> None:
    """The system prompt before the conversation is part of the opening of each run."""
    messages = [system("Be kind."), user("One."), assistant("Done."), user("Two.")]
    assert texts(opening_prompts({}, messages, 3)) == [("system", "Be kind."), ("user", "Two.")]


def test_a_system_prompt_outside_of_the_messages() -> None:
    """In a dialect with a separate field for it, it comes first in the opening."""
    for key in ("system", "instructions"):
        assert texts(opening_prompts({key: "Be kind."}, [user("One.")], 0)) == [
            ("system", "Be kind."),
            ("user", "One."),
        ]


def test_later_prompts_come_after_the_last_reply() -> None:
    """A user message after a tool's result is a prompt; the result is not."""
    messages = [user("One."), assistant(None, call()), tool("ok"), user("ok, now hurry")]
    latest = Step(index=0, actions=(Action(name="bash", observation="ok"),))
    assert texts(prompts_in(later_messages(messages, latest))) == [("user", "ok, now hurry")]


def test_the_result_of_a_call_in_text_is_not_a_prompt() -> None:
    """When calls are written in the text, the user message after them is their result."""
    messages = [user("One."), assistant("Action: ls"), user("Observation: setup.py")]
    latest = Step(index=0, actions=(Action(name="ls", observation="setup.py"),))
    assert prompts_in(later_messages(messages, latest)) == []
    assert texts(prompts_in(later_messages(messages, None))) == [("user", "Observation: setup.py")]


def test_the_task_is_the_first_user_message_of_the_run() -> None:
    """At or after the run's first message; empty when there is no user message."""
    messages = [system(), user("One."), assistant("Done."), user("Two.")]
    assert [task_of(messages, start) for start in (0, 2, 4)] == ["One.", "Two.", ""]


@given(MESSAGES, st.integers(0, 8), ANYTHING)
def test_malformed_messages_never_raise(messages: list[Any], start: int, system: Any) -> None:
    """Whatever is in a request, each prompt is a text with one of three roles."""
    found = opening_prompts({"system": system}, messages, start) + prompts_in(
        later_messages(messages, None)
    )
    for item in found:
        assert item.role in ("system", "developer", "user")
        assert item.text
    assert isinstance(task_of(messages, start), str)
