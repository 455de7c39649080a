"""The offer to keep an agent's earlier sessions, made once: after the first wrapped command that
has some, so that nothing waits for it."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

from msgspec import Struct

from gateway.commands.keep import run_keep
from gateway.config import Settings
from gateway.errors import ConfigError
from gateway.history.find import Found
from gateway.history.readers import LogFormat, formats
from gateway.process.running import state_folder
from gateway.stores.protocols import StoreError
from gateway.stores.queries import PageRequest, RunFilter
from gateway.stores.records import IMPORTED
from gateway.wrap.own_gateway import OwnGateway

_ANSWERS = "history-offers.json"  # in the folder of wrap's database: the answer by agent


class Offer(Struct, frozen=True, kw_only=True):
    """Session logs of one agent that nobody was asked about, the newest first, and the settings of
    the gateway that would keep them."""

    agent: str
    logs: tuple[Found, ...]
    settings: Settings

    def make(self) -> None:
        """Ask, remember the answer, and keep the sessions after a yes."""
        sys.stderr.write(
            f"gateway: {len(self.logs)} earlier sessions of {self.agent} are on this machine: "
            "`gateway history` shows them; keep them for the dashboard and lessons? [y/N] "
        )
        sys.stderr.flush()
        try:
            said = sys.stdin.readline()
        except KeyboardInterrupt:
            said = ""
        if not said.endswith("\n"):
            sys.stderr.write("\n")
            return  # no answer: the next command asks
        yes = said.strip().lower() in ("y", "yes")
        _remember(self.agent, yes=yes)
        if yes:
            try:
                run_keep(self.logs, self.settings, sys.stderr, sys.stderr)
            except ConfigError as exc:  # the command's exit status counts
                sys.stderr.write(f"gateway: not kept: {exc}\n")


def open_offer(command: str, own: OwnGateway, before: float) -> Offer | None:
    """The offer that is due for a command: a person is at the terminal and was not asked about its
    agent, there are logs from `before` this time, and none of its was kept. Folders are
    listed, no log is read."""
    if not (sys.stdin.isatty() and sys.stderr.isatty()):
        return None
    name = Path(command).stem
    agent = next((each for each in formats() if each.name.partition("-")[0] == name), None)
    if agent is None or agent.name in _answers():
        return None
    logs = sorted(_logs(agent, before), reverse=True)
    kept, page = RunFilter(mode=IMPORTED, agent=agent.name), PageRequest(limit=1)
    with suppress(StoreError, OSError):
        if logs and not own.call(own.server.runtime.runs.list_runs(kept, page)).runs:
            found = tuple(Found(path=path, format=agent) for _, path in logs)
            return Offer(agent=agent.name, logs=found, settings=own.settings)
    return None


def _logs(agent: LogFormat, before: float) -> Iterator[tuple[float, Path]]:
    for pattern in agent.homes:
        for path in Path.home().glob(pattern):
            with suppress(OSError):
                changed_at = path.stat().st_mtime
                if changed_at < before and path.is_file():
                    yield changed_at, path


def _answers() -> dict[str, str]:
    try:
        found = json.loads((state_folder() / _ANSWERS).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return found if isinstance(found, dict) else {}


def _remember(agent: str, *, yes: bool) -> None:
    folder = state_folder()
    with suppress(OSError):
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        text = json.dumps(_answers() | {agent: "yes" if yes else "no"})
        (folder / _ANSWERS).write_text(text, encoding="utf-8")
