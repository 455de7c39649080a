"""The words of the third set of planted forms: tools of 2026, each with arguments and results as
its client writes them. A form is a function of what a seed draws and of the round.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from typing import Any

import orjson

Call = tuple[str, str, dict[str, Any], str]
"""Thought, tool, arguments, result."""
Turn = Call | list[Call] | tuple[str, str | None] | tuple[str]
"""A call; parallel calls; a message with the user's reply or None; a message of the user."""

WORDS = [
    "amber",
    "birch",
    "cedar",
    "dune",
    "ember",
    "fjord",
    "grove",
    "heath",
    "islet",
    "juniper",
    "knoll",
    "lagoon",
    "meadow",
    "nectar",
    "orchid",
    "prairie",
    "quartz",
    "ridge",
    "saddle",
    "tundra",
]
TOPICS = [
    "billing",
    "retries",
    "invoice",
    "search",
    "session",
    "login",
    "export",
    "webhook",
    "cache",
    "upload",
    "audit",
    "tenant",
    "report",
    "mailer",
    "scheduler",
    "import",
]


CLIENTS = ("claude", "codex", "json", "plain")


class Draw:
    """What a seed draws: words, topics, numbers and the client whose tools are used."""

    def __init__(self, seed: int) -> None:
        self.rng = random.Random(seed)
        self.words = self.rng.sample(WORDS, len(WORDS))
        self.topics = self.rng.sample(TOPICS, len(TOPICS))
        self.number = self.rng.randrange(11, 90)
        self.client = CLIENTS[seed % len(CLIENTS)]

    def word(self, i: int) -> str:
        return self.words[i % len(self.words)]

    def topic(self, i: int) -> str:
        return self.topics[i % len(self.topics)]

    def text(self, i: int, lines: int = 8) -> str:
        """Lines of code that are other ones for another `i`."""
        pick = random.Random(f"{self.number}/{i}")
        return "\n".join(
            f"def {pick.choice(WORDS)}_{pick.randrange(9999)}(self, {pick.choice(TOPICS)}): "
            f"return {pick.choice(WORDS)}.{pick.choice(TOPICS)}_{pick.randrange(999)}"
            for _ in range(lines)
        )

    def run(self, command: str, output: str, code: int = 0, thought: str = "") -> Call:
        """A command line in the client's shell; the result as that client shows it."""
        if self.client == "claude":
            arguments: dict[str, Any] = {"command": command, "description": "Run it"}
            return (thought, "Bash", arguments, f"Exit code {code}\n{output}" if code else output)
        if self.client == "codex":
            head = (
                f"Chunk ID: {self.rng.randrange(16**6):06x}\n"
                f"Wall time: {self.rng.random():.4f} seconds\nProcess exited with code {code}\n"
                f"Original token count: {len(output) // 4}\nOutput:\n"
            )
            arguments = {"cmd": command, "workdir": "/home/dev/app", "yield_time_ms": 10000}
            return (thought, "exec_command", arguments, head + output)
        if self.client == "json":
            result = orjson.dumps({"returncode": code, "output": output}).decode()
            return (thought, "bash", {"command": command}, result)
        return (thought, "execute_bash", {"command": command}, output)

    def edit(self, path: str, old: str, new: str, thought: str = "", failure: str = "") -> Call:
        """One replacement in a file."""
        if self.client == "codex":
            patch = f"*** Begin Patch\n*** Update File: {path}\n@@\n-{old}\n+{new}\n*** End Patch"
            done = f"Success. Updated the following files:\nM {path}"
            return (thought, "apply_patch", {"input": patch}, failure or done)
        arguments = {"file_path": path, "old_string": old, "new_string": new}
        return (thought, "Edit", arguments, failure or f"The file {path} has been updated.")

    def read(self, path: str, at: int, lines: int, seed: int, thought: str = "") -> Call:
        """A part of a file; the same lines for the same place."""
        body = "\n".join(f"{n:>6}\u2192{self.text(seed * 1000 + n, 1)}" for n in _span(at, lines))
        if self.client == "codex":
            return self.run(f"sed -n '{at},{at + lines - 1}p' {path}", body, thought=thought)
        return (thought, "Read", {"file_path": path, "offset": at, "limit": lines}, body)

    def plan(self, steps: Sequence[tuple[str, str]], thought: str = "") -> Call:
        """The list of what is to be done, as (text, status)."""
        if self.client == "codex":
            plan = [{"step": text, "status": status} for text, status in steps]
            return (thought, "update_plan", {"plan": plan}, "Plan updated")
        todos = [{"content": text, "status": status, "activeForm": text} for text, status in steps]
        done = (
            "Todos have been modified successfully. Ensure that you continue to use the todo list "
            "to track your progress. Please proceed with the current tasks if applicable"
        )
        return (thought, "TodoWrite", {"todos": todos}, done)


def _span(at: int, lines: int) -> range:
    return range(at, at + lines)


def browser(tool: str, arguments: dict[str, Any], result: str, thought: str = "") -> Call:
    """A call of a browser's MCP server."""
    return (thought, f"mcp__playwright__browser_{tool}", arguments, result)


def sql(query: str, result: str, thought: str = "") -> Call:
    """A query by a database's MCP server."""
    return (thought, "mcp__postgres__query", {"sql": query}, result)


def snapshot(name: str, lines: Sequence[str]) -> str:
    """A page as the browser's server describes it."""
    listed = "\n".join(f"- {line} [ref=e{at + 3}]" for at, line in enumerate(lines))
    return f"### Page state\n- Page URL: https://app.test/{name}\n- Page Snapshot:\n{listed}"


Form = Callable[[Draw, int], Sequence[Turn]]
