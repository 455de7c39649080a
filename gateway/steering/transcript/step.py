"""The values that the whole core works on: a step and its actions."""

from __future__ import annotations

from msgspec import Struct


class Action(Struct, frozen=True, kw_only=True):
    """One tool call with its result.

    `arguments` as the model sent them; `observation` uncut; `is_error` only where the protocol
    flags the result as an error. `name` is empty for a result whose call could not be read. `image`
    is a checksum of the images in the result or shown right behind it, 0 without any.
    """

    name: str
    arguments: str = ""
    observation: str = ""
    is_error: bool = False
    image: int = 0


class Step(Struct, frozen=True, kw_only=True):
    """One assistant message and its answers; `index` counts the steps of a conversation from 0.

    `thought` is the text next to the calls, without white space at the ends (clients change it when
    they echo a reply). `tokens` is None when unknown. `prompted`: a user message came before it.
    """

    index: int
    thought: str = ""
    actions: tuple[Action, ...] = ()
    reasoning: str = ""
    tokens: int | None = None
    prompted: bool = False
