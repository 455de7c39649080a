"""Texts that clients write with the role of the user: which of them begin a run, and titles."""

from __future__ import annotations

import re
from typing import Any

import pytest

from gateway.core.decision_settings import Policy
from gateway.data_files import read_toml
from gateway.steering.runs_of_transcript import ConversationFold
from gateway.steering.transcript.client_texts import asked, is_note, title_words

TABLE = read_toml("gateway.steering.transcript", "client_texts.toml")


def _tagged(names: list[str]) -> list[str]:
    """A text in each of these tags; a name is an expression."""
    found = []
    for name in names:
        plain = re.sub(r"\(\?:([^)|]*)[^)]*\)\??", r"\1", name).replace(r"\w+", "plan")
        plain = plain.replace(r"\w*", "agent_")
        found.append(f"<{plain}>\nsomething was done\n</{plain}>")
    return found


NOTES = [*[f"{text} and more" for text in TABLE["notes"]], *_tagged(TABLE["note_tags"])]
ORDERS = [f"{text} and more" for text in TABLE["orders"]]
REMINDERS = [
    "<system-reminder>\nThe todo list is empty.\n</system-reminder>",
    "<environment_context>\n<cwd>/x</cwd>\n</environment_context>\n<user_instructions>x</user_instructions>",
]


def _runs(*later: str) -> list[int]:
    """The numbers of the runs of an answered task with more messages of the user after it, one
    request for each."""
    messages: list[dict[str, Any]] = [
        {"role": "user", "content": "fix the parser, please"},
        {"role": "assistant", "content": "It is fixed."},
    ]
    fold = ConversationFold(Policy())
    for text in later:
        fold.extend(messages)
        messages.append({"role": "user", "content": text})
    fold.extend(messages)
    messages.append({"role": "assistant", "content": "I went on."})
    fold.extend(messages)
    return [run.index for run in fold.runs]


@pytest.mark.parametrize("text", [*NOTES, *REMINDERS])
def test_a_clients_note_begins_no_run(text: str) -> None:
    """After an answer, a note is no task; a person's message after it is one, at once or later."""
    assert is_note(text)
    assert _runs(text) == [0]
    assert _runs(text, "now fix the lexer too") == [0, 1]
    assert title_words(text) == ""


@pytest.mark.parametrize("text", ORDERS)
def test_an_order_that_a_client_wrote_begins_a_run(text: str) -> None:
    """A person chose it."""
    assert not is_note(text)
    assert _runs(text) == [0, 1]


@pytest.mark.parametrize("before", ["", f"{REMINDERS[0]}\n"])
def test_a_persons_words_begin_a_run(before: str) -> None:
    """With what a client put around them, too."""
    text = f"{before}now fix the lexer too"
    assert not is_note(text)
    assert _runs(text) == [0, 1]
    assert title_words(text) == "now fix the lexer too"


def test_a_note_is_scored_as_a_step_of_its_run() -> None:
    """What the agent said before it is a step, and nothing is scored twice."""
    fold = ConversationFold(Policy())
    messages: list[dict[str, Any]] = [
        {"role": "user", "content": "fix the parser, please"},
        {"role": "assistant", "content": "It is fixed."},
        {"role": "user", "content": "Stop hook feedback:\nthe tests fail"},
    ]
    assert [outcome.index for outcome in fold.extend(messages)] == [1]
    messages.append({"role": "assistant", "content": "Now they pass."})
    assert fold.extend(messages) == []
    assert len(fold.runs) == 1


def test_a_task_is_found_behind_what_a_client_wrote() -> None:
    """Notes, orders and greetings of the agent are passed over; parts of a message are read one by
    one; nothing is made up where only a client spoke."""
    greeting = {"role": "assistant", "content": "How can I help?"}
    note = {"role": "user", "content": "System: Please continue."}
    words = {
        "role": "user",
        "content": [
            {"type": "text", "text": "Base directory for this skill: /x"},
            {"type": "text", "text": "review the change"},
        ],
    }
    assert asked([greeting, note, words], 0) == "review the change"
    assert asked([greeting, note], 0) == ""
    stopped = "[Request interrupted by user for tool use]"
    plan = "Implement the following plan:\n\n# Plan: one row"
    assert title_words(f"{stopped}\n{plan}") == "# Plan: one row"
