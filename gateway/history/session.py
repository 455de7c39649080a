"""One session of an agent, as every reader gives it: messages, model calls, what the person did."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any, Literal

from msgspec import Struct

from gateway.history.log_file import Unread
from gateway.wire.coerce import as_number, as_text

HumanKind = Literal["message", "interrupt", "reject"]


class ModelCall(Struct, frozen=True, kw_only=True):
    """One answer of a model.

    `position`: the index of its message. `usage`: the provider's own object, in any form that
    `gateway.upstream.prices.tokens_of` reads; empty if the log has none. `at`: seconds of the
    epoch. `key`: the same in every file that holds a copy of this answer; "" if unknown.
    `cost_usd`: the price that the agent itself noted.
    """

    position: int
    model: str = ""
    usage: Mapping[str, Any] = {}
    at: float | None = None
    key: str = ""
    cost_usd: float | None = None


class HumanTurn(Struct, frozen=True, kw_only=True):
    """One act of the person: a message, an interruption, or the rejection of a call.

    `position`: the index of the message that has it, or before which it happened. `text`: the
    person's words, "" without any. `at`: seconds of the epoch. `corrects`: it says that the agent's
    work or its way is wrong; of a message, that is what its words most probably mean.
    """

    kind: HumanKind
    position: int
    text: str = ""
    at: float | None = None
    corrects: bool = False


class Session(Struct, kw_only=True):
    """One session of one agent; a sub-agent's is a session with a `parent`.

    `messages`: as the agent's model saw them, each answer one `assistant` message, in a form that
    `gateway.steering.transcript.steps` reads. `compactions`: indices of the messages that replaced
    all earlier ones. `project`: the working directory. `lines`, `unread`: of the file, on its first
    session only. Times are seconds of the epoch, None if unknown.
    """

    id: str
    agent: str
    version: str = ""
    project: str = ""
    parent: str = ""
    title: str = ""
    started: float | None = None
    ended: float | None = None
    messages: list[dict[str, Any]] = []
    calls: list[ModelCall] = []
    human: list[HumanTurn] = []
    compactions: list[int] = []
    outcome: bool | None = None
    lines: int = 0
    unread: Sequence[Unread] = ()
    reasons: Mapping[str, int] = {}

    def at(self, value: object) -> float | None:
        """Read a time stamp, extend the session's span to it, and return it."""
        moment = epoch(value)
        if moment is not None:
            self.started = moment if self.started is None else min(self.started, moment)
            self.ended = moment if self.ended is None else max(self.ended, moment)
        return moment

    def did(
        self, kind: HumanKind, text: str = "", at: float | None = None, *, back: int = 0
    ) -> None:
        """Note an act of the person: at the next message, or `back` messages before it."""
        position = len(self.messages) - back
        self.human.append(HumanTurn(kind=kind, position=position, text=text.strip(), at=at))

    def count(self, kind: HumanKind) -> int:
        """The number of acts of one kind."""
        return sum(turn.kind == kind for turn in self.human)


_WORKTREE = re.compile(r"[/\\](?:\.claude[/\\])?\.?worktrees?[/\\].*", re.DOTALL)


def project_of(folder: str) -> str:
    """The project of a working directory: the folder itself, or the one whose worktree it is."""
    return _WORKTREE.sub("", folder)


def epoch(value: object) -> float | None:
    """A time stamp as seconds of the epoch: ISO 8601, or a number of seconds or milliseconds."""
    number = as_number(value, None)
    if number is not None:
        return number / 1000 if number > 1e11 else number
    text = as_text(value, "")
    if not text:
        return None
    try:
        return datetime.fromisoformat(text).timestamp()
    except ValueError:
        return None
