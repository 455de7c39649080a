"""The agent: a plain tool loop on the official `openai` client, without knowledge of steering. Its
repository is small; files and tests are real."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from openai import OpenAI

FILES = {
    "orders.py": (
        "from pricing import line_total\n\n\n"
        "def order_total(lines):\n"
        '    """What the customer pays, in cents."""\n'
        "    return sum(line_total(price, count) for price, count in lines)\n"
    ),
    "pricing.py": (
        "from rates import VAT\n\n\n"
        "def line_total(price, count):\n"
        '    """One line with tax, in cents."""\n'
        "    return round(price * count * (1 + VAT))\n"
    ),
    "rates.py": "VAT = 0.16\n",
    "customers.py": "def greeting(name):\n    return f'Dear {name},'\n",
    "report.py": "def heading(month):\n    return f'Orders of {month}'\n",
    "README.md": "# Shop\n\nRun the tests before every change. The tax law is in LAW.md.\n",
    "LAW.md": "# Tax\n\nSince January the rate is 19 percent. It is set in one place: rates.py.\n",
    "test_orders.py": (
        "import unittest\n\nfrom orders import order_total\n\n\n"
        "class OrderTotal(unittest.TestCase):\n"
        "    def test_two_lines(self):\n"
        "        self.assertEqual(order_total([(1000, 1), (250, 4)]), 2380)\n\n\n"
        "if __name__ == '__main__':\n    unittest.main()\n"
    ),
}


class Workspace:
    """A folder with the repository; each tool returns the text that the agent reads."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        for name, text in FILES.items():
            (folder / name).write_text(text, encoding="utf-8")

    def list_files(self) -> str:
        """Names, one a line."""
        return "\n".join(sorted(p.name for p in self.folder.iterdir() if p.is_file()))

    def read_file(self, path: str) -> str:
        """The text of one file."""
        found = self.folder / Path(path).name
        return found.read_text(encoding="utf-8") if found.exists() else f"no such file: {path}"

    def edit_file(self, path: str, old: str, new: str) -> str:
        """Replace one piece of text."""
        found = self.folder / Path(path).name
        text = found.read_text(encoding="utf-8")
        if old not in text:
            return f"error: the text to replace does not occur in {path}"
        found.write_text(text.replace(old, new, 1), encoding="utf-8")
        return f"{path}: 1 replacement"

    def run_tests(self) -> str:
        """The output of unittest, without its time."""
        done = subprocess.run(
            [sys.executable, "-B", "-m", "unittest", "-q", "test_orders"],
            cwd=self.folder,
            capture_output=True,
            text=True,
            timeout=30,
            check=False,
        )
        return "\n".join(x for x in done.stderr.splitlines() if not x.startswith("Ran ")).strip()


TOOLS: Mapping[Callable[..., str], tuple[str, ...]] = {
    Workspace.list_files: (),
    Workspace.read_file: ("path",),
    Workspace.edit_file: ("path", "old", "new"),
    Workspace.run_tests: (),
}
"""The tools with their parameters, all of them texts."""


def tool_definitions() -> list[dict[str, Any]]:
    """The tools as a chat request offers them."""
    definitions = []
    for tool, names in TOOLS.items():
        properties = {name: {"type": "string"} for name in names}
        parameters = {"type": "object", "properties": properties, "required": list(names)}
        about = {"name": tool.__name__, "description": tool.__doc__, "parameters": parameters}
        definitions.append({"type": "function", "function": about})
    return definitions


SYSTEM = "You are a careful engineer. Repair the repository with the tools you have."
TASK = "test_orders.py fails. Find out why and repair it."


@dataclass(frozen=True, slots=True, kw_only=True)
class Turn:
    """One model call: the gateway's response headers, and what the agent did next."""

    headers: dict[str, str]
    thought: str
    action: str
    failed: bool
    prompt_tokens: int
    completion_tokens: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """The calls of a run, and how it ended."""

    turns: tuple[Turn, ...]
    answer: str | None  # None when the agent gave up at its limit of calls


def run_agent(
    client: OpenAI,
    workspace: Workspace,
    *,
    model: str,
    max_calls: int,
    on_turn: Callable[[Turn], None],
) -> Outcome:
    """Call the model until it answers without a tool call, or the limit is reached."""
    messages: list[Any] = [{"role": "system", "content": SYSTEM}, {"role": "user", "content": TASK}]
    tools: Any = tool_definitions()
    turns: list[Turn] = []
    for _ in range(max_calls):
        raw = client.chat.completions.with_raw_response.create(
            model=model, messages=messages, tools=tools
        )
        completion = raw.parse()
        message = completion.choices[0].message
        messages.append(message.model_dump(exclude_none=True))
        action, failed = "", False
        for call in message.tool_calls or ():
            if call.type != "function":
                continue
            arguments = json.loads(call.function.arguments)
            result: str = getattr(workspace, call.function.name)(**arguments)
            messages.append({"role": "tool", "tool_call_id": call.id, "content": result})
            failed = "FAILED" in result or result.startswith("error")
            action = " ".join([call.function.name, *list(arguments.values())[:1]])
        usage = completion.usage
        turn = Turn(
            headers=dict(raw.headers),
            thought=message.content or "",
            action=action,
            failed=failed,
            prompt_tokens=usage.prompt_tokens if usage else 0,
            completion_tokens=usage.completion_tokens if usage else 0,
        )
        turns.append(turn)
        on_turn(turn)
        if not message.tool_calls:
            return Outcome(turns=tuple(turns), answer=message.content)
    return Outcome(turns=tuple(turns), answer=None)
