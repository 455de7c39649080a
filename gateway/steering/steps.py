"""Steps: one assistant message with everything that answers it."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Action:
    """One tool call with its result; `arguments` as the model sent them, `observation` uncut."""

    name: str
    arguments: str = ""
    observation: str = ""
    is_error: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """One assistant message and its answers; `index` counts assistant messages from 0."""

    index: int
    thought: str = ""
    actions: tuple[Action, ...] = ()
    reasoning: str = ""
    tokens: int | None = None
