"""Which requests ask for a title of a conversation."""

from __future__ import annotations

from typing import Any

import pytest

from gateway.steering.identity import read_request

TASK = "The login button does nothing on mobile. Find out why and repair it, please."


def says(text: Any) -> dict[str, Any]:
    return {"role": "user", "content": text}


def system(text: str) -> dict[str, Any]:
    return {"role": "system", "content": text}


# The instructions are in the shapes in which the clients send them, in other words.
TITLES: dict[str, dict[str, Any]] = {
    "opencode": {
        "messages": [
            system(
                "You are a title generator. You output ONLY a thread title.\n\n<task>\nName it."
            ),
            says("Generate a title for this conversation:\n"),
            says(TASK),
        ]
    },
    "opencode, words in the user's part": {
        "messages": [says("Generate a title for this conversation:\n"), says(TASK)]
    },
    "gptme": {
        "messages": [
            system("Generate concise conversation titles."),
            says(
                "Your task: Create a 2-4 word title for this conversation.\n\nRules:\n- Maximum 4"
                f" words\n\nConversation:\nUser: {TASK}\nAssistant: I will look at the button.\n"
            ),
        ],
        "max_tokens": 4096,
    },
    "gptme, a name": {
        "messages": [
            says(
                f"Generate a descriptive name for this conversation.\n\nConversation:\nUser: {TASK}"
            )
        ]
    },
    "claude code": {
        "system": [
            {"type": "text", "text": "You are Claude Code, Anthropic's official CLI for Claude."},
            {
                "type": "text",
                "text": "Generate a concise, sentence-case title (3-7 words) that captures the main"
                " goal of this coding session. Return JSON with a single field.",
            },
        ],
        "messages": [says([{"type": "text", "text": f"<session>\n{TASK}\n</session>"}])],
        "tools": [],
    },
    "claude code, newer": {
        "system": [
            {"type": "text", "text": "You are Claude Code, Anthropic's official CLI for Claude."},
            {
                "type": "text",
                "text": "You are naming a coding session so the user can pick it out of a list.",
            },
        ],
        "messages": [says(TASK)],
    },
    "at the end": {
        "messages": [
            says(TASK),
            {"role": "assistant", "content": "Done."},
            says("Generate a concise 3-7 word title for this conversation, without punctuation."),
        ]
    },
    "a session's description": {
        "messages": [
            says(f"{TASK}\nProvide a concise description of this session in 4 words or less.")
        ]
    },
    "responses": {
        "instructions": "You are a helpful assistant.",
        "input": [says(f"Suggest a short chat name for the current conversation.\n\n{TASK}")],
    },
    "chinese": {"messages": [says(f"请为以下对话生成一个简短的标题:\n{TASK}")]},
}
OTHERS: dict[str, dict[str, Any]] = {
    "a task": {"messages": [system("You repair programs."), says(TASK)]},
    "a task about titles": {"messages": [says("Write a title for my article on gardening.")]},
    "a task about a title page": {
        "messages": [says("The chat page of our app shows the wrong title. Find out why.")]
    },
    "an assistant with a name": {
        "messages": [
            system("You are a chat assistant named Bo. Reply in the user's language, by name."),
            says("Hello"),
        ]
    },
    "an issue that mentions titles": {
        "messages": [
            system("You solve issues in repositories. Answer with one shell command."),
            says(
                "Please solve this issue.\n\n<issue>\nThe forum shows every thread twice. It"
                " happens since the last release, on all pages.\n\nTo reproduce: create a thread"
                " with a long title and open the discussion.\n</issue>\n"
                + "Work step by step. "
                * 30
            ),
        ]
    },
    "a summary": {"messages": [says("Summarize the following conversation.\n\nUser: hi")]},
    "an instruction far inside": {
        "messages": [says(f"{TASK * 20} Generate a title for this conversation. {TASK * 20}")]
    },
    "tools": {
        "messages": [says("Generate a title for this conversation.")],
        "tools": [{"type": "function", "function": {"name": "set_title"}}],
    },
    "nothing": {"messages": []},
    "no text": {"messages": [says(None), 7, {"role": "user"}]},
}


@pytest.mark.parametrize("name", TITLES)
def test_a_request_for_a_title(name: str) -> None:
    """The instruction is recognised wherever clients put it."""
    assert read_request({}, TITLES[name], "t").titles


@pytest.mark.parametrize("name", OTHERS)
def test_no_request_for_a_title(name: str) -> None:
    """Tasks, summaries and agents with tools are not taken for requests for titles."""
    assert not read_request({}, OTHERS[name], "t").titles
