"""The place of a run: its project, and what its agent was doing."""

from __future__ import annotations

import json
from typing import Any

from gateway.core.step import Action
from gateway.features.learning.context import like_of, project_of
from gateway.stores.records import PromptMessage


def action(name: str, **arguments: Any) -> Action:
    return Action(name=name, arguments=json.dumps(arguments), observation="")


def test_calls_that_are_alike() -> None:
    """The program of a shell call with its sub-command; the tool with the kind of its object."""
    shell = action("Bash", command="cd /x && git commit -m 'fix: a && b'")
    assert like_of(shell) == "git commit"
    edit = action("Edit", file_path="/a/b.go", old_string="x", new_string="y")
    assert like_of(edit) == "Edit .go"
    assert like_of(action("Edit", file_path="/a/Makefile", old_string="x")) == "Edit"
    assert like_of(action("get_order", order_id="W12")) == "get_order"


def test_the_project_of_a_run() -> None:
    """The client's working directory, in worktrees the same; else the prompt without numbers."""

    def of(text: str, role: str = "system") -> tuple[str, str]:
        return project_of([PromptMessage(role=role, text=text)])

    shop = of("<env>\nWorking directory: /home/ann/shop\nToday: 2026-01-01</env>")
    assert shop[1] == "shop"
    assert of("cwd: /home/ann/shop/.worktrees/3", "user") == shop
    temporary = "The project's temporary directory is: /home/ann/.gemini/tmp/shop\n"
    listed = "- **Workspace Directories:**\n  - /home/ann/shop\n  - /home/ann/other\n"
    assert of(temporary + listed, "user") == shop  # Gemini CLI
    assert of("cwd: /home/ann/other")[0] != shop[0]
    assert of("You serve airline customers. It is 3 May.") == of(
        "You serve airline customers. It is 17 May."
    )
    assert of("hello", "user") == ("", "")
