"""What a user wrote, among what clients put around it."""

from __future__ import annotations

from typing import Any

import pytest

from gateway.steering.transcript.user_words import MAX_CHARACTERS, task_of, title_of, user_words

TASK = "Repair the parser."
REMINDER = (
    "<system-reminder>\nToday is Sunday. The project has <files> of its own.\n</system-reminder>"
)


def says(content: Any) -> dict[str, Any]:
    return {"role": "user", "content": content}


def parts(*texts: str) -> list[dict[str, Any]]:
    return [{"type": "text", "text": text} for text in texts]


OPENINGS: dict[str, list[dict[str, Any]]] = {
    "plain": [says(TASK)],
    "claude code": [says(parts(REMINDER, TASK, REMINDER))],
    "one text": [says(f"{REMINDER}\n{TASK}\n\n{REMINDER}")],
    "qwen-code": [says(REMINDER), says(TASK)],
    "qwen-code, older": [
        says(
            "This is the Qwen Code. We are setting up the context for our chat.\nToday is Sunday."
        ),
        {"role": "assistant", "content": "Got it. Thanks for the context!"},
        says(TASK),
    ],
    "codex": [
        {"role": "developer", "content": "<permissions instructions>\nNo.\n</permissions>"},
        says("# AGENTS.md instructions for /src\n\n<INSTRUCTIONS>\nBe brief.\n</INSTRUCTIONS>"),
        says("<environment_context>\n  <cwd>/src</cwd>\n</environment_context>"),
        says(TASK),
    ],
    "codex in an editor": [
        says(
            "# Context from my IDE setup:\n\n## Open tabs:\n- a.py\n\n"
            f"## My request for Codex:\n{TASK}"
        )
    ],
    "cline": [
        says(
            parts(
                f"<task>\n{TASK}\n</task>\n\n# task_progress RECOMMENDED\nKeep a list.",
                "<environment_details>\n# Current Time\n9 pm\n</environment_details>",
            )
        )
    ],
    "cursor": [says(f"<user_info>\nLinux\n</user_info>\n<user_query>\n{TASK}\n</user_query>")],
    "aider": [
        says("Here are summaries of some files present in my git repository.\n\na.py:"),
        {"role": "assistant", "content": "Ok, I won't try and edit those files."},
        says(TASK),
    ],
}


@pytest.mark.parametrize("client", OPENINGS)
def test_the_task_is_what_the_user_wrote(client: str) -> None:
    """Reminders, environment blocks and instructions of the project are no part of the task."""
    assert task_of(OPENINGS[client], 0) == TASK


def test_a_message_of_blocks_alone_counts_as_it_is() -> None:
    """When a client wrote everything, the first message stands for the task."""
    assert task_of([says(REMINDER)], 0) == REMINDER
    assert task_of([says(REMINDER), {"role": "assistant", "tool_calls": [{}]}, says("x")], 0) == (
        REMINDER
    )
    assert task_of([], 0) == task_of([7, {"role": "assistant", "content": "Hm."}], 0) == ""


@pytest.mark.parametrize(
    "text",
    [
        "Why does <div>this</div> page not close its <context> tag?",
        "In web.config, <system.web> has the wrong value: <compilation debug='true'/>",
        "Use List<String> and Map<K, V>, then <task> is undefined.",
        "",
    ],
)
def test_markup_in_the_users_own_words_stays(text: str) -> None:
    """Tags that clients do not use, and tags that nobody closes, belong to the user's text."""
    assert user_words(text) == text


def test_hostile_texts_are_read_at_once() -> None:
    """Tags that are opened ever again are looked for once."""
    text = "<system-reminder>" * (MAX_CHARACTERS // 17)
    assert user_words(text) == text
    names = "".join(f"<system-{n}>" for n in range(MAX_CHARACTERS // 14))
    assert user_words(names) == names


def test_a_message_of_thousands_of_parts_is_read_at_its_beginning() -> None:
    """A client sends a few parts; 50,000 took half a second."""
    parts = [{"type": "text", "text": f"Part {n}."} for n in range(50_000)]
    words = task_of([says(parts)], 0).splitlines()
    assert words == [f"Part {n}." for n in range(256)]


@pytest.mark.parametrize(
    ("text", "title"),
    [
        ("Fix the parser\n\nIt fails.", "Fix the parser"),
        ("Implement the following plan:\n\n# Plan: Simplify it\n## Context", "Plan: Simplify it"),
        (
            "<uploaded_files>\n/repo\n</uploaded_files>\nI've uploaded a repository in /repo. "
            "Consider the following description:\n\n<pr_description>\nSum is wrong\nfor nothing\n"
            "</pr_description>\nHelp me.",
            "Sum is wrong",
        ),
        (
            "We're currently solving the following issue. Here's the issue text:\nISSUE:\n"
            "`Filter` is lost\nmore",
            "`Filter` is lost",
        ),
        ("# Context\nYou are an agent.\nCount the files", "Count the files"),
        ("<system-reminder>no</system-reminder>\nGo on", "Go on"),
        (
            "You are an assistant in a terminal. You will be given a task.\n\nAnswer in JSON.\n\n"
            "Task Description:\nBuild the kernel\n\nCurrent state:\n$",
            "Build the kernel",
        ),
        (
            "Please solve this issue: The filter is lost\n\n## Workflow\n1. Look.",
            "The filter is lost",
        ),
        (
            "You are working in /repo. Find the callers of `f`.\nReturn a list.",
            "Find the callers of `f`.",
        ),
        (
            "Answer the following question with the tool.\n\nQuestion: Who wrote it?",
            "Who wrote it?",
        ),
        ("Current Task: Write a report.\n\nBegin!", "Write a report."),
        ("```a.py\nprint(1)\n```\nWhy twice?", "Why twice?"),
        ("[Image #1]\nWhat is wrong here?", "What is wrong here?"),
        ("Hello!\n\nCan you mend the tests?", "Can you mend the tests?"),
        ("# Title\n\nIt is lost\n\n## Body", "It is lost"),
        (
            "<command-message>review runs</command-message>\n<command-name>/review</command-name>",
            "/review",
        ),
        ("Context managers leak\n\nSee below.", "Context managers leak"),
        (
            "<attachments>\n<attachment id='a'>\nx = 1\n</attachment>\n</attachments>\n"
            "<userRequest>\nTest it\n</userRequest>",
            "Test it",
        ),
        ("# Context", "# Context"),
        ("", ""),
    ],
)
def test_a_title_is_the_task(text: str, title: str) -> None:
    """Without what leads to it, and the same again when it was stored like that."""
    found = title_of(text)
    assert found.partition("\n")[0] == title
    assert title_of(found).partition("\n")[0] == title


def test_a_title_of_a_long_text_is_quick() -> None:
    """No text makes the search for its task slow: these would take minutes."""
    for part in ("\n", "<a", "following ", "# ", "<issue>", "* \n"):
        title_of(part * 60_000)
