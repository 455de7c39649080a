"""The places and formats of the logs that agents write, one row for each agent.

A reader needs its module in `readers` and a row here. An installed package adds a row through the
entry point group `steering_gateway.readers`, whose value is a `LogFormat`."""

import importlib
from collections.abc import Iterable
from functools import cache
from types import ModuleType
from typing import cast

from gateway.core.plugins import plugins
from gateway.features.history.log_file import LogFile
from gateway.features.history.session import Session
from gateway.values import Value

_READERS = f"{__package__}.readers"


class LogFormat(Value):
    """One format of session logs. Its module has `matches(head, name)`, true for the first bytes
    and the name of a file of this format, and `read(log)`, its sessions."""

    name: str  # the agent's
    module: str = ""  # below `readers`; "" = the one called like the format
    homes: tuple[str, ...] = ()  # glob patterns of its files below the home directory
    tested: str = ""  # the agent's versions that it was tested with

    def matches(self, head: bytes, name: str) -> bool:
        """True if a file with this beginning and name has this format."""
        return bool(self._reader.matches(head, name))

    def read(self, log: LogFile) -> Iterable[Session]:
        """The sessions of a file; what cannot be read is noted in `log`."""
        return cast(Iterable[Session], self._reader.read(log))

    @property
    def _reader(self) -> ModuleType:
        return importlib.import_module(self.module or f".{self.name.replace('-', '_')}", _READERS)


_BUILT_IN = (
    LogFormat(
        name="codex",
        homes=(".codex/sessions/**/rollout-*.jsonl", ".codex/archived_sessions/**/rollout-*.jsonl"),
        tested="0.36.0 to 0.171.0",
    ),
    LogFormat(
        name="gemini-cli",
        homes=(".gemini/tmp/*/chats/**/*.json*", ".qwen/tmp/*/chats/*.json"),
        tested="0.23.0, 0.43.0, 0.61.0",
    ),
    LogFormat(
        name="qwen-code",
        homes=(".qwen/projects/*/chats/*.jsonl", ".qwen/projects/*/subagents/**/*.jsonl"),
        tested="0.1.4, 0.5.2, 0.15.10, 0.24.4",
    ),
    LogFormat(
        name="copilot-cli",
        homes=(".copilot/session-state/*/events.jsonl", ".copilot/session-state/*.jsonl"),
        tested="1.0.48, 1.0.64, 1.0.102",
    ),
    LogFormat(
        name="claude-code",
        homes=(".claude/projects/**/*.jsonl", ".config/claude/projects/**/*.jsonl"),
        tested="1.0.24 to 2.1.332",
    ),
    LogFormat(
        name="opencode",
        homes=(".local/share/opencode/opencode*.db",),
        tested="1.18.33; not the files of versions before 1.2",
    ),
    LogFormat(
        name="aider",
        homes=tuple(f"{folder}.aider.chat.history.md" for folder in ("", "*/", "*/*/", "*/*/*/")),
        tested="0.86.2",
    ),
    LogFormat(name="swe-agent", tested="mini-swe-agent 2.4.6, without the Responses API"),
    LogFormat(
        name="openhands",
        homes=(".openhands/conversations/*/base_state.json",),
        tested="1.58.2 (SDK); not the events of 0.x",
    ),
    LogFormat(name="recordings", tested="this version"),
)


@cache
def formats() -> tuple[LogFormat, ...]:
    """The built-in formats, then those of installed packages, in the order they are tried."""
    names = {each.name for each in _BUILT_IN}
    return (*_BUILT_IN, *(each.load() for each in plugins("steering_gateway.readers", names)))
