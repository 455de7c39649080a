"""Which kind of agent a request comes from, by the names of the tools that it offers."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from typing import Literal

from gateway.steering.word_lists import word_list

AgentKind = Literal["coding", "research", "dialogue", "general"]

_PART = re.compile(r"[A-Z]?[a-z]+|[A-Z]+(?![a-z])")
_NAME_CHARS = 128
_EDITORS = frozenset(word_list("agent_kind", "editors"))
_WEB = frozenset(word_list("agent_kind", "web"))
_PROGRAMS = frozenset(word_list("agent_kind", "programs"))
_RECORDS = frozenset(word_list("agent_kind", "records"))


def kind_of_agent(tools: Sequence[str]) -> AgentKind:
    """The kind: who edits is coding, even with the web; who works on records serves in a dialogue.

    `general` when the names tell nothing.
    """
    parts = set(_parts(tools))
    if parts & _EDITORS:
        return "coding"
    if parts & _WEB:
        return "research"
    if parts & _PROGRAMS:
        return "coding"
    return "dialogue" if parts & _RECORDS else "general"


def _parts(tools: Iterable[str]) -> Iterable[str]:
    for tool in tools:
        for part in _PART.findall(tool[:_NAME_CHARS]):
            yield part.lower()
