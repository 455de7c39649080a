"""The small repository and the agent's tools: real files, real tests."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

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
        """What unittest prints, without its timing."""
        done = subprocess.run(
            [sys.executable, "-B", "-m", "unittest", "-q", "test_orders"],
            cwd=self.folder,
            capture_output=True,
            text=True,
            timeout=30,
            check=False,
        )
        return "\n".join(x for x in done.stderr.splitlines() if not x.startswith("Ran ")).strip()

    def call(self, name: str, arguments: dict[str, Any]) -> str:
        """Run one tool by name."""
        tools: dict[str, Callable[..., str]] = {
            "list_files": self.list_files,
            "read_file": self.read_file,
            "edit_file": self.edit_file,
            "run_tests": self.run_tests,
        }
        return tools[name](**arguments)


def tool_definitions() -> list[dict[str, Any]]:
    """The tools as a chat request offers them."""
    parameters = {
        "list_files": (),
        "read_file": ("path",),
        "edit_file": ("path", "old", "new"),
        "run_tests": (),
    }
    return [
        {
            "type": "function",
            "function": {
                "name": name,
                "description": getattr(Workspace, name).__doc__,
                "parameters": {
                    "type": "object",
                    "properties": {p: {"type": "string"} for p in names},
                    "required": list(names),
                },
            },
        }
        for name, names in parameters.items()
    ]
