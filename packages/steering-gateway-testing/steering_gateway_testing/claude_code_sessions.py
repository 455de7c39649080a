"""Sessions of Claude Code for tests, written as the client writes them."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any
from uuid import UUID

START = datetime(2026, 2, 2, 9, 0, tzinfo=UTC)
REJECTED = (
    "The user doesn't want to proceed with this tool use. The tool use was rejected (eg. if it was "
    "a file edit, the new_string was NOT written to the file). "
)
INTERRUPTED = "[Request interrupted by user]"


class Log:
    """Lines of one session; each step costs 1,000 input and 100 output tokens."""

    def __init__(
        self, number: int = 1, *, folder: str = "/home/me/shop", sub_agent: str = ""
    ) -> None:
        self.id = str(UUID(int=number))
        self.lines: list[dict[str, Any]] = []
        self.usage = {"input_tokens": 1000, "cache_read_input_tokens": 0, "output_tokens": 100}
        self.model = "claude-sonnet-4-5-20250929"
        self._folder = folder
        self._sub_agent = sub_agent  # its id, of a sub-agent of the session with this number
        self._answers = 0
        self._now = START

    def wait(self, seconds: float) -> Log:
        """Let time pass before the next line."""
        self._now += timedelta(seconds=seconds)
        return self

    def user(self, content: Any, **more: Any) -> Log:
        """A line with the role of the user."""
        return self._line("user", {"role": "user", "content": content}, more)

    def result(self, text: str, *, error: bool = False) -> Log:
        """The result of the newest call."""
        part = {"type": "tool_result", "tool_use_id": f"call_{self._answers}", "content": text}
        return self.user([{**part, "is_error": error}])

    def answer(self, text: str = "", call: tuple[str, Mapping[str, Any]] | None = None) -> Log:
        """One answer of the model, as one line per content block."""
        self._answers += 1
        blocks: list[dict[str, Any]] = [{"type": "text", "text": text}] if text else []
        if call is not None:
            name, arguments = call
            use = {"type": "tool_use", "id": f"call_{self._answers}"}
            blocks.append({**use, "name": name, "input": arguments})
        for block in blocks:
            message = {
                "id": f"msg_{self.id}_{self._sub_agent}{self._answers}",
                "role": "assistant",
                "model": self.model,
                "content": [block],
                "usage": dict(self.usage),
            }
            self._line("assistant", message, {"requestId": f"req_{self._answers}"})
        return self

    def bash(self, command: str, result: str, *, error: bool = False) -> Log:
        """A step that runs a command."""
        return self.answer("", ("Bash", {"command": command})).result(result, error=error)

    def write(self, folder: Path) -> Path:
        """Write the session where the client keeps it below a home directory."""
        path = folder / ".claude/projects" / self._folder.replace("/", "-") / f"{self.id}.jsonl"
        if self._sub_agent:
            path = path.with_suffix("") / "subagents" / f"agent-{self._sub_agent}.jsonl"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(b"".join(json.dumps(line).encode() + b"\n" for line in self.lines))
        return path

    def _line(self, kind: str, message: Mapping[str, Any], more: Mapping[str, Any]) -> Log:
        at = self._now
        self.wait(10)
        side = {"isSidechain": True, "agentId": self._sub_agent} if self._sub_agent else {}
        self.lines.append(
            {
                "type": kind,
                "isSidechain": False,
                "sessionId": self.id,
                "uuid": str(UUID(int=len(self.lines) + 1)),
                "cwd": self._folder,
                "version": "2.1.7",
                "timestamp": at.isoformat(),
                "message": message,
                **side,
                **more,
            }
        )
        return self


def looping(number: int = 1, times: int = 12) -> Log:
    """A session that runs the same failing test again and again, until its person interrupts."""
    log = Log(number).user("Make the tests pass.")
    for _ in range(times):
        log.bash("pytest tests/test_cart.py", "E   assert 3 == 4\n1 failed in 0.2s", error=True)
    log.user(INTERRUPTED)
    return log.user("stop, the fixture is wrong, not the cart")


def smooth(number: int = 2) -> Log:
    """A session without trouble."""
    log = Log(number, folder="/home/me/blog").user("Rename the page.")
    for name in ("index", "about", "contact"):
        log.bash(f"sed -i s/old/{name}/ {name}.html", f"{name}.html: 1 replacement of {name}")
    return log.answer("Done: three pages are renamed.")


def write_all(logs: Iterable[Log], home: Path) -> list[Path]:
    """Write several sessions below a home directory."""
    return [log.write(home) for log in logs]
